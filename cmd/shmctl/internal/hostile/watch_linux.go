package hostile

import (
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"golang.org/x/sys/unix"
)

// call is a call of the library that is under way.
type call struct {
	what  string
	since time.Time
}

const (
	tellEvery = 20 * time.Millisecond
	// A machine with much to do is late by less: what is more was a machine that stood still.
	standstill = 500 * time.Millisecond
)

// tellOn tells how far it is, and looks for calls that do not return.
func (c *child) tellOn() {
	for last := time.Now(); ; time.Sleep(tellEvery) {
		now := time.Now()
		if late := now.Sub(last) - standstill; late > 0 {
			c.stallNs.Add(int64(late + standstill))
		}
		last = now
		c.tell(report{})
		c.mu.Lock()
		var late string
		for w := range c.watched {
			if time.Since(w.since) > patience {
				late = w.what
			}
		}
		c.mu.Unlock()
		if late != "" {
			c.counts[hung].Add(1)
			c.note("%s does not return", late)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
			os.Exit(4)
		}
	}
}

// watch watches a call that must return, and what it costs a victim; the function, which the same
// goroutine calls, ends that.
func (c *child) watch(what string) (over func()) {
	w := &call{what, time.Now()}
	c.mu.Lock()
	c.watched[w] = struct{}{}
	c.mu.Unlock()
	end := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watched, w)
	}
	if c.Role != roleVictim { // bystanders watch many calls at once
		return end
	}
	runtime.LockOSThread()
	from, stalled := ownCPU(), c.stallNs.Load()
	return func() {
		cost := ownCPU() - from
		runtime.UnlockOSThread()
		end()
		c.costs(what, cost, stalled)
	}
}

// cpuBound is how long a call may compute because of others: a thousand times what any does. It
// is time of a processor that the thread had, which others who compute do not change.
var cpuBound = 2 * time.Second

// costs judges the time that a call computed for. What began when stallNs was stalled is not
// blamed for what the machine stood still: a kernel can count that as anybody's time.
func (c *child) costs(what string, cost time.Duration, stalled int64) {
	if c.most(cpuMostNs, uint64(cost)); cost <= cpuBound {
		return
	}
	time.Sleep(standstill) // tellOn may not have seen it yet
	if still := time.Duration(c.stallNs.Load() - stalled); cost-still > cpuBound {
		c.broken(unbounded, "%s computed for %v, and the machine stood still for %v", what, cost,
			still)
	}
}

// ownCPU is how long the thread has computed.
func ownCPU() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// processCPU is how long all threads of the process have.
func processCPU() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}

// most keeps the largest value.
func (c *child) most(what int, n uint64) {
	for is := c.counts[what].Load(); n > is && !c.counts[what].CompareAndSwap(is, n); {
		is = c.counts[what].Load()
	}
}

// How many steps, which are system calls, one call may make because of others: some times what any
// of its kind does, which is 6 (of 4 posts), 64 (a wait for 64 entries that come one by one) and 5.
const (
	plainBound = 32
	// One that waits some milliseconds may be woken for nothing, but not as often as somebody likes.
	waitBound = 400
	// One that waits for a context does so until another goroutine ends it, which has to run first.
	contextBound = 1000
)

func (c *child) steps(what string, n, bound uint64) {
	if c.counts[calls].Add(1); n > bound {
		c.broken(unbounded, "%s made %d system calls", what, n)
	}
	c.most(stepsMost, n)
}
