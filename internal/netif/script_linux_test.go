package netif

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

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
