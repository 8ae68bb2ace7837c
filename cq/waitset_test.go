package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// waitSet makes a set that is closed when the test ends.
func waitSet(t testing.TB, d *shm.Dir, o cq.WaitSetOptions) *cq.WaitSet {
	t.Helper()
	s, err := cq.NewWaitSet(d, o)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// member makes a queue with a writer, in the set until the test ends.
func member(t testing.TB, d *shm.Dir, name string, o cq.Options, sets ...interface {
	Add(cq.Waitable) error
	Remove(cq.Waitable) error
}) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q, err := cq.Create(d, name, o)
	must(t, err)
	t.Cleanup(func() { closeQueue(t, q) })
	for _, s := range sets {
		must(t, s.Add(q))
		t.Cleanup(func() {
			err := s.Remove(q)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && err != cq.ErrClosed {
				t.Error(err)
			}
		})
	}
	return q, attach(t, d, name)
}

// TestWaitSetSaysWho waits for the one of several queues that gets something.
func TestWaitSetSaysWho(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	var qs []*cq.Queue
	var ws []*cq.Writer
	for i := range 3 {
		q, w := member(t, d, fmt.Sprintf("q%d", i), cq.Options{UserContext: i}, s)
		qs, ws = append(qs, q), append(ws, w)
	}
	dst := make([]cq.Waitable, 4)
	_, err := setWait(s, dst, 0)
	wantErr(t, "nothing", err, cq.ErrTimedOut, syscall.ETIMEDOUT, os.ErrDeadlineExceeded)
	for i := range 60 {
		at := i % 3
		wait := later(func() { post(t, ws[at], uint64(i), uint64(i+1)) })
		n, err := s.Wait(t.Context(), dst, cq.WaitOptions{})
		if n != 1 || err != nil || dst[0] != cq.Waitable(qs[at]) || dst[0].UserContext() != at {
			t.Fatalf("%d: %d, %v, %v", i, n, err, dst[:n])
		}
		wait()
		// It stays ready until it was found empty.
		if n, err = setWait(s, dst, 0); n != 1 || err != nil {
			t.Fatalf("%d: not read, %d, %v", i, n, err)
		}
		if got := read(t, qs[at], 4); len(got) != 1 || got[0] != uint64(i) {
			t.Fatalf("%d: read %v", i, got)
		}
	}
}

// TestWaitSetShort: those that do not fit come the next time, and each gets its turn.
func TestWaitSetShort(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	for i := range 5 {
		_, w := member(t, d, fmt.Sprintf("q%d", i), cq.Options{UserContext: i}, s)
		post(t, w, 0, 1)
	}
	seen := map[any]int{}
	dst := make([]cq.Waitable, 2)
	for range 10 {
		n, err := s.Wait(t.Context(), dst, cq.WaitOptions{})
		if err != nil || n == 0 || n > 2 {
			t.Fatal(n, err)
		}
		for _, m := range dst[:n] {
			seen[m.UserContext()]++
		}
	}
	if len(seen) != 5 {
		t.Errorf("only %v had a turn", seen)
	}
	if n, err := s.Wait(t.Context(), nil, cq.WaitOptions{}); n != 0 || err != nil {
		t.Errorf("without room: %d, %v", n, err)
	}
}

// TestWaitSetEnds leaves a wait in every other way.
func TestWaitSetEnds(t *testing.T) {
	d := openDir(t)
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	q, w := member(t, d, "q", cq.Options{}, s)
	dst := make([]cq.Waitable, 1)

	must(t, s.Signal())
	must(t, s.Signal())
	_, err = s.Wait(t.Context(), dst, cq.WaitOptions{})
	wantErr(t, "signal before", err, cq.ErrSignaled, syscall.EAGAIN)
	_, err = setWait(s, dst, time.Millisecond)
	wantErr(t, "signals do not add up", err, cq.ErrTimedOut)
	wait := later(func() { must(t, s.Signal()) })
	_, err = s.Wait(t.Context(), dst, cq.WaitOptions{})
	wantErr(t, "signal", err, cq.ErrSignaled)
	wait()

	ctx, cancel := context.WithCancel(t.Context())
	wait = later(cancel)
	_, err = s.Wait(ctx, dst, cq.WaitOptions{})
	wantErr(t, "cancel", err, context.Canceled)
	wait()

	post(t, w, 0, 1)
	must(t, s.Signal())
	if n, err := s.Wait(t.Context(), dst, cq.WaitOptions{}); n != 1 || err != nil {
		t.Errorf("what is there wins over a signal: %d, %v", n, err)
	}
	read(t, q, 1)
	_, err = s.Wait(t.Context(), dst, cq.WaitOptions{})
	wantErr(t, "which stays", err, cq.ErrSignaled)

	wait = later(func() { must(t, q.Signal()) })
	if n, err := s.Wait(t.Context(), dst, cq.WaitOptions{}); n != 1 || err != nil {
		t.Errorf("a member's signal: %d, %v", n, err)
	}
	wait()
	_, err = sread(q, make([]cq.Msg, 1), time.Millisecond)
	wantErr(t, "which has ended one wait", err, cq.ErrTimedOut)

	wantErr(t, "close with a member", s.Close(), cq.ErrBusy)
	wantErr(t, "close of a member", q.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, s.Remove(q))
	wantErr(t, "removed twice", s.Remove(q), fs.ErrNotExist)
	wait = later(func() { must(t, s.Close()) })
	_, err = s.Wait(t.Context(), dst, cq.WaitOptions{})
	wantErr(t, "closed", err, cq.ErrClosed, os.ErrClosed)
	wait()
	_, err = s.Wait(t.Context(), dst, cq.WaitOptions{})
	wantErr(t, "after close", err, cq.ErrClosed)
	wantErr(t, "add after close", s.Add(q), cq.ErrClosed)
}

// TestWaitSetBusy: one goroutine at a time waits on a set.
func TestWaitSetBusy(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := error(cq.ErrBusy)
		for errors.Is(err, cq.ErrBusy) { // the second one may come first
			_, err = s.Wait(ctx, nil, cq.WaitOptions{})
		}
		done <- err
	}()
	eventually(t, "a second waiter is refused", func() bool {
		_, err := setWait(s, nil, 0)
		return errors.Is(err, cq.ErrBusy)
	})
	cancel()
	wantErr(t, "the first", <-done, context.Canceled)
}

// TestWaitSetOptions: what a set cannot be.
func TestWaitSetOptions(t *testing.T) {
	d := openDir(t)
	for _, o := range []cq.WaitSetOptions{{Flags: 1}, {Wait: cq.WaitNone}, {Wait: cq.WaitYield},
		{Wait: cq.WaitInSet}, {Wait: 99}} {
		_, err := cq.NewWaitSet(d, o)
		wantErr(t, fmt.Sprint(o), err, cq.ErrInvalid, syscall.EINVAL)
	}
	s := waitSet(t, d, cq.WaitSetOptions{})
	q, _ := member(t, d, "none", cq.Options{Wait: cq.WaitNone})
	wantErr(t, "a queue that cannot wait", s.Add(q), cq.ErrNoWait)
	q, _ = member(t, d, "twice", cq.Options{}, s)
	wantErr(t, "a member", s.Add(q), fs.ErrExist)
	if waitFD(s) != -1 || !errors.Is(s.TryWait(), cq.ErrNoWait) {
		t.Error("a set without a descriptor has one")
	}
}

// TestWaitInSet opens queues for a set: they refuse blocking reads and leave it when they close.
func TestWaitInSet(t *testing.T) {
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	_, err := cq.Create(d, "alone", cq.Options{Wait: cq.WaitInSet})
	wantErr(t, "without a set", err, cq.ErrInvalid)
	q, w := member(t, d, "in", cq.Options{Wait: cq.WaitInSet, WaitSet: s})
	_, err = sread(q, make([]cq.Msg, 1), 0)
	wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
	wantErr(t, "close of its set", s.Close(), cq.ErrBusy)
	wait := later(func() { post(t, w, 0, 1) })
	dst := make([]cq.Waitable, 1)
	if n, err := s.Wait(t.Context(), dst, cq.WaitOptions{}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	wait()
	es, err := q.Peek(1)
	if len(es) != 1 {
		t.Fatal(err)
	}
	wantErr(t, "close with a loan", q.Close(), cq.ErrBusy)
	if s.Len() != 1 {
		t.Error("a close that failed took it out")
	}
	must(t, q.Release(1))
	must(t, q.Close())
	if s.Len() != 0 {
		t.Error("still in its set")
	}
	// The field is ignored with any other wait object.
	q, _ = member(t, d, "out", cq.Options{WaitSet: s})
	if s.Len() != 0 {
		t.Errorf("%v is a member", q.FID())
	}
}

// TestWaitBothWays: one goroutine waits on a set, others read one of its queues with blocking
// calls, while members come and go. Nothing stays unread.
func TestWaitBothWays(t *testing.T) {
	t.Parallel()
	const each = 3000
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{})
	shared, w0 := member(t, d, "shared", cq.Options{Shared: true, Spin: -1, Size: 64}, s)
	other, w1 := member(t, d, "other", cq.Options{Shared: true, Size: 64}, s)
	got := make(chan int)
	ctx, cancel := context.WithCancel(t.Context())
	count := func(q *cq.Queue) (n int) {
		dst := make([]cq.Context, 8)
		for {
			k, err := cq.ReadContext(ctx, q, dst, cq.ReadOptions{})
			if err != nil {
				return n
			}
			n += k
		}
	}
	for range 2 {
		go func() { got <- count(shared) }()
	}
	go func() {
		n := 0
		members := make([]cq.Waitable, 2)
		dst := make([]cq.Context, 8)
		for {
			k, err := s.Wait(ctx, members, cq.WaitOptions{})
			if err != nil {
				got <- n
				return
			}
			for _, m := range members[:k] {
				r, _ := cq.Read(m.(*cq.Queue), dst)
				n += r
			}
		}
	}()
	poster := func(w *cq.Writer, done chan bool) {
		for i := range uint64(each) {
			for w.Post(&cq.Entry{Context: i}) != nil {
				time.Sleep(10 * time.Microsecond)
			}
			if i%16 == 0 {
				time.Sleep(time.Microsecond)
			}
		}
		done <- true
	}
	done := make(chan bool)
	go poster(w0, done)
	go poster(w1, done)
	for range 50 {
		must(t, s.Remove(other))
		must(t, s.Add(other))
	}
	<-done
	<-done
	eventually(t, "everything is read", func() bool {
		return shared.Stats().Read+other.Stats().Read == 2*each
	})
	cancel()
	if n := <-got + <-got + <-got; n != 2*each {
		t.Errorf("read %d of %d", n, 2*each)
	}
}

// TestPollSet finds queues that have something, none twice when it was read, none forgotten when
// the array is short.
func TestPollSet(t *testing.T) {
	d := openDir(t)
	_, err := cq.NewPollSet(d, 1)
	wantErr(t, "flags", err, cq.ErrInvalid)
	s, err := cq.NewPollSet(d, 0)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	var qs []*cq.Queue
	for i := range 4 {
		q, w := member(t, d, fmt.Sprintf("q%d", i), cq.Options{Wait: cq.WaitNone}, s)
		qs = append(qs, q)
		if i > 0 {
			post(t, w, 0, 1)
		}
	}
	if s.Len() != 4 {
		t.Error(s.Len())
	}
	dst := make([]cq.Waitable, 2)
	if n, err := s.Poll(nil); n != 0 || err != nil {
		t.Errorf("without room: %d, %v", n, err)
	}
	seen := map[cq.FID]bool{}
	for range 3 {
		n, err := s.Poll(dst)
		must(t, err)
		for _, m := range dst[:n] {
			seen[m.FID()] = true
		}
	}
	if len(seen) != 3 || seen[qs[0].FID()] {
		t.Errorf("%v have something", seen)
	}
	for _, q := range qs {
		drain(t, q)
	}
	if n, err := s.Poll(dst); n != 0 || err != nil {
		t.Errorf("all empty: %d, %v", n, err)
	}
	wantErr(t, "close with members", s.Close(), cq.ErrBusy)
}
