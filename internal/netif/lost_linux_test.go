package netif

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatcherLost: when messages were lost everything is asked for again, and the difference is
// told.
func TestWatcherLost(t *testing.T) {
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
	s := newScript()
	w := watchScript(t, s, WatchOptions{Poll: -1})
	s.fails <- unix.ENOMEM
	eventually(t, "the end", func() bool { return errors.Is(w.ended(), unix.ENOMEM) })
	quiet(t, w)
}
