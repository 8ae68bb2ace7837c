package ring_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

func init() {
	roles["producer"] = func() {
		child(func(s *shared, o ring.Order, n uint64) error {
			p := ring.NewProducer(s.tail, s.head, s.slots, s.tail.Load(), o)
			return produce(p, n, func(uint64) {})
		})
	}
	roles["consumer"] = func() {
		child(func(s *shared, _ ring.Order, n uint64) error {
			c := ring.NewConsumer(s.tail, s.head, s.slots, s.head.Load())
			return consume(c, n, func(uint64) error { return nil })
		})
	}
	roles["writer"] = func() {
		child(func(s *shared, _ ring.Order, n uint64) error {
			writeInOrder(s, time.Duration(n))
			return nil
		})
	}
}

// child runs one side of a ring that the parent passed as descriptor 3.
func child(side func(s *shared, o ring.Order, n uint64) error) {
	s, err := mapShared(os.NewFile(3, "ring"))
	if err == nil {
		err = side(s, orderOf(os.Getenv("RING_ORDER")), envInt("RING_N"))
	}
	if err != nil {
		exit(err)
	}
}

// start runs the other side in a process of its own; the result waits for it.
func start(t *testing.T, role string, s *shared, o ring.Order, n uint64) (wait func()) {
	t.Helper()
	cmd := shmtest.Child(t, role, "RING_ORDER="+o.String(), fmt.Sprintf("RING_N=%d", n),
		"GORACE=atexit_sleep_ms=0") // a second for each child otherwise
	cmd.ExtraFiles = []*os.File{s.file}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestHandOverInSharedMemory(t *testing.T) {
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			s := newShared(t, 64)
			handOver(t, s.tail, s.head, s.slots, o)
		})
	}
}

func TestTwoProcesses(t *testing.T) {
	n := uint64(200_000)
	if testing.Short() || raceEnabled {
		n /= 10
	}
	for _, o := range orders {
		for _, capacity := range []int{1, 8, 1024} {
			count := n
			if capacity == 1 {
				count /= 20 // each entry costs a turn of both processes
			}
			t.Run(fmt.Sprintf("%v/cap=%d", o, capacity), func(t *testing.T) {
				s := newShared(t, capacity)
				watchdog(t, s.String)
				wait := start(t, "producer", s, o, count)
				c := ring.NewConsumer(s.tail, s.head, s.slots, 0)
				if err := consume(c, count, func(uint64) error { return nil }); err != nil {
					t.Fatal(err)
				}
				wait()
				wait = start(t, "consumer", s, o, 2*count)
				p := ring.NewProducer(s.tail, s.head, s.slots, count, o)
				if err := produce(p, 2*count, func(uint64) {}); err != nil {
					t.Fatal(err)
				}
				wait()
				if s.head.Load() != 2*count {
					t.Fatal(s)
				}
			})
		}
	}
}

// writeInOrder stores two plain words, each on a line of its own, and then the index.
func writeInOrder(s *shared, d time.Duration) {
	end := time.Now().Add(d)
	for i := uint64(1); ; i++ {
		s.slots[1][0] = i
		s.slots[5][3] = ^i
		ring.StoreRelease(s.tail, i)
		if i%4096 == 0 && time.Now().After(end) && s.head.Load() == lookerSaw {
			s.head.Store(writerDone)
			return
		}
	}
}

// What head says meanwhile: a looker that gets no time while the writer writes has seen nothing.
const (
	lookerSaw  = 1 // the index move; the looker
	writerDone = 2 // the writer, after that
)

// Message passing, the litmus test of a release store: whoever sees the index sees what was
// stored before it. On amd64 the hardware keeps this order by itself; on arm64 only StoreRelease
// does.
func TestStoreReleaseOrdersEarlierStores(t *testing.T) {
	const d = 200 * time.Millisecond
	look := func(t *testing.T, s *shared) {
		a, err := ring.IndexAt(s.mem, offSlots+1*64)
		if err != nil {
			t.Fatal(err)
		}
		b, err := ring.IndexAt(s.mem, offSlots+5*64+3*8)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[bool]int{}
		for last := uint64(0); s.head.Load() != writerDone; {
			i := s.tail.Load()
			x, y := a.Load(), b.Load()
			if i > 0 && (x < i || ^y < i) {
				t.Fatalf("index %d is visible, of what was stored before it only %d and %d", i, x, ^y)
			}
			if seen[i != last]++; i == last {
				runtime.Gosched()
			} else if seen[true] == 1 {
				s.head.Store(lookerSaw)
			}
			last = i
		}
		if seen[true] == 0 {
			t.Fatalf("the index never moved: %v", seen)
		}
	}
	t.Run("processes", func(t *testing.T) {
		s := newShared(t, 8)
		watchdog(t, s.String)
		wait := start(t, "writer", s, ring.Release, uint64(d))
		look(t, s)
		wait()
	})
	t.Run("threads", func(t *testing.T) {
		s := newShared(t, 8)
		watchdog(t, s.String)
		done := make(chan struct{})
		go func() {
			writeInOrder(s, d)
			close(done)
		}()
		look(t, s)
		<-done
	})
}
