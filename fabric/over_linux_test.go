package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestOver: a connection over a socket is one as any other.
func TestOver(t *testing.T) {
	t.Run("ends", TestConnEnds)
	t.Run("deadlines", TestConnDeadlines)
}

// overListener listens for this user and the other one.
func overListener(t testing.TB) (net.Listener, *net.UnixAddr) {
	t.Helper()
	socket, allow := everybody(t)
	must(t, socket.SetDeadline(time.Unix(1, 0))) // it is the listener's from here on
	l := fabric.ListenOver(socket, allow)
	t.Cleanup(func() { _ = l.Close() }) // may be closed
	return l, socket.Addr().(*net.UnixAddr)
}

func dialOver(at string, allow *shm.AllowList) (net.Conn, error) {
	socket, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return fabric.DialOver(ctx, socket, allow)
}

func dialsOver(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	c := shmtest.Got(dialOver(l.Addr().String(), nil)).Or(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// overServer echoes to whoever connects to a socket that its parent has made, until it is told.
func overServer() {
	conn := dialed() // the parent's is for nothing else here
	defer conn.Close()
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + conn.RemoteAddr().String(),
		Net: "unix"})
	need(err)
	l := fabric.ListenOver(socket, anyUser())
	fmt.Println("ready")
	var echoes sync.WaitGroup
	echoes.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			echoes.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	untilTold()
	need(l.Close())
	echoes.Wait()
}

// overClient dials the parent, writes, and reads the same.
func overClient() {
	at := dialed()
	_ = at.Close()
	for range 3 {
		c := shmtest.Needs(dialOver(at.RemoteAddr().String(), anyUser()))
		need(repeats(c, longBytes))
		need(c.Close())
	}
	fmt.Println("done")
}

// repeats writes some bytes, and expects them back, and then the end.
func repeats(c net.Conn, n int) error {
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(pattern(n))
		if err == nil {
			err = c.(halfCloser).CloseWrite()
		}
		failed <- err
	}()
	got, err := io.ReadAll(c)
	if err == nil && !bytes.Equal(got, pattern(n)) {
		err = fmt.Errorf("%d of %d bytes came back, or others", len(got), n)
	}
	if err != nil {
		return err
	}
	return <-failed
}

// TestOverOthers: a process of another user listens, and dials; one that is killed is ECONNRESET.
func TestOverOthers(t *testing.T) {
	bothUsers(t, func(t *testing.T, other bool) {
		socket, _ := everybody(t)
		c := startOther(t, "over server", other, "SOCKET="+socket.Addr().String())
		c.Says(t, "ready")
		both := &shm.AllowList{UIDs: []int{syscall.Geteuid(), shmtest.Other}}
		dial := func() net.Conn {
			conn := shmtest.Got(dialOver("@"+socket.Addr().String(), both)).Or(t)
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		for range 3 {
			must(t, repeats(dial(), longBytes))
		}
		idle := dial()
		writes(t, idle, "hello")
		reads(t, idle, "hello")
		read := make(chan error)
		go func() {
			_, err := idle.Read(make([]byte, 1))
			read <- err
		}()
		c.Kill()
		failsWith(t, "a read from the dead", <-read, syscall.ECONNRESET)
		_, err := idle.Write([]byte("x"))
		failsWith(t, "a write to the dead", err, syscall.ECONNRESET)
		l, at := overListener(t)
		go func() {
			for range 4 {
				if conn, err := l.Accept(); err == nil {
					go func() {
						_, _ = io.Copy(conn, conn)
						_ = conn.Close()
					}()
				}
			}
		}()
		c = startOther(t, "over client", other, "SOCKET="+at.Name)
		c.Says(t, "done")
		c.Stop(t)
	})
}

// TestOverRefused: who may not connect is told so, who is silent holds nobody up, and a listener
// that closes ends all that wait.
func TestOverRefused(t *testing.T) {
	socket, _ := everybody(t)
	l := fabric.ListenOver(socket, &shm.AllowList{UIDs: []int{12345}})
	_, err := dialOver(socket.Addr().String(), nil)
	failsWith(t, "a user who is not on the list", err, shm.ErrOwner)
	must(t, l.Close())
	l, at := overListener(t)
	silent := shmtest.Got(net.DialUnix("unix", nil, at)).Or(t)
	defer silent.Close()
	c := dialsOver(t, l)
	s := accepts(t, l)
	writes(t, c, "across")
	reads(t, s, "across")
	waits := dialsOver(t, l)
	must(t, l.Close())
	_, err = l.Accept()
	failsWith(t, "accept", err, net.ErrClosed)
	_, err = waits.Read(make([]byte, 1))
	failsWith(t, "a read of who was not accepted", err, io.EOF)
	writes(t, s, "and back")
	reads(t, c, "and back")
	shmtest.Got(silent.Read(make([]byte, 64))).Or(t) // the listener's part of the meeting
}

// TestOverGivenUp: a dial that is given up when it has met its listener keeps no place there, nor
// what was passed to it.
func TestOverGivenUp(t *testing.T) {
	defer func(was time.Duration) { place.MeetTimeout = was }(place.MeetTimeout)
	place.MeetTimeout = time.Hour
	_, at := overListener(t)
	before := len(shmtest.Descriptors())
	conn := shmtest.Got(net.DialUnix("unix", nil, at)).Or(t)
	e, err := fabric.Meet(t.Context(), conn, nil, fabric.Options{})
	must(t, errors.Join(err, conn.Close()))
	must(t, e.Close())
	shmtest.Eventually(t, "the listener has left it", func() bool {
		return len(shmtest.Descriptors()) <= before
	})
}
