package xdp_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// udpFrame is a datagram from one port to another address and port, tagged if tags are given.
func udpFrame(t testing.TB, dst string, tags ...packet.Tag) []byte {
	t.Helper()
	to := netip.MustParseAddrPort(dst)
	src := netip.MustParseAddr("192.0.2.1")
	if to.Addr().Is6() {
		src = netip.MustParseAddr("fd00::1")
	}
	tpl, err := packet.Path{Src: netip.AddrPortFrom(src, 1000), Dst: to, Tags: tags}.Template()
	must(t, err)
	frame := make([]byte, 200)
	n := shmtest.Got(tpl.Build(frame, []byte("hello"))).Or(t)
	return frame[:n]
}

// TestRuleSet: rules are tried on bytes, with no device and no privilege.
func TestRuleSet(t *testing.T) {
	t.Parallel()
	prefix := netip.MustParsePrefix
	set := xdp.RuleSet{Rules: []xdp.Rule{
		{All: true},
		{Dst: prefix("192.0.2.99/24")}, // bits behind the prefix do not matter
		{Dst: prefix("::ffff:192.0.2.2/128"), EtherType: 0x0800},
		{UDPPort: 53},
		{UDPPort: 53, VLAN: 7},
		{Untagged: true, UDPPort: 80},
	}}
	arp := make([]byte, 60)
	arp[12], arp[13] = 0x08, 0x06
	for i, c := range []struct {
		frame []byte
		rule  int
		why   xdp.Outcome
	}{
		{udpFrame(t, "198.51.100.1:1"), 0, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.3:1"), 1, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:1"), 2, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:53"), 3, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:53"), 3, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:53", packet.Tag{TCI: 0xe007}), 4, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80"), 5, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80", packet.Tag{TCI: 0xe000}), 5, xdp.OutcomeRule},
		{udpFrame(t, "[fd00::2]:80", packet.Tag{TCI: 9}), 0, xdp.OutcomeRule},
		{udpFrame(t, "192.0.2.2:68"), -1, xdp.OutcomeOtherPort},
		{arp, -1, xdp.OutcomeKept},
		{udpFrame(t, "192.0.2.2:53")[:40], -1, xdp.OutcomeShort},
		{nil, -1, xdp.OutcomeShort},
	} {
		if rule, why := set.Match(c.frame); rule != c.rule || why != c.why {
			t.Errorf("frame %d: rule %d, %v; want %d, %v", i, rule, why, c.rule, c.why)
		}
	}
	none := xdp.RuleSet{}
	if rule, why := none.Match(udpFrame(t, "192.0.2.2:53")); rule != -1 ||
		why != xdp.OutcomeOtherPort {
		t.Errorf("no rules: %d, %v", rule, why)
	}
}

// TestLocal: what is addressed to the interface itself is told from what is not, by rules and by
// who looks at a datagram again.
func TestLocal(t *testing.T) {
	t.Parallel()
	own, group := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{1, 0, 0x5e, 1, 2, 3}
	group6 := [6]byte{0x33, 0x33, 0, 0, 0, 9}
	addr := netip.MustParseAddr
	local := xdp.Local{addr("192.0.2.2"): own, addr("fd00::2"): own, addr("239.1.2.3"): group,
		addr("ff15::9"): group6}
	set := xdp.RuleSet{Rules: []xdp.Rule{{UDPPort: 53, Local: true}}, Local: local}
	for _, c := range []struct {
		mac  [6]byte
		dst  string
		tags []packet.Tag
		want bool
	}{
		{own, "192.0.2.2:53", nil, true},
		{own, "[fd00::2]:53", nil, true},
		{group, "239.1.2.3:53", nil, true},
		{group6, "[ff15::9]:53", nil, true},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0xe000}}, true},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 7}}, false},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0}, {TCI: 7}}, false},
		{own, "192.0.2.2:53", []packet.Tag{{TCI: 0}, {TCI: 0}}, false},
		{own, "192.0.2.3:53", nil, false},
		{own, "[fd00::3]:53", nil, false},
		{own, "239.1.2.3:53", nil, false},
		{own, "192.0.2.255:53", nil, false},
		{[6]byte{2, 0, 0, 0, 0, 2}, "192.0.2.2:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "192.0.2.2:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "192.0.2.255:53", nil, false},
		{[6]byte{255, 255, 255, 255, 255, 255}, "239.1.2.3:53", nil, false},
		{[6]byte{1, 0, 0x5e, 1, 2, 4}, "239.1.2.4:53", nil, false},
		{group, "239.129.2.3:53", nil, false}, // another group of that hardware address
	} {
		frame := udpFrame(t, c.dst, c.tags...)
		copy(frame, c.mac[:])
		var d packet.Datagram
		must(t, packet.Parse(frame, &d))
		if _, why := set.Match(frame); (why == xdp.OutcomeRule) != c.want || d.Own(local) != c.want {
			t.Errorf("%x %s %v: %v, has %v", c.mac, c.dst, c.tags, why, d.Own(local))
		}
	}
}

func TestRuleNames(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]xdp.Rule{
		"udp 53 dst 192.0.2.0/24 vlan 7 ethertype 0x0800": {UDPPort: 53, VLAN: 7, EtherType: 0x0800,
			Dst: netip.MustParsePrefix("192.0.2.0/24")},
		"untagged":     {Untagged: true},
		"udp 53 local": {UDPPort: 53, Local: true},
		"all":          {All: true},
		"":             {},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s := xdp.OutcomeFragment.String() + xdp.Outcome(9).String(); s != "fragmentoutcome(9)" {
		t.Error(s)
	}
}

// FuzzRuleAndParse: a datagram that Parse finds is one that a rule for its port, its address and
// its VLAN takes, and both agree on what is local.
func FuzzRuleAndParse(f *testing.F) {
	f.Add(udpFrame(f, "192.0.2.2:53"))
	f.Add(udpFrame(f, "[fd00::2]:53", packet.Tag{TCI: 7}))
	f.Add(udpFrame(f, "192.0.2.2:53", packet.Tag{Kind: 0x88a8, TCI: 7}, packet.Tag{TCI: 8}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		var d packet.Datagram
		_, why := xdp.RuleSet{Rules: []xdp.Rule{{All: true}}}.Match(frame)
		if packet.Parse(frame, &d) != nil || d.Dst.Port() == 0 {
			return
		}
		dst := d.Dst.Addr()
		r := xdp.Rule{UDPPort: d.Dst.Port(), Dst: netip.PrefixFrom(dst, dst.BitLen()),
			VLAN: d.VLAN & 0xfff, Untagged: d.VLAN&0xfff == 0}
		if !alone(r, frame) {
			t.Errorf("%v does not match %x (%v)", r, frame, why)
		}
		local := xdp.Local{dst: d.DstMAC}
		_, why = xdp.RuleSet{Rules: []xdp.Rule{{Local: true}}, Local: local}.Match(frame)
		if want := d.Own(local); want != (why == xdp.OutcomeRule) && d.Dst.Port() != 68 &&
			d.Dst.Port() != 546 {
			t.Errorf("%x: local %v, by rule %v", frame, want, why)
		}
		r.UDPPort ^= 1
		if r.UDPPort != 0 && alone(r, frame) {
			t.Errorf("%v matches %x", r, frame)
		}
	})
}

// alone reports whether a rule would decide about a frame if there were no other.
func alone(r xdp.Rule, frame []byte) bool {
	_, why := xdp.RuleSet{Rules: []xdp.Rule{r}}.Match(frame)
	return why == xdp.OutcomeRule
}

// sendTo sends n datagrams from the kernel of end A to a port of end B.
func (r *rig) sendTo(t testing.TB, port, n int) {
	t.Helper()
	from := udp(t, r.pair.A, 0)
	for i := range n {
		shmtest.Got(from.WriteToUDP(binary.BigEndian.AppendUint32(nil, uint32(i)),
			addrOf(r.pair.B, port))).Or(t)
	}
}

// take receives n packets of a socket and returns the numbers in them.
func take(t testing.TB, s *xdp.Socket, n int) (numbers []uint32) {
	t.Helper()
	var buf [1]xdp.Received
	for range n {
		await(t, "a packet", func() bool { return s.Receive(buf[:]) == 1 })
		b := s.Packet(buf[0])
		var d packet.Datagram
		must(t, packet.Parse(b, &d))
		numbers = append(numbers, binary.BigEndian.Uint32(b[d.PayloadOff:]))
		s.Drop(buf[0].Frame)
		s.Fill(1)
	}
	return numbers
}

func nothing(t testing.TB, s *xdp.Socket) {
	t.Helper()
	if n := s.Pending(10); n != 0 {
		t.Errorf("%d packets are at the wrong socket", n)
	}
}

func addRule(t testing.TB, p *xdp.Program, r xdp.Rule, to xdp.Target) xdp.RuleID {
	t.Helper()
	return shmtest.Got(p.AddRule(r, to)).Or(t)
}

// TestSocketsSwapped: a rule goes over to another socket of the queue while traffic runs; the end
// of the first one does not matter to the second.
func TestSocketsSwapped(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	second := openShared(t, r.pair.B, r.socket, xdp.Options{})
	r.sendTo(t, testPort, 20)
	take(t, r.socket, 20)
	nothing(t, second)
	must(t, second.Register(r.prog, 0))
	r.sendTo(t, testPort, 20)
	take(t, second, 20)
	nothing(t, r.socket)
	must(t, r.socket.Close())
	r.sendTo(t, testPort, 20)
	take(t, second, 20)
	c := shmtest.Got(r.prog.Counters()).Or(t)
	if c.Redirected != 60 || c.NoSocket != 0 {
		t.Errorf("%+v", c)
	}
}

// TestHalfDropped: every other packet is dropped by a rule, and exactly the others arrive.
func TestHalfDropped(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	drop := addRule(t, r.prog, xdp.Rule{UDPPort: testPort + 1}, xdp.Target{Action: xdp.Drop})
	from := udp(t, r.pair.A, 0)
	for i := range 200 {
		shmtest.Got(from.WriteToUDP(binary.BigEndian.AppendUint32(nil, uint32(i)),
			addrOf(r.pair.B, testPort+i%2))).Or(t)
	}
	for i, n := range take(t, r.socket, 100) {
		if n != uint32(2*i) {
			t.Fatalf("packet %d is number %d", i, n)
		}
	}
	nothing(t, r.socket)
	s := shmtest.Got(r.prog.RuleStats(drop)).Or(t)
	const each = packet.HeaderBytes + 4
	if s.Frames != 100 || s.Bytes != 100*each {
		t.Errorf("%+v", s)
	}
	c := shmtest.Got(r.prog.Counters()).Or(t)
	if c.Dropped != 100 || c.Redirected != 100 {
		t.Errorf("%+v", c)
	}
}

// TestRulesChangeUnderTraffic: rules of other ports come and go, for wider and narrower prefixes of
// the same address; the stream misses nothing.
func TestRulesChangeUnderTraffic(t *testing.T) {
	t.Parallel()
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	must(t, r.prog.Unsteer(testPort))
	at := func(bits int) netip.Prefix {
		p := shmtest.Got(r.pair.B.Addr.Prefix(bits)).Or(t)
		return p
	}
	mine := addRule(t, r.prog, xdp.Rule{UDPPort: testPort, Dst: at(16)}, xdp.Target{})
	for port := range uint16(200) { // a narrower prefix takes all of these over
		addRule(t, r.prog, xdp.Rule{UDPPort: 10000 + port, Dst: at(16)}, xdp.Target{})
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	var changes atomic.Int64
	go func() {
		defer close(done)
		for {
			for _, bits := range []int{32, 24, 8, 20} {
				id, err := r.prog.AddRule(xdp.Rule{UDPPort: 1, Dst: at(bits)}, xdp.Target{})
				if err == nil {
					err = r.prog.RemoveRule(id)
				}
				if err != nil {
					done <- err
					return
				}
				changes.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		}
	}()
	frames := uint64(0)
	// On one CPU the rules hardly get to change; there is nothing to see then.
	for end := time.Now().Add(time.Second); changes.Load() < 120 && len(done) == 0 &&
		time.Now().Before(end); frames += 2000 {
		r.stream(t, 2000)
	}
	close(stop)
	must(t, <-done)
	s := shmtest.Got(r.prog.RuleStats(mine)).Or(t)
	c := shmtest.Got(r.prog.Counters()).Or(t)
	if s.Frames != frames || c.OtherPort != 0 {
		t.Errorf("%d frames: %+v, %+v", frames, s, c)
	}
}

// TestManagementReachesTheHost: under a rule that takes everything a host can still be found and
// logged in to, and what the rule is for does not reach it.
func TestManagementReachesTheHost(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	xdptest.AddIPv6(t, r.pair, sixA, sixB)
	all := addRule(t, r.prog, xdp.Rule{All: true}, xdp.Target{})
	// Both ends have to ask for the other.
	xdptest.Forget(t, r.pair.A)
	xdptest.Forget(t, r.pair.B)
	for _, addr := range []netip.Addr{r.pair.B.Addr, sixB} {
		for _, port := range []uint16{22, 23} {
			to := netip.AddrPortFrom(addr, port)
			wait := patience
			if port == 23 {
				wait = 300 * time.Millisecond // in vain
			}
			if err := connect(t, r.pair, to, wait); (err == nil) != (port == 22) {
				t.Errorf("TCP to %v: %v", to, err)
			}
		}
	}
	must(t, r.prog.RemoveRule(all))
	if err := connect(t, r.pair, netip.AddrPortFrom(sixB, 23), patience); err != nil {
		t.Errorf("without the rule: %v", err)
	}
	c := shmtest.Got(r.prog.Counters()).Or(t)
	if c.Kept < 8 || c.Redirected < 2 {
		t.Errorf("%+v", c)
	}
}

// connect has end A open a TCP connection to a listener of end B. That it does not come about
// within the wait is an error too.
func connect(t testing.TB, pair *veth.Pair, to netip.AddrPort, wait time.Duration) error {
	t.Helper()
	defer xdptest.Have(pair.B, func() (net.Listener, error) {
		return net.Listen("tcp", to.String())
	}).In(t).Close()
	return pair.A.Do(func() error {
		// A dialer would go on in a goroutine of another namespace.
		fd, sa, err := tcpSocket(to)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		timeout := unix.NsecToTimeval(wait.Nanoseconds())
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
			unix.Connect(fd, sa))
	})
}

func tcpSocket(to netip.AddrPort) (int, unix.Sockaddr, error) {
	if to.Addr().Is4() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	return fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}, err
}

// TestPingIsAnswered: what no rule names is as if no program were there.
func TestPingIsAnswered(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		r := newRig(t, mode, xdp.UMEMOptions{}, xdp.Options{})
		c := xdptest.Have(r.pair.A, func() (net.PacketConn, error) {
			return net.ListenPacket("ip4:icmp", r.pair.A.Addr.String())
		}).In(t)
		echo := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
		binary.BigEndian.PutUint16(echo[2:], ^uint16(0x0800+0x1234+1))
		shmtest.Got(c.WriteTo(echo, &net.IPAddr{IP: r.pair.B.Addr.AsSlice()})).Or(t)
		must(t, c.SetReadDeadline(time.Now().Add(patience)))
		buf := make([]byte, 100)
		n, from, err := c.ReadFrom(buf)
		if err != nil || n != 8 || buf[0] != 0 || from.String() != r.pair.B.Addr.String() {
			t.Errorf("%v: %x from %v, %v", mode, buf[:n], from, err)
		}
		r.stream(t, 10)
	}
}

// TestJumboNative: a program for several buffers may be attached where one for one may not; of that
// one generic mode is taken, unless native mode was asked for, and says why.
func TestJumboNative(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{MTU: 5000})
	p := xdptest.Attach(t, pair.B, xdp.ProgramOptions{})
	if p.Info().Mode != xdp.AttachGeneric || !errors.Is(p.Info().Refused, unix.ERANGE) {
		t.Errorf("one buffer: mode %v, %v", p.Info().Mode, p.Info().Refused)
	}
	must(t, p.Close())
	clear(t, pair.B.Do(func() error {
		_, err := xdp.Attach(pair.B.Name, xdp.ProgramOptions{Mode: xdp.AttachNative})
		return err
	}), "", unix.ERANGE)
	p = xdptest.Attach(t, pair.B, xdp.ProgramOptions{MultiBuffer: true})
	if p.Info().Mode != xdp.AttachNative {
		t.Fatalf("several buffers: mode %v, %v", p.Info().Mode, p.Info().Refused)
	}
	id := addRule(t, p, xdp.Rule{UDPPort: testPort}, xdp.Target{Action: xdp.Drop})
	from := udp(t, pair.A, 0)
	shmtest.Got(from.WriteToUDP(make([]byte, 4900), addrOf(pair.B, testPort))).Or(t)
	await(t, "a count", func() bool {
		s := shmtest.Got(p.RuleStats(id)).Or(t)
		return s.Frames == 1 && s.Bytes == 4900+packet.HeaderBytes
	})
}
