package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
