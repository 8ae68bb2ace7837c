package cq_test

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

const misuseTime = 200 * time.Millisecond

// hammer calls each of the functions in goroutines of their own until the time is over.
func hammer(t *testing.T, calls ...func(i int)) {
	t.Helper()
	if raceEnabled {
		t.Skip("two goroutines in one handle are a data race: that is what is tried here")
	}
	var over atomic.Bool
	var all sync.WaitGroup
	for _, call := range calls {
		all.Go(func() {
			for i := 0; !over.Load(); i++ {
				call(i)
			}
		})
	}
	time.Sleep(misuseTime)
	over.Store(true)
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("a call does not return")
	}
}

// TestTwoGoroutinesOneWriter: none of them crashes, and who is noticed gets ErrBusy.
func TestTwoGoroutinesOneWriter(t *testing.T) {
	t.Parallel()
	q, w := pair(t, cq.Options{Size: 64, Shared: true})
	var busy atomic.Int64
	note := func(err error) {
		if errors.Is(err, cq.ErrBusy) {
			busy.Add(1)
		}
	}
	batch := make([]cq.Entry, 9)
	mixed := func(i int) {
		switch i % 6 {
		case 0, 1:
			note(w.Post(&cq.Entry{Context: uint64(i)}))
		case 2:
			_, err := w.PostBatch(batch)
			note(err)
		case 3:
			note(w.PostError(&cq.ErrorEntry{Err: cq.ETrunc, ErrData: []byte("why")}))
		case 4:
			note(w.Credit(2))
			note(w.PostCredited(&cq.Entry{}))
			w.ReturnCredits(1)
		case 5:
			a, _, err := w.Reserve(3)
			note(err)
			note(w.Commit(min(1, len(a))))
		}
	}
	reader := func(int) {
		if n, err := cq.Read(q, make([]cq.Msg, 16)); n == 0 && errors.Is(err, cq.ErrAvail) {
			_ = q.ReadErr(&cq.ErrorEntry{})
		}
	}
	hammer(t, mixed, mixed, func(i int) { _ = w.Post(&cq.Entry{}) }, reader)
	t.Logf("noticed %d times", busy.Load())
}

// TestTwoGoroutinesOneReader mixes everything that takes from a queue.
func TestTwoGoroutinesOneReader(t *testing.T) {
	t.Parallel()
	for i, o := range []cq.Options{{Size: 64}, {Size: 64, Spin: -1}, {Size: 4, Wait: cq.WaitYield}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			q, w := pair(t, o)
			taker := func(i int) {
				dst := make([]cq.Msg, 16)
				switch i % 6 {
				case 0, 1:
					_, _ = cq.Read(q, dst)
				case 2:
					_, _ = sread(q, dst, time.Microsecond, i%3)
				case 3:
					es, _ := q.Peek(8)
					_ = q.Release(len(es))
				case 4:
					_ = q.ReadErr(&cq.ErrorEntry{})
				case 5:
					for range q.Entries(5) {
						continue
					}
				}
			}
			hammer(t, taker, taker, taker, taker, func(i int) {
				if i%50 == 0 {
					_ = w.PostError(&cq.ErrorEntry{Err: cq.ETrunc})
				}
				_ = w.Post(&cq.Entry{Context: uint64(i)})
			})
			for es, err := q.Peek(1); err == nil; es, err = q.Peek(1) {
				_ = q.Release(len(es))
			}
			for q.Release(1) == nil { // the last one finds out that nothing is handed out any more
			}
		})
	}
}

// TestLostHandOut: what two goroutines made unreleasable does not keep the queue open for ever.
func TestLostHandOut(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	post(t, w, 0, 3)
	if es, err := q.Peek(3); len(es) != 3 || err != nil {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	cq.LoseHandOut(q)
	wantErr(t, "release", q.Release(1), cq.ErrBusy)
	must(t, q.Close())
}

// TestTwoGoroutinesOneEventQueue: reads, peeks and writes of events.
func TestTwoGoroutinesOneEventQueue(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	e, err := cq.CreateEvents(d, queueName(t), cq.EventOptions{Write: true})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close()) })
	taker := func(i int) {
		ev := cq.Event{Payload: make([]byte, 0, 32)}
		switch i % 4 {
		case 0, 1:
			_, _ = e.Read(&ev, 0)
		case 2:
			_, _ = e.Read(&ev, cq.FlagPeek)
		case 3:
			_, _ = e.ReadErr(&cq.EventError{}, 0)
		}
	}
	writer := func(i int) {
		_, _ = e.Write(&cq.Event{Event: cq.EventUser, Payload: []byte("payload")})
		if i%20 == 0 {
			_, _ = e.WriteErr(&cq.EventError{Err: cq.ETrunc})
		}
	}
	hammer(t, taker, taker, taker, writer, writer)
}

// TestSecondGoroutineIsTold: while one waits, a call of another is refused, and means no end.
func TestSecondGoroutineIsTold(t *testing.T) {
	q, w := pair(t, cq.Options{Spin: -1})
	got := make(chan error)
	go func() {
		_, err := sread(q, make([]cq.Msg, 1), time.Minute)
		got <- err
	}()
	eventually(t, "the other sleeps", func() bool { return q.Stats().Sleeps > 0 })
	_, err := q.Peek(1)
	wantErr(t, "peek beside a wait", err, cq.ErrBusy)
	if errors.Is(err, os.ErrClosed) {
		t.Error("it says closed")
	}
	post(t, w, 0, 1)
	must(t, <-got)
	_, err = cq.Read(q, make([]cq.Msg, 1))
	wantErr(t, "alone again", err, cq.ErrWouldBlock)
}

// TestYieldThresholdDrives: a read that yields until several are there drives what posts them.
func TestYieldThresholdDrives(t *testing.T) {
	q, w := pair(t, cq.Options{Wait: cq.WaitYield})
	f := &feeder{w: w, every: 3}
	unbind, err := q.Bind(f, true)
	must(t, err)
	defer unbind()
	n, err := sread(q, make([]cq.Context, 8), time.Minute, 4)
	if n < 4 || err != nil {
		t.Errorf("sread %d, %v", n, err)
	}
}
