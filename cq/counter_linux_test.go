package cq_test

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/shm"
)

// counter makes a counter named after the test and closes it when the test ends.
func counter(t testing.TB, o cq.CounterOptions) (*shm.Dir, *cq.Counter) {
	t.Helper()
	d := openDir(t)
	c, err := cq.CreateCounter(d, queueName(t), o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return d, c
}

// again opens a counter once more, as another process would.
func again(t testing.TB, d *shm.Dir, name string, o cq.CounterOptions) *cq.Counter {
	t.Helper()
	c, err := cq.OpenCounter(d, name, o)
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

// TestCounterLifetime: an ephemeral counter goes with the last that closes it, a persistent one
// stays with its value.
func TestCounterLifetime(t *testing.T) {
	d := openDir(t)
	c, err := cq.CreateCounter(d, "ephemeral", cq.CounterOptions{})
	must(t, err)
	other, err := cq.OpenCounter(d, "ephemeral", cq.CounterOptions{})
	must(t, err)
	must(t, c.Add(3))
	must(t, c.Close())
	wantErr(t, "remove while it is open", cq.Remove(d, "ephemeral"), cq.ErrBusy,
		syscall.EBUSY)
	wantErr(t, "remove while it is open", collect.Remove(d, "ephemeral", collect.Options{}),
		cq.ErrBusy)
	wantCounter(t, other, 3, 0)
	must(t, other.Close())
	must(t, other.Close())
	nothingLeft(t, d)
	must(t, cq.Remove(d, "ephemeral")) // which is not there
	must(t, collect.Remove(d, "ephemeral", collect.Options{}))

	c, err = cq.CreateCounter(d, "persistent", cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(4))
	must(t, c.Close())
	wantErr(t, "it may be wanted", collect.Remove(d, "persistent", collect.Options{}), cq.ErrBusy)
	c, err = cq.OpenCounter(d, "persistent", cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	wantCounter(t, c, 4, 0)
	must(t, c.Close())
	must(t, cq.Remove(d, "persistent"))
	nothingLeft(t, d)
}

func TestCounterAnonymous(t *testing.T) {
	c, err := cq.CreateAnonymousCounter("sum", cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	other, err := cq.OpenCounterFD(c.ObjectFD(), cq.CounterOptions{Events: cq.BytesCounter})
	must(t, err)
	if other.Name() != "sum" || other.FID() != c.FID() || c.FID().Kind != cq.FIDCounter ||
		c.FID().ID == 0 || other.UserContext() != nil {
		t.Error(other.Name(), other.FID())
	}
	must(t, c.Add(2))
	must(t, c.Close())
	wantCounter(t, other, 2, 0)
	if err := os.Truncate(fmt.Sprintf("/proc/self/fd/%d", other.ObjectFD()), 0); err == nil {
		t.Error("a peer can cut it")
	}
	must(t, other.Close())
}

func TestCounterMisuse(t *testing.T) {
	d, c := counter(t, cq.CounterOptions{})
	for field, o := range map[string]cq.CounterOptions{
		"Events": {Events: 2}, "Lifetime": {Lifetime: 2}, "Wait": {Wait: 99}} {
		_, err := cq.CreateCounter(d, "bad", o)
		wantErr(t, field, err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, field)
		_, err = cq.OpenCounter(d, c.Name(), o)
		wantErr(t, field, err, cq.ErrInvalid)
		_, err = cq.CreateAnonymousCounter("bad", o)
		wantErr(t, field, err, cq.ErrInvalid)
	}
	_, err := cq.OpenCounter(d, c.Name(), cq.CounterOptions{Events: cq.BytesCounter})
	wantErr(t, "other events", err, cq.ErrInvalid)
	_, err = cq.OpenCounter(d, c.Name(), cq.CounterOptions{Lifetime: cq.Persistent})
	wantErr(t, "other lifetime", err, cq.ErrInvalid)
	_, err = cq.OpenCounter(d, "none", cq.CounterOptions{})
	wantErr(t, "none", err, fs.ErrNotExist, syscall.ENOENT)
	for _, name := range []string{"", "bell-x", "a/b", ".x"} {
		_, err = cq.CreateCounter(d, name, cq.CounterOptions{})
		wantErr(t, name, err, shm.ErrName)
	}
	_, err = cq.OpenCounterFD(int(^uint(0)>>1), cq.CounterOptions{})
	wantErr(t, "no descriptor", err, syscall.EBADF)
	nobody, err := d.Create("region", shm.Spec{Kind: shm.KindRegion}, nil)
	must(t, err)
	_, err = cq.OpenCounter(d, "region", cq.CounterOptions{})
	wantErr(t, "a region", err, shm.ErrKind)
	wantErr(t, "a region", cq.Remove(d, "region"), shm.ErrKind)
	must(t, nobody.Unlink())
	must(t, nobody.Close())

	must(t, c.Bind())
	wantErr(t, "close while bound", c.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, c.Add(1)) // it is still open
	c.Unbind()
	must(t, c.Close())
	for name, call := range map[string]func() error{
		"read":    func() error { _, err := c.Read(); return err },
		"readerr": func() error { _, err := c.ReadErr(); return err },
		"add":     func() error { return c.Add(1) },
		"adderr":  func() error { return c.AddErr(1) },
		"set":     func() error { return c.Set(1) },
		"seterr":  func() error { return c.SetErr(1) },
		"wait":    func() error { return c.Wait(t.Context(), 9, cq.WaitOptions{}) },
		"wait 0":  func() error { return c.Wait(t.Context(), 0, cq.WaitOptions{}) },
		"waiting": func() error { return cntrWait(c, 9, 0) },
		"bind":    func() error { return c.Bind() },
	} {
		wantErr(t, name+" after Close", call(), cq.ErrClosed, os.ErrClosed)
	}
}

// TestCounterClosedInUse: Close beside every other call, which then either counts or says so.
func TestCounterClosedInUse(t *testing.T) {
	d := openDir(t)
	keep, err := cq.CreateCounter(d, "kept", cq.CounterOptions{})
	must(t, err)
	var counted uint64
	for range 30 {
		c, err := cq.OpenCounter(d, "kept", cq.CounterOptions{})
		must(t, err)
		var all sync.WaitGroup
		var sure [2]uint64
		for i := range sure {
			all.Go(func() {
				for c.Add(1) == nil {
					if sure[i]++; sure[i]%256 == 0 {
						runtime.Gosched()
					}
				}
			})
			all.Go(func() {
				for i := 0; ; i++ {
					if _, err := c.Read(); err != nil {
						return
					}
					if i%256 == 0 {
						runtime.Gosched()
					}
				}
			})
		}
		for range 20 {
			runtime.Gosched()
		}
		must(t, c.Close())
		all.Wait()
		counted += sure[0] + sure[1]
	}
	if v, _ := keep.Read(); v < counted || v > counted+60 {
		t.Errorf("value %d, %d adds succeeded", v, counted)
	}
	must(t, keep.Close())
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
	o, err := ctl.ShowObject(d, name)
	must(t, err)
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
