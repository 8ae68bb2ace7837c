package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// adder is a handle on a counter, in this process or in another one.
type adder interface {
	Add(n uint64) error
	AddErr(n uint64) error
	Set(v uint64) error
	SetErr(v uint64) error
	Read() (uint64, error)
	ReadErr() (uint64, error)
	Close() error
}

// countRig is a counter here and a second handle on it.
type countRig struct {
	site
	d *shm.Dir
	c *cq.Counter
	w adder
	p *peer
}

// conformCounter runs a case for a counter with two handles, at every site.
func conformCounter(t *testing.T, name string, o cq.CounterOptions,
	f func(t *testing.T, r *countRig)) {
	t.Helper()
	eachSite(t, name, sites, func(t *testing.T, at site, p *peer) {
		f(t, newCountRig(t, at, p, queueName(t), o))
	})
}

func newCountRig(t *testing.T, at site, p *peer, name string, o cq.CounterOptions) *countRig {
	t.Helper()
	if at.others {
		at.far = false // counters are for one user
	}
	r := &countRig{site: at, d: openDir(t), p: p}
	r.c = shmtest.Have(cq.CreateCounter(at.place(t, name), o)).In(t)
	if at.far {
		if at.memfd {
			p.send(t, r.c.ObjectFD())
		}
		r.w = p.open(t, OpenArgs{Kind: "counter", Name: name, FD: at.memfd})
		return r
	}
	place := cq.Named(r.d, name)
	if at.memfd {
		place = cq.FromFD(r.c.ObjectFD(), "")
	}
	r.w = shmtest.Have(cq.AttachCounter(place, cq.CounterOptions{})).In(t)
	return r
}

// wantValues checks both numbers through both handles.
func wantValues(t *testing.T, r *countRig, what string, value, errs uint64) {
	t.Helper()
	for _, c := range []adder{r.c, r.w} {
		v, err := c.Read()
		e, err2 := c.ReadErr()
		if v != value || e != errs || err != nil || err2 != nil {
			t.Errorf("%s: %d and %d, %v, %v; want %d and %d", what, v, e, err, err2, value, errs)
		}
	}
}

// waiting runs f as soon as somebody waits for the counter; wait returns when it has.
func (r *countRig) waiting(t *testing.T, f func()) (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		eventually(t, "somebody waits", func() bool { return r.c.Stats().Waiters > 0 })
		f()
	}()
	return func() { <-done }
}

// TestConformanceCounter is fi_cntr_read, add, set and the like.
func TestConformanceCounter(t *testing.T) {
	t.Parallel()
	conformCounter(t, "values", cq.CounterOptions{}, func(t *testing.T, r *countRig) {
		wantValues(t, r, "new", 0, 0)
		must(t, r.w.Add(3))
		must(t, r.c.Add(4))
		wantValues(t, r, "add", 7, 0)
		must(t, r.w.AddErr(2))
		must(t, r.c.AddErr(1))
		wantValues(t, r, "adderr", 7, 3)
		must(t, r.w.Set(100))
		wantValues(t, r, "set", 100, 3)
		must(t, r.c.SetErr(50))
		wantValues(t, r, "seterr", 100, 50)
		must(t, r.w.SetErr(0))
		wantValues(t, r, "seterr to nothing", 100, 0)
	})
	p := peerOf(t)
	conformOnce(t, "hundred", func(t *testing.T) {
		var rs []*countRig
		for i := range 100 {
			rs = append(rs, newCountRig(t, namedSite, p, fmt.Sprint("counter-", i), cq.CounterOptions{}))
		}
		for i, r := range rs {
			n := uint64(i)
			must(t, errors.Join(r.w.Set(n), r.w.SetErr(2*n), r.w.Add(n), r.w.AddErr(n)))
		}
		for i, r := range rs {
			wantValues(t, r, fmt.Sprint("counter ", i), 2*uint64(i), 3*uint64(i))
		}
	})
	conformCounter(t, "max-values", cq.CounterOptions{}, func(t *testing.T, r *countRig) {
		must(t, r.w.Set(cq.MaxCounterValue))
		must(t, r.w.SetErr(cq.MaxCounterErrValue))
		wantValues(t, r, "greatest", cq.MaxCounterValue, cq.MaxCounterErrValue)
		must(t, cntrWait(r.c, cq.MaxCounterValue, 0))
		must(t, r.w.Add(2))
		must(t, r.w.AddErr(1))
		wantValues(t, r, "they wrap", 1, 0)
	})
}

// TestConformanceCounterWait is fi_cntr_wait.
func TestConformanceCounterWait(t *testing.T) {
	t.Parallel()
	o := cq.CounterOptions{Spin: -1}
	for _, wait := range blocking {
		results := "results"
		o.Wait = wait
		conformCounter(t, results+"/"+wait.String(), o, counterWaitResults)
	}
	o.Wait = cq.WaitUnspec
	conformCounter(t, "error-changed", o, func(t *testing.T, r *countRig) {
		must(t, r.w.AddErr(3)) // before the wait: that does not end it
		wantErr(t, "old failures", cntrWait(r.c, 1, time.Millisecond), cq.ErrTimedOut)
		done := r.waiting(t, func() { must(t, r.w.AddErr(1)) })
		wantErr(t, "a new one", cntrWait(r.c, 1, tooLong), cq.ErrAvail)
		done()
		done = r.waiting(t, func() { must(t, r.w.SetErr(1)) })
		wantErr(t, "a smaller number", cntrWait(r.c, 1, tooLong), cq.ErrAvail)
		done()
		done = later(func() { must(t, r.w.Add(1)) })
		must(t, cntrWait(r.c, 1, tooLong))
		done()
		must(t, r.w.AddErr(1))
		must(t, cntrWait(r.c, 1, 0)) // the value is looked at first
	})
	none := cq.CounterOptions{Wait: cq.WaitNone}
	conformCounter(t, "without-wait-object", none, func(t *testing.T, r *countRig) {
		must(t, r.w.Add(1))
		wantValues(t, r, "polled", 1, 0)
		for _, threshold := range []uint64{0, 1, 2} {
			for _, timeout := range []time.Duration{-1, 0} {
				wantErr(t, "wait", cntrWait(r.c, threshold, timeout), cq.ErrNoWait, syscall.ENOSYS)
			}
		}
		wantErr(t, "trywait", r.c.TryWait(), cq.ErrNoWait, syscall.ENOSYS)
		if waitFD(r.c) != -1 {
			t.Errorf("descriptor %d", waitFD(r.c))
		}
	})
	conformCounter(t, "close-ends-it", o, func(t *testing.T, r *countRig) {
		done := make(chan error, 5)
		for i := range cap(done) {
			go func() { done <- r.c.Wait(context.Background(), uint64(1+i), cq.WaitOptions{}) }()
		}
		eventually(t, "they wait", func() bool { return r.c.Stats().Waiters == cap(done) })
		must(t, r.c.Close())
		for range cap(done) {
			wantOnly(t, "closed", <-done, cq.ErrClosed, os.ErrClosed)
		}
		must(t, r.w.Add(1)) // the other handle goes on
	})
}

func counterWaitResults(t *testing.T, r *countRig) {
	must(t, r.w.Add(5))
	must(t, cntrWait(r.c, 5, 0))
	must(t, cntrWait(r.c, 3, -1))
	for _, timeout := range []time.Duration{0, 1, 20 * time.Millisecond} {
		begin := time.Now()
		wantOnly(t, "wait", cntrWait(r.c, 6, timeout), cq.ErrTimedOut, syscall.ETIMEDOUT,
			cq.Errno(syscall.ETIMEDOUT), os.ErrDeadlineExceeded)
		if took := time.Since(begin); took < timeout {
			t.Errorf("%v was over after %v", timeout, took)
		}
	}
	for i, timeout := range []time.Duration{-1, tooLong, 1<<63 - 1} {
		done := later(func() { must(t, r.w.Add(1)) })
		must(t, cntrWait(r.c, uint64(6+i), timeout))
		done()
	}
	stop := repeatedly(func(uint64) { noError(t, r.w.AddErr(1)) })
	wantOnly(t, "failure", cntrWait(r.c, 100, tooLong), cq.ErrAvail, cq.EAvail)
	stop()
	for _, v := range []uint64{100, 1 << 63, cq.MaxCounterValue} {
		done := later(func() { must(t, r.w.Set(v)) })
		must(t, cntrWait(r.c, v, tooLong))
		done()
	}
}

// more makes n counters at the rig's site, with their numbers as contexts.
func (r *countRig) more(t *testing.T, n int, o cq.CounterOptions) []*countRig {
	t.Helper()
	out := []*countRig{r}
	for i := 1; i < n; i++ {
		o.UserContext = i
		out = append(out, newCountRig(t, r.site, r.p, fmt.Sprint("counter-", i), o))
	}
	return out
}

func pollCounters(t *testing.T, rs []*countRig) *cq.PollSet {
	t.Helper()
	s := pollSet(t, rs[0].d)
	for _, r := range rs {
		addTo(t, s, r.c)
	}
	return s
}

// TestConformancePollCounters is fi_poll over counters.
func TestConformancePollCounters(t *testing.T) {
	t.Parallel()
	o := cq.CounterOptions{UserContext: 0}
	conformCounter(t, "value-and-error", o, func(t *testing.T, r *countRig) {
		s := pollCounters(t, r.more(t, 2, o))
		_ = polled(t, s, 4)
		wantReady(t, "no change", polled(t, s, 4))
		must(t, r.w.Add(1))
		wantReady(t, "value", polled(t, s, 4), 0)
		wantReady(t, "no other change", polled(t, s, 4))
		must(t, r.w.AddErr(1))
		wantReady(t, "error value", polled(t, s, 4), 0)
		wantReady(t, "no other change", polled(t, s, 4))
	})
	conformCounter(t, "since", o, func(t *testing.T, r *countRig) {
		s := pollSet(t, r.d, r.c)
		_ = polled(t, s, 4)
		must(t, r.w.Add(1)) // by the peer
		wantReady(t, "the peer's add", polled(t, s, 4), 0)
		wantReady(t, "no other change", polled(t, s, 4))
		must(t, r.c.Set(50)) // the page would have it forgotten: here nothing is
		wantReady(t, "our own set", polled(t, s, 4), 0)
		must(t, r.w.Add(1))
		must(t, r.c.Set(50))
		wantReady(t, "a set over the peer's add", polled(t, s, 4), 0)
		must(t, r.c.Add(1))
		wantReady(t, "our own add", polled(t, s, 4), 0)
		must(t, r.c.Add(0))
		wantReady(t, "no other change", polled(t, s, 4))
	})
	conformCounter(t, "short-array", o, func(t *testing.T, r *countRig) {
		rs := r.more(t, 3, o)
		s := pollCounters(t, rs)
		_ = polled(t, s, 4)
		for range 3 {
			for _, r := range rs {
				must(t, r.w.Add(1))
			}
			seen := map[int]bool{}
			for range 3 {
				for _, n := range polled(t, s, 1) {
					seen[n] = true
				}
			}
			if len(seen) != 3 {
				t.Errorf("changes of %v only were told", seen)
			}
			wantReady(t, "then", polled(t, s, 4))
		}
	})
}

// TestConformanceWaitCounters are counters in a wait set and with trywait.
func TestConformanceWaitCounters(t *testing.T) {
	t.Parallel()
	o := cq.CounterOptions{UserContext: 0}
	conformCounter(t, "wait-set", o, func(t *testing.T, r *countRig) {
		rs := r.more(t, 3, o)
		s := waitSet(t, r.d, cq.WaitSetOptions{})
		dst := make([]cq.Waitable, 3)
		for _, r := range rs {
			addTo(t, s, r.c)
		}
		for { // what the set knows of them begins somewhere
			if n, err := setWait(s, dst, 0); n == 0 {
				wantErr(t, "wait", err, cq.ErrTimedOut)
				break
			}
		}
		second := waitSet(t, r.d, cq.WaitSetOptions{})
		q, w := member(t, openDir(t), "q", cq.Options{}, s)
		for _, r := range rs {
			addTo(t, second, r.c)
		}
		for range len(rs) { // likewise
			_, _ = setWait(second, dst, 0)
		}
		for i := range 9 {
			at := i * 2 % 3
			done := later(func() {
				change := []func(uint64) error{rs[at].w.Add, rs[at].w.AddErr}[i%2]
				must(t, change(1))
			})
			for _, set := range []*cq.WaitSet{s, second} { // each change once to each set
				if n, err := setWait(set, dst, tooLong); n != 1 || err != nil || dst[0] != rs[at].c {
					t.Errorf("%d: %d, %v, %v", i, n, err, dst[0])
				}
			}
			done()
			if i%3 == 0 {
				post(t, w, 0, 1)
				if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != q {
					t.Errorf("a queue beside them: %d, %v, %v", n, err, dst[0])
				}
				_ = drain(t, q)
			}
		}
		wantErr(t, "close in a set", r.c.Close(), cq.ErrBusy)
	})
	fd := cq.CounterOptions{Wait: cq.WaitFD}
	conformCounter(t, "trywait", fd, func(t *testing.T, r *countRig) {
		take := func() {
			shmtest.Got(r.c.Read()).Or(t)
			shmtest.Got(r.c.ReadErr()).Or(t)
		}
		for _, change := range []func() error{
			func() error { return r.w.Add(1) },
			func() error { return r.w.AddErr(1) },
			func() error { return r.c.Add(1) },
			func() error { return r.w.Set(0) },
			func() error { return r.w.SetErr(77) },
			func() error { return r.c.AddErr(1) },
		} {
			for range 2 { // arming again changes nothing
				armed(t, take, r.c)
				if readable(t, waitFD(r.c), 0) {
					t.Error("readable without a change")
				}
			}
			must(t, change())
			if !readable(t, waitFD(r.c), 20_000) {
				t.Error("not readable after a change")
			}
			wantErr(t, "trywait", cq.TryWait(r.c), cq.ErrWouldBlock)
		}
	})
}

// TestConformancePollMixed is a poll set with queues and counters.
func TestConformancePollMixed(t *testing.T) {
	o := cq.Options{Size: 8, UserContext: 0, Wait: cq.WaitNone}
	conform(t, "queues-and-counters", o, func(t *testing.T, r *rig) {
		other := r.another(t, 1, o)
		var counts [2]*countRig
		for i := range counts {
			counts[i] = newCountRig(t, r.site, r.p, fmt.Sprint("counter-", i),
				cq.CounterOptions{UserContext: 2 + i})
		}
		s := shmtest.Got(cq.NewPollSet(r.d, 0)).Or(t)
		members := []cq.Waitable{r.q, counts[0].c, other.q, counts[1].c}
		for _, m := range members {
			must(t, s.Add(m))
		}
		_ = polled(t, s, 8) // what the set knows of counters begins somewhere
		wantReady(t, "nothing", polled(t, s, 8))
		must(t, counts[1].w.Add(1))
		r.post(t, 1, 2)
		wantReady(t, "one of each", polled(t, s, 8), 0, 3)
		wantContexts(t, "entry", drain(t, r.q), 1)
		wantReady(t, "both taken", polled(t, s, 8))
		other.post(t, 2, 3)
		must(t, counts[0].w.AddErr(1))
		must(t, counts[1].w.Add(1))
		wantReady(t, "three", polled(t, s, 8), 1, 2, 3)
		wantContexts(t, "entry", drain(t, other.q), 2)
		wantErr(t, "close with members", s.Close(), cq.ErrBusy)
		for _, m := range members {
			wantErr(t, "close with some", s.Close(), cq.ErrBusy)
			must(t, s.Remove(m))
		}
		r.post(t, 3, 4)
		must(t, counts[0].w.Add(1))
		wantReady(t, "no members", polled(t, s, 8))
		must(t, s.Close())
	})
}
