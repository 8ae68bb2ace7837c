package cq_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
)

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
	s, err := cq.NewPollSet(rs[0].d, 0)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
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
		s := pollCounters(t, []*countRig{r})
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
			_, err := r.c.Read()
			must(t, err)
			_, err = r.c.ReadErr()
			must(t, err)
		}
		for _, change := range []func() error{
			func() error { return r.w.Add(1) },
			func() error { return r.w.AddErr(1) },
			func() error { return r.c.Add(1) },
			func() error { return r.w.Set(0) },
			func() error { return r.w.SetErr(77) },
			func() error { return r.c.AddError() },
		} {
			for range 2 { // arming again changes nothing
				armed(t, take, r.c)
				if pollable(t, waitFD(r.c), 0) {
					t.Error("readable without a change")
				}
			}
			must(t, change())
			if !pollable(t, waitFD(r.c), 20_000) {
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
		s, err := cq.NewPollSet(r.d, 0)
		must(t, err)
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
		for i, m := range members {
			must(t, s.Remove(m))
			if n := s.Len(); n != len(members)-1-i {
				t.Errorf("%d members after %d were removed", n, i+1)
			}
		}
		r.post(t, 3, 4)
		must(t, counts[0].w.Add(1))
		wantReady(t, "no members", polled(t, s, 8))
		must(t, s.Close())
	})
}
