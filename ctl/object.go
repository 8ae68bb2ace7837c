package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Object is an object that stands beside the queues: a counter, an address vector, the bell of a
// process, a region, one of the two of a fabric endpoint; or one of a kind that this version does
// not know. If Error is set only Name, Path and State are known.
type Object struct {
	Name  string   `json:"name"`
	Path  string   `json:"path"`
	Error *Problem `json:"error"`
	State string   `json:"state"` // a word of [States]
	Kind  *string  `json:"kind"`  // counter, fabric, region and so on; kind and a number
	UUID  *string  `json:"uuid"`
	ABI   *string  `json:"abi"`
	About
	Process *Process `json:"process"` // that owns it; nil for a counter and a group, which nobody owns

	Counter   *Counter   `json:"counter"`
	Addresses *Addresses `json:"addresses"`
	Domain    *Domain    `json:"domain"`
	Fabric    *Fabric    `json:"fabric"`
	Outbox    *Outbox    `json:"outbox"`
	Group     *Group     `json:"group"`
}

// Counter is what a counter holds, and who has it open.
type Counter struct {
	Events   string          `json:"events"` // completions or bytes
	Lifetime string          `json:"lifetime"`
	Value    uint64          `json:"value"`
	Errors   uint64          `json:"errors"`
	Sets     uint64          `json:"sets"`  // times that one of the two was set
	Wakes    uint64          `json:"wakes"` // times that sleepers were woken, wrapping at 2^32
	Handles  []CounterHandle `json:"handles"`
	// More says that more handles are open than there are seats for.
	More bool `json:"more"`
}

// CounterHandle is a process that has a counter open.
type CounterHandle struct {
	Seat    int     `json:"seat"`
	PID     *int    `json:"pid"`
	Command *string `json:"command"`
	// Threshold is what somebody sleeps for, 0 if it is any change, as in a set; nil: nobody sleeps.
	Threshold *uint64 `json:"threshold"`
}

// Addresses is what an address vector holds.
type Addresses struct {
	Format       string `json:"format"`
	Lifetime     string `json:"lifetime"`
	Used         uint64 `json:"used"`
	Count        uint64 `json:"count"` // that fit
	AddrMaxBytes uint64 `json:"addr_max_bytes"`
	UserID       bool   `json:"user_id"`
	Closed       bool   `json:"closed"`
}

// Domain is the bell of a process that reads: what its wait sets and channels sleep on.
type Domain struct {
	Members  uint64 `json:"members"`  // that there is room for
	Sleeping bool   `json:"sleeping"` // somebody waits on a set or channel
	Ready    int    `json:"ready"`    // members marked and not looked at
	Epoch    uint32 `json:"epoch"`    // futex word: grows with every wake
	// Queues are those of the directory that have a bit there: they are, or were, in a set of the
	// process or on a channel.
	Queues []string `json:"queues"`
}

// Objects looks at objects of the directory that are not part of a queue: at those with the given
// names, or at all if none is given. Files that are no objects are left out. An object that cannot
// be looked at has its Error set.
func Objects(d *shm.Dir, names ...string) ([]Object, error) {
	if len(names) == 0 {
		var err error
		if _, names, err = Names(d); err != nil {
			return nil, err
		}
	}
	objects := make([]Object, 0, len(names))
	n := neighboursOf(d)
	for _, name := range names {
		o, err := n.show(name)
		if err == nil || isObject(err) {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// isObject tells an object that is damaged, or of another version, from a file that is none, by the
// error of [ShowObject].
func isObject(err error) bool {
	var e *shm.Error
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, shm.ErrName), errors.Is(err, shm.ErrOwner):
		return false
	case errors.As(err, &e):
		return e.Field != "magic" && e.Field != "type" && e.Field != "size"
	}
	return true
}

// ShowObject looks at one object. One that exists and cannot be looked at is returned with Error
// set, together with the error.
func ShowObject(d *shm.Dir, name string) (Object, error) {
	return neighboursOf(d).show(name)
}

// neighbours are what stands in a directory, as far as it says more of one object of it.
type neighbours struct {
	dir   *shm.Dir
	seats func() map[string][]string // queues that have a bit of a bell, by its uuid
	ends  map[string]*fabricEnd
}

func neighboursOf(d *shm.Dir) *neighbours {
	return &neighbours{dir: d, ends: map[string]*fabricEnd{},
		seats: sync.OnceValue(func() map[string][]string {
			m := NewMonitor(d)
			defer m.Close()
			queues, _ := m.List()
			seats := map[string][]string{}
			for _, q := range queues {
				if q.Bell != nil && q.Bell.Domain != nil {
					seats[*q.Bell.Domain] = append(seats[*q.Bell.Domain], q.Name)
				}
			}
			return seats
		})}
}

func (n *neighbours) show(name string) (Object, error) {
	o := Object{Name: name, Path: filepath.Join(n.dir.Path(), name)}
	obj, err := n.dir.Open(name, shm.Inspect)
	if err == nil {
		defer obj.Close()
		// Whoever made the file may truncate it at any moment.
		if fault := shm.Guard(func() { err = o.describe(obj, n) }); fault != nil {
			err = fault
		}
	}
	if err != nil {
		err = fmt.Errorf("inspect object %q: %w", name, err)
		return Object{Name: name, Path: o.Path, Error: NewProblem(err), State: stateOfError(err)}, err
	}
	if o.Domain != nil {
		o.Domain.Queues = append([]string{}, n.seats()[*o.UUID]...)
	}
	o.State = o.state()
	return o, nil
}

// describe says what an object is, by its memory.
func (o *Object) describe(obj *shm.Object, n *neighbours) error {
	a, owner, err := about(obj)
	if err != nil {
		return err
	}
	h := obj.Header()
	o.Kind, o.UUID, o.ABI, o.About = new(h.Kind.String()), new(h.UUID.String()), abi(h), a
	switch h.Kind {
	case shm.KindCounter:
		o.Counter, err = counter(obj)
		return err
	case shm.KindGroup:
		o.Group, err = group(obj)
		return err
	}
	o.Process = &owner
	switch h.Kind {
	case shm.KindAddresses:
		o.Addresses, err = addresses(obj)
	case shm.KindBell:
		o.Domain, err = domain(obj)
	case shm.KindFabric:
		o.Fabric, err = n.fabric(obj)
	case shm.KindOutbox:
		o.Outbox, err = n.outbox(obj)
	}
	return err
}

const opShow = "inspect object"

func counter(obj *shm.Object) (*Counter, error) {
	o, err := kind.StoredCounter(opShow, obj.Name(), obj.Header())
	if err != nil {
		return nil, err
	}
	words, err := kind.WordsOf[kind.CounterWords](obj, kind.SectCounter, 0)
	if err != nil {
		return nil, err
	}
	c := &Counter{Events: cq.CounterEvents(o.Events).String(),
		Lifetime: cq.Lifetime(o.Lifetime).String(), Handles: []CounterHandle{},
		Value: words.Value.Load(), Errors: words.Errs.Load(), Sets: words.Sets.Load(),
		Wakes: uint64(words.Bell.Wakes())}
	seats := obj.Seats(words.Seats[:])
	for i := range counterbell.Seats {
		seat := seats.At(i)
		if life, err := seat.Life(); err != nil {
			return nil, err
		} else if life == shm.Alive || life == shm.LockLost {
			c.Handles = append(c.Handles, counterHandle(words, seat))
		}
	}
	c.More, err = seats.Standing()
	return c, err
}

func counterHandle(words *kind.CounterWords, seat *shm.Seat) CounterHandle {
	h := CounterHandle{Seat: seat.Index()}
	h.PID, h.Command = sitter(seat)
	if t := words.Bell.Threshold(seat.Index()); t != counterbell.Idle {
		h.Threshold = &t
	}
	return h
}

// sitter says whose a seat is.
func sitter(seat *shm.Seat) (pid *int, name *string) {
	who := seat.Owner()
	if who.State != shm.StateOwned || who.PID == 0 {
		return nil, nil
	}
	if who.PIDNS == shm.Self().PIDNS {
		name = command(who.PID)
	}
	return &who.PID, name
}

func addresses(obj *shm.Object) (*Addresses, error) {
	o, err := kind.StoredAddresses(opShow, obj.Name(), obj.Header())
	if err != nil {
		return nil, err
	}
	words, err := kind.WordsOf[kind.AddrWords](obj, kind.SectAddrWords, 0)
	if err != nil {
		return nil, err
	}
	count := uint64(o.Count)
	return &Addresses{Format: cq.AddressFormat(o.Format).String(),
		Lifetime: cq.Lifetime(o.Lifetime).String(), Used: min(words.Used.Load(), count), Count: count,
		AddrMaxBytes: uint64(o.MaxBytes), UserID: o.UserID,
		Closed: words.State.Load() == kind.StateClosed}, nil
}

func domain(obj *shm.Object) (*Domain, error) {
	if err := kind.HasSections(opShow, obj.Name(), obj.Header(), kind.BellSpec()); err != nil {
		return nil, err
	}
	arm, hints, err := kind.BellMemory(obj, false)
	if err != nil {
		return nil, err
	}
	v := wake.Inspect(0, hints)
	return &Domain{Members: kind.DomainBits, Sleeping: arm.Word.Load() != 0, Ready: v.Ready,
		Epoch: v.Epoch}, nil
}
