package cq_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestProcesses: three processes post to a queue without a name. TestManyProcesses has one with.
func TestProcesses(t *testing.T) {
	for _, at := range []site{memfdSite, othersSite} {
		t.Run(at.String(), func(t *testing.T) { processes(t, at) })
	}
}

func processes(t *testing.T, at site) {
	q := at.create(t, cq.Options{Size: 8, Spin: -1})
	if o := q.Options(); at.others && (o.Trust != cq.CrossUser || !o.WritersPay) {
		t.Errorf("%+v", o)
	}
	var ws []*toldWriter
	for i := range 3 {
		ws = append(ws, startWriter(t, at, q, nil))
		if ws[i].lane != i+1 {
			t.Errorf("lane %d of writer %d", ws[i].lane, i)
		}
	}
	next := []uint64{0, 100, 200}
	dst := make([]cq.Context, 4)
	for round := range uint64(20) {
		for i, w := range ws {
			w.post(t, uint64(100*i)+round, uint64(100*i)+round+1)
		}
		for got := 0; got < 3; {
			n, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})
			must(t, err)
			got += n
			for _, e := range dst[:n] {
				if e.Context != next[e.Context/100] {
					t.Fatalf("got %d, want %d", e.Context, next[e.Context/100])
				}
				next[e.Context/100]++
			}
		}
	}
}

// TestAnonymousEvents: the two kinds of queues are not taken for each other.
func TestAnonymousEvents(t *testing.T) {
	e, err := cq.CreateEvents(cq.Unnamed(queueName(t)), cq.EventOptions{})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	q := anonymous(t, cq.Options{})
	for range 2 {
		a, b := connect(t, unix.SOCK_STREAM)
		done := make(chan error, 1)
		go func() { done <- e.Accept(soon(t), a) }()
		_, err = cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{})
		wantErr(t, "attach", err, shm.ErrKind)
		wantErr(t, "accept", <-done, shm.ErrKind)
		a, b = connect(t, unix.SOCK_STREAM)
		done2 := accept(soon(t), q, a)
		_, err = cq.AttachEvents(soon(t), cq.Over(b), cq.WriterOptions{})
		wantErr(t, "attach", err, shm.ErrKind)
		wantErr(t, "accept", <-done2, shm.ErrKind)
	}
	wantErr(t, "detach", e.Detach(), errors.ErrUnsupported)
	served := make(chan error)
	where := &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"}
	l, err := net.ListenUnix("unix", where)
	must(t, err)
	go func() { served <- e.Serve(l, nil) }()
	c, err := net.DialUnix("unix", nil, where)
	must(t, err)
	w, err := cq.AttachEvents(soon(t), cq.Over(c), cq.WriterOptions{})
	must(t, err)
	_, err = w.Write(&cq.Event{Context: 3, Event: cq.EventUser})
	must(t, errors.Join(err, w.Close(), c.Close(), l.Close()))
	wantErr(t, "serve", <-served, net.ErrClosed)
	var ev cq.Event
	if _, err := e.Read(&ev, 0); err != nil || ev.Context != 3 {
		t.Errorf("%+v, %v", ev, err)
	}
	_, err = cq.CreateEvents(cq.Unnamed(""), cq.EventOptions{Size: -1})
	wantErr(t, "size", err, cq.ErrInvalid)
}

func init() { roles["fast joiner"] = childFastJoiner }

// childFastJoiner posts without end. Every entry says its index.
func childFastJoiner() {
	w, _ := attachToParent()
	for round := 0; ; round++ {
		at := w.Next()
		switch err := w.Post(&cq.Entry{Context: at, Data: ^at}); err {
		case nil:
		case cq.ErrFull:
			runtime.Gosched()
		default:
			need(err)
		}
		if round%100 == 99 {
			time.Sleep(100 * time.Microsecond) // the reader falls asleep
		}
	}
}

// TestWritersDie kills writers at any moment, in the middle of a write or asleep, and replaces
// them: the lane has no gap and nothing twice.
func TestWritersDie(t *testing.T) {
	for _, at := range []site{namedSite, memfdSite} {
		t.Run(at.String(), func(t *testing.T) { writersDie(t, at) })
	}
}

func writersDie(t *testing.T, at site) {
	rounds := 15
	if testing.Short() {
		rounds = 4
	}
	q := at.create(t, cq.Options{Size: 32, MaxLanes: 1, Spin: -1})
	var next atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		buf := make([]cq.Data, 16)
		for {
			n, err := cq.ReadContext(ctx, q, buf, cq.ReadOptions{})
			if err != nil {
				done <- err
				return
			}
			for _, e := range buf[:n] {
				if want := next.Add(1) - 1; e.Context != want || e.Data != ^want {
					done <- errors.New("a gap, or an entry twice")
					return
				}
			}
		}
	}()
	for range rounds {
		c := startAt(t, "fast joiner", at, q, nil)
		from := next.Load()
		eventually(t, "entries come", func() bool { return next.Load() > from+100 })
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		c.kill()
	}
	cancel()
	wantErr(t, "reader", <-done, context.Canceled)
}

// TestAnonymousContested has more writers than lanes come and go at once, while the queue is read,
// until it is closed under their hands.
func TestAnonymousContested(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 16, MaxLanes: 3, Spin: -1})
	var posted, attached atomic.Uint64
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for {
				a, b := connect(t, unix.SOCK_SEQPACKET)
				accepted := accept(soon(t), q, a)
				w, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{})
				err = errors.Join(err, <-accepted, a.Close(), b.Close())
				if errors.Is(err, context.DeadlineExceeded) { // one side was not told
					t.Error(err)
				}
				if err != nil {
					if errors.Is(err, cq.ErrClosed) {
						return
					}
					if !errors.Is(err, cq.ErrLanes) {
						t.Error(err)
						return
					}
					runtime.Gosched()
					continue
				}
				attached.Add(1)
				for range 3 {
					if err = w.Post(&cq.Entry{}); err == nil {
						posted.Add(1)
					} else if err != cq.ErrFull && err != cq.ErrClosed {
						t.Error(err)
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	got := uint64(0)
	buf := make([]cq.Context, 16)
	for got < 600 {
		n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{})
		must(t, err)
		got += uint64(n)
	}
	must(t, q.Close())
	all.Wait()
	if got > posted.Load() {
		t.Errorf("%d entries of %d", got, posted.Load())
	}
	noMemfds(t)
}
