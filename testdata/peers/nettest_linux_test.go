package peers

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/shmring/shmring/internal/shmtest"
)

// window is how many datagrams wait at most to be read: fewer than any buffer holds.
const window = 64

// probe can never be sent, so trying to shows whether the socket is closed or its deadline past.
var probe [1 << 16]byte

// stream gives a connected socket what nettest takes for granted and UDP does not promise: nothing
// is lost because the other end does not read, and it learns of Close. Deadlines and errors are the
// socket's own.
type stream struct {
	net.Conn
	to, from *atomic.Int64 // datagrams on their way to and from the other end
	once     *sync.Once    // a test may be over, and its stop called, before its Close returned
}

func (s stream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	switch {
	case n > 0:
		s.from.Add(-1)
	case err == nil && len(b) > 0:
		err = io.EOF
	}
	return n, err
}

func (s stream) Write(b []byte) (int, error) {
	for s.to.Load() >= window {
		if _, err := s.Conn.Write(probe[:]); !errors.Is(err, syscall.EMSGSIZE) {
			return 0, err
		}
		time.Sleep(100 * time.Microsecond)
	}
	s.to.Add(1)
	n, err := s.Conn.Write(b)
	if err != nil {
		s.to.Add(-1)
	}
	return n, err
}

// Close says so by an empty datagram.
func (s stream) Close() (err error) {
	s.once.Do(func() {
		_, _ = s.Conn.Write(nil)
		err = s.Conn.Close()
	})
	return err
}

// TestNettest: a connected socket is what nettest says, against one of the kernel and against its
// like.
func TestNettest(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range sides {
		t.Run(c.name, func(t *testing.T) {
			h := newHosts(t, c.who)
			port := uint16(20000)
			nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
				port++
				var to, from atomic.Int64
				a := stream{h.dial(0, port, h.addr(1, port)), &to, &from, new(sync.Once)}
				b := stream{h.dial(1, port, h.addr(0, port)), &from, &to, new(sync.Once)}
				return a, b, func() {
					a.Close()
					b.Close()
				}, nil
			})
		})
	}
}
