package link

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp/rtnetlink"
)

// system is the kernel itself.
type system struct {
	*rtnetlink.Conn
	mu sync.Mutex
	fd int // a socket for ioctl, in the namespace; -1 once it is closed
}

func openSystem() (*system, error) {
	c, err := rtnetlink.Open(groups)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &system{Conn: c, fd: fd}, nil
}

func (s *system) Channels(name string) (rx, tx int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}
	if s.fd < 0 {
		return 0, 0, os.ErrClosed
	}
	err = channelsOf(s.fd, name, &c)
	return int(c.rx + c.combined), int(c.tx + c.combined), err
}

func (s *system) Close() error {
	err := s.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return err
	}
	err = errors.Join(err, unix.Close(s.fd))
	s.fd = -1
	return err
}
