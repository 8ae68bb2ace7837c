package cq_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

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
