package netif

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// FuzzMessages: whatever stands in a datagram, messages lie in it, and taking them apart neither
// fails nor reads beyond them.
func FuzzMessages(f *testing.F) {
	a := netip.MustParseAddr("192.0.2.1")
	b := appendGetRoute(nil, 1, a, 3)
	f.Add(b)
	f.Add(appendUse(b, 2, 3, netip.MustParseAddr("2001:db8::1")))
	f.Add(appendGetLink(nil, 4, 5))
	f.Add(appendDumpNeighbours(appendDumpAddresses(nil, 1), 2, 3))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for m := range messages(b) {
			n += headerBytes + len(m.Body)
			kinds := []uint16{unix.RTM_NEWLINK, unix.RTM_NEWADDR, unix.RTM_NEWNEIGH,
				unix.RTM_NEWROUTE, unix.NLMSG_ERROR, m.Type}
			for _, m.Type = range kinds {
				if l, ok := m.Link(); ok && l.MTU < 0 {
					t.Errorf("%+v", l)
				}
				if a, ok := m.Address(); ok && !a.Prefix.IsValid() {
					t.Errorf("%+v", a)
				}
				if v, ok := m.Neighbour(); ok && (!v.Addr.IsValid() || v.Addr.Zone() != "") {
					t.Errorf("%+v", v)
				}
				if r, ok := m.Route(); ok && r.MTU < 0 {
					t.Errorf("%+v", r)
				}
				_, _ = m.Errno()
			}
		}
		if n > len(b) {
			t.Errorf("%d bytes of messages in %d", n, len(b))
		}
	})
}

// receiveUntil takes datagrams until one has what ok looks for.
func receiveUntil(t *testing.T, c *conn, what string, ok func(message) bool) {
	t.Helper()
	stop := time.AfterFunc(time.Minute, func() { _ = c.Close() })
	defer stop.Stop()
	buf := make([]byte, bufferBytes)
	for {
		n, err := c.Receive(buf)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for m := range messages(buf[:n]) {
			if ok(m) {
				return
			}
		}
	}
}

// TestReceiveMeetsDump: a Receive that comes to go on with a dump when Send has ended it waits on.
func TestReceiveMeetsDump(t *testing.T) {
	t.Parallel()
	c, err := openConn(0)
	must(t, err)
	go func() {
		for seq := range uint32(100_000) {
			_ = c.Send(appendDumpNeighbours(appendGetLink(nil, seq, 1), seq, 1))
		}
		_ = c.Close()
	}()
	for buf := make([]byte, bufferBytes); err != errClosed; {
		if _, err = c.Receive(buf); err != nil && err != errLost && err != errClosed {
			t.Fatal(err)
		}
	}
}

// TestConn: questions have answers, changes are told, and closing ends the wait.
func TestConn(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{MTU: 1400})
	c := xdptest.Have(p.A, func() (*conn, error) {
		return openConn(join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR))
	}).In(t)
	send := func(b []byte) {
		t.Helper()
		must(t, c.Send(b))
	}
	send(appendGetLink(nil, 5, p.A.Index))
	receiveUntil(t, c, "link", func(m message) bool {
		l, ok := m.Link()
		if ok && (m.Seq != 5 || m.Port != c.Port() || l.Name != p.A.Name || l.MTU != 1400 ||
			l.MAC != [6]byte(p.A.MAC) || !l.Up() || l.Index != p.A.Index || l.ProgramID != 0) {
			t.Errorf("%+v, %+v", m, l)
		}
		return ok
	})
	send(appendDumpAddresses(nil, 6))
	var found bool
	receiveUntil(t, c, "addresses", func(m message) bool {
		if a, ok := m.Address(); ok && a.Index == p.A.Index {
			found = a.Prefix == netip.PrefixFrom(p.A.Addr, 24) && !a.Tentative
		}
		return m.Type == unix.NLMSG_DONE && m.Seq == 6
	})
	if !found {
		t.Error("no address")
	}
	send(appendGetLink(nil, 7, 4711))
	receiveUntil(t, c, "error", func(m message) bool {
		errno, ok := m.Errno()
		return ok && m.Seq == 7 && errno == unix.ENODEV
	})
	must(t, p.A.Change(func(l netlink.Link) error {
		return netlink.LinkSetMTU(l, 1300)
	}))
	receiveUntil(t, c, "change", func(m message) bool {
		l, ok := m.Link()
		return ok && m.Port != c.Port() && l.MTU == 1300
	})
	time.AfterFunc(10*time.Millisecond, func() { _ = c.Close() })
	if _, err := c.Receive(make([]byte, bufferBytes)); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestConnLost: a receiver that sleeps too long is told, and can go on.
func TestConnLost(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	c := xdptest.Have(p.A, func() (*conn, error) { return openConn(join(unix.RTNLGRP_LINK)) }).In(t)
	if err := c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		must(t, p.A.SetUp(i%2 == 0))
	}
	buf := make([]byte, bufferBytes)
	for deadline := time.AfterFunc(time.Minute, func() { _ = c.Close() }); ; {
		_, err := c.Receive(buf)
		if err == errLost {
			deadline.Stop()
			break
		}
		must(t, err)
	}
}

// TestRequestHeaders: each header that requests are made of has as many bytes as its memory, which
// the netlink library reads through a pointer.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	for _, h := range []nl.NetlinkRequestData{&nl.IfInfomsg{}, &nl.IfAddrmsg{}, &nl.RtMsg{},
		&netlink.Ndmsg{}} {
		memory := int(reflect.TypeOf(h).Elem().Size())
		if len(h.Serialize()) != memory || h.Len() != memory {
			t.Errorf("%T: %d bytes of %d", h, len(h.Serialize()), memory)
		}
	}
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

// FuzzHandle: whatever the kernel says, a table and a watcher stand. The table knows no destination
// but the ones that were looked up, and the watcher tells no difference twice.
func FuzzHandle(f *testing.F) {
	dst := addr("192.0.2.2")
	f.Add(linkMessage(0, 0, unix.IFF_UP, 9000))
	f.Add(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, unix.NUD_STALE, 2, 0, 0, 0, 0, 2))
	f.Add(neighbourMessage(unix.RTM_DELNEIGH, 2, ourPort, unix.NLM_F_DUMP_INTR, dst, 0))
	f.Add(addressMessage(unix.RTM_NEWADDR, 0, 0, 0, dst))
	f.Add(addressMessage(unix.RTM_DELADDR, 2, ourPort, unix.NLM_F_DUMP_INTR, dst))
	for seq := range uint32(6) {
		f.Add(routeMessage(seq, ourPort, ourIndex))
		f.Add(datagram(unix.NLMSG_ERROR, seq, ourPort, 0, raw{0xff, 0xff, 0xff, 0xff}))
		f.Add(datagram(unix.NLMSG_DONE, seq, ourPort, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzWatcher(t, b)
		table, _ := scripted(t, TableOptions{})
		_, _ = table.Lookup(dst)
		pump(t, table, 3)
		table.handle(b)
		pump(t, table, 4)
		hop, err := table.Lookup(dst)
		if err == nil && (hop.MTU < 0 || hop.NextMAC == [6]byte{} && hop.LocalMAC != [6]byte{}) {
			// A neighbour's all-zero address can only be what the message says.
			if !table.neighbours[dst].HasMAC {
				t.Errorf("%+v", hop)
			}
		}
		if err != nil && hop != (xdp.Hop{Generation: hop.Generation}) {
			t.Errorf("%+v with %v", hop, err)
		}
		table.advance(5e9)
		pump(t, table, 5e9)
		if n := len(table.dests); n != 1 {
			t.Errorf("%d destinations", n)
		}
	})
}

func fuzzWatcher(t *testing.T, b []byte) {
	s := newScript()
	s.silent = true
	w := newWatcher(s, ourIndex, WatchOptions{})
	w.askAll()
	must(t, w.pump(1))
	w.told = w.State()
	limit := 10 + len(b)
	w.opt.OnEvent = func(e Event) bool {
		if limit--; limit < 0 {
			t.Fatalf("no end of %+v", e)
		}
		return true
	}
	w.handle(b)
	w.round(2, false)
}

const (
	ourPort  = 77
	ourIndex = 4
)

// script plays the kernel: it keeps what it is asked, and says what stands in it, or what the test
// has it say.
type script struct {
	mu     sync.Mutex
	asked  []message
	refuse error       // of Send
	silent bool        // nothing is answered
	out    chan []byte // for Receive
	fails  chan error
	end    chan struct{}

	mtu    uint32
	addrs  []netip.Addr
	groups map[netip.Addr]bool
	unread error  // of the groups
	busy   int    // so many dumps are refused
	broken int    // so many dumps are of two states
	cut    int    // so many are, and lack all addresses: only their end says so
	deaf   int    // so many answers about the link are lost
	mute   int    // so many dumps are refused, and that is lost
	slow   bool   // dumps are not over until finish
	held   uint32 // the one that is not
	second int    // so many were asked for meanwhile
}

func newScript() *script {
	return &script{mtu: 1500, out: make(chan []byte, 100), fails: make(chan error),
		end: make(chan struct{})}
}

func (s *script) Port() uint32                            { return ourPort }
func (s *script) Channels(string) (rx, tx int, err error) { return 1, 1, nil }
func (s *script) Close() error                            { close(s.end); return nil }

func (s *script) Groups(int) (groups map[netip.Addr]bool, err error) {
	s.set(func(s *script) { groups, err = maps.Clone(s.groups), s.unread })
	return groups, err
}

func (s *script) set(f func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// requests returns those of a kind, and forgets all if it is to.
func (s *script) requests(kind uint16, forget bool) (out []message) {
	s.set(func(s *script) {
		for _, m := range s.asked {
			if m.Type == kind {
				out = append(out, m)
			}
		}
		if forget {
			s.asked = nil
		}
	})
	return out
}

// take returns the requests of a kind since the last take of any.
func (s *script) take(kind uint16) []message { return s.requests(kind, true) }

func (s *script) count(kind uint16) int { return len(s.requests(kind, false)) }

func (s *script) Receive(buf []byte) (int, error) {
	select {
	case b := <-s.out:
		return copy(buf, b), nil
	case err := <-s.fails:
		return 0, err
	case <-s.end:
		return 0, os.ErrClosed
	}
}

func (s *script) Send(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m := range messages(b) {
		s.asked = append(s.asked, m)
		if !s.silent {
			s.answer(m)
		}
	}
	return s.refuse
}

// answer says how the interface is, or what addresses it has.
func (s *script) answer(m message) {
	flags := unix.NLM_F_MULTI
	switch {
	case m.Type == unix.RTM_GETLINK && s.deaf > 0:
		s.deaf--
	case m.Type == unix.RTM_GETLINK:
		s.out <- linkMessage(m.Seq, ourPort, unix.IFF_UP|unix.IFF_RUNNING, s.mtu)
	case s.mute > 0:
		s.mute--
		go func() { s.fails <- errLost }()
	case s.busy > 0:
		s.busy--
		s.out <- errorMessage(m.Seq, unix.EBUSY)
	case s.slow:
		if s.held != 0 {
			s.second++
		}
		s.held = m.Seq
	case s.cut > 0:
		s.cut--
		s.out <- doneMessage(m.Seq, unix.NLM_F_DUMP_INTR)
	default:
		addrs := s.addrs
		if s.broken > 0 {
			s.broken--
			flags |= unix.NLM_F_DUMP_INTR
			addrs = addrs[:1]
		}
		for _, a := range addrs {
			s.out <- addressMessage(unix.RTM_NEWADDR, m.Seq, ourPort, flags, a)
		}
		s.out <- doneMessage(m.Seq, 0)
	}
}

// finish ends the dump that is under way, which has one address.
func (s *script) finish(a netip.Addr) {
	s.set(func(s *script) {
		s.slow = false
		s.out <- addressMessage(unix.RTM_NEWADDR, s.held, ourPort, unix.NLM_F_MULTI, a)
		s.out <- doneMessage(s.held, 0)
	})
}

type raw []byte

func (r raw) Len() int          { return len(r) }
func (r raw) Serialize() []byte { return r }

func datagram(kind int, seq, port uint32, flags int, parts ...nl.NetlinkRequestData) []byte {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Seq, r.Pid = seq, port
	for _, p := range parts {
		r.AddData(p)
	}
	return r.Serialize()
}

func errorMessage(seq uint32, errno unix.Errno) []byte {
	return datagram(unix.NLMSG_ERROR, seq, ourPort, 0, raw(nl.Uint32Attr(-uint32(errno))))
}

func doneMessage(seq uint32, flags int) []byte {
	return datagram(unix.NLMSG_DONE, seq, ourPort, flags, raw{0, 0, 0, 0})
}

func linkMessage(seq, port, flags, mtu uint32) []byte {
	i := nl.NewIfInfomsg(unix.AF_UNSPEC)
	i.Index, i.Flags = ourIndex, flags
	return datagram(unix.RTM_NEWLINK, seq, port, 0, i,
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("eth7")),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(mtu)),
		nl.NewRtAttr(unix.IFLA_ADDRESS, ourMAC[:]))
}

var ourMAC = [6]byte{2, 0, 0, 0, 0, 1}

func addressMessage(kind int, seq, port uint32, flags int, a netip.Addr) []byte {
	msg := nl.NewIfAddrmsg(unix.AF_INET)
	msg.Index, msg.Prefixlen = ourIndex, 24
	return datagram(kind, seq, port, flags, msg, nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
}

func neighbourMessage(kind int, seq, port uint32, flags int, a netip.Addr, state uint16,
	mac ...byte) []byte {
	parts := []nl.NetlinkRequestData{
		&netlink.Ndmsg{Family: unix.AF_INET, Index: ourIndex, State: state},
		nl.NewRtAttr(unix.NDA_DST, a.AsSlice())}
	if mac != nil {
		parts = append(parts, nl.NewRtAttr(unix.NDA_LLADDR, mac))
	}
	return datagram(kind, seq, port, flags, parts...)
}

func routeMessage(seq, port uint32, out uint32) []byte {
	r := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Type: unix.RTN_UNICAST}}
	return datagram(unix.RTM_NEWROUTE, seq, port, 0, r,
		nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(out)),
		nl.NewRtAttr(unix.RTA_PREFSRC, []byte{192, 0, 2, 1}))
}

// TestWatcherLost: when messages were lost everything is asked for again, and the difference is
// told.
func TestWatcherLost(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, trouble := range map[string]func(*script){"plain": func(*script) {},
		"busy":   func(s *script) { s.busy = 2 },
		"cut":    func(s *script) { s.cut = 2 },
		"broken": func(s *script) { s.broken = 2 }} {
		t.Run(name, func(t *testing.T) {
			s := newScript()
			s.addrs = []netip.Addr{a}
			o := WatchOptions{Poll: -1}
			w := watchScript(t, s, o)
			s.set(func(s *script) { s.mtu, s.addrs = 9000, []netip.Addr{b} })
			s.set(trouble)
			s.fails <- errLost
			expect(t, w, Event{Kind: MTUChanged, MTU: 9000})
			expect(t, w, Event{Kind: AddressRemoved, Prefix: netip.PrefixFrom(a, 24)})
			expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(b, 24)})
			quiet(t, w)
		})
	}
}

// TestLostTwice: what is lost while the addresses are asked for is asked for when that is over, and
// not before: the kernel would refuse it.
func TestLostTwice(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s := newScript()
	s.addrs = []netip.Addr{a}
	w := watchScript(t, s, WatchOptions{Poll: -1, patience: time.Hour})
	s.set(func(s *script) { s.slow, s.addrs = true, []netip.Addr{b} })
	s.fails <- errLost
	eventually(t, "a second dump", func() bool { return s.count(unix.RTM_GETADDR) == 2 })
	s.fails <- errLost
	s.fails <- errLost // taken: the one before is dealt with
	eventually(t, "the link", func() bool { return s.count(unix.RTM_GETLINK) > 2 })
	s.finish(a) // it began before b came
	expect(t, w, Event{Kind: AddressRemoved, Prefix: netip.PrefixFrom(a, 24)})
	expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(b, 24)})
	quiet(t, w)
	if n := s.count(unix.RTM_GETADDR); n != 3 || s.second != 0 {
		t.Errorf("%d dumps were asked for, %d while there was one", n, s.second)
	}
}

// TestLostAnswer: the answer to what is asked after a loss can be lost as well.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	w := watchScript(t, s, WatchOptions{Poll: -1})
	s.set(func(s *script) { s.mtu, s.deaf = 9000, 1 })
	s.fails <- errLost
	expect(t, w, Event{Kind: MTUChanged, MTU: 9000})
	quiet(t, w)
}

// TestBrokenAtFirst: a first answer that is of two states is asked for again.
func TestBrokenAtFirst(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	s.broken = 1
	w := watchScript(t, s, WatchOptions{Poll: -1})
	if got := w.State(); len(got.Addresses) != 2 || s.count(unix.RTM_GETADDR) != 2 {
		t.Errorf("%+v", got)
	}
}

// TestRefusedAtFirst: addresses that are there are told of though the first question about them is
// refused, also without polls.
func TestRefusedAtFirst(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("192.0.2.1")
	s := newScript()
	s.addrs, s.busy = []netip.Addr{a}, 3
	w := watchScript(t, s, WatchOptions{Poll: -1})
	expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(a, 24)})
	quiet(t, w)
	if n := s.count(unix.RTM_GETADDR); n != 4 {
		t.Errorf("asked %d times", n)
	}
}

// TestLostRefusal: addresses are told of though it is lost that the question about them was
// refused, the first one and a later one.
func TestLostRefusal(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s := newScript()
	s.addrs, s.mute = []netip.Addr{a}, 1
	w := watchScript(t, s, WatchOptions{Poll: -1, patience: time.Millisecond})
	if got := w.State(); len(got.Addresses) != 1 {
		t.Errorf("%+v", got)
	}
	s.set(func(s *script) { s.addrs, s.mute = []netip.Addr{a, b}, 2 })
	s.fails <- errLost
	expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(b, 24)})
	quiet(t, w)
}

// TestDeaf: when the kernel is not heard any more, that is no event of the interface.
func TestDeaf(t *testing.T) {
	t.Parallel()
	s := newScript()
	w := watchScript(t, s, WatchOptions{Poll: -1})
	s.fails <- unix.ENOMEM
	eventually(t, "the end", func() bool { return errors.Is(w.ended(), unix.ENOMEM) })
	quiet(t, w)
}
