package wake

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// expired is the deadline of a wait that must not sleep.
var expired = Wait{DeadlineNs: 1}

// ways are those in which goroutines sleep until something comes to a queue, which is the second
// one of its domain, with how many may do so at once.
var ways = map[string]int{"read": 3, "set": 1, "channel": 3}

// sleeper makes what a goroutine calls that sleeps in a way. came says that something did; an entry
// is read by a read alone.
func sleeper(t *testing.T, d *domainQueues, way string) func(w Wait) (came bool, err error) {
	r := d.r[1]
	switch way {
	case "set":
		s := d.NewSet()
		s.Add(0, d.r[0].Bell)
		s.Add(1, r.Bell)
		return func(w Wait) (bool, error) {
			ready, err := s.Wait(nil, w)
			if len(ready) > 0 && !slices.Equal(ready, []int{1}) {
				err = fmt.Errorf("ready is %v", ready)
			}
			return len(ready) > 0, err
		}
	case "channel":
		c := d.NewChannel()
		c.Add(1, r.Bell)
		shmtest.Must(t, c.Arm(1, NotifyAny))
		d.channel = c
		return func(w Wait) (bool, error) {
			e, ok, err := c.Get(w)
			if ok && e.Bit != 1 {
				err = fmt.Errorf("an event of queue %d", e.Bit)
			}
			return ok, err
		}
	}
	return func(w Wait) (bool, error) {
		_, why := r.sread(laneSlots, w)
		return why != gotNothing, r.broken
	}
}

// asleep waits until somebody sleeps on the domain or a queue of it, or is about to.
func (d *domainQueues) asleep(t *testing.T, waiters int) {
	t.Helper()
	for {
		d.mu.Lock()
		n := d.nw
		d.mu.Unlock()
		for _, r := range d.r {
			n += int(r.sleeps.Load())
		}
		if n >= waiters {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// What ends a sleep, each beside something that no mark tells of, or not all.
func TestWhatWakes(t *testing.T) {
	for _, tt := range []struct {
		name string
		ways []string // of which it is the end
		wake func(d *domainQueues, q *queue, r *reader) error
	}{
		{"published", []string{"read", "set", "channel"},
			func(d *domainQueues, q *queue, _ *reader) error {
				q.writer(0, ring.SeqCst, d.ringer(1)).put(1)
				return nil
			}},
		{"own signal", []string{"read", "set"}, func(_ *domainQueues, _ *queue, r *reader) error {
			r.Signal()
			return nil
		}},
		{"other's signal", []string{"read", "set"}, func(d *domainQueues, q *queue, _ *reader) error {
			hold := &DomainRinger{Arm: d.arm, Hints: d.hints, Bit: 1}
			Signal(q.arm, q.hints, nil, func(uint16) *DomainRinger { return hold })
			return nil
		}},
		{"death", []string{"read", "set", "channel"},
			func(_ *domainQueues, q *queue, r *reader) error {
				q.writer(0, ring.SeqCst).publish(1)
				r.Mark(0)
				return nil
			}},
		{"considered lane", []string{"set"}, func(_ *domainQueues, q *queue, r *reader) error {
			q.writer(0, ring.SeqCst).publish(1)
			r.Lock()
			defer r.Unlock()
			r.Consider(0)
			return nil
		}},
		{"considered queue", []string{"set"}, func(d *domainQueues, q *queue, _ *reader) error {
			q.writer(0, ring.SeqCst).publish(1)
			mark(q.hints.ready, 0)
			d.Consider(-1)
			d.Consider(1 << 20)
			d.Consider(1)
			return nil
		}},
		{"kicked queue", []string{"set"}, func(_ *domainQueues, q *queue, r *reader) error {
			q.writer(0, ring.SeqCst).publish(1)
			mark(q.hints.ready, 0)
			r.Kick()
			return nil
		}},
		{"injected", []string{"channel"}, func(d *domainQueues, _ *queue, _ *reader) error {
			d.channel.Inject(1)
			return nil
		}},
		// The producer has published and marked, and rings nobody any more.
		{"armed again", []string{"channel"}, func(d *domainQueues, q *queue, _ *reader) error {
			q.writer(0, ring.SeqCst).publish(1)
			mark(q.hints.ready, 0)
			return d.channel.Arm(1, NotifyAny)
		}},
	} {
		for _, way := range tt.ways {
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				d := newDomain(t, 2, 1, readerOptions{shared: true})
				watchdog(t, d.String)
				wait := sleeper(t, d, way)
				done := make(chan error)
				go func() {
					came, err := wait(Wait{})
					if err == nil && !came {
						err = errors.New("nothing came")
					}
					done <- err
				}()
				d.asleep(t, 1)
				shmtest.Must(t, tt.wake(d, d.q[1], d.r[1]))
				shmtest.Must(t, <-done)
				// A set leaves what came to the read that follows.
				if came, err := wait(expired); came != (way == "set") || err != nil {
					t.Error("once more: ", came, err)
				}
				d.r[1].TakeSignal()
				d.r[1].read(laneSlots)
				if came, err := wait(expired); came || err != nil {
					t.Error("after a read: ", came, err)
				}
			})
		}
	}
}

// A kick ends every sleep whatever is armed, so that who is told to stop looks at that. The
// explorer shows that a second waiter on one set loses a wake, so it is refused.
func TestKickAndStop(t *testing.T) {
	for way, most := range ways {
		t.Run(way, func(t *testing.T) {
			d := newDomain(t, 2, 1, readerOptions{shared: true})
			watchdog(t, d.String)
			wait := sleeper(t, d, way)
			var stop atomic.Bool
			done := make(chan error, most)
			for range most {
				go func() {
					came, err := wait(Wait{Stop: stop.Load})
					if came {
						err = errors.Join(err, errors.New("something out of nothing"))
					}
					done <- err
				}()
			}
			d.asleep(t, most)
			if _, err := wait(expired); errors.Is(err, ErrWaiting) != (most == 1) {
				t.Errorf("another one that waits: %v", err)
			}
			stop.Store(true)
			d.Kick()
			d.r[1].Kick()
			for range most {
				shmtest.Must(t, <-done)
			}
			if d.arm.Word.Load() != 0 || d.q[1].arm.Word.Load()&armDirect != 0 {
				t.Error("armed although nobody waits")
			}
		})
	}
}

// The deadline is absolute, and a slice only shortens one sleep.
func TestDeadlines(t *testing.T) {
	d := newDomain(t, 2, 1, readerOptions{shared: true})
	for way := range ways {
		wait := sleeper(t, d, way)
		for _, w := range []Wait{{}, {SliceNs: 1e6}, {SliceNs: 1e12}} {
			start := spin.Now()
			w.DeadlineNs = start + 5e6
			if came, err := wait(w); came || err != nil {
				t.Fatal(way, came, err)
			}
			if took := spin.Now() - start; took < 5e6 {
				t.Errorf("%s %+v: it took %d ns", way, w, took)
			}
		}
	}
	if got := (Wait{DeadlineNs: 7}).until(); got != 7 {
		t.Error(got)
	}
	r := d.r[0]
	sleeps := r.sleeps.Load()
	r.Sleep(Wait{DeadlineNs: spin.Now() + 1e12, SliceNs: 1e6})
	if r.sleeps.Load() != sleeps+1 {
		t.Error("a slice is no sleep")
	}
}

// What happens between the look that found nothing and the arming rings nobody, for nobody is
// armed. The second look finds it, on the bell of who sleeps and on a feeder's: also what another
// goroutine took from the shared bits, and that the bell came to its end.
func TestSecondLook(t *testing.T) {
	for name, happens := range map[string]func(*queue, *reader){
		"a mark":   func(q *queue, _ *reader) { q.writer(0, ring.SeqCst).put(1) },
		"a signal": func(q *queue, _ *reader) { Signal(q.arm, q.hints, nil, nil) },
		"a mark that another goroutine takes": func(q *queue, r *reader) {
			q.writer(0, ring.SeqCst).put(1)
			r.Lock()
			defer r.Unlock()
			r.Take()
		},
		"the end": func(_ *queue, r *reader) { r.End() },
	} {
		for missing := range uint64(3) {
			for _, feeds := range []bool{false, true} {
				q := heapQueue(t, 1)
				r := newReader(q, readerOptions{shared: true})
				r.Take()
				if more, err := r.Park(); more || err != nil {
					t.Fatal(more, err)
				}
				sleeper, w := r, Wait{DeadlineNs: spin.Now() + 2e9, Missing: missing, Takes: r.takes}
				if feeds && name == "a signal" { // which is for the queue alone
					continue
				}
				if feeds {
					sleeper, w.Feeders = newReader(heapQueue(t, 1), readerOptions{shared: true}),
						[]*Bell{r.Bell}
				}
				happens(q, r)
				if sleeper.Sleep(w); sleeper.sleeps.Load() != 0 {
					t.Errorf("%s, %d entries missing, of a feeder %v: slept on it", name, missing, feeds)
				}
			}
		}
	}
}
