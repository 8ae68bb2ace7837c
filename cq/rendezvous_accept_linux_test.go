package cq_test

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// TestServeWithoutDescriptors: a process that has no descriptor left for a connection goes on when
// it has one again, and the writer that waited is attached.
func TestServeWithoutDescriptors(t *testing.T) {
	q := anonymous(t, cq.Options{Size: 8})
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	defer l.Close()
	served, reports := make(chan error, 1), make(chan error, 100)
	go func() { served <- q.Serve(l, func(err error) { reports <- err }) }()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var had unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &had))
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: had.Max}, nil))
	err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	var told error
	if err == nil {
		select {
		case told = <-reports:
		case told = <-served:
			served <- told
		}
	}
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &had, nil))
	must(t, err)
	wantErr(t, "report", told, syscall.EMFILE)
	c, err := socket(fd)
	must(t, err)
	defer c.Close()
	w, err := cq.AttachConn(soon(t), c, cq.WriterOptions{})
	must(t, err)
	post(t, w, 0, 3)
	must(t, w.Close())
	must(t, q.Close())
	wantErr(t, "serve", <-served, cq.ErrClosed)
}
