package cq_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// startIn starts a child that has a socket to us as its descriptor 3.
func startIn(t testing.TB, role string, attr *syscall.SysProcAttr, env ...string) (*child,
	*net.UnixConn) {
	t.Helper()
	ours, theirs := shmtest.Connected(t, unix.SOCK_STREAM)
	f := shmtest.Have(theirs.File()).In(t)
	defer theirs.Close()
	cmd := shmtest.Child(t, role, env...)
	cmd.ExtraFiles, cmd.SysProcAttr = append(cmd.ExtraFiles, f), attr
	return start(t, cmd), ours
}

// accept runs Accept of a queue of either kind in another goroutine.
func accept(ctx context.Context, q interface {
	Accept(context.Context, *net.UnixConn) error
}, c *net.UnixConn) <-chan error {
	done := make(chan error, 1)
	go func() { done <- q.Accept(ctx, c) }()
	return done
}

// anonymous makes a queue without a name and closes it when the test ends.
func anonymous(t testing.TB, o cq.Options) *cq.Queue {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Unnamed(queueName(t)), o)).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	return q
}

// soon is a context that turns a hang into a failure.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join attaches a writer over a new connection and closes it when the test ends.
func join(t testing.TB, q *cq.Queue) *cq.Writer {
	t.Helper()
	return shmtest.Have(tryJoin(t, q)).In(t)
}

// tryJoin attaches one and joins what either side is told.
func tryJoin(t testing.TB, q *cq.Queue) (*cq.Writer, error) {
	t.Helper()
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	w, err := meet(t, q, a, b)
	return w, errors.Join(err, a.Close(), b.Close())
}

// meet has the reader and a new writer meet at the ends of a connection.
func meet(t testing.TB, q *cq.Queue, a, b *net.UnixConn) (*cq.Writer, error) {
	t.Helper()
	done := accept(soon(t), q, a)
	w, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{Trust: q.Options().Trust})
	return w, errors.Join(err, <-done)
}

// bothRefuse checks that neither side of a meeting takes a writer with these options, and why.
func bothRefuse(t testing.TB, q *cq.Queue, o cq.WriterOptions, why error) {
	t.Helper()
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.Attach(soon(t), cq.Over(b), o)
	wantErr(t, "attach", err, why)
	wantErr(t, "accept", <-done, why)
}

// TestAnonymousRefusals: each side learns why the other one refused.
func TestAnonymousRefusals(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, Format: cq.FormatMsg})
	bothRefuse(t, q, cq.WriterOptions{Format: cq.FormatTagged}, cq.ErrFormat)
	join(t, q) // the row is not lost

	_, named := create(t, cq.Options{Size: 8})
	a, _ := shmtest.Connected(t, unix.SOCK_STREAM)
	wantErr(t, "a queue with a name", named.Accept(soon(t), a), errors.ErrUnsupported)
	wantErr(t, "detach", q.Detach(), errors.ErrUnsupported)
	if _, err := cq.Create(cq.Unnamed(strings.Repeat("n", 65)), cq.Options{}); err == nil {
		t.Error("a name of 65 bytes")
	}
	if _, err := cq.Create(cq.Unnamed(""), cq.Options{Size: -1}); !errors.Is(err, cq.ErrInvalid) {
		t.Error(err)
	}
}

// heldMemfds lists the objects without a name that this process holds.
func heldMemfds() (out []string, err error) {
	for _, to := range shmtest.Descriptors() {
		if strings.Contains(to, "memfd:shmring:") {
			out = append(out, to)
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:shmring:") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out, err
}

// noMemfds waits until none is left, also of what others had: who watches a peer lets go late.
func noMemfds(t testing.TB) {
	t.Helper()
	eventually(t, "no object without a name is left", func() bool {
		held, err := heldMemfds()
		return err == nil && len(held) == 0
	})
}

// TestCloseDuringAccept: a peer that is silent does not keep the queue open.
func TestCloseDuringAccept(t *testing.T) {
	for name, first := range map[string][]byte{"silent": nil, "half": []byte("shmrdv")} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 8})
			a, b := shmtest.Connected(t, unix.SOCK_STREAM)
			if len(first) > 0 {
				shmtest.Got(b.Write(first)).Or(t)
			}
			done := accept(context.Background(), q, a)
			time.Sleep(short)
			must(t, q.Close())
			wantErr(t, "accept", <-done, cq.ErrClosed)
		})
	}
}

func TestPeerHangsUp(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	must(t, b.Close())
	wantErr(t, "accept", q.Accept(soon(t), a), cq.ErrPeerGone, syscall.ECONNRESET)
	a, b = shmtest.Connected(t, unix.SOCK_STREAM)
	must(t, a.Close())
	_, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{})
	wantErr(t, "attach", err, cq.ErrPeerGone)
}

// TestServeWithoutDescriptors: a process that has no descriptor left for a connection goes on when
// it has one again, and the writer that waited is attached.
func TestServeWithoutDescriptors(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	l := listen(t)
	served, reports := make(chan error, 1), make(chan error, 100)
	go func() { served <- q.Serve(l, func(err error) { reports <- err }) }()
	fd := shmtest.Got(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)).Or(t)
	restore := shmtest.LimitFiles(0)
	err := unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
	var told error
	if err == nil {
		select {
		case told = <-reports:
		case told = <-served:
			served <- told
		}
	}
	restore()
	must(t, err)
	wantErr(t, "report", told, syscall.EMFILE)
	c := shmtest.Have(shmtest.Socket(fd)).In(t)
	w := shmtest.Got(cq.Attach(soon(t), cq.Over(c), cq.WriterOptions{})).Or(t)
	post(t, w, 0, 3)
	must(t, w.Close())
	must(t, q.Close())
	wantErr(t, "serve", <-served, cq.ErrClosed)
}

// TestServe attaches writers that connect to a socket, and ends with the queue.
func TestServe(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, Spin: -1})
	l := listen(t)
	served, reports := make(chan error), make(chan error, 10)
	go func() { served <- q.Serve(l, func(err error) { reports <- err }) }()
	bad := dial(t, l)
	shmtest.Got(bad.Write(make([]byte, 64))).Or(t)
	wantErr(t, "report", <-reports, cq.ErrCorrupt, syscall.EBADMSG)
	for i := range uint64(3) {
		c := dial(t, l)
		w := shmtest.Got(cq.Attach(soon(t), cq.Over(c), cq.WriterOptions{})).Or(t)
		post(t, w, i, i+1)
		buf := make([]cq.Context, 4)
		if n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{}); n != 1 || buf[0].Context != i {
			t.Error(n, err, buf)
		}
		must(t, w.Close())
		if i == 1 { // a life line carries nothing
			shmtest.Got(c.Write([]byte{1})).Or(t)
			wantErr(t, "report", <-reports, cq.ErrCorrupt)
		}
	}
	must(t, q.Close())
	wantErr(t, "serve", <-served, cq.ErrClosed)
	if len(reports) != 0 {
		t.Error(<-reports)
	}

	q = anonymous(t, cq.Options{Size: 8})
	go func() { served <- q.Serve(l, nil) }()
	w := shmtest.Got(cq.Attach(soon(t), cq.Over(dial(t, l)), cq.WriterOptions{})).Or(t)
	must(t, l.Close())
	wantErr(t, "serve", <-served, net.ErrClosed)
	post(t, w, 0, 3)
	wantContexts(t, "drained", drain(t, q), upTo(0, 3)...)
	must(t, w.Close())
}

// TestProcesses: three processes post to a queue without a name. TestThousandWriters has one with.
func TestProcesses(t *testing.T) {
	t.Parallel()
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
			n := shmtest.Got(cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})).Or(t)
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
	e := shmtest.Have(cq.CreateEvents(cq.Unnamed(queueName(t)), cq.EventOptions{})).In(t)
	q := anonymous(t, cq.Options{})
	for range 2 {
		a, b := shmtest.Connected(t, unix.SOCK_STREAM)
		done := accept(soon(t), e, a)
		_, err := cq.Attach(soon(t), cq.Over(b), cq.WriterOptions{})
		wantErr(t, "attach", err, shm.ErrKind)
		wantErr(t, "accept", <-done, shm.ErrKind)
		a, b = shmtest.Connected(t, unix.SOCK_STREAM)
		done = accept(soon(t), q, a)
		_, err = cq.AttachEvents(soon(t), cq.Over(b), cq.WriterOptions{})
		wantErr(t, "attach", err, shm.ErrKind)
		wantErr(t, "accept", <-done, shm.ErrKind)
	}
	wantErr(t, "detach", e.Detach(), errors.ErrUnsupported)
	served := make(chan error)
	l := listen(t)
	go func() { served <- e.Serve(l, nil) }()
	c := dial(t, l)
	w := shmtest.Got(cq.AttachEvents(soon(t), cq.Over(c), cq.WriterOptions{})).Or(t)
	_, err := w.Write(&cq.Event{Context: 3, Event: cq.EventUser})
	must(t, errors.Join(err, w.Close(), c.Close(), l.Close()))
	wantErr(t, "serve", <-served, net.ErrClosed)
	var ev cq.Event
	if _, err := e.Read(&ev, 0); err != nil || ev.Context != 3 {
		t.Errorf("%+v, %v", ev, err)
	}
	_, err = cq.CreateEvents(cq.Unnamed(""), cq.EventOptions{Size: -1})
	wantErr(t, "size", err, cq.ErrInvalid)
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
				a, b := shmtest.Connected(t, unix.SOCK_SEQPACKET)
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
		n := shmtest.Got(cq.ReadContext(soon(t), q, buf, cq.ReadOptions{})).Or(t)
		got += uint64(n)
	}
	must(t, q.Close())
	all.Wait()
	if got > posted.Load() {
		t.Errorf("%d entries of %d", got, posted.Load())
	}
	noMemfds(t)
}
