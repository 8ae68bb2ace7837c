package doorbell_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

// rig are some rings beside the words, in memory of this process.
type rig struct {
	words     *doorbell.Words
	producers []*ring.Producer[uint64]
	consumers []*ring.Consumer[uint64]
}

func newRig(t *testing.T, lanes int, order ring.Order) *rig {
	t.Helper()
	mem := make([]byte, doorbell.Bytes(lanes))
	words, err := doorbell.Map(mem, lanes)
	if err != nil {
		t.Fatal(err)
	}
	words.Init()
	r := &rig{words: words}
	for range lanes {
		var tail, head ring.Index
		slots := make([]uint64, 8)
		r.producers = append(r.producers, ring.NewProducer(&tail, &head, slots, 0, order))
		r.consumers = append(r.consumers, ring.NewConsumer(&tail, &head, slots, 0))
	}
	return r
}

func (r *rig) bell(t *testing.T, o doorbell.Options) *doorbell.Bell {
	t.Helper()
	for _, c := range r.consumers {
		o.Levels = append(o.Levels, func() (head, tail uint64) { return c.Head(), c.Tail() })
	}
	b, err := doorbell.NewBell(r.words, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func (r *rig) ringer(t *testing.T, lane int, o doorbell.RingerOptions) *doorbell.Ringer {
	t.Helper()
	ringer, err := doorbell.NewRinger(r.words, lane, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ringer.Close)
	return ringer
}

// take takes one number of a lane.
func (r *rig) take(lane int) (v uint64, ok bool) {
	span := r.consumers[lane].Span(1)
	if len(span) == 0 {
		return 0, false
	}
	v = span[0]
	r.consumers[lane].Release(1)
	return v, true
}

// put publishes a number, or reports that there is no room.
func (r *rig) put(lane int, v uint64) bool {
	p := r.producers[lane]
	a, _ := p.Reserve(1)
	if len(a) == 0 {
		return false
	}
	a[0] = v
	p.Commit(1)
	return true
}

// TestNothingIsLost: what each producer published comes, once and in its order, to a reader that
// sleeps as soon as there is nothing, in either way and with either order of stores.
func TestNothingIsLost(t *testing.T) {
	const each = 20000
	for name, c := range map[string]struct {
		lanes      int
		order      ring.Order
		descriptor bool
	}{
		"one, release stores":         {lanes: 1, order: ring.Release},
		"one, sequentially":           {lanes: 1, order: ring.SeqCst},
		"three, release stores":       {lanes: 3, order: ring.Release},
		"three, descriptor":           {lanes: 3, order: ring.SeqCst, descriptor: true},
		"more than two words of bits": {lanes: 130, order: ring.Release},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.lanes, c.order)
			bell := r.bell(t, doorbell.Options{ReleaseStores: c.order == ring.Release,
				Descriptor: c.descriptor})
			n := uint64(each / c.lanes)
			var failed atomic.Bool
			var producers sync.WaitGroup
			for lane := range c.lanes {
				o := doorbell.RingerOptions{}
				if c.order == ring.Release {
					o.Fence = r.producers[lane].Republish
				}
				if c.descriptor {
					o.Descriptor = func(uint16) int {
						fd, err := unix.FcntlInt(uintptr(bell.EventFD()), unix.F_DUPFD_CLOEXEC, 0)
						failed.Store(failed.Load() || err != nil)
						return fd
					}
				}
				ringer := r.ringer(t, lane, o)
				producers.Go(func() {
					for v := uint64(0); v < n; {
						if r.put(lane, v) {
							v++
							ringer.Published(v)
						} else {
							time.Sleep(time.Microsecond)
						}
					}
				})
			}
			next := make([]uint64, c.lanes)
			for left := n * uint64(c.lanes); left > 0; {
				got := r.drain(t, bell, next)
				if left -= got; got > 0 || left == 0 {
					continue
				}
				if c.descriptor {
					poll(t, bell)
				} else if err := bell.Wait(10 * time.Second); err != nil {
					t.Fatal(err)
				}
			}
			producers.Wait() // the last of them may still ring
			if failed.Load() {
				t.Error("a producer has no descriptor")
			}
		})
	}
}

// drain reads a round as the package comment has it.
func (r *rig) drain(t *testing.T, bell *doorbell.Bell, next []uint64) (n uint64) {
	if bell.Only() == doorbell.Several {
		bell.Look()
	}
	for lane := bell.Next(0); lane >= 0; lane = bell.Next(lane + 1) {
		v, ok := r.take(lane)
		if !ok {
			bell.Drained(lane)
			continue
		}
		if v != next[lane] {
			t.Fatalf("lane %d: %d in place of %d", lane, v, next[lane])
		}
		next[lane]++
		n++
	}
	return n
}

// poll waits as a program does that has an epoll of its own.
func poll(t *testing.T, bell *doorbell.Bell) {
	t.Helper()
	ready, _, err := bell.TryWait()
	if err != nil {
		t.Fatal(err)
	}
	if !ready {
		p := []unix.PollFd{{Fd: int32(bell.FD()), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 10_000); n == 0 || err != nil && err != unix.EINTR {
			t.Fatal("nobody rang", err)
		}
	}
	bell.Look()
}

// TestSignal: a signal ends one wait, whether it comes before or meanwhile, and is one.
func TestSignal(t *testing.T) {
	t.Parallel()
	bell := newRig(t, 1, ring.SeqCst).bell(t, doorbell.Options{Descriptor: true})
	bell.Signal()
	if err := bell.Wait(0); err != nil || !bell.TakeSignal() || bell.TakeSignal() {
		t.Error("a signal before", err)
	}
	time.AfterFunc(time.Millisecond, bell.Signal)
	for !bell.TakeSignal() {
		shmtest.Must(t, bell.Wait(0))
	}
	bell.Signal()
	if ready, signaled, err := bell.TryWait(); !ready || !signaled || err != nil {
		t.Error("a signal before arming", ready, signaled, err)
	}
	for _, timeout := range []time.Duration{time.Millisecond, -time.Millisecond} {
		if err := bell.Wait(timeout); err != nil || bell.TakeSignal() {
			t.Error("a wait with a timeout of", timeout, err)
		}
	}
}

// TestMark: what a producer published that died before it rang is read by the next look, and what
// it published while nobody read by the next reader.
func TestMark(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, ring.SeqCst)
	bell := r.bell(t, doorbell.Options{})
	if err := bell.Wait(time.Nanosecond); err != nil || bell.Next(0) >= 0 {
		t.Fatal("lanes without anything", err)
	}
	r.put(1, 7)
	if bell.Look(); bell.Next(0) >= 0 {
		t.Error("a lane that nobody marked")
	}
	bell.Mark(1)
	if bell.Look(); bell.Next(0) != 1 {
		t.Error("not the lane that was marked")
	}
	bell.Close()
	bell = r.bell(t, doorbell.Options{Generation: 1})
	next := []uint64{0, 7}
	if n := r.drain(t, bell, next); n != 1 {
		t.Error("the next reader has", n)
	}
}

// TestRefused: what cannot be is EINVAL.
func TestRefused(t *testing.T) {
	t.Parallel()
	words := newRig(t, 2, ring.SeqCst).words
	mem := make([]byte, doorbell.Bytes(2))
	var errs []error
	refused := func(_ any, err error) { errs = append(errs, err) }
	refused(doorbell.Map(mem, 0))
	refused(doorbell.Map(mem, -1))
	refused(doorbell.Map(mem, 1<<30))
	refused(doorbell.Map(mem[:len(mem)-1], 2))
	refused(doorbell.Map(append([]byte{0}, mem...)[1:], 2))
	refused(doorbell.NewBell(words, doorbell.Options{}))
	refused(doorbell.NewRinger(words, 2, doorbell.RingerOptions{}))
	refused(doorbell.NewRinger(words, -1, doorbell.RingerOptions{}))
	bell := newRig(t, 1, ring.SeqCst).bell(t, doorbell.Options{})
	_, _, err := bell.TryWait()
	refused(nil, err)
	if i := slices.IndexFunc(errs, func(err error) bool {
		return !errors.Is(err, syscall.EINVAL)
	}); i >= 0 {
		t.Errorf("case %d: %v", i, errs[i])
	}
	if bell.FD() != -1 || bell.EventFD() != -1 {
		t.Error("a descriptor that nobody asked for")
	}
}

func TestMain(m *testing.M) { shmtest.Main(m, map[string]func(){"ringer": childRinger}) }

// childRinger says whether a reader's membarrier orders this process before and after it has a
// ringer without a fence of its own, and with one that the reader pays for.
func childRinger() {
	words, err := doorbell.Map(make([]byte, doorbell.Bytes(1)), 1)
	shmtest.Need(err)
	for _, fence := range []func(){nil, func() {}} {
		_, err = doorbell.NewRinger(words, 0, doorbell.RingerOptions{Fence: fence})
		shmtest.Need(err)
		fenced, err := shmtest.Fenced()
		shmtest.Say("%v %v", fenced, err)
	}
}

// TestRingerRegisters: the reader's membarrier(2) reaches a process whose publishes are release
// stores. A process of its own shows it, since nothing undoes the registration.
func TestRingerRegisters(t *testing.T) {
	if _, err := shmtest.Fenced(); err != nil {
		shmtest.Require(t, "membarrier", err)
	}
	p := shmtest.Start(t, shmtest.Child(t, "ringer"))
	p.Says(t, "false <nil>")
	p.Says(t, "true <nil>")
}
