package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// meetEnd is an end that meets who is at the other end of a connection, which it closes.
func meetEnd(conn *net.UnixConn, allow *shm.AllowList, o fabric.Options) (e *end, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer conn.Close()
	e = &end{}
	if e.q, err = cq.Create(cq.Unnamed("q"), cq.Options{Size: 256, Shared: true}); err != nil {
		return nil, err
	}
	if e.w, err = e.q.Writer(); err != nil {
		return nil, err
	}
	o.Transmit, o.Receive, o.Progress = e.w, e.w, []*cq.Queue{e.q}
	if e.Endpoint, err = fabric.Meet(ctx, conn, allow, o); err != nil {
		return nil, errors.Join(err, e.w.Close(), e.q.Close())
	}
	return e, nil
}

// everybody listens at a socket that all users may connect to, which it allows.
func everybody(t testing.TB) (*net.UnixListener, *shm.AllowList) {
	t.Helper()
	dir := shmtest.Got(os.MkdirTemp("", "met")).Or(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "s")
	l := shmtest.Got(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})).Or(t)
	t.Cleanup(func() { _ = l.Close() })
	must(t, os.Chmod(path, 0o666))
	must(t, l.SetDeadline(time.Now().Add(time.Minute)))
	return l, &shm.AllowList{UIDs: []int{os.Geteuid(), shmtest.Other}}
}

// sockets are both ends of a connection.
func sockets(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	l, _ := everybody(t)
	a = shmtest.Got(net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))).Or(t)
	b = shmtest.Got(l.AcceptUnix()).Or(t)
	return a, b
}

// metEnds are two of this process that have met.
func metEnds(t testing.TB, o fabric.Options) (a, b *end) {
	t.Helper()
	x, y := sockets(t)
	done := make(chan error)
	go func() {
		var err error
		b, err = meetEnd(y, nil, o)
		done <- err
	}()
	a, err := meetEnd(x, nil, o)
	must(t, errors.Join(err, <-done))
	for _, e := range []*end{a, b} {
		t.Cleanup(func() { must(t, e.close()) })
	}
	return a, b
}

// TestMeetDescriptors: an endpoint that has met its peer has one descriptor for the queue, one for
// each object of both sides, by which inspectors find it, and the two that prove the peer's death.
func TestMeetDescriptors(t *testing.T) {
	metEnds(t, fabric.Options{}) // what the process has once
	before := len(shmtest.Descriptors())
	metEnds(t, fabric.Options{})
	if n := len(shmtest.Descriptors()) - before; n > 2*7+1 { // and the listener
		t.Errorf("two ends have %d descriptors", n)
	}
}

// besideOther starts a process, of another user if that can be, in a role, and meets it.
func besideOther(t testing.TB, role string, other bool, o fabric.Options) (*end, *child) {
	t.Helper()
	l, allow := everybody(t)
	c := startOther(t, role, other, "SOCKET="+l.Addr().String())
	conn := shmtest.Got(l.AcceptUnix()).Or(t)
	e := shmtest.Got(meetEnd(conn, allow, o)).Or(t)
	t.Cleanup(func() { must(t, e.close()) })
	return e, c
}

// dialed is the connection of a child to its parent.
func dialed() *net.UnixConn {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
	need(err)
	return conn
}

// anyUser allows all who may be at the other end in these tests.
func anyUser() *shm.AllowList { return &shm.AllowList{UIDs: []int{0, os.Geteuid()}} }

// bothUsers runs a test with another process of this user, and of another one.
func bothUsers(t *testing.T, test func(t *testing.T, other bool)) {
	t.Run("same", func(t *testing.T) { test(t, false) })
	t.Run("other", func(t *testing.T) { test(t, true) })
}

// metEcho sends back what comes.
func metEcho() {
	e := shmtest.Needs(meetEnd(dialed(), anyUser(), fabric.Options{}))
	var buf [longBytes]byte
	for {
		need(e.Recv(buf[:], 1))
		c, failed, err := e.next()
		if need(err); failed.Err != 0 { // the parent has closed
			break
		}
		for c.Flags&cq.FlagRecv == 0 {
			c, _, err = e.next()
			need(err)
		}
		n := c.Len
		if err := e.Send(buf[:n], 0, 2); errors.Is(err, fabric.ErrPeerClosed) {
			break
		} else if need(err); n == 4 && string(buf[:n]) == "last" {
			break
		}
		_, _, err = e.next()
		need(err)
	}
	need(e.close())
	fmt.Println("closed")
}

// TestMeetOthers: two processes, whoever their users are, send messages of every way to each other,
// and each sleeps until the other one wakes it.
func TestMeetOthers(t *testing.T) {
	bothUsers(t, func(t *testing.T, other bool) {
		e, c := besideOther(t, "met echo", other, fabric.Options{Pool: longBytes})
		mem := shmtest.Got(e.Alloc(longBytes)).Or(t)
		copy(mem, pattern(longBytes))
		buf := make([]byte, longBytes)
		for i, n := range []int{0, 1, 8, fabric.MaxInline, 300, chunk, chunk + 1, 1 << 18, longBytes} {
			for _, sent := range [][]byte{pattern(n), mem[:n]} {
				if i%3 == 0 {
					time.Sleep(5 * time.Millisecond) // both sleep
				}
				must(t, e.Recv(buf, 7))
				must(t, e.Send(sent, 0, 8))
				for range 2 {
					if c := completes(t, e); c.Len != uint64(n) {
						t.Fatalf("%+v of %d bytes", c, n)
					}
				}
				if !bytes.Equal(buf[:n], sent) {
					t.Fatalf("others came back of %d bytes", n)
				}
			}
		}
		for i := range 2000 {
			must(t, pingPong(e, 0, i))
		}
		must(t, e.Recv(buf, 7))
		must(t, e.Send([]byte("last"), 0, 8))
		for range 2 {
			completes(t, e)
		}
		c.Says(t, "closed")
		c.Stop(t)
		shmtest.Eventually(t, "its close is known", func() bool {
			shmtest.Got(e.Progress()).Or(t)
			return errors.Is(e.Inject(nil, 0), fabric.ErrPeerClosed)
		})
	})
}

// TestMeetWays: endpoints that have met do what those of a directory do with each other.
func TestMeetWays(t *testing.T) {
	a, b := metEnds(t, fabric.Options{Pool: chunk})
	t.Run("tagged", func(t *testing.T) {
		var buf [8]byte
		must(t, b.TRecv(buf[:], 0, 5, 0, 1))
		must(t, a.SendMsg(&fabric.Msg{Buf: []byte("tag"), Flags: cq.FlagTagged | cq.FlagRemoteCQData,
			Tag: 5, Data: 9, Context: 2}))
		if c := completes(t, b); c.Tag != 5 || c.Data != 9 || string(buf[:c.Len]) != "tag" ||
			c.Src.Addr() != 0 {
			t.Errorf("%+v", c)
		}
		completes(t, a)
	})
	t.Run("match", func(t *testing.T) {
		must(t, a.SendMsg(&fabric.Msg{Buf: []byte("m"), Flags: cq.FlagMatchComplete, Context: 3}))
		shmtest.Got(b.Progress()).Or(t)
		shmtest.Got(a.Progress()).Or(t)
		if n, err := cq.Read(a.q, make([]cq.Entry, 1)); n != 0 {
			t.Fatalf("it has no receive: %v", err)
		}
		must(t, b.Recv(make([]byte, 1), 4))
		completes(t, b)
		completes(t, a)
	})
	t.Run("loan", func(t *testing.T) {
		mem := allocated(t, a, chunk)
		must(t, b.borrow(5))
		must(t, a.Send(mem, 0, 6))
		c, got := borrowed(t, b)
		if mem[5]++; !bytes.Equal(got, mem) {
			t.Error("a copy was lent")
		}
		must(t, b.Release(c))
		completes(t, a)
		must(t, a.Free(mem))
	})
	t.Run("loan of a copy", func(t *testing.T) { // of a window at most
		const window = 256 << 10
		for n := uint64(window); n < window+2; n++ {
			must(t, b.borrow(5))
			must(t, a.Send(make([]byte, n), 0, 6))
			sent := make(chan error)
			go func() {
				_, _, err := a.next()
				sent <- err
			}()
			c, failed, err := b.next()
			must(t, errors.Join(err, <-sent))
			if got, err := b.Payload(&c); n == window && (err != nil || len(got) != window) {
				t.Errorf("%+v, %d bytes are lent, %v", c, len(got), err)
			} else if n > window && (failed.Err != cq.ETrunc || failed.Len != 0 ||
				failed.OverrunBytes != n || failed.Flags&cq.FlagFrame != 0) {
				t.Errorf("%d bytes: %+v, %+v", n, c, failed)
			}
		}
	})
	t.Run("no directory", func(t *testing.T) {
		_, err := a.Resolve("x")
		_, err1 := a.Insert(b.Address())
		_, err2 := a.Join("x", fabric.GroupOptions{})
		for _, err := range []error{err, err1, err2, a.Connect("x", nil)} {
			shmtest.WantErr(t, "a call", err, fabric.ErrNotSupported)
		}
		shmtest.WantErr(t, "a read", a.Read(make([]byte, 1), 0, fabric.Remote{Key: 1 << 20}, 1),
			fabric.ErrKey)
	})
}

// TestMeetKilled: what the other process had sent when it was killed arrives, what it had not
// examined fails, and who sleeps for it wakes.
func TestMeetKilled(t *testing.T) {
	shmtest.Conforms(t)
	bothUsers(t, func(t *testing.T, other bool) {
		e, c := besideOther(t, "met idle", other, fabric.Options{})
		for i := range 3 {
			must(t, e.Send(nil, 0, uint64(i)))
		}
		for range 3 {
			var buf [8]byte
			must(t, e.Recv(buf[:], 9))
			if c := completes(t, e); c.Context != 9 || string(buf[:c.Len]) != "hello" {
				t.Errorf("%+v, %q", c, buf)
			}
		}
		go func() { _ = c.Process.Kill() }()
		for i := range 3 {
			if _, failed, err := e.next(); err != nil || failed.Context != uint64(i) ||
				failed.Err != cq.Errno(syscall.ECONNRESET) {
				t.Errorf("send %d: %+v, %v", i, failed, err)
			}
		}
		_ = c.Wait()
		shmtest.WantErr(t, "to a dead one", e.Send(nil, 0, 1), fabric.ErrPeerDied)
		if s := e.Stats(); s.Died != 1 || s.Corrupt != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// metIdle sends three messages, and examines nothing.
func metIdle() {
	e := shmtest.Needs(meetEnd(dialed(), anyUser(), fabric.Options{}))
	for range 3 {
		need(e.Send([]byte("hello"), 0, 1))
	}
	untilTold()
}

// TestMeetRefused: who may not be there, and what cannot be asked for, is refused on both sides.
func TestMeetRefused(t *testing.T) {
	shmtest.Conforms(t)
	stranger := &shm.AllowList{UIDs: []int{12345}}
	for name, c := range map[string]struct {
		allow [2]*shm.AllowList
		o     [2]fabric.Options
		want  [2]error
	}{
		"user":   {allow: [2]*shm.AllowList{stranger}, want: [2]error{shm.ErrOwner, shm.ErrOwner}},
		"remote": {o: [2]fabric.Options{{Remote: 1}}, want: [2]error{cq.ErrInvalid, cq.ErrInvalid}},
		"type":   {o: [2]fabric.Options{{Datagram: true}}, want: [2]error{fabric.ErrType}},
		"too much": {o: [2]fabric.Options{{Pool: 65 << 20}},
			want: [2]error{shm.ErrNoSpace, shm.ErrNoSpace}},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := sockets(t)
			conns := [2]*net.UnixConn{a, b}
			var errs [2]chan error
			for i := range errs {
				errs[i] = make(chan error, 1)
				go func() {
					e, err := meetEnd(conns[i], c.allow[i], c.o[i])
					if err == nil {
						err = errors.Join(errors.New("it has met somebody"), e.close())
					}
					errs[i] <- err
				}()
			}
			for i := range errs {
				if err := <-errs[i]; err == nil || c.want[i] != nil && !errors.Is(err, c.want[i]) {
					t.Errorf("side %d: %v, want %v", i, err, c.want[i])
				}
			}
		})
	}
}

// withholds takes one message of a meeting, and returns what passes it on.
func withholds(t *testing.T, from, to *net.UnixConn) (pass func()) {
	t.Helper()
	b := make([]byte, 16)
	_, fds, err := shm.RecvFDs(from, b, 2)
	must(t, err)
	return func() {
		must(t, shm.SendFDs(to, b, fds...))
		shm.CloseFDs(fds)
	}
}

// TestMeetHalf: one that gives up when the other one has met it, and lives on, has closed, and it
// makes no difference which of these was first.
func TestMeetHalf(t *testing.T) {
	shmtest.Conforms(t)
	for name, early := range map[string]bool{"after it was met": false, "before": true} {
		t.Run(name, func(t *testing.T) {
			a, nearA := sockets(t)
			b, nearB := sockets(t)
			defer func() { must(t, errors.Join(nearA.Close(), nearB.Close(), b.Close())) }()
			met, half := make(chan error, 1), make(chan error, 1)
			var e *end
			go func() {
				var err error
				e, err = meetEnd(a, nil, fabric.Options{})
				met <- err
			}()
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				_, err := fabric.Meet(ctx, b, nil, fabric.Options{})
				half <- err
			}()
			gives := func() {
				cancel()
				shmtest.WantErr(t, "who gives up", <-half, context.Canceled)
			}
			withholds(t, nearA, nearB)()
			objects, ready := withholds(t, nearB, nearA), withholds(t, nearB, nearA)
			if early {
				gives()
			}
			objects()
			ready()
			must(t, <-met)
			must(t, e.Send(nil, 0, 1))
			if !early {
				for range 10 { // it has looked, also by a ring that comes late
					e.steps(t)
					time.Sleep(time.Millisecond)
				}
				gives()
			}
			_, failed, err := e.next()
			if err != nil || failed.Err != cq.Errno(syscall.EPIPE) {
				t.Errorf("%+v, %v", failed, err)
			}
			shmtest.WantErr(t, "a send", e.Send(nil, 0, 1), fabric.ErrPeerClosed)
			must(t, e.close())
		})
	}
}

// startOther is start, as another user or as this one.
func startOther(t testing.TB, role string, other bool, env ...string) *child {
	t.Helper()
	if !other {
		return start(t, role, env...)
	}
	cmd := shmtest.Child(t, role, env...)
	shmtest.AsOther(t, cmd)
	return &child{shmtest.Start(t, cmd)}
}
