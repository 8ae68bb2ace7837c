package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// again opens a counter once more, as another process would.
func again(t testing.TB, d *shm.Dir, name string, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	return shmtest.Have(cq.AttachCounter(cq.Named(d, name), o)).In(t)
}

// TestCounterLifetime: an ephemeral counter goes with the last that closes it, a persistent one
// stays with its value.
func TestCounterLifetime(t *testing.T) {
	d := openDir(t)
	c := shmtest.Got(cq.CreateCounter(cq.Named(d, "ephemeral"), cq.CounterOptions{})).Or(t)
	other := shmtest.Got(cq.AttachCounter(cq.Named(d, "ephemeral"), cq.CounterOptions{})).Or(t)
	must(t, c.Add(3))
	must(t, c.Close())
	wantErr(t, "remove while it is open", cq.Remove(cq.Named(d, "ephemeral")), cq.ErrBusy,
		syscall.EBUSY)
	wantErr(t, "remove while it is open", collect.Remove(d, "ephemeral", collect.Options{}),
		cq.ErrBusy)
	wantCounter(t, other, 3, 0)
	must(t, other.Close())
	must(t, other.Close())
	nothingLeft(t, d)
	must(t, cq.Remove(cq.Named(d, "ephemeral"))) // which is not there
	must(t, collect.Remove(d, "ephemeral", collect.Options{}))

	c, err := cq.CreateCounter(cq.Named(d, "persistent"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(4))
	must(t, c.Close())
	wantErr(t, "it may be wanted", collect.Remove(d, "persistent", collect.Options{}), cq.ErrBusy)
	c, err = cq.AttachCounter(cq.Named(d, "persistent"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	wantCounter(t, c, 4, 0)
	must(t, c.Close())
	must(t, cq.Remove(cq.Named(d, "persistent")))
	nothingLeft(t, d)
}

// TestCounterSeats: handles beyond the seats work, and wake and are woken.
func TestCounterSeats(t *testing.T) {
	d, c := counter(t, cq.CounterOptions{})
	var all []*cq.Counter
	for range 70 {
		all = append(all, again(t, d, c.Name(), cq.CounterOptions{Spin: -1}))
	}
	if s := showCounter(t, d, c.Name()); len(s.Handles) != 64 || !s.More {
		t.Errorf("%d seats, more %v", len(s.Handles), s.More)
	}
	last := all[len(all)-1]
	done := make(chan error, 2)
	go func() { done <- last.Wait(t.Context(), 2, cq.WaitOptions{}) }()
	go func() { done <- all[0].Wait(t.Context(), 1, cq.WaitOptions{}) }()
	eventually(t, "both sleep", func() bool {
		return last.Stats().Sleeps > 0 && all[0].Stats().Sleeps > 0
	})
	must(t, last.Add(1))
	must(t, all[1].Add(1))
	must(t, <-done)
	must(t, <-done)
}

func showCounter(t testing.TB, d *shm.Dir, name string) *ctl.Counter {
	t.Helper()
	o := shmtest.Got(ctl.ShowObject(d, name)).Or(t)
	return o.Counter
}

func TestShowCounter(t *testing.T) {
	d, c := counter(t, cq.CounterOptions{Events: cq.BytesCounter, Lifetime: cq.Ephemeral, Spin: -1})
	must(t, c.Add(12))
	must(t, c.SetErr(2))
	done := make(chan error)
	go func() { done <- c.Wait(t.Context(), 20, cq.WaitOptions{}) }()
	eventually(t, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	s := showCounter(t, d, c.Name())
	if s.Value != 12 || s.Errors != 2 || s.Sets != 1 || s.Events != cq.BytesCounter.String() ||
		s.Lifetime != cq.Ephemeral.String() || s.More {
		t.Errorf("%+v", s)
	}
	if len(s.Handles) != 1 || s.Handles[0].Threshold == nil || *s.Handles[0].Threshold != 20 ||
		*s.Handles[0].PID != os.Getpid() {
		t.Errorf("%+v", s.Handles)
	}
	must(t, c.Add(8))
	must(t, <-done)
	if s = showCounter(t, d, c.Name()); s.Handles[0].Threshold != nil || s.Wakes == 0 {
		t.Errorf("%+v", s)
	}
}

// TestCounterUserIsNamed: whoever keeps a counter from being removed is named, and not who made it
// or who sat in the same place and died.
func TestCounterUserIsNamed(t *testing.T) {
	t.Parallel()
	d, c, name := named3(t, cq.CounterOptions{Lifetime: cq.Persistent})
	name, base := name+"-3", name // as the child finds it
	wantUser := func(pid int) {
		t.Helper()
		r, err := collect.Assess(d, name, collect.Options{Waiting: true})
		if err != nil || r.Fate != collect.Living || r.Owner.PID != pid {
			t.Errorf("%v, %+v, want process %d", err, r, pid)
		}
	}
	wantUser(os.Getpid())
	first := startCounterPeer(t, base, false)
	must(t, c.Close())
	wantUser(first.Process.Pid)
	first.Kill()
	if r, err := collect.Assess(d, name, collect.Options{Waiting: true}); err != nil ||
		r.Fate != collect.Garbage {
		t.Errorf("%+v, %v", r, err)
	}
	obj := shmtest.Got(d.Open(name, shm.ReadWrite)).Or(t)
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 1, Len: 1} // the child's seat
	must(t, unix.FcntlFlock(uintptr(obj.FD()), unix.F_OFD_SETLK, &lock))
	wantUser(0) // the record still says who died
	must(t, obj.Close())
	must(t, cq.Remove(cq.Named(d, name)))
}

// wantOnly checks that err is every one of targets, and not EAGAIN.
func wantOnly(t *testing.T, what string, err error, targets ...error) {
	t.Helper()
	wantErr(t, what, err, targets...)
	if errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%s: %v is EAGAIN", what, err)
	}
}

// noError is must for goroutines that are not the test's.
func noError(t *testing.T, err error) {
	if err != nil {
		t.Error(err)
	}
}

// TestCounterCloseWakesOthers: what an add of this process has not done yet when its handle is
// closed beside it, Close does.
func TestCounterCloseWakesOthers(t *testing.T) {
	_, c := counter(t, cq.CounterOptions{Spin: -1})
	other := shmtest.Got(cq.AttachCounter(cq.FromFD(c.ObjectFD(), ""), cq.CounterOptions{})).Or(t)
	done := make(chan error)
	go func() { done <- cntrWait(c, 1, time.Minute) }()
	eventually(t, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	other.AddSilently(1)
	must(t, other.Close())
	must(t, <-done)
}

// TestCounterManyWaiters: one add wakes all whose threshold it reaches, in any number of goroutines
// and handles, and nobody else; no thread or goroutine is left.
func TestCounterManyWaiters(t *testing.T) {
	shmtest.Conforms(t)
	d, c := counter(t, cq.CounterOptions{Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{Spin: -1})
	before := runtime.NumGoroutine()
	const waiters = 500
	var low, high sync.WaitGroup
	for i := range waiters {
		at := []*cq.Counter{c, other}[i%2]
		low.Go(func() { noError(t, at.Wait(t.Context(), 10, cq.WaitOptions{})) })
		high.Go(func() { noError(t, at.Wait(t.Context(), uint64(11+i%3), cq.WaitOptions{})) })
	}
	eventually(t, "all wait", func() bool {
		return c.Stats().Waiters+other.Stats().Waiters == 2*waiters && c.Stats().Sleeps > 0 &&
			other.Stats().Sleeps > 0
	})
	for range 9 {
		must(t, c.Add(1))
	}
	if n := c.Stats().Rings; n != 0 {
		t.Errorf("%d adds that reach nobody's threshold wake", n)
	}
	must(t, c.Add(1))
	low.Wait()
	if n := c.Stats().Waiters + other.Stats().Waiters; n != waiters {
		t.Errorf("%d wait for more, want %d", n, waiters)
	}
	must(t, other.Set(100))
	high.Wait()
	eventually(t, "all are gone", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestCounterWaitersComeAndGo has waiters that give up beside such that must be woken: a leader
// that leaves hands on.
func TestCounterWaitersComeAndGo(t *testing.T) {
	t.Parallel()
	d, c := counter(t, cq.CounterOptions{Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{Spin: -1})
	const last = 2000
	var all sync.WaitGroup
	for i := range 4 {
		at := []*cq.Counter{c, other}[i%2]
		all.Go(func() {
			for want := uint64(1); want <= last; want += uint64(1 + i) {
				noError(t, at.Wait(t.Context(), want, cq.WaitOptions{}))
			}
		})
		all.Go(func() {
			for v := uint64(0); v < last; v, _ = at.Read() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
				_ = at.Wait(ctx, v+10, cq.WaitOptions{})
				_ = cntrWait(at, v+1000, time.Duration(i)*50*time.Microsecond)
				cancel()
			}
		})
	}
	for i := range last {
		must(t, []*cq.Counter{c, other}[i%2].Add(1))
		if i%16 == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		s := showCounter(t, d, c.Name())
		t.Fatalf("somebody was left asleep: %+v, %+v, %+v", s, c.Stats(), other.Stats())
	}
}

// readable polls a descriptor; it does not wait if ms is 0.
func readable(t testing.TB, fd, ms int) bool {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, ms)
		if err != unix.EINTR {
			must(t, err)
			return n > 0
		}
	}
}

// TestCounterDescriptorBeside: the descriptor and blocked goroutines of one handle do not take each
// other's wakes, whoever of them sleeps for the others.
func TestCounterDescriptorBeside(t *testing.T) {
	t.Parallel()
	d, c := counter(t, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	other := again(t, d, c.Name(), cq.CounterOptions{})
	for round := range uint64(200) {
		wantCounter(t, c, 2*round, 0)
		var waits []func()
		wait := func() {
			done := make(chan error, 1)
			go func() { done <- cntrWait(c, 2*round+2, time.Minute) }()
			waits = append(waits, func() { must(t, <-done) })
		}
		if round%2 == 0 {
			wait()
			if round%4 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		must(t, c.TryWait())
		wait()
		if round%8 < 4 {
			time.Sleep(100 * time.Microsecond)
		}
		must(t, other.Add(1))
		if !readable(t, waitFD(c), 60_000) {
			t.Fatalf("round %d: not readable: %+v", round, c.Stats())
		}
		must(t, other.Add(1))
		for _, w := range waits {
			w()
		}
	}
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
	r := rand.New(rand.NewPCG(1, 2)) // random ones, more often where it matters
	words := []func() uint64{r.Uint64, func() uint64 { return 0 }, func() uint64 { return ^uint64(0) },
		func() uint64 { return r.Uint64N(70) }, func() uint64 { return uint64(os.Getpid()) }}
	for i := range 60 {
		at := r.IntN([]int{1 << 16, cq.OffCounterRows + 4*cq.CounterRowBytes}[i%2])
		var patch, steps []byte
		for range 1 + r.IntN(40) {
			patch = append(patch, word(words[r.IntN(len(words))]())...)
			steps = append(steps, byte(r.Uint32()))
		}
		f.Add(uint16(at&^7), patch, steps)
	}
	f.Fuzz(counterWords)
}

// counterWords has bytes stand somewhere in a counter, and then takes steps.
func counterWords(t *testing.T, at uint16, patch, steps []byte) {
	d := openDir(t)
	const name = "fuzz-counter"
	c, err := cq.CreateCounter(cq.Named(d, name), cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	must(t, err)
	other := shmtest.Got(cq.AttachCounter(cq.Named(d, name), cq.CounterOptions{Spin: -1})).Or(t)
	obj := shmtest.Got(d.Open(name, shm.ReadWrite)).Or(t)
	mem, _, err := obj.Section(cq.SectCounter, 0)
	must(t, err)
	copy(mem[int(at)%len(mem):], patch)
	for _, step := range steps[:min(len(steps), 24)] {
		counterStep(t, c, other, step)
	}
	showCounter(t, d, name)
	checked := shmtest.Got(inspect.CheckObject(filepath.Join(d.Path(), name), nil)).Or(t)
	for _, v := range checked.Violations {
		if v.Offset+8 > obj.Header().TotalBytes {
			t.Errorf("%+v", v)
		}
	}
	must(t, errors.Join(obj.Close(), other.Close(), c.Close()))
	if err := collect.Remove(d, name, collect.Options{}); err != nil {
		t.Errorf("nobody has it: %v", err)
	}
}

// counterStep does something with a counter that nobody changes meanwhile.
func counterStep(t *testing.T, c, other *cq.Counter, step byte) {
	t.Helper()
	before := shmtest.Got(c.Read()).Or(t)
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		for _, err := range []error{cntrWait(waiter, before+n, time.Millisecond),
			waiter.Wait(ctx, before+n, cq.WaitOptions{})} {
			if err != nil && !errors.Is(err, cq.ErrAvail) && !errors.Is(err, cq.ErrTimedOut) &&
				!errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
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
