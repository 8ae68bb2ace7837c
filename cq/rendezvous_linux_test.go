package cq_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// connect returns a connected pair of sockets, which are closed when the test ends.
func connect(t testing.TB, kind int) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	a, err = socket(fds[0])
	must(t, err)
	t.Cleanup(func() { a.Close() })
	b, err = socket(fds[1])
	must(t, err)
	t.Cleanup(func() { b.Close() })
	return a, b
}

// socket takes over a descriptor.
func socket(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// startWithSocket starts a child that has a socket to us as its descriptor 3.
func startWithSocket(t testing.TB, role string) (*child, *net.UnixConn) {
	t.Helper()
	return startIn(t, role, nil)
}

// startIn is startWithSocket with attributes of the process.
func startIn(t testing.TB, role string, attr *syscall.SysProcAttr) (*child, *net.UnixConn) {
	t.Helper()
	ours, theirs := connect(t, unix.SOCK_STREAM)
	f, err := theirs.File()
	must(t, err)
	defer f.Close()
	defer theirs.Close()
	cmd := shmtest.Child(t, role, "GORACE=atexit_sleep_ms=0") // a second each, otherwise
	cmd.ExtraFiles, cmd.SysProcAttr = append(cmd.ExtraFiles, f), attr
	return start(t, cmd), ours
}

// accept runs Accept in another goroutine.
func accept(ctx context.Context, q *cq.Queue, c *net.UnixConn) <-chan error {
	done := make(chan error, 1)
	go func() { done <- q.Accept(ctx, c) }()
	return done
}

// anonymous makes a queue without a name and closes it when the test ends.
func anonymous(t testing.TB, o cq.Options) *cq.Queue {
	t.Helper()
	q, err := cq.CreateAnonymous(queueName(t), o)
	must(t, err)
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
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	w, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
	must(t, errors.Join(err, <-done))
	must(t, errors.Join(a.Close(), b.Close()))
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

func TestAnonymousQueue(t *testing.T) {
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM,
		"seqpacket": unix.SOCK_SEQPACKET} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 8})
			a, b := connect(t, kind)
			var ws []*cq.Writer
			for range 3 { // several on one connection
				done := accept(soon(t), q, a)
				w, err := cq.AttachConn(soon(t), b, cq.WriterOptions{Format: cq.FormatTagged})
				must(t, errors.Join(err, <-done))
				ws = append(ws, w)
			}
			for i, w := range ws {
				if w.Lane() != i+1 {
					t.Errorf("lane %d, want %d", w.Lane(), i+1)
				}
				post(t, w, uint64(10*i), uint64(10*i+8))
				wantErr(t, "full", w.Post(&cq.Entry{}), cq.ErrFull)
			}
			got := drain(t, q)
			slices.Sort(got)
			want := slices.Concat(upTo(0, 8), upTo(10, 18), upTo(20, 28))
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			for _, w := range ws {
				must(t, w.Close())
			}
		})
	}
}

// TestAnonymousLaneGoesOn: the next writer of a row continues the lane, also one that has entries.
func TestAnonymousLaneGoesOn(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 16, MaxLanes: 1})
	for i := range uint64(5) {
		w := join(t, q)
		if w.Next() != i*3 || w.Lane() != 1 {
			t.Errorf("writer %d begins at %d in lane %d", i, w.Next(), w.Lane())
		}
		post(t, w, i*3, i*3+3)
		if i == 2 {
			if got := drain(t, q); !slices.Equal(got, upTo(0, 9)) {
				t.Errorf("got %v", got)
			}
		}
		must(t, w.Close())
	}
	if got := drain(t, q); !slices.Equal(got, upTo(9, 15)) {
		t.Errorf("got %v", got)
	}
}

func TestAnonymousFull(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, MaxLanes: 2})
	join(t, q)
	w := join(t, q)
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
	wantErr(t, "attach", err, cq.ErrLanes, syscall.ENOSPC)
	wantErr(t, "accept", <-done, cq.ErrLanes)
	must(t, w.Close())
	if again := join(t, q); again.Lane() != 2 {
		t.Error("lane ", again.Lane())
	}
}

// TestAnonymousRefusals: each side learns why the other one refused.
func TestAnonymousRefusals(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, Format: cq.FormatMsg})
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{Format: cq.FormatTagged})
	wantErr(t, "attach", err, cq.ErrFormat)
	wantErr(t, "accept", <-done, cq.ErrFormat)
	join(t, q) // the row is not lost

	_, named := create(t, cq.Options{Size: 8})
	wantErr(t, "a queue with a name", named.Accept(soon(t), a), errors.ErrUnsupported)
	wantErr(t, "detach", q.Detach(), errors.ErrUnsupported)
	if _, err := cq.CreateAnonymous(strings.Repeat("n", 65), cq.Options{}); err == nil {
		t.Error("a name of 65 bytes")
	}
	if _, err := cq.CreateAnonymous("", cq.Options{Size: -1}); !errors.Is(err, cq.ErrInvalid) {
		t.Error(err)
	}
}

// TestAnonymousClose: writers learn of it at their next post, and all memory is free when they
// have closed too.
func TestAnonymousClose(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	v, w := join(t, q), join(t, q)
	post(t, w, 0, 2)
	must(t, q.Close())
	for range 2 {
		wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrClosed)
		_, err := w.PostBatch(make([]cq.Entry, 2))
		wantErr(t, "batch", err, cq.ErrClosed)
		wantErr(t, "credit", v.Credit(1), cq.ErrClosed)
	}
	a, b := connect(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
	wantErr(t, "attach", err, cq.ErrClosed)
	wantErr(t, "accept", <-done, cq.ErrClosed)
	must(t, errors.Join(v.Close(), w.Close(), w.Close(), q.Close()))
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrClosed)
	noMemfds(t)
}

func memfds(t testing.TB) []string {
	t.Helper()
	held, err := heldMemfds()
	must(t, err)
	return held
}

// heldMemfds lists the objects without a name that this process holds.
func heldMemfds() (out []string, err error) {
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.Contains(to, "memfd:shmring:") {
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
	eventually(t, "no object without a name is left", func() bool { return len(memfds(t)) == 0 })
}

// TestCloseDuringAccept: a peer that is silent does not keep the queue open.
func TestCloseDuringAccept(t *testing.T) {
	for name, first := range map[string][]byte{"silent": nil, "half": []byte("shmrdv")} {
		t.Run(name, func(t *testing.T) {
			q := anonymous(t, cq.Options{Size: 8})
			a, b := connect(t, unix.SOCK_STREAM)
			if len(first) > 0 {
				_, err := b.Write(first)
				must(t, err)
			}
			done := accept(context.Background(), q, a)
			time.Sleep(short)
			must(t, q.Close())
			wantErr(t, "accept", <-done, cq.ErrClosed)
		})
	}
}

// TestSilentPeer: the context ends both sides, and the connection has no deadline afterwards.
func TestSilentPeer(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	a, b := connect(t, unix.SOCK_STREAM)
	wantErr(t, "accept", q.Accept(ctx, a), context.DeadlineExceeded)
	c, d := connect(t, unix.SOCK_STREAM)
	_, err := cq.AttachConn(ctx, d, cq.WriterOptions{})
	wantErr(t, "attach", err, context.DeadlineExceeded)
	why := errors.New("why")
	gone, end := context.WithCancelCause(t.Context())
	defer later(func() { end(why) })()
	wantErr(t, "accept", q.Accept(gone, a), context.Canceled, why)
	defer later(func() { _, _ = b.Write([]byte{1}); _, _ = c.Write([]byte{1}) })()
	for _, s := range []*net.UnixConn{a, d} {
		if _, err := s.Read(make([]byte, 1)); err != nil {
			t.Error("a deadline is left: ", err)
		}
	}
}

func TestPeerHangsUp(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	a, b := connect(t, unix.SOCK_STREAM)
	must(t, b.Close())
	wantErr(t, "accept", q.Accept(soon(t), a), cq.ErrPeerGone, syscall.ECONNRESET)
	a, b = connect(t, unix.SOCK_STREAM)
	must(t, a.Close())
	_, err := cq.AttachConn(soon(t), b, cq.WriterOptions{})
	wantErr(t, "attach", err, cq.ErrPeerGone)
}

// TestAnonymousWaitFD: a writer that came over a socket makes the reader's descriptor readable.
func TestAnonymousWaitFD(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, Wait: cq.WaitFD})
	w := join(t, q)
	own, err := q.Writer()
	must(t, err)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(t, err)
	defer unix.Close(ep)
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: 1}
	must(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, waitFD(q), &ev))
	readable := func(ms int) bool {
		for {
			var evs [1]unix.EpollEvent
			n, err := unix.EpollWait(ep, evs[:], ms)
			if err != unix.EINTR {
				return n == 1
			}
		}
	}
	for i := range uint64(6) {
		for q.TryWait() != nil {
			drain(t, q)
		}
		if readable(0) {
			t.Fatal("readable with nothing there")
		}
		if i%2 == 0 {
			post(t, w, i, i+1)
		} else {
			post(t, own, i, i+1)
		}
		if !readable(60_000) {
			t.Fatal("not readable after a post")
		}
		if got := drain(t, q); !slices.Equal(got, upTo(i, i+1)) {
			t.Fatal(got)
		}
	}
	must(t, own.Close())
}
