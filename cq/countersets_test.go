package cq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

func namedCounter(t testing.TB, name string, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	c, err := cq.CreateCounter(openDir(t), name, o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// TestWaitSetCounters waits for counters and queues with one set: each change of either value is
// reported, once.
func TestWaitSetCounters(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	other := waitSet(t, d, cq.WaitSetOptions{})
	q, w := member(t, d, "q", cq.Options{}, s)
	var cs []*cq.Counter
	for i := range 3 {
		c := namedCounter(t, fmt.Sprintf("c%d", i), cq.CounterOptions{UserContext: i})
		must(t, s.Add(c))
		must(t, other.Add(c))
		t.Cleanup(func() { must(t, s.Remove(c)); must(t, other.Remove(c)) })
		cs = append(cs, c)
	}
	dst := make([]cq.Waitable, 4)
	for i := range 30 {
		_, err := setWait(s, dst, 0)
		wantErr(t, "nothing new", err, cq.ErrTimedOut)
		c := cs[i%3]
		wait := later(func() {
			if i%2 == 0 {
				must(t, c.Add(1))
			} else {
				must(t, c.AddErr(1))
			}
		})
		for _, set := range []*cq.WaitSet{s, other} {
			n, err := set.Wait(t.Context(), dst, cq.WaitOptions{})
			if n != 1 || err != nil || dst[0] != cq.Waitable(c) {
				t.Fatalf("%d: %d, %v, %v", i, n, err, dst[:n])
			}
		}
		wait()
		if i%5 == 0 {
			wait = later(func() { post(t, w, 0, 1) })
			if n, err := s.Wait(t.Context(), dst, cq.WaitOptions{}); n != 1 || err != nil ||
				dst[0] != cq.Waitable(q) {
				t.Fatalf("%d: %d, %v", i, n, err)
			}
			wait()
			drain(t, q)
		}
	}
	wantErr(t, "close in a set", cs[0].Close(), cq.ErrBusy)
	must(t, cs[0].Add(1))
	must(t, cs[0].Set(0))
	if n, err := setWait(s, dst, time.Minute); n != 1 || err != nil {
		t.Errorf("set to what it was: %d, %v", n, err)
	}
}

// TestPollSetCounters: no change is forgotten because the array is short, and neither queues nor
// counters keep the others out.
func TestPollSetCounters(t *testing.T) {
	d := openDir(t)
	s, err := cq.NewPollSet(d, 0)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	var ws []*cq.Writer
	for i := range 3 {
		_, w := member(t, d, fmt.Sprintf("q%d", i), cq.Options{}, s)
		ws = append(ws, w)
	}
	var cs []*cq.Counter
	for i := range 5 {
		c := namedCounter(t, fmt.Sprintf("c%d", i), cq.CounterOptions{Wait: cq.WaitNone})
		must(t, s.Add(c))
		t.Cleanup(func() { must(t, s.Remove(c)) })
		cs = append(cs, c)
	}
	if s.Len() != 8 {
		t.Error(s.Len())
	}
	for _, w := range ws {
		post(t, w, 0, 1)
	}
	for _, c := range cs {
		must(t, c.Add(7))
	}
	seen := map[cq.FID]int{}
	dst := make([]cq.Waitable, 1)
	for range 40 {
		n, err := s.Poll(dst)
		must(t, err)
		for _, m := range dst[:n] {
			seen[m.FID()]++
		}
	}
	for _, c := range cs {
		if seen[c.FID()] != 1 {
			t.Errorf("%v was reported %d times", c.FID(), seen[c.FID()])
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d of 8 were reported", len(seen))
	}
}
