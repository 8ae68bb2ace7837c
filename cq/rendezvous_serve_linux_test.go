package cq_test

import (
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
)

// TestAnonymousSealed: no peer can cut the memory, or keep the next one from writing.
func TestAnonymousSealed(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	join(t, q)
	n := 0
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range fds {
		path := "/proc/self/fd/" + e.Name()
		if to, _ := os.Readlink(path); !strings.Contains(to, "memfd:shmring:") {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		n++
		if err := f.Truncate(4096); !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s was cut: %v", path, err)
		}
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s was sealed: %v", path, err)
		}
		must(t, f.Close())
	}
	if n == 0 {
		t.Error("no memfd")
	}
}

// TestServe attaches writers that connect to a socket, and ends with the queue.
func TestServe(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8, Spin: -1})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer l.Close()
	served, reports := make(chan error), make(chan error, 10)
	go func() { served <- q.Serve(l, func(err error) { reports <- err }) }()
	dial := func() *net.UnixConn {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	bad := dial()
	_, err = bad.Write(make([]byte, 64))
	must(t, err)
	wantErr(t, "report", <-reports, cq.ErrCorrupt, syscall.EBADMSG)
	for i := range uint64(3) {
		c := dial()
		w, err := cq.AttachConn(soon(t), c, cq.WriterOptions{})
		must(t, err)
		post(t, w, i, i+1)
		buf := make([]cq.Context, 4)
		if n, err := cq.ReadContext(soon(t), q, buf, cq.ReadOptions{}); n != 1 || buf[0].Context != i {
			t.Error(n, err, buf)
		}
		must(t, w.Close())
		if i == 1 { // a life line carries nothing
			_, err = c.Write([]byte{1})
			must(t, err)
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
	w, err := cq.AttachConn(soon(t), dial(), cq.WriterOptions{})
	must(t, err)
	must(t, l.Close())
	wantErr(t, "serve", <-served, net.ErrClosed)
	post(t, w, 0, 3)
	if got := drain(t, q); !slices.Equal(got, upTo(0, 3)) {
		t.Error(got)
	}
	must(t, w.Close())
}

// TestServeTwice: all servers of a queue at one listener end with it, and one of another queue goes
// on there.
func TestServeTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer l.Close()
	other := anonymous(t, cq.Options{Size: 8})
	otherServed := make(chan error, 1)
	ended := func(what string, served <-chan error, want error) {
		t.Helper()
		select {
		case err := <-served:
			wantErr(t, what, err, want)
		case <-time.After(time.Minute):
			t.Fatalf("%s: does not end", what)
		}
	}
	go func() { otherServed <- other.Serve(l, nil) }()
	for range 20 {
		q := anonymous(t, cq.Options{Size: 8})
		served := make(chan error, 3)
		for range cap(served) {
			go func() { served <- q.Serve(l, nil) }()
		}
		must(t, q.Close())
		for range cap(served) {
			ended("of the queue that was closed", served, cq.ErrClosed)
		}
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	w, err := cq.AttachConn(soon(t), c, cq.WriterOptions{})
	must(t, errors.Join(err, c.Close()))
	post(t, w, 0, 3)
	if got := drain(t, other); !slices.Equal(got, upTo(0, 3)) {
		t.Error(got)
	}
	must(t, errors.Join(w.Close(), l.Close()))
	ended("of a listener that was closed", otherServed, net.ErrClosed)
}
