package cq_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// TestCounterHostilePeer: whatever a peer writes into the shared words costs an error or a late
// wake, and no crash, no hang beyond a deadline, and no descriptor.
func TestCounterHostilePeer(t *testing.T) {
	t.Parallel()
	d, c := counter(t, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{Spin: -1})
	obj, err := d.Open(c.Name(), shm.ReadWrite)
	must(t, err)
	defer obj.Close()
	mem, _, err := obj.Section(cq.SectCounter, 0)
	must(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	words := []func() uint64{r.Uint64, func() uint64 { return 0 }, func() uint64 { return ^uint64(0) },
		func() uint64 { return r.Uint64N(70) }, func() uint64 { return uint64(os.Getpid()) }}
	for range 300 {
		for range 1 + r.IntN(40) {
			at := r.IntN(len(mem)/8) * 8
			if r.IntN(2) == 0 { // more often where it matters
				at = r.IntN((cq.OffCounterRows+4*cq.CounterRowBytes)/8) * 8
			}
			poke(mem, at, words[r.IntN(len(words))]())
		}
		_ = other.Add(r.Uint64N(3))
		_ = other.AddErr(1)
		v, err := c.Read()
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := c.Wait(ctx, v+1, cq.WaitOptions{}); err != nil && !errors.Is(err, cq.ErrAvail) &&
			!errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		if err := cntrWait(other, r.Uint64(), time.Millisecond); err != nil &&
			!errors.Is(err, cq.ErrAvail) && !errors.Is(err, cq.ErrTimedOut) {
			t.Fatal(err)
		}
		if err := c.TryWait(); err != nil && err != cq.ErrWouldBlock {
			t.Fatal(err)
		}
		showCounter(t, d, c.Name())
	}
	c2, err := cq.OpenCounter(d, c.Name(), cq.CounterOptions{})
	must(t, err)
	must(t, c2.Close())
}

// TestCounterBadObject: an object that says it is a counter and is not one of ours is refused.
func TestCounterBadObject(t *testing.T) {
	d := openDir(t)
	for what, change := range map[string]func(*shm.Spec){
		"other events":    func(s *shm.Spec) { s.Attrs[0] = 9 },
		"other lifetime":  func(s *shm.Spec) { s.Attrs[1] = 9 },
		"more attributes": func(s *shm.Spec) { s.Attrs[7] = 1 },
		"short section":   func(s *shm.Spec) { s.Sections[0].Length, s.Sections[0].ElemSize = 64, 64 },
		"other section":   func(s *shm.Spec) { s.Sections[0].Kind = cq.SectQueue },
		"no section":      func(s *shm.Spec) { s.Sections = nil },
		"other layout":    func(s *shm.Spec) { s.Sections[0].LayoutHash++ },
	} {
		spec := cq.CounterSpec("bad", cq.CounterOptions{})
		change(&spec)
		want := []error{cq.ErrCorrupt, shm.ErrCorrupt}
		if what == "other layout" {
			want = []error{shm.ErrVersion}
		}
		obj, err := d.Create("bad", spec, nil)
		must(t, err)
		_, err = cq.OpenCounter(d, "bad", cq.CounterOptions{})
		wantErr(t, what, err, want...)
		_, err = cq.OpenCounterFD(obj.FD(), cq.CounterOptions{})
		wantErr(t, what, err, want...)
		_, err = ctl.ShowObject(d, "bad")
		wantErr(t, what, err, want...)
		must(t, obj.Unlink())
		must(t, obj.Close())
	}
	path := filepath.Join(d.Path(), "cut")
	must(t, os.WriteFile(path, make([]byte, 100), 0o600))
	_, err := cq.OpenCounter(d, "cut", cq.CounterOptions{})
	wantErr(t, "a short file", err, shm.ErrTruncated)
	_, err = cq.CreateCounter(d, "cut", cq.CounterOptions{})
	wantErr(t, "it is in the way", err, os.ErrExist)
	must(t, os.Remove(path))
}
