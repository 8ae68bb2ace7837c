package torture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/stage"
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
		steps: []crash.Label{crash.CountSeated, crash.CountJoined, crash.CountAdded,
			crash.CountWoken, crash.CountArmed, crash.CountSleep, crash.CountLeaving},
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
	begin := stage.Lifetime()
	return s.still("counter", nil, func() bool {
		value, err := s.counter.Read()
		if err != nil {
			s.broken("counter", kindFailed, 1, "read: %v", err)
			return true
		}
		for _, p := range s.procs {
			want := t.word(p)
			if p == dead || want == 0 || want > value || p.Over() {
				continue
			}
			late := stage.Lifetime()-begin > patience/2
			if late {
				s.broken("counter", kindHung, 1, "process %d waits for %d with %d there, since one died "+
					"at step %v", p.index, want, value, dead.step)
			}
			return late
		}
		return true
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
