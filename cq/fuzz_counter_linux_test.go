package cq_test

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/shm"
)

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
		c, err := cq.CreateCounter(d, name, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
		must(t, err)
		other, err := cq.OpenCounter(d, name, cq.CounterOptions{Spin: -1})
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
