package wake

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/syscalls"
	"github.com/shmring/shmring/ring"
)

// Counted by the kernel and not by the library: a producer whose reader is awake makes no system
// call. The runtime makes some of its own on any thread (preemption, timers), so the test looks at
// many short rounds: a call by the library would be in every one.
func TestNoSyscallWhileAwake(t *testing.T) {
	for _, o := range orders {
		t.Run(orderName(o), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			calls := shmtest.Have(syscalls.Thread()).Where(t, "bpf")
			q := heapQueue(t, 1)
			watchdog(t, q.String)
			r := newReader(q, readerOptions{order: o})
			var stop atomic.Bool
			done := make(chan struct{})
			go func() { // awake all the time: it never parks
				defer close(done)
				for !stop.Load() {
					if r.read(laneSlots) == 0 {
						runtime.Gosched()
					}
				}
			}()
			w := q.writer(0, o)
			w.put(1)
			for q.row(0).Parked.Load() != 0 {
				runtime.Gosched()
			}
			quiet := rounds(t, calls, w)
			stop.Store(true)
			<-done
			if r.broken != nil || w.Wakes() != 0 {
				t.Errorf("%v; %d wakes", r.broken, w.Wakes())
			}
			slices.Sort(quiet)
			if median := quiet[len(quiet)/2]; median != 0 {
				t.Errorf("a round of %d publishes makes %d system calls", perRound, median)
			}
		})
	}
}

const perRound = laneSlots / 2

// rounds publishes in rounds and returns how many system calls each took. The reader empties the
// lane between them, so that a producer never waits for room, which is not what is counted.
func rounds(t *testing.T, calls *syscalls.Counter, w *writer) (each []uint64) {
	for range 200 {
		for w.prod.Free() < laneSlots {
			runtime.Gosched()
		}
		before := calls.All()
		for range perRound {
			w.put(1)
		}
		each = append(each, calls.All()-before)
	}
	return each
}

// The counter does count: a publish to a reader that sleeps is one futex call, and to one that
// sleeps on its descriptor one write.
func TestSyscallsToWake(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls := shmtest.Have(syscalls.Thread()).Where(t, "bpf")
	face := newFace(t, -1)
	for name, c := range map[string]struct {
		arm    uint64
		number int
	}{
		"futex":   {armDirect, unix.SYS_FUTEX},
		"eventfd": {armFD, unix.SYS_WRITE},
	} {
		q := heapQueue(t, 1)
		w := q.writer(0, ring.SeqCst, dup(face.EventFD()))
		const wakes = 50
		before := calls.Of(c.number)
		for i := range uint64(wakes) {
			q.arm.Word.Store(c.arm | i + 1)
			w.put(1)
			w.Published(w.prod.Tail(), 0) // rung already
		}
		// The runtime may add futex calls of its own, and never takes any away.
		if got := calls.Of(c.number) - before; got < wakes || got > wakes+wakes/2 {
			t.Errorf("%s: %d system calls for %d wakes", name, got, wakes)
		}
		if w.Wakes() != wakes {
			t.Errorf("%s: the producer counts %d", name, w.Wakes())
		}
		w.Close()
	}
}
