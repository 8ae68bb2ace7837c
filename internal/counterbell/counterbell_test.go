package counterbell

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
)

// Programs in other languages read these words: where they lie is part of the format.
func TestWordsLieWhereTheFormatSays(t *testing.T) {
	w := new(Words)
	mem := bytesOf(w)
	for name, c := range map[string]struct {
		store func()
		off   int
	}{
		"epoch":        {func() { w.epoch.Store(1) }, 0},
		"armed":        {func() { w.Arm() }, 8},
		"rung":         {func() { w.rung.Store(1) }, 16},
		"joined":       {func() { w.Announce() }, 24},
		"seats":        {func() { w.seats.Store(1) }, 32},
		"standing":     {func() { w.Sit(-1) }, 40},
		"threshold 0":  {func() { w.SetThreshold(0, 0) }, 128},
		"threshold 63": {func() { w.SetThreshold(63, 1) }, 128 + 63*8},
	} {
		clear(mem)
		c.store()
		for off := range mem {
			if want := off == c.off; (mem[off] != 0) != want {
				t.Errorf("%s: byte %d holds %d", name, off, mem[off])
			}
		}
	}
}

// TestRingOnlyWhoeverWaits: a ring costs nothing unless a threshold is reached that somebody armed
// for, and each arming is rung once.
func TestRingOnlyWhoeverWaits(t *testing.T) {
	w := new(Words)
	ring := func(what string, v uint64, want bool) {
		t.Helper()
		if got := w.Ring(v); got != want {
			t.Errorf("%s: ring(%d) is %v", what, v, got)
		}
	}
	w.Sit(0)
	w.Sit(5)
	ring("nobody", 9, false)
	w.SetThreshold(5, 10)
	w.Arm()
	ring("below", 9, false)
	ring("reached", 10, true)
	ring("rung already", 11, false)
	w.Arm()
	w.SetThreshold(5, Idle)
	ring("left", 12, false)
	ring("left", Idle, false)
	if w.Ring(Any) {
		t.Error("an error rings where nobody sleeps")
	}
	w.SetThreshold(5, Idle-1)
	if !w.Ring(Any) || w.Ring(Any) {
		t.Error("an error rings once whatever the thresholds")
	}
	w.SetThreshold(5, 100)
	w.Sit(-1)
	w.Arm()
	ring("somebody has no seat", 1, true)
	w.SetThreshold(-1, 3) // has nothing to say
	w.seats.Store(1 << 40)
	w.standing.Store(0)
	w.Arm()
	ring("a forged number of seats", 1, false)
}

// TestCountManyWaiters has waiters with seats of their own sleep for random thresholds while adders
// run, in heap memory, where the race detector sees everything.
func TestCountManyWaiters(t *testing.T) {
	w, value := new(Words), new(atomic.Uint64)
	const waiters, adders, last = 8, 3, 3000
	var all sync.WaitGroup
	for seat := range waiters {
		w.Sit(seat)
		all.Go(func() {
			for want := uint64(0); want < last; {
				want = min(last, want+1+rand.Uint64N(60))
				w.SetThreshold(seat, want)
				for {
					e := w.Arm()
					if value.Load() >= want {
						break
					}
					w.Sleep(e, 0)
				}
				w.SetThreshold(seat, Idle)
			}
		})
	}
	var left atomic.Int64
	left.Store(last)
	for range adders {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				w.Ring(value.Add(1))
				if rand.IntN(8) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatalf("a waiter was left asleep; the value is %d, %+v", value.Load(), w)
	}
}

func TestMain(m *testing.M) { shmtest.Main(m, nil) }
