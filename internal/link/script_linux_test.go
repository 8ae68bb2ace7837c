package link

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/rtnetlink"
)

const (
	ourPort  = 77
	ourIndex = 4
)

// script plays the kernel: questions are answered from what stands in it.
type script struct {
	mu     sync.Mutex
	asked  map[uint16]int
	mtu    uint32
	addrs  []netip.Addr
	groups map[netip.Addr]bool
	busy   int    // so many dumps are refused
	broken int    // so many dumps are of two states
	cut    int    // so many are, and lack all addresses: only their end says so
	deaf   int    // so many answers about the link are lost
	slow   bool   // dumps are not over until finish
	held   uint32 // the one that is not
	out    chan []byte
	fails  chan error
	end    chan struct{}
}

func newScript() *script {
	return &script{asked: map[uint16]int{}, mtu: 1500, out: make(chan []byte, 100),
		fails: make(chan error), end: make(chan struct{})}
}

func (s *script) Port() uint32 { return ourPort }

func (s *script) Channels(string) (rx, tx int, err error) { return 1, 1, nil }
func (s *script) Close() error                            { close(s.end); return nil }

func (s *script) Groups(int) (groups map[netip.Addr]bool) {
	s.set(func(s *script) { groups = maps.Clone(s.groups) })
	return groups
}

func (s *script) set(f func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

func (s *script) count(kind uint16) (n int) {
	s.set(func(s *script) { n = s.asked[kind] })
	return n
}

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
	for m := range rtnetlink.Messages(b) {
		s.asked[m.Type]++
		if m.Type == unix.RTM_GETLINK && s.deaf > 0 {
			s.deaf--
			continue
		}
		if m.Type == unix.RTM_GETLINK {
			s.out <- linkMessage(m.Seq, ourPort, s.mtu)
			continue
		}
		if s.busy > 0 {
			s.busy--
			s.out <- message(unix.NLMSG_ERROR, m.Seq, ourPort, 0,
				raw(nl.Uint32Attr(^uint32(unix.EBUSY-1))))
			continue
		}
		if s.slow {
			s.held = m.Seq
			continue
		}
		if s.cut > 0 {
			s.cut--
			s.out <- message(unix.NLMSG_DONE, m.Seq, ourPort, unix.NLM_F_DUMP_INTR,
				raw{0, 0, 0, 0})
			continue
		}
		flags := unix.NLM_F_MULTI
		if s.broken > 0 {
			s.broken--
			flags |= unix.NLM_F_DUMP_INTR
		}
		for _, a := range s.addrs {
			s.out <- addressMessage(unix.RTM_NEWADDR, m.Seq, ourPort, flags, a)
			if flags&unix.NLM_F_DUMP_INTR != 0 {
				break
			}
		}
		s.out <- message(unix.NLMSG_DONE, m.Seq, ourPort, 0, raw{0, 0, 0, 0})
	}
	return nil
}

type raw []byte

func (r raw) Len() int          { return len(r) }
func (r raw) Serialize() []byte { return r }

func message(kind int, seq, port uint32, flags int, parts ...nl.NetlinkRequestData) []byte {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Seq, r.Pid = seq, port
	for _, p := range parts {
		r.AddData(p)
	}
	return r.Serialize()
}

func linkMessage(seq, port uint32, mtu uint32) []byte {
	i := nl.NewIfInfomsg(unix.AF_UNSPEC)
	i.Index, i.Flags = ourIndex, unix.IFF_UP|unix.IFF_RUNNING
	return message(unix.RTM_NEWLINK, seq, port, 0, i,
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("eth7")),
		nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(mtu)))
}

func addressMessage(kind int, seq, port uint32, flags int, a netip.Addr) []byte {
	msg := nl.NewIfAddrmsg(unix.AF_INET)
	msg.Index, msg.Prefixlen = ourIndex, 24
	return message(kind, seq, port, flags, msg, nl.NewRtAttr(unix.IFA_LOCAL, a.AsSlice()))
}

func watchScript(t testing.TB, s *script, o Options) *Watcher {
	t.Helper()
	w, err := watch(s, ourIndex, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// TestLost: when messages were lost everything is asked for again, and the difference is told.
func TestLost(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for name, trouble := range map[string]func(*script){"plain": func(*script) {},
		"busy":   func(s *script) { s.busy = 2 },
		"cut":    func(s *script) { s.cut = 2 },
		"broken": func(s *script) { s.broken = 2 }} {
		t.Run(name, func(t *testing.T) {
			s := newScript()
			s.addrs = []netip.Addr{a}
			o := Options{Poll: -1}
			w := watchScript(t, s, o)
			s.set(func(s *script) { s.mtu, s.addrs = 9000, []netip.Addr{b} })
			s.set(trouble)
			s.fails <- rtnetlink.ErrLost
			expect(t, w, Event{Kind: MTUChanged, MTU: 9000})
			expect(t, w, Event{Kind: AddressRemoved, Prefix: netip.PrefixFrom(a, 24)})
			expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(b, 24)})
			quiet(t, w)
		})
	}
}

// finish ends the dump that is under way, which has one address.
func (s *script) finish(a netip.Addr) {
	s.set(func(s *script) {
		s.slow = false
		s.out <- addressMessage(unix.RTM_NEWADDR, s.held, ourPort, unix.NLM_F_MULTI, a)
		s.out <- message(unix.NLMSG_DONE, s.held, ourPort, 0, raw{0, 0, 0, 0})
	})
}

// TestLostTwice: what is lost while the addresses are asked for is asked for when that is over, and
// not before: the kernel would refuse it.
func TestLostTwice(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s := newScript()
	s.addrs = []netip.Addr{a}
	w := watchScript(t, s, Options{Poll: -1})
	s.set(func(s *script) { s.slow, s.addrs = true, []netip.Addr{b} })
	s.fails <- rtnetlink.ErrLost
	s.fails <- rtnetlink.ErrLost
	s.fails <- rtnetlink.ErrLost // taken: the one before is dealt with
	if n := s.count(unix.RTM_GETADDR); n != 2 {
		t.Errorf("%d dumps were asked for, want the first and one more", n)
	}
	s.finish(a) // it began before b came
	expect(t, w, Event{Kind: AddressRemoved, Prefix: netip.PrefixFrom(a, 24)})
	expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(b, 24)})
	quiet(t, w)
}

// TestLostAnswer: the answer to what is asked after a loss can be lost as well.
func TestLostAnswer(t *testing.T) {
	s := newScript()
	s.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	w := watchScript(t, s, Options{Poll: -1})
	s.set(func(s *script) { s.mtu, s.deaf = 9000, 1 })
	s.fails <- rtnetlink.ErrLost
	expect(t, w, Event{Kind: MTUChanged, MTU: 9000})
	quiet(t, w)
}

// TestBrokenAtFirst: a first answer that is of two states is asked for again.
func TestBrokenAtFirst(t *testing.T) {
	s := newScript()
	s.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	s.broken = 1
	w := watchScript(t, s, Options{Poll: -1})
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
	w := watchScript(t, s, Options{Poll: -1})
	expect(t, w, Event{Kind: AddressAdded, Prefix: netip.PrefixFrom(a, 24)})
	quiet(t, w)
	if n := s.count(unix.RTM_GETADDR); n != 4 {
		t.Errorf("asked %d times", n)
	}
}

// TestDeaf: when the kernel is not heard any more, that is no event of the interface.
func TestDeaf(t *testing.T) {
	s := newScript()
	w := watchScript(t, s, Options{Poll: -1})
	s.fails <- unix.ENOMEM
	if e, ok := <-w.Events(); ok {
		t.Error(e)
	}
	if !errors.Is(w.Err(), unix.ENOMEM) {
		t.Error(w.Err())
	}
}

// FuzzReceive: whatever the kernel says, the watcher stands, and tells no difference twice.
func FuzzReceive(f *testing.F) {
	a := netip.MustParseAddr("192.0.2.1")
	f.Add(linkMessage(0, 0, 9000))
	f.Add(addressMessage(unix.RTM_NEWADDR, 0, 0, 0, a))
	f.Add(addressMessage(unix.RTM_DELADDR, 2, ourPort, unix.NLM_F_DUMP_INTR, a))
	for seq := range uint32(4) {
		f.Add(message(unix.NLMSG_ERROR, seq, ourPort, 0, raw{0xff, 0xff, 0xff, 0xff}))
		f.Add(message(unix.NLMSG_DONE, seq, ourPort, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &Watcher{k: newScript(), is: State{Index: ourIndex,
			Addresses: map[netip.Prefix]bool{}}}
		if err := w.resync(); err != nil {
			t.Fatal(err)
		}
		told := w.State()
		for m := range rtnetlink.Messages(b) {
			_ = w.message(m)
		}
		is := w.State()
		limit := 10 + len(b)
		for e, ok := next(&told, &is); ok; e, ok = next(&told, &is) {
			if told.tell(e); limit == 0 {
				t.Fatalf("no end of %+v", e)
			}
			limit--
		}
	})
}
