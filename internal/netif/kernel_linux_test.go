package netif

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestLoss: who sleeps too long is told, and can go on.
func TestLoss(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	s := xdptest.Have(p.A, func() (*system, error) {
		return openSystem(p.A.Index, unix.RTNLGRP_LINK)
	}).In(t)
	must(t, s.SetReceiveBufferSize(1, false))
	for i := range 20 {
		must(t, p.A.SetUp(i%2 == 0))
	}
	must(t, s.SetReceiveTimeout(&unix.Timeval{Sec: 60}))
	for lost := false; !lost; {
		_, _, err := s.Receive()
		if lost = err == unix.ENOBUFS; !lost {
			must(t, err)
		}
	}
	_, _, err := s.Receive()
	must(t, err)
}

// TestInNamespace: what is called is there, from there and from elsewhere, and nobody else is.
func TestInNamespace(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{NameA: "inside"})
	ns := int(p.A.NetNS().Fd())
	mine := errors.New("mine")
	look := func() error {
		if _, err := net.InterfaceByName("inside"); err != nil {
			return err
		}
		return mine
	}
	for range 10 {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		if err := look(); err == mine {
			t.Error("still there")
		}
	}
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		return nil
	})
	file := shmtest.Have(OpenNamespace()).In(t)
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(int(file.Fd()), look); err == mine {
			t.Error("not elsewhere")
		}
		if err := look(); err != mine {
			t.Error(err)
		}
		return nil
	})
}

const ourIndex = 4

var ourMAC = [6]byte{2, 0, 0, 0, 0, 1}

// script plays the kernel: it says what stands in it, and what the test has it say.
type script struct {
	news chan []syscall.NetlinkMessage
	fail chan error
	end  chan struct{}

	mu         sync.Mutex
	link       link
	addrs      map[netip.Prefix]bool
	groups     map[netip.Addr]bool
	neighbours map[netip.Addr]neighbourState
	gone       bool  // there is no such interface
	unread     error // of the groups
	denied     error // of Use
	refuse     error // of routes and addresses, so many times:
	times      int
	routes     int // asked for
	uses       int
}

func newScript(own ...string) *script {
	s := &script{news: make(chan []syscall.NetlinkMessage), fail: make(chan error),
		end: make(chan struct{}), link: link{Name: "eth7", Flags: unix.IFF_UP | unix.IFF_RUNNING,
			MTU: 1500, MAC: ourMAC}, neighbours: map[netip.Addr]neighbourState{}}
	s.own(own...)
	return s
}

// own makes these the addresses.
func (s *script) own(addrs ...string) {
	s.set(func(s *script) {
		s.addrs = map[netip.Prefix]bool{}
		for _, a := range addrs {
			s.addrs[ownPrefix(a)] = true
		}
	})
}

func ownPrefix(a string) netip.Prefix { return netip.PrefixFrom(addr(a), 24) }

func (s *script) set(f func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *script) Receive() ([]syscall.NetlinkMessage, *unix.SockaddrNetlink, error) {
	select {
	case m := <-s.news:
		return m, &unix.SockaddrNetlink{}, nil
	case err := <-s.fail:
		return nil, nil, err
	case <-s.end:
		return nil, nil, os.ErrClosed
	}
}

// refused returns the error for a question that is refused.
func (s *script) refused() error {
	if s.times == 0 {
		return nil
	}
	s.times--
	return s.refuse
}

func (s *script) Link() (l link, err error) {
	s.set(func(s *script) {
		if l = s.link; s.gone {
			err = xdp.ErrNoDevice
		}
	})
	return l, err
}

func (s *script) Addresses() (addrs map[netip.Prefix]bool, err error) {
	s.set(func(s *script) { addrs, err = maps.Clone(s.addrs), s.refused() })
	return addrs, err
}

func (s *script) Groups() (groups map[netip.Addr]bool, err error) {
	s.set(func(s *script) { groups, err = maps.Clone(s.groups), s.unread })
	return groups, err
}

func (s *script) Neighbour(a netip.Addr) (n neighbourState, err error) {
	s.set(func(s *script) { n = s.neighbours[a] })
	return n, nil
}

func (s *script) Use(netip.Addr) (err error) {
	s.set(func(s *script) { s.uses++; err = s.denied })
	return err
}

// Route says that all is on the link.
func (s *script) Route(netip.Addr, int) (r route, err error) {
	s.set(func(s *script) { s.routes++; err = s.refused() })
	return route{Kind: unix.RTN_UNICAST, Out: ourIndex, Source: addr("192.0.2.1")}, err
}

func (s *script) Channels(string) (rx, tx int, err error) { return 1, 1, nil }
func (s *script) Close() error                            { close(s.end); return nil }

// news returns what the kernel tells of our interface, or of a neighbour on it.
func news(kind uint16, about ...netip.Addr) []syscall.NetlinkMessage {
	m := syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: kind}}
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		i := nl.NewIfInfomsg(unix.AF_UNSPEC)
		i.Index = ourIndex
		m.Data = i.Serialize()
	case unix.RTM_NEWADDR:
		i := nl.NewIfAddrmsg(unix.AF_INET)
		i.Index = ourIndex
		m.Data = i.Serialize()
	case unix.RTM_NEWNEIGH:
		m.Data = []byte{unix.AF_INET, 0, 0, 0, ourIndex, 0, 0, 0, 0, 0, 0, 0}
		m.Data = append(m.Data, nl.NewRtAttr(unix.NDA_DST, about[0].AsSlice()).Serialize()...)
	}
	return []syscall.NetlinkMessage{m}
}

// FuzzHear: whatever the kernel tells, a table and a watcher ask, and know what it answers then.
// Only a word that the interface was removed ends them.
func FuzzHear(f *testing.F) {
	dst := addr("192.0.2.2")
	for _, m := range []syscall.NetlinkMessage{news(unix.RTM_NEWLINK)[0], news(unix.RTM_DELLINK)[0],
		news(unix.RTM_NEWADDR)[0], news(unix.RTM_NEWNEIGH, dst)[0]} {
		f.Add(m.Header.Type, m.Data)
	}
	f.Fuzz(func(t *testing.T, kind uint16, b []byte) {
		m := []syscall.NetlinkMessage{{Header: syscall.NlMsghdr{Type: kind}, Data: b}}
		table, s := scripted(t, TableOptions{})
		s.neighbours[dst] = neighbourState{unix.NUD_REACHABLE, [6]byte{2}, true}
		_, _ = table.Lookup(dst)
		table.hear(m)
		look(t, table, 1)
		if _, err := table.Lookup(dst); err != nil && kind != unix.RTM_DELLINK {
			t.Error(err)
		}
		w := newWatcher(newScript(), ourIndex, WatchOptions{})
		must(t, w.start())
		w.hear(m)
		must(t, w.loop.look(false))
		if s := w.State(); s.Name != "eth7" || s.Removed && kind != unix.RTM_DELLINK {
			t.Errorf("%+v", s)
		}
	})
}

// TestWatcherLost: when messages were lost everything is asked for again, also if the kernel is
// busy, and the difference is told.
func TestWatcherLost(t *testing.T) {
	t.Parallel()
	for name, busy := range map[string]int{"plain": 0, "busy": 2} {
		t.Run(name, func(t *testing.T) {
			s := newScript("192.0.2.1")
			w := watchScript(t, s, WatchOptions{Poll: -1})
			s.own("192.0.2.2")
			s.set(func(s *script) { s.link.MTU, s.refuse, s.times = 9000, unix.EBUSY, busy })
			s.fail <- unix.ENOBUFS
			expect(t, w, Event{Kind: MTUChanged, MTU: 9000})
			expect(t, w, Event{Kind: AddressRemoved, Prefix: ownPrefix("192.0.2.1")})
			expect(t, w, Event{Kind: AddressAdded, Prefix: ownPrefix("192.0.2.2")})
			quiet(t, w)
		})
	}
}

// TestRefusedAtFirst: addresses that are there are known though the first questions about them are
// refused.
func TestRefusedAtFirst(t *testing.T) {
	t.Parallel()
	s := newScript("192.0.2.1")
	s.refuse, s.times = unix.EBUSY, 3
	w := watchScript(t, s, WatchOptions{Poll: -1})
	if got := w.State(); !maps.Equal(got.Addresses, s.addrs) {
		t.Errorf("%+v", got)
	}
	quiet(t, w)
}

// TestWordOfRemoval: an interface that cannot be asked about any more is removed, as the word of it
// says, or after a while in which none comes.
func TestWordOfRemoval(t *testing.T) {
	t.Parallel()
	for name, moved := range map[string]bool{"moved": true, "no word": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript()
				w := watchScript(t, s, WatchOptions{Poll: -1})
				s.set(func(s *script) { s.gone = true })
				s.news <- news(unix.RTM_NEWLINK)
				synctest.Wait()
				if w.State().Removed {
					t.Error("before the word of it")
				}
				if moved {
					m := news(unix.RTM_DELLINK)
					m[0].Data = append(m[0].Data,
						nl.NewRtAttr(unix.IFLA_NEW_IFINDEX, nl.Uint32Attr(7)).Serialize()...)
					s.news <- m
				}
				expect(t, w, Event{Kind: Removed, Moved: moved})
			})
		})
	}
}

// TestDeaf: when the kernel is not heard any more, that is no event of the interface.
func TestDeaf(t *testing.T) {
	t.Parallel()
	s := newScript()
	w := watchScript(t, s, WatchOptions{Poll: -1})
	s.fail <- unix.ENOMEM
	eventually(t, "the end", func() bool { return errors.Is(w.ended(), unix.ENOMEM) })
	quiet(t, w)
}
