package bench

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm"
)

// What a Go program would use instead of a queue, which is our child, too: a channel within one
// process, a unix socket or a pair of pipes between two.

// parcel is a message, as large as a slot.
type parcel [slotWords * 8]byte

// stream is this role's end of a socket or of two pipes.
type stream struct {
	in  io.ReadCloser
	out io.WriteCloser
}

func (l *stream) Close() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.in.Close(), l.out.Close())
}

// goRunner is a round of a rival in Go.
func (p *party) goRunner(c command) (_ func() (uint64, bool, error), err error) {
	verb := strings.TrimPrefix(c.name, goPrefix)
	if chanVerb := chanVerbs[verb]; chanVerb != nil {
		return p.solo(func() (time.Duration, error) { return chanVerb(int(c.count)), nil }), nil
	}
	if p.stream == nil {
		switch verb {
		case "unix":
			p.stream, err = unixStream(p.role)
		case "pipe":
			p.stream, err = pipeStream(p.role)
		default:
			err = fmt.Errorf("no such command: %w", unix.EINVAL)
		}
		if err != nil {
			return nil, err
		}
	}
	return func() (uint64, bool, error) { return 0, p.role == 0, p.stream.blocked(p.role, c) }, nil
}

// blocked is a round trip in which each message finds its reader asleep.
func (l *stream) blocked(role int, c command) error {
	var m parcel
	return inTurns(role, c.count, func() error {
		spinFor(thinkNs)
		_, err := l.out.Write(m[:])
		return err
	}, func() error {
		_, err := io.ReadFull(l.in, m[:])
		return err
	})
}

// unixStream connects both roles by a stream socket in the directory of their side.
func unixStream(role int) (*stream, error) {
	path := filepath.Join(shm.DefaultPath(), "go.sock")
	if role == 0 {
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		conn, err := l.Accept()
		return &stream{in: conn, out: conn}, err
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil || time.Now().After(until) {
			return &stream{in: conn, out: conn}, err
		}
	}
}

// pipeStream opens a pipe each way, which both roles find by name.
func pipeStream(role int) (*stream, error) {
	var files [2]*os.File
	for i := range files {
		path := filepath.Join(shm.DefaultPath(), fmt.Sprintf("go.pipe%d", i))
		err := unix.Mkfifo(path, 0o600)
		if err != nil && err != unix.EEXIST {
			return nil, fmt.Errorf("pipe %s: %w", path, err)
		}
		if files[i], err = os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0); err != nil {
			return nil, err
		}
	}
	return &stream{in: files[1-role], out: files[role]}, nil
}

// chanVerbs pass n parcels between two goroutines of one process, which may use both processors.
var chanVerbs = map[string]func(n int) time.Duration{
	"chan": func(n int) time.Duration {
		there, back := make(chan parcel, 1), make(chan parcel, 1)
		return timedPair(func() {
			for range n {
				there <- parcel{}
				<-back
			}
		}, func() {
			for range n {
				back <- <-there
			}
		})
	},
	"chan-rate": func(n int) time.Duration {
		c := make(chan parcel, capacity)
		return timedPair(func() {
			for range n {
				c <- parcel{}
			}
		}, func() {
			for range n {
				<-c
			}
		})
	},
}

// timedPair runs both functions, each in a goroutine that no thread is bound to. Threads that the
// runtime starts for them are not pinned: while a thread is locked, the runtime makes them from one
// that it set aside before.
func timedPair(a, b func()) time.Duration {
	done := make(chan struct{}, 2)
	began := time.Now()
	for _, f := range []func(){a, b} {
		go func() {
			f()
			done <- struct{}{}
		}()
	}
	<-done
	<-done
	return time.Since(began)
}
