package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// Object is an object that stands beside the queues: a counter, an address vector, the bell of a
// process, a region; or one of a kind that this version does not know. With Error set only Name and
// Path are known.
type Object struct {
	Name       string     `json:"name"`
	Path       string     `json:"path"`
	Error      *Problem   `json:"error"`
	State      string     `json:"state"` // a word of [States]
	Kind       *string    `json:"kind"`  // counter, addresses, bell, region, umem; kind and a number
	UUID       *string    `json:"uuid"`
	ABI        *string    `json:"abi"`
	Generation *uint64    `json:"generation"`
	CreatedAt  *time.Time `json:"created_at"`
	AgeNs      *int64     `json:"age_ns"`
	SizeBytes  *uint64    `json:"size_bytes"`
	Owner      *string    `json:"owner"` // user name
	UID        *uint32    `json:"uid"`
	Mode       *string    `json:"mode"`    // octal
	Process    *Process   `json:"process"` // that owns it; nil for a counter, which nobody owns

	Counter   *Counter   `json:"counter"`
	Addresses *Addresses `json:"addresses"`
	Domain    *Domain    `json:"domain"`
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
	Seat      int     `json:"seat"`
	PID       *int    `json:"pid"`
	Command   *string `json:"command"`
	Threshold *uint64 `json:"threshold"` // that somebody sleeps for; nil: nobody does
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

// Objects looks at every object of the directory that is not part of a queue. Files that are no
// objects are left out; an object that cannot be looked at has its Error set.
func Objects(d *shm.Dir) ([]Object, error) {
	names, err := ObjectNames(d)
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(names))
	seats := seating(d)
	for _, name := range names {
		o, err := showObject(d, name, seats)
		if err == nil || IsObject(err) {
			objects = append(objects, o)
		}
	}
	return objects, nil
}

// ObjectNames returns the names that such objects may have, sorted. It looks at none of them.
func ObjectNames(d *shm.Dir) ([]string, error) {
	entries, err := d.List()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !e.IsDir && !strings.HasPrefix(e.Name, ".") {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

// IsObject tells an object that is damaged, or of another version, from a file that is none, by the
// error of [ShowObject].
func IsObject(err error) bool {
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
	return showObject(d, name, seating(d))
}

// seating returns a function that knows which queues of a directory have a bit of which bell. It
// looks at them when it is asked first.
func seating(d *shm.Dir) func(bell shm.UUID) []string {
	look := sync.OnceValue(func() map[string][]string {
		queues, _ := List(d)
		seats := map[string][]string{}
		for _, q := range queues {
			if q.Bell != nil && q.Bell.Domain != nil {
				seats[*q.Bell.Domain] = append(seats[*q.Bell.Domain], q.Name)
			}
		}
		return seats
	})
	return func(bell shm.UUID) []string { return append([]string{}, look()[bell.String()]...) }
}

func showObject(d *shm.Dir, name string, seats func(shm.UUID) []string) (Object, error) {
	s, err := cq.InspectObject(d, name)
	if err != nil {
		path := filepath.Join(d.Path(), name)
		return Object{Name: name, Path: path, Error: NewProblem(err), State: stateOfError(err)}, err
	}
	o := Object{Name: s.Name, Path: s.Path, Kind: new(s.Kind.String()), UUID: new(s.UUID.String()),
		ABI:        new(fmt.Sprintf("%d.%d", s.ABIMajor, s.ABIMinor)),
		Generation: &s.Generation, SizeBytes: &s.SizeBytes,
		CreatedAt: new(time.Unix(0, s.CreatedRealNs).UTC())}
	if boot := shm.Self().BootID; !boot.IsZero() && boot == s.BootID {
		o.AgeNs = new(max(0, doorbell.Now()-s.CreatedMonoNs))
	}
	o.Mode, o.UID, o.Owner = fileOwner(s.Mode, s.UID)
	if s.Counter == nil {
		o.Process = new(process(s.Owner, s.Life))
	}
	o.content(&s, seats)
	o.State = o.state()
	return o, nil
}

// content translates what the kind has of its own.
func (o *Object) content(s *cq.ObjectSnapshot, seats func(shm.UUID) []string) {
	if c := s.Counter; c != nil {
		o.Counter = &Counter{Events: c.Options.Events.String(),
			Lifetime: c.Options.Lifetime.String(), Value: c.Value, Errors: c.Errors, Sets: c.Sets,
			Wakes: uint64(c.Wakes), Handles: []CounterHandle{}, More: c.Standing}
		for _, h := range c.Handles {
			o.Counter.Handles = append(o.Counter.Handles, counterHandle(h))
		}
	}
	if a := s.Addresses; a != nil {
		o.Addresses = &Addresses{Format: a.Options.Format.String(),
			Lifetime: a.Options.Lifetime.String(), Used: a.Used, Count: uint64(a.Options.Count),
			AddrMaxBytes: uint64(a.Options.AddrMaxBytes), UserID: a.Options.UserID, Closed: a.Closed}
	}
	if b := s.Bell; b != nil {
		o.Domain = &Domain{Members: uint64(b.Members), Sleeping: b.Sleeping, Ready: b.Ready,
			Epoch: b.Epoch, Queues: seats(s.UUID)}
	}
}

func counterHandle(h cq.CounterHandle) CounterHandle {
	out := CounterHandle{Seat: h.Seat}
	if h.Process.PID != 0 {
		out.PID = new(h.Process.PID)
		if h.Process.PIDNS == shm.Self().PIDNS {
			out.Command = command(h.Process.PID)
		}
	}
	if h.Waiting {
		out.Threshold = &h.Threshold
	}
	return out
}
