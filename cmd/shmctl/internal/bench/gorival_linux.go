package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/shm"
)

// What a Go program would use instead of a queue, which is our child, too: a channel within one
// process, a unix socket or a pair of pipes between two. And what it can use as it uses a socket: a
// connection of package fabric.

// parcel is a message, as large as a slot.
type parcel [slotWords * 8]byte

// stream is this role's end of a socket, a connection, or of two pipes.
type stream struct {
	in  io.ReadCloser
	out io.WriteCloser
	mem []byte // the megabyte that is sent, or received
}

func (l *stream) Close() error {
	return errors.Join(l.in.Close(), l.out.Close())
}

// goRunner is a round of a rival in Go.
func (p *party) goRunner(c command) (func() (uint64, bool, error), error) {
	if chanVerb := chanVerbs[c.verb]; chanVerb != nil {
		return p.solo(func() (time.Duration, error) { return chanVerb(int(c.count)), nil }), nil
	}
	verb, how, _ := strings.Cut(c.verb, "-")
	open, run := streams[verb], streamRuns[how]
	if open == nil || run == nil {
		return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
	}
	l, err := have(p, func() (*stream, error) { return open(p.role) })
	return func() (uint64, bool, error) { return 0, p.role == 0, run(l, p.role, c) }, err
}

var streams = map[string]func(role int) (*stream, error){
	"unix": unixStream, "pipe": pipeStream, "conn": fabricStream,
}

var streamRuns = map[string]func(l *stream, role int, c command) error{
	"": (*stream).blocked, "trip": (*stream).trip, "1m": (*stream).flow,
}

// trip is there and back, at once.
func (l *stream) trip(role int, c command) error { return l.pingpong(role, c, func() {}) }

// blocked is a round trip in which each message finds its reader asleep.
func (l *stream) blocked(role int, c command) error {
	return l.pingpong(role, c, func() { spinFor(thinkNs) })
}

func (l *stream) pingpong(role int, c command, think func()) error {
	var m parcel
	return inTurns(role, c.count, func() error {
		think()
		_, err := l.out.Write(m[:])
		return err
	}, func() error {
		_, err := io.ReadFull(l.in, m[:])
		return err
	})
}

// flow is so many megabytes from role 0, and a byte back for all of them.
func (l *stream) flow(role int, c command) (err error) {
	if l.mem == nil {
		l.mem = written(make([]byte, 1<<20))
	}
	mem := l.mem
	for i := uint64(0); i < c.count && err == nil; i++ {
		if role == 0 {
			_, err = l.out.Write(mem)
		} else {
			_, err = io.ReadFull(l.in, mem)
		}
	}
	if err != nil {
		return err
	}
	if role == 1 {
		_, err = l.out.Write(mem[:1])
	} else {
		_, err = io.ReadFull(l.in, mem[:1])
	}
	return err
}

// unixStream connects both roles by a stream socket in the directory of their side.
func unixStream(role int) (*stream, error) {
	path := filepath.Join(shm.DefaultPath(), "go.sock")
	return connect(role, func() (net.Listener, error) { return net.Listen("unix", path) },
		func() (net.Conn, error) { return net.Dial("unix", path) })
}

// fabricStream connects them by shared memory.
func fabricStream(role int) (*stream, error) {
	dir, err := shm.OpenDir("")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return connect(role, func() (net.Listener, error) { return fabric.Listen(dir, "conn") },
		func() (net.Conn, error) { return fabric.Dial(context.Background(), dir, "conn") })
}

func connect(role int, listen func() (net.Listener, error), dial func() (net.Conn, error),
) (*stream, error) {
	if role == 0 {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer l.Close()
		conn, err := l.Accept()
		return &stream{in: conn, out: conn}, err
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		conn, err := dial()
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
