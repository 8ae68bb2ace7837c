package cq_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// blocking are the wait objects with which a queue can block.
var blocking = []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield}

func eachWait(t *testing.T, f func(t *testing.T, o cq.Options)) {
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) { f(t, cq.Options{Size: 8, Wait: wait, Spin: -1}) })
	}
}

func TestPeekContext(t *testing.T) {
	eachWait(t, func(t *testing.T, o cq.Options) {
		q, w := pair(t, o)
		defer later(func() { post(t, w, 7, 8) })()
		es, err := q.PeekContext(t.Context(), 4)
		if err != nil || len(es) != 1 || es[0].Context != 7 {
			t.Fatalf("%v, %v", es, err)
		}
		if _, err := q.PeekContext(t.Context(), 4); err != cq.ErrWouldBlock {
			t.Errorf("with entries out it does not wait: %v", err)
		}
		must(t, q.Release(1))
	})
}

// TestReadTimeoutUnderLoad blocks all the time while a writer posts in bursts of every length.
func TestReadTimeoutUnderLoad(t *testing.T) {
	shmtest.Long(t)
	const total = 8000
	for _, spin := range []time.Duration{-1, 0, time.Millisecond} {
		eachWait(t, func(t *testing.T, o cq.Options) {
			o.Spin = spin
			q, w := pair(t, o)
			var writers sync.WaitGroup
			writers.Go(func() {
				for i := uint64(0); i < total; {
					switch err := w.Post(&cq.Entry{Context: i}); err {
					case nil:
						i++
						if i%997 == 0 {
							time.Sleep(200 * time.Microsecond)
						}
					case cq.ErrFull:
						runtime.Gosched()
					default:
						t.Error(err)
						return
					}
				}
			})
			dst := make([]cq.Context, 5)
			for next := uint64(0); next < total; {
				n, err := sread(q, dst, time.Minute)
				must(t, err)
				if got := contexts(dst[:n]); !slices.Equal(got, upTo(next, next+uint64(n))) {
					t.Fatalf("got %v, want from %d", got, next)
				}
				next += uint64(n)
			}
			writers.Wait()
		})
	}
}

// atLeast waits for min entries into a buffer for 32.
func atLeast(q *cq.Queue, min int, timeout time.Duration) (int, error) {
	return sread(q, make([]cq.Context, 32), timeout, min)
}

func TestThreshold(t *testing.T) {
	const short = 20 * time.Millisecond
	tests := []struct {
		name    string
		min     int
		timeout time.Duration
		run     func(t *testing.T, ws []*cq.Writer)
		n       int
		err     error
	}{
		{"there", 3, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 3) }, 3, nil},
		{"more than asked", 3, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 5) }, 5, nil},
		{"min 1", 1, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 1) }, 1, nil},
		{"min 0", 0, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 1) }, 1, nil},
		{"min below 0", -4, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 1) }, 1, nil},
		{"part at the deadline", 3, short, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 2) },
			2, nil},
		{"nothing at the deadline", 3, short, func(*testing.T, []*cq.Writer) {}, 0, cq.ErrTimedOut},
		{"no time", 3, 0, func(t *testing.T, ws []*cq.Writer) { post(t, ws[0], 0, 2) }, 2, nil},
		{"over lanes", 4, -1, func(t *testing.T, ws []*cq.Writer) {
			post(t, ws[0], 0, 2)
			post(t, ws[1], 0, 2)
		}, 4, nil},
		{"a full lane", 12, -1, func(t *testing.T, ws []*cq.Writer) { post(t, ws[1], 0, 8) }, 8, nil},
		{"an error at the head", 3, -1, func(t *testing.T, ws []*cq.Writer) { postError(t, ws[0], 0) },
			0, cq.ErrAvail},
		{"an error behind one", 3, -1, func(t *testing.T, ws []*cq.Writer) {
			post(t, ws[0], 0, 1)
			postError(t, ws[0], 1)
		}, 1, nil},
		{"all the room", 16, short, func(t *testing.T, ws []*cq.Writer) {
			post(t, ws[0], 0, 7)
			post(t, ws[1], 0, 7)
		}, 14, nil},
	}
	eachWait(t, func(t *testing.T, o cq.Options) {
		for _, tt := range tests {
			for name, asleep := range map[string]bool{"before": false, "while it waits": true} {
				if asleep && (tt.timeout >= 0 || tt.min < 2 || tt.n > tt.min) {
					continue
				}
				t.Run(tt.name+" "+name, func(t *testing.T) {
					d, q := create(t, o)
					ws := []*cq.Writer{attach(t, d, q.Name()), attach(t, d, q.Name())}
					if asleep {
						defer later(func() { tt.run(t, ws) })()
					} else {
						tt.run(t, ws)
					}
					if n, err := atLeast(q, tt.min, tt.timeout); n != tt.n || !errors.Is(err, tt.err) {
						t.Errorf("%d, %v; want %d, %v", n, err, tt.n, tt.err)
					}
				})
			}
		}
	})
}

// TestThresholdLastOne posts what is missing one by one: the reader sleeps until the last comes.
func TestThresholdLastOne(t *testing.T) {
	for _, lanes := range []int{1, 2, 3} {
		d, q := create(t, cq.Options{Size: 8, Spin: -1})
		var ws []*cq.Writer
		for range lanes {
			ws = append(ws, attach(t, d, q.Name()))
		}
		go func() {
			for i := range 6 {
				before := q.Stats().Sleeps
				for range 10 { // let it go to sleep if it wants to
					if q.Stats().Sleeps != before {
						break
					}
					time.Sleep(100 * time.Microsecond)
				}
				_ = ws[i%lanes].Post(&cq.Entry{})
			}
		}()
		if n, err := atLeast(q, 6, time.Minute); n != 6 || err != nil {
			t.Errorf("%d lanes: %d, %v", lanes, n, err)
		}
		must(t, q.Close())
	}
}

// TestThresholdSleeps: a reader that misses a single entry sleeps for it and does not spin.
func TestThresholdSleeps(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8, Spin: -1})
	eventually(t, "it sleeps while one entry is missing", func() bool {
		post(t, w, 0, 2)
		if n, err := atLeast(q, 3, 30*time.Millisecond); n != 2 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		return q.Stats().Sleeps > 0 // a busy machine may let the time pass awake
	})
}

// TestThresholdNewLane: a lane that attaches after the arming counts too.
func TestThresholdNewLane(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, Spin: -1})
	w := attach(t, d, q.Name())
	post(t, w, 0, 1)
	got := make(chan int, 1)
	go func() {
		n, _ := atLeast(q, 4, time.Minute)
		got <- n
	}()
	eventually(t, "it sleeps", func() bool { return q.Stats().Sleeps > 0 })
	other := attach(t, d, q.Name())
	post(t, other, 0, 2)
	select {
	case n := <-got:
		t.Fatalf("woke with %d", n)
	case <-time.After(10 * time.Millisecond):
	}
	post(t, other, 2, 3)
	if n := <-got; n != 4 {
		t.Errorf("%d, want 4", n)
	}
}

func TestThresholdTooMuch(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 2})
	w := attach(t, d, q.Name())
	for _, least := range []int{24, 25, math.MaxInt} { // two lanes and the reader's own
		if _, err := atLeast(q, least, 0); !errors.Is(err, cq.ErrTimedOut) {
			t.Errorf("%d: %v", least, err)
		}
		done := later(func() { post(t, w, 0, 8) })
		if n, err := atLeast(q, least, -1); n != 8 || err != nil {
			t.Errorf("%d: %d, %v", least, n, err)
		}
		done()
	}
}

// TestThresholdPart: whatever ends the wait, what is there is the result.
func TestThresholdPart(t *testing.T) {
	for name, end := range map[string]func(q *cq.Queue, cancel func()){
		"context":    func(_ *cq.Queue, cancel func()) { cancel() },
		"signal":     func(q *cq.Queue, _ func()) { _ = q.Signal() },
		"signal all": func(q *cq.Queue, _ func()) { _ = q.SignalAll() },
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 8, Spin: -1})
			post(t, w, 0, 2)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer repeatedly(func(uint64) { end(q, cancel) })()
			n, err := cq.ReadContext(ctx, q, make([]cq.Msg, 4), cq.ReadOptions{Threshold: 3})
			if n != 2 || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		})
	}
}

func TestPostAndRead(t *testing.T) {
	d := openDir(t)
	q, err := cq.Create(cq.Named(d, "orders"), cq.Options{Size: 8})
	if err != nil {
		t.Fatal(err)
	}
	w, err := cq.Attach(t.Context(), cq.Named(d, "orders"), cq.WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cq.Read(q, make([]cq.Msg, 4)); err != cq.ErrWouldBlock {
		t.Fatalf("empty queue: %v", err)
	}
	for i := range uint64(20) {
		if err := w.Post(&cq.Entry{Context: i, Flags: cq.FlagSend | cq.FlagMsg, Tag: i * 2}); err != nil {
			t.Fatal(err)
		}
		got := make([]cq.Tagged, 4)
		n, err := cq.Read(q, got)
		if n != 1 || err != nil || got[0].Context != i || got[0].Tag != i*2 {
			t.Fatalf("read %d, %v, %+v", n, err, got[0])
		}
	}
	for i := range uint64(8) {
		if err := w.Post(&cq.Entry{Context: i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Post(&cq.Entry{}); !errors.Is(err, cq.ErrFull) {
		t.Fatalf("ninth post: %v", err)
	}
	es, err := q.Peek(64)
	if err != nil {
		t.Fatal(err)
	}
	n := len(es)
	if err := q.Release(n); err != nil {
		t.Fatal(err)
	}
	for n < 8 {
		es, err := q.Peek(64)
		if err != nil {
			t.Fatal(n, err)
		}
		n += len(es)
		if err := q.Release(len(es)); err != nil {
			t.Fatal(err)
		}
	}
	_, err = sread(q, make([]cq.Msg, 4), 5*time.Millisecond)
	if !errors.Is(err, cq.ErrTimedOut) {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBlockedReaderWakes(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	q, err := cq.Create(cq.Named(d, "wake"), cq.Options{Spin: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	done := make(chan error)
	go func() {
		w, err := cq.Attach(context.Background(), cq.Named(d, "wake"), cq.WriterOptions{})
		for i := uint64(0); i < 1000 && err == nil; i++ {
			err = w.Post(&cq.Entry{Context: i})
			if i%10 == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		done <- errors.Join(err, w.Close())
	}()
	buf := make([]cq.Context, 16)
	for next := uint64(0); next < 1000; {
		n, err := cq.ReadContext(t.Context(), q, buf, cq.ReadOptions{})
		if err != nil {
			t.Fatal(next, err)
		}
		for _, e := range buf[:n] {
			if e.Context != next {
				t.Fatalf("got %d, want %d", e.Context, next)
			}
			next++
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

const short = 5 * time.Millisecond

func wait(q *cq.Queue, timeout time.Duration) error {
	_, err := sread(q, make([]cq.Context, 4), timeout)
	return err
}

// latchTests are the table of what a signal does.
var latchTests = []struct {
	name string
	run  func(t *testing.T, q *cq.Queue, w *cq.Writer) error
	want error
}{
	{"none", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		return wait(q, short)
	}, cq.ErrTimedOut},
	{"before the wait", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		return wait(q, -1)
	}, cq.ErrSignaled},
	{"during the wait", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		defer later(func() { _ = q.Signal() })()
		return wait(q, -1)
	}, cq.ErrSignaled},
	{"during a wait for more", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		defer later(func() { _ = q.Signal() })()
		_, err := sread(q, make([]cq.Msg, 4), -1, 3)
		return err
	}, cq.ErrSignaled},
	{"two are one", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		must(t, q.Signal())
		if err := wait(q, -1); err != cq.ErrSignaled {
			return err
		}
		return wait(q, short)
	}, cq.ErrTimedOut},
	{"a timeout of 0 leaves it", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		if err := wait(q, 0); !errors.Is(err, cq.ErrTimedOut) {
			return err
		}
		return wait(q, -1)
	}, cq.ErrSignaled},
	{"Read leaves it", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		if _, err := cq.Read(q, make([]cq.Msg, 4)); err != cq.ErrWouldBlock {
			return err
		}
		return wait(q, -1)
	}, cq.ErrSignaled},
	{"entries win", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		post(t, w, 0, 1)
		return wait(q, -1)
	}, nil},
	{"entries win and leave it", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		post(t, w, 0, 1)
		if err := wait(q, -1); err != nil {
			return err
		}
		return wait(q, -1)
	}, cq.ErrSignaled},
	{"an error wins", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		postError(t, w, 1)
		err := wait(q, -1)
		must(t, q.ReadErr(&cq.ErrorEntry{}))
		return err
	}, cq.ErrAvail},
	{"for a waiting peek", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.Signal())
		_, err := q.PeekContext(t.Context(), 1)
		return err
	}, cq.ErrSignaled},
	{"all, before the wait", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		must(t, q.SignalAll())
		return wait(q, short)
	}, cq.ErrTimedOut},
	{"all, during the wait", func(t *testing.T, q *cq.Queue, w *cq.Writer) error {
		defer repeatedly(func(uint64) { _ = q.SignalAll() })()
		return wait(q, -1)
	}, cq.ErrSignaled},
}

// TestSignalLatch plays the table for every wait object that has signals.
func TestSignalLatch(t *testing.T) {
	eachWait(t, func(t *testing.T, o cq.Options) {
		for _, tt := range latchTests {
			t.Run(tt.name, func(t *testing.T) {
				q, w := pair(t, o)
				if err := tt.run(t, q, w); !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
			})
		}
	})
	wantErr(t, "signaled", cq.ErrSignaled, syscall.EAGAIN)
}

// begun is a context that tells when a blocking read under it begins to sleep: a broadcast reaches
// whoever has told.
type begun struct {
	context.Context
	told func()
}

func (c begun) Done() <-chan struct{} {
	c.told()
	return c.Context.Done()
}

// sleepers has n goroutines sleep in a read of one entry and counts those that a signal ends. The
// queue's count of sleeps cannot say that all of them sleep: one sleeper may count twice.
func sleepers(t *testing.T, q *cq.Queue, n int) (signaled *atomic.Int64, all *sync.WaitGroup) {
	signaled, all = new(atomic.Int64), new(sync.WaitGroup)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	var asleep sync.WaitGroup
	asleep.Add(n)
	before := q.Stats().Sleeps
	for range n {
		all.Go(func() {
			told := sync.OnceFunc(asleep.Done)
			defer told()
			switch _, err := cq.ReadContext(begun{ctx, told}, q, make([]cq.Msg, 1), cq.ReadOptions{}); err {
			case nil:
			case cq.ErrSignaled:
				signaled.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	asleep.Wait()
	eventually(t, "one sleeps", func() bool { return q.Stats().Sleeps > before })
	return signaled, all
}

func TestSignalOneOfSeveral(t *testing.T) {
	_, q := create(t, cq.Options{Size: 8, Shared: true, Spin: -1})
	const n = 5
	signaled, all := sleepers(t, q, n)
	for i := int64(1); i <= n; i++ {
		must(t, q.Signal())
		eventually(t, "one took it", func() bool { return signaled.Load() >= i })
		time.Sleep(2 * time.Millisecond) // room for a second one to be wrong
		if got := signaled.Load(); got != i {
			t.Fatalf("%d waiters took %d signals", got, i)
		}
	}
	all.Wait()
}

func TestSignalAllOfSeveral(t *testing.T) {
	_, q := create(t, cq.Options{Size: 8, Shared: true, Spin: -1})
	signaled, all := sleepers(t, q, 5)
	must(t, q.SignalAll())
	all.Wait()
	if signaled.Load() != 5 {
		t.Errorf("%d of 5 were told", signaled.Load())
	}
}
