package netif

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// system is the kernel itself.
type system struct {
	*conn
	mu     sync.Mutex
	fd     int // a socket for ioctl, in the namespace; -1 once it is closed
	groups [2]*os.File
}

// groupFiles list the groups of a namespace: that of the thread that opens them, for as long as
// they are open.
var groupFiles = [2]string{"/proc/thread-self/net/igmp", "/proc/thread-self/net/igmp6"}

var watchGroups = join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)

func openSystem() (*system, error) {
	c, err := openConn(watchGroups)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s := &system{conn: c, fd: fd}
	for i, path := range groupFiles {
		s.groups[i], _ = os.Open(path) // without /proc, or a family, there are no groups
	}
	return s, nil
}

func (s *system) Groups(index int) map[netip.Addr]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := map[netip.Addr]bool{}
	for i, add := range []func(map[netip.Addr]bool, []byte, int){addGroups4, addGroups6} {
		f := s.groups[i]
		if f == nil || s.fd < 0 {
			continue
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			continue
		}
		if text, err := io.ReadAll(f); err == nil {
			add(groups, text, index)
		}
	}
	return groups
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
	err := s.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return err
	}
	err = errors.Join(err, unix.Close(s.fd))
	for _, f := range s.groups {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	s.fd = -1
	return err
}
