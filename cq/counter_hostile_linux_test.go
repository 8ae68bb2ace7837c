package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/inspect"
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
	c2, err := cq.AttachCounter(cq.Named(d, c.Name()), cq.CounterOptions{})
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
		_, err = cq.AttachCounter(cq.Named(d, "bad"), cq.CounterOptions{})
		wantErr(t, what, err, want...)
		_, err = cq.AttachCounter(cq.FromFD(obj.FD(), ""), cq.CounterOptions{})
		wantErr(t, what, err, want...)
		_, err = ctl.ShowObject(d, "bad")
		wantErr(t, what, err, want...)
		must(t, obj.Unlink())
		must(t, obj.Close())
	}
	path := filepath.Join(d.Path(), "cut")
	must(t, os.WriteFile(path, make([]byte, 100), 0o600))
	_, err := cq.AttachCounter(cq.Named(d, "cut"), cq.CounterOptions{})
	wantErr(t, "a short file", err, shm.ErrTruncated)
	_, err = cq.CreateCounter(cq.Named(d, "cut"), cq.CounterOptions{})
	wantErr(t, "it is in the way", err, os.ErrExist)
	must(t, os.Remove(path))
}

// FuzzCounterWords has arbitrary bytes as a counter's memory, which every process that has it open
// may write. Whatever they are, each call ends, with an error that it may have; adding adds, and
// who looks from outside sees what there is.
func FuzzCounterWords(f *testing.F) {
	word := func(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
	f.Add(uint16(0), word(7), []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(uint16(cq.OffCounterRows), append(word(1), word(uint64(os.Getppid()))...), []byte{2, 3, 2})
	for at := uint16(256); at < 304; at += 8 { // the bell
		f.Add(at, word(^uint64(0)), []byte{0, 2, 1, 3, 2, 4, 6})
	}
	f.Add(uint16(384), append(word(1), word(^uint64(0))...), []byte{3, 0, 3, 5, 0})
	f.Fuzz(func(t *testing.T, at uint16, patch, steps []byte) {
		d := openDir(t)
		const name = "fuzz-counter"
		c, err := cq.CreateCounter(cq.Named(d, name), cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
		must(t, err)
		other, err := cq.AttachCounter(cq.Named(d, name), cq.CounterOptions{Spin: -1})
		must(t, err)
		obj, err := d.Open(name, shm.ReadWrite)
		must(t, err)
		mem, _, err := obj.Section(cq.SectCounter, 0)
		must(t, err)
		copy(mem[int(at)%len(mem):], patch)
		for _, step := range steps[:min(len(steps), 24)] {
			counterStep(t, c, other, step)
		}
		showCounter(t, d, name)
		checked, err := inspect.CheckObject(filepath.Join(d.Path(), name), nil)
		must(t, err)
		for _, v := range checked.Violations {
			if v.Offset+8 > obj.Header().TotalBytes {
				t.Errorf("%+v", v)
			}
		}
		must(t, errors.Join(obj.Close(), other.Close(), c.Close()))
		if err := collect.Remove(d, name, collect.Options{}); err != nil {
			t.Errorf("nobody has it: %v", err)
		}
	})
}

// counterStep does something with a counter that nobody changes meanwhile.
func counterStep(t *testing.T, c, other *cq.Counter, step byte) {
	t.Helper()
	before, err := c.Read()
	must(t, err)
	switch n := uint64(step >> 3); step & 7 {
	case 0:
		must(t, other.Add(n))
		if v, err := c.Read(); err != nil || v != before+n {
			t.Errorf("%d and %d is %d, %v", before, n, v, err)
		}
	case 1:
		must(t, other.AddErr(n))
	case 2, 3:
		waiter := c
		if step&7 == 3 {
			waiter = other
		}
		err := cntrWait(waiter, before+n, time.Millisecond)
		if err != nil && !errors.Is(err, cq.ErrAvail) && !errors.Is(err, cq.ErrTimedOut) {
			t.Error(err)
		}
	case 4:
		must(t, other.Set(n))
		if v, err := c.Read(); err != nil || v != n {
			t.Errorf("set to %d, is %d, %v", n, v, err)
		}
	case 5:
		must(t, c.SetErr(n))
		if v, err := other.ReadErr(); err != nil || v != n {
			t.Errorf("errors set to %d, are %d, %v", n, v, err)
		}
	case 6:
		if err := c.TryWait(); err != nil && !errors.Is(err, cq.ErrWouldBlock) {
			t.Error(err)
		}
	case 7:
		_ = other.Stats()
	}
}
