package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// A counter that every process of the role adds to and waits for. Each notes what it is going to
// add, and what it has added: at any time the value is between the sums of the two. What a process
// was adding when it died stays in doubt, unless it died at a step that says it.
//
// After the death of one that had added and told nobody all others keep still: who waits for a
// value that is reached must wake up, though nobody adds any more.
const (
	counterName   = "sum"
	counterPlaces = 3
)

// Words of the role: of the supervisor, and then of each place.
const (
	countWakes  = iota // waits that ended well
	countHead          // words of the places follow
	countIntent = 0    // what is going to be added, all processes of the place together
	countAdded  = 1    // what is added
	countWaits  = 2    // the value that is waited for, 0 is none
	countDoubt  = 3    // the supervisor: what its predecessors were going to add when they died
	countPlace  = 4
)

func counterRole() *role {
	return &role{name: "counter", places: counterPlaces, stops: true,
		words: countHead + counterPlaces*countPlace, run: (*child).runCounter,
		steps:   at("count-"),
		prepare: prepareCounter, died: counterDied, check: checkCounter,
		leftovers: func(s *supervisor) []string { // it goes with the last that has it
			if err := s.counter.Close(); err != nil {
				return []string{err.Error()}
			}
			return nil
		},
		starting: startCounter,
		counts:   map[string]int{"waits": countWakes},
		sum: func(s *supervisor, _ *role, to *RoleReport) {
			t := s.tally()
			to.Published, to.InDoubt = t.added(), t.intended()-t.added()
			if v, err := s.counter.Read(); err == nil {
				s.counted = v
			}
			to.Read = s.counted
		}}
}

// tally is the part of the ledger that says what was added.
type tally []atomic.Uint64

func (s *supervisor) tally() tally { return s.ledger.region("counter") }

func (t tally) place(i int) []atomic.Uint64 {
	return t[countHead+i*countPlace : countHead+(i+1)*countPlace]
}

func (t tally) total(word int) (n uint64) {
	for i := range counterPlaces {
		n += t.place(i)[word].Load()
	}
	return n
}

func (t tally) added() uint64 { return t.total(countAdded) }

func (t tally) intended() uint64 { return t.total(countIntent) }

// prepareCounter makes the counter. The supervisor has it open all the time, only to look.
func prepareCounter(s *supervisor) (undo func(), err error) {
	s.counter, err = cq.CreateCounter(cq.Named(s.dir, counterName), cq.CounterOptions{})
	if err != nil {
		return nil, err
	}
	return func() { _ = s.counter.Close() }, nil
}

// startCounter keeps apart what is in doubt already, and stays so.
func startCounter(s *supervisor, p *proc) {
	mine := s.tally().place(p.index)
	mine[countWaits].Store(0)
	mine[countDoubt].Store(mine[countIntent].Load() - mine[countAdded].Load())
}

// counterDied settles what is not in doubt, and looks whether all wake who should.
func counterDied(s *supervisor, p *proc) error {
	mine := s.tally().place(p.index)
	if p.shot {
		return nil
	}
	switch p.step {
	case crash.CountAdded, crash.CountWoken: // it was added
		mine[countAdded].Store(mine[countIntent].Load() - mine[countDoubt].Load())
	}
	if p.step == crash.CountAdded && s.frozen == nil {
		return s.awaken(p)
	}
	return nil
}

// awaken has nobody add until all who wait for what is reached have woken up.
func (s *supervisor) awaken(dead *proc) error {
	t := s.tally()
	return s.silence("counter", nil, func() (missing string, of []*proc) {
		value, err := s.counter.Read()
		if err != nil {
			s.broken("counter", kindFailed, 1, "read: %v", err)
			return "", nil
		}
		for _, p := range s.procs {
			if want := t.word(p); p != dead && want != 0 && want <= value && !p.Over() {
				of = append(of, p)
				missing += fmt.Sprintf("process %d waits for %d with %d there, since one died at step %v ",
					p.index, want, value, dead.step)
			}
		}
		return missing, of
	})
}

// word returns what a process waits for, 0 if it is none of the role or does not wait.
func (t tally) word(p *proc) uint64 {
	if p.role.name != "counter" {
		return 0
	}
	return t.place(p.index)[countWaits].Load()
}

// checkCounter compares the value with what was added.
func checkCounter(s *supervisor, _ *role) {
	value, err := s.counter.Read()
	t := s.tally()
	switch low, high := t.added(), t.intended(); {
	case err != nil:
		s.broken("counter", kindFailed, 1, "read: %v", err)
	case value < low:
		s.broken("counter", kindLost, low-value, "%d were added, the counter says %d", low, value)
	case value > high:
		s.broken("counter", kindUnpublished, value-high, "%d were added at most, the counter says %d",
			high, value)
	}
}

// runCounter opens the counter, adds to it and waits for it, again and again.
func (c *child) runCounter() error {
	for c.ledger.phase() == phaseRun {
		k, err := cq.AttachCounter(cq.Named(c.dir, counterName), cq.CounterOptions{})
		if err != nil {
			return err
		}
		ctx, stop := c.running(phaseStop)
		waited := make(chan error, 1)
		go func() { waited <- c.await(ctx, k) }()
		err = c.add(k)
		stop()
		if err = errors.Join(err, <-waited, k.Close()); err != nil {
			return err
		}
	}
	return nil
}

// add adds for a while.
func (c *child) add(k *cq.Counter) error {
	t := tally(c.words)
	mine := t.place(c.Index)
	seen := uint64(0)
	for range 1 + c.rnd.IntN(300) {
		for c.hushed() {
			nap(time.Millisecond)
		}
		if c.ledger.phase() != phaseRun {
			return nil
		}
		n := uint64(1 + c.rnd.IntN(3))
		// Of what its predecessor died over nobody knows: it stays between the two.
		doubt := mine[countIntent].Load() - mine[countAdded].Load()
		mine[countIntent].Add(n)
		if err := k.Add(n); err != nil {
			return err
		}
		mine[countAdded].Store(mine[countIntent].Load() - doubt)
		low := t.added()
		value, err := k.Read()
		if err != nil {
			return err
		}
		if high := t.intended(); value < low || value > high || value < seen {
			c.tell(kindLost, "the counter says %d, after %d, with %d to %d added", value, seen, low,
				high)
		}
		seen = value
		if c.rnd.IntN(20) == 0 {
			nap(time.Duration(c.rnd.IntN(2000)) * time.Microsecond)
		}
	}
	return nil
}

// await waits for one value after the other.
func (c *child) await(ctx context.Context, k *cq.Counter) error {
	t := tally(c.words)
	waits := &t.place(c.Index)[countWaits]
	defer waits.Store(0)
	for n := uint64(1); ctx.Err() == nil; n++ {
		value, err := k.Read()
		if err != nil {
			return err
		}
		want := value + 1 + n%50
		waits.Store(want)
		err = k.Wait(ctx, want, cq.WaitOptions{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		}
		waits.Store(0)
		t[countWakes].Add(1)
		if got, err := k.Read(); err != nil || got < want {
			c.tell(kindUnpublished, "woken with %d, and not %d (%v)", got, want, err)
		}
	}
	return nil
}

// An address vector with a name: owners that insert and remove, and take it over from each other,
// and others that look things up. The ledger has a word for each address; who owns the vector
// stores there what it is going to do, and what it has done. Who finds the same word before and
// after it looked something up knows what must come out of it.
const (
	vectorName  = "addresses"
	vectorCount = 64  // that fit
	addressIDs  = 160 // that there are
	vectorUsers = 2
)

// A word of the ledger: what is known of an address, or its index behind that, and a number that
// grows with each change.
const (
	addrAbsent   = iota
	addrChanging // nobody knows
	addrPresent
	addrBits = 24
)

// Words of the owners: those of what is held, and one for each address.
const (
	vectorChanges = heldWords + iota // insertions and removals
	vectorWords
)

func vectorOwnerRole() *role {
	return holder("adoptions", role{name: "vector-owner", places: 2, words: vectorWords + addressIDs,
		run: (*child).ownVector, counts: map[string]int{"changes": vectorChanges},
		steps: at("address-")})
}

func vectorUserRole() *role {
	return &role{name: "vector-user", places: vectorUsers, words: 1, stops: true,
		run: (*child).useVector, with: []string{"vector-owner"},
		counts: map[string]int{"lookups": 0}}
}

// addressOf makes the address of an id, a sockaddr_in6 that says whose it is in all its bytes.
func addressOf(id int) []byte {
	var ip [16]byte
	binary.BigEndian.PutUint64(ip[:], 0x20010db8<<32|uint64(id))
	binary.BigEndian.PutUint64(ip[8:], mix(uint64(id), 7))
	return cq.AppendSockaddr(nil, netip.AddrPortFrom(netip.AddrFrom16(ip), uint16(1000+id)))
}

// idOf returns whose an address is, or -1 if it is nobody's.
func idOf(raw []byte) int {
	a, ok := cq.ParseSockaddr(raw)
	if !ok {
		return -1
	}
	id := int(a.Port()) - 1000
	if id < 0 || id >= addressIDs || string(addressOf(id)) != string(raw) {
		return -1
	}
	return id
}

func known(word uint64) uint64 { return word & (1<<addrBits - 1) }

// contradicts tells whether what was found of an address, at an index or not, is not what a word
// of the ledger says.
func contradicts(word uint64, at cq.Addr, ok bool) (lost, unpublished bool) {
	lost = known(word) >= addrPresent && (!ok || uint64(at) != known(word)-addrPresent)
	return lost, known(word) == addrAbsent && ok
}

// owning is a process that has the vector.
type owning struct {
	*child
	v *cq.AddressVector
}

func (c *child) ownVector() error {
	o := &owning{child: c}
	return c.hold(func(make bool) (h held, err error) {
		opt := cq.AddressOptions{Count: vectorCount, Lifetime: cq.Persistent}
		opt.Existing = !make
		o.v, err = cq.OpenAddresses(cq.Named(c.dir, vectorName), opt)
		return o.v, err
	}, o.change)
}

// set stores what is known of an address.
func (o *owning) set(id int, is uint64) {
	w := &o.words[vectorWords+id]
	w.Store((w.Load()>>addrBits+1)<<addrBits | is)
}

// change inserts and removes until it is all over, or this owner leaves by itself.
func (o *owning) change(running context.Context) (done bool, err error) {
	o.takeStock()
	for running.Err() == nil {
		if err := o.one(o.rnd.IntN(addressIDs)); err != nil {
			return false, err
		}
		o.words[vectorChanges].Add(1)
		if o.rnd.IntN(10) == 0 {
			nap(time.Duration(o.rnd.IntN(300)) * time.Microsecond)
		}
		if o.rnd.IntN(5000) == 0 {
			return false, nil
		}
	}
	o.takeStock()
	return true, nil
}

// takeStock compares the vector with the ledger, and settles what a predecessor died over.
func (o *owning) takeStock() {
	there := 0
	for id := range addressIDs {
		word := o.words[vectorWords+id].Load()
		at, ok := o.v.Resolve(addressOf(id))
		switch lost, unpublished := contradicts(word, at, ok); {
		case lost:
			o.tell(kindLost, "address %d is in the vector: %v, at %d; known is %#x", id, ok, at, word)
		case unpublished:
			o.tell(kindUnpublished, "address %d was removed, and is at %d", id, at)
		}
		is := uint64(addrAbsent)
		if ok {
			there++
			is = addrPresent + uint64(at)
		}
		o.set(id, is)
	}
	if n := o.v.Len(); n != there {
		o.tell(kindLost, "%d addresses are found, the vector says %d", there, n)
	}
}

// one inserts an address, or removes it.
func (o *owning) one(id int) error {
	was := known(o.words[vectorWords+id].Load())
	o.set(id, addrChanging)
	if was >= addrPresent {
		if err := o.v.Remove(cq.Addr(was - addrPresent)); err != nil {
			return err
		}
		o.set(id, addrAbsent)
		return nil
	}
	at, err := o.v.Insert([][]byte{addressOf(id)}, cq.InsertOptions{})
	if errors.Is(err, syscall.ENOMEM) {
		if n := o.v.Len(); n != vectorCount {
			o.tell(kindLost, "the vector is full with %d of %d", n, vectorCount)
		}
		o.set(id, addrAbsent)
		return nil
	}
	if err != nil {
		return err
	}
	o.set(id, addrPresent+uint64(at[0]))
	return nil
}

// useVector opens the vector and looks things up, again and again.
func (c *child) useVector() error {
	for c.ledger.phase() == phaseRun {
		v, err := cq.AttachAddresses(cq.Named(c.dir, vectorName))
		if errors.Is(err, fs.ErrNotExist) {
			nap(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		c.lookUp(v)
		if err := v.Close(); err != nil {
			return err
		}
	}
	return nil
}

// lookUp looks up for a while.
func (c *child) lookUp(v *cq.AddressVector) {
	words := c.ledger.region("vector-owner")[vectorWords:]
	buf := make([]byte, 64)
	for n := range 1 + c.rnd.IntN(20000) {
		if c.ledger.phase() != phaseRun {
			return
		}
		c.words[0].Add(1)
		id := c.rnd.IntN(addressIDs)
		before := words[id].Load()
		at, ok := v.Resolve(addressOf(id))
		whose := -2
		if ok {
			if n, err := v.Lookup(at, buf); err == nil {
				whose = idOf(buf[:min(n, len(buf))])
			}
		}
		if whose == -1 {
			c.tell(kindUnpublished, "index %d of the vector is nobody's address: %x", at, buf)
		}
		if words[id].Load() != before {
			continue
		}
		switch lost, unpublished := contradicts(before, at, ok); {
		case lost, known(before) >= addrPresent && whose != id:
			c.tell(kindLost, "address %d is in the vector: %v, at %d, which is that of %d; known is %#x",
				id, ok, at, whose, before)
		case unpublished:
			c.tell(kindUnpublished, "address %d is not in the vector, and was found at %d", id, at)
		}
		if n%50 == 0 {
			nap(time.Duration(c.rnd.IntN(1000)) * time.Microsecond)
		}
	}
}
