package cq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

const misuseTime = 80 * time.Millisecond

// misuse has goroutines call what is one goroutine's.
func misuse(t *testing.T, calls ...func(i int)) {
	t.Helper()
	if shmtest.Race {
		t.Skip("two goroutines in one handle are a data race: that is what is tried here")
	}
	hammer(t, calls...)
}

// hammer calls each of the functions in goroutines of their own until the time is over.
func hammer(t *testing.T, calls ...func(i int)) {
	t.Helper()
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
			note(w.Credits().Add(2))
			note(w.Credits().Post(&cq.Entry{}))
			w.Credits().Return(1)
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
	misuse(t, mixed, mixed, func(i int) { _ = w.Post(&cq.Entry{}) }, reader)
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
			misuse(t, taker, taker, taker, taker, func(i int) {
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
	e := shmtest.Have(cq.CreateEvents(cq.Named(d, queueName(t)), cq.EventOptions{Write: true})).In(t)
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
	misuse(t, taker, taker, taker, writer, writer)
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

// TestShared has several goroutines take from one queue in different blocking ways: every entry
// goes to exactly one of them.
func TestShared(t *testing.T) { eachWait(t, sharedReaders) }

func sharedReaders(t *testing.T, o cq.Options) {
	const writers, each = 3, 1500
	o.Shared, o.Size = true, 32
	d, q := create(t, o)
	seen := make([]atomic.Int32, writers*each)
	var left atomic.Int64
	left.Store(writers * each)
	take := func(es []cq.Context) {
		for _, e := range es {
			seen[e.Context].Add(1)
		}
		left.Add(int64(-len(es)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	readers := map[string]func(dst []cq.Context) (int, error){
		"read": func(dst []cq.Context) (int, error) { return cq.Read(q, dst) },
		"context": func(dst []cq.Context) (int, error) {
			return cq.ReadContext(ctx, q, dst,
				cq.ReadOptions{})
		},
		"timeout": func(dst []cq.Context) (int, error) {
			return sread(q, dst, time.Millisecond)
		},
		"threshold": func(dst []cq.Context) (int, error) {
			return sread(q, dst, 2*time.Millisecond, 3)
		},
	}
	var all sync.WaitGroup
	for name, read := range readers {
		all.Go(func() {
			dst := make([]cq.Context, 7)
			for left.Load() > 0 {
				n, err := read(dst)
				if err != nil && !errors.Is(err, syscall.EAGAIN) {
					t.Errorf("%s: %v", name, err)
					return
				}
				if take(dst[:n]); left.Load() <= 0 {
					_ = q.SignalAll() // the others need not wait any longer
				}
			}
		})
	}
	var posters sync.WaitGroup
	for i := range uint64(writers) {
		w := attach(t, d, q.Name())
		posters.Go(func() { postAll(t, w, i*each, (i+1)*each, func(uint64) {}) })
	}
	posters.Wait()
	eventually(t, "all are read", func() bool { return left.Load() <= 0 })
	stop := repeatedly(func(uint64) { _ = q.SignalAll() })
	all.Wait()
	stop()
	for i := range seen {
		if n := seen[i].Load(); n != 1 {
			t.Fatalf("entry %d came %d times", i, n)
		}
	}
}

// TestSharedCalls has goroutines call everything else at once, for the race detector.
func TestSharedCalls(t *testing.T) {
	t.Parallel()
	d, q := create(t, cq.Options{Size: 8, Shared: true, Wait: cq.WaitFD, Spin: -1})
	w := attach(t, d, q.Name())
	ctx, cancel := context.WithTimeout(t.Context(), misuseTime)
	defer cancel()
	peek := func(int) {
		if es, err := q.PeekContext(ctx, 2); err == nil {
			_ = q.Release(len(es))
		}
	}
	hammer(t, peek, peek,
		func(int) { _, _ = w.Post(&cq.Entry{}), w.PostError(&cq.ErrorEntry{}) },
		func(int) { _, _ = cq.Read(q, make([]cq.Msg, 2)) },
		func(int) { _ = q.ReadErr(&cq.ErrorEntry{}) },
		func(int) { _ = q.TryWait() },
		func(int) { _ = q.Signal() },
		func(int) { _, _ = q.Stats(), w.Stats() })
}

// closesInUse closes objects, again and again, while goroutines call what each has. Those succeed
// until they say that it is closed. A close may be refused while something is bound.
func closesInUse(t *testing.T, rounds int,
	open func() (end func() error, calls []func(i int) error)) {
	for range rounds {
		end, calls := open()
		var all sync.WaitGroup
		var begun atomic.Int64
		for _, call := range calls {
			all.Go(func() {
				for i := 0; ; i++ {
					err := call(i)
					begun.Add(1)
					if errors.Is(err, cq.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		eventually(t, "it is in use", func() bool { return begun.Load() > 50 })
		err := end()
		for errors.Is(err, cq.ErrBusy) {
			err = end()
		}
		must(t, err)
		all.Wait()
	}
}

// TestClosedInUse: Close beside other calls waits for none of them for ever, nor they for it.
func TestClosedInUse(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	type calls = []func(i int) error
	t.Run("counter", func(t *testing.T) {
		keep := shmtest.Have(cq.CreateCounter(cq.Named(d, "kept"), cq.CounterOptions{})).In(t)
		var counted atomic.Uint64
		closesInUse(t, 30, func() (func() error, calls) {
			c := shmtest.Got(cq.AttachCounter(cq.Named(d, "kept"), cq.CounterOptions{})).Or(t)
			add := func(int) error {
				err := c.Add(1)
				if err == nil {
					counted.Add(1)
				}
				return err
			}
			read := func(int) error { _, err := c.Read(); return err }
			return c.Close, calls{add, add, read, read}
		})
		if v, _ := keep.Read(); v < counted.Load() || v > counted.Load()+60 { // some were told in vain
			t.Errorf("value %d, %d adds succeeded", v, counted.Load())
		}
	})
	t.Run("vector", func(t *testing.T) {
		closesInUse(t, 20, func() (func() error, calls) {
			v := shmtest.Got(cq.CreateAddresses(cq.Unnamed("used"), cq.AddressOptions{Count: 64})).Or(t)
			use := func(n int) error {
				at, err := v.Insert([][]byte{sockaddr(n % 64)}, cq.InsertOptions{})
				_, _ = v.Resolve(sockaddr((n + 1) % 64))
				_, _ = v.Lookup(cq.Addr(n%64), make([]byte, 32))
				if err == nil {
					_ = v.Remove(at[0]) // another goroutine may have
				}
				return err
			}
			return v.Close, calls{use, use, use, use}
		})
	})
	t.Run("shared queue", func(t *testing.T) {
		closesInUse(t, 20, func() (func() error, calls) {
			q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Shared: true, Size: 8})).Or(t)
			look := func(int) error {
				_, err := cq.Read(q, make([]cq.Msg, 1))
				if err == cq.ErrWouldBlock {
					err = nil
				}
				return err
			}
			return q.Close, calls{look, look}
		})
	})
	t.Run("own writer", func(t *testing.T) {
		closesInUse(t, 100, func() (func() error, calls) {
			o := cq.Options{Size: 4, MaxLanes: 1, Shared: true}
			q := shmtest.Got(cq.Create(cq.Named(d, "q"), o)).Or(t)
			return q.Close, calls{func(int) error {
				w, err := q.Writer()
				if err == nil {
					_ = w.Close()
				}
				return err
			}}
		})
	})
	t.Run("descriptors", func(t *testing.T) {
		closesInUse(t, 50, func() (func() error, calls) {
			s := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD})).Or(t)
			q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Wait: cq.WaitFD})).Or(t)
			end := func() error {
				err := errors.Join(q.Close(), s.Close())
				if waitFD(q) != -1 || waitFD(s) != -1 {
					t.Errorf("descriptors %d, %d of what is closed", waitFD(q), waitFD(s))
				}
				return err
			}
			return end, calls{func(int) error { _, err := q.GetWait(); return err },
				func(int) error { _, err := s.GetWait(); return err }}
		})
	})
}

// TestCreditBesideReserve: room that Reserve handed out is not promised to somebody else.
func TestCreditBesideReserve(t *testing.T) {
	_, w := pair(t, cq.Options{Size: 8})
	a, _, err := w.Reserve(6)
	if err != nil || len(a) != 6 {
		t.Fatal(len(a), err)
	}
	if err := w.Credits().Add(3); err != cq.ErrFull {
		t.Errorf("credit for room that is reserved: %v", err)
	}
	must(t, w.Credits().Add(2))
	clear(a)
	must(t, w.Commit(6))
	for w.Credits().Len() > 0 {
		must(t, w.Credits().Post(&cq.Entry{}))
	}
}
