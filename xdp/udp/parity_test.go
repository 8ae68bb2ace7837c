package udp_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/udp"
)

// socket is what a *net.UDPConn and a *udp.Conn have in common.
type socket interface {
	net.Conn
	net.PacketConn
	ReadFromUDP([]byte) (int, *net.UDPAddr, error)
	ReadFromUDPAddrPort([]byte) (int, netip.AddrPort, error)
	ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
	ReadMsgUDPAddrPort(b, oob []byte) (n, oobn, flags int, addr netip.AddrPort, err error)
	WriteToUDP([]byte, *net.UDPAddr) (int, error)
	WriteToUDPAddrPort([]byte, netip.AddrPort) (int, error)
	WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
	WriteMsgUDPAddrPort(b, oob []byte, addr netip.AddrPort) (n, oobn int, err error)
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
}

var (
	_ socket = (*net.UDPConn)(nil)
	_ socket = (*udp.Conn)(nil)
)

// hosts is two hosts that are joined.
type hosts interface {
	addr(host int) netip.Addr
	// listen and dial make sockets on the first or the second host.
	listen(t testing.TB, host int, local netip.AddrPort) socket
	dial(t testing.TB, host int, local, remote netip.AddrPort) socket
}

// said is what a case tells of what it saw; both kinds of socket have to say the same.
type said struct {
	t     *testing.T
	lines []string
}

func (s *said) add(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// describe says of an error all that a program can ask, but for its text below the errno.
func describe(err error) string {
	if err == nil {
		return "no error"
	}
	var b strings.Builder
	var op *net.OpError
	if errors.As(err, &op) {
		fmt.Fprintf(&b, "%T op=%s net=%s source=%v addr=%v timeout=%v", err, op.Op, op.Net,
			op.Source != nil, op.Addr != nil, op.Timeout())
		if call := (*os.SyscallError)(nil); errors.As(err, &call) {
			fmt.Fprintf(&b, " call=%s", call.Syscall)
		} else {
			fmt.Fprintf(&b, " err=%v", op.Err)
		}
	} else {
		fmt.Fprintf(&b, "%T", err)
	}
	for _, e := range []error{net.ErrClosed, os.ErrDeadlineExceeded, net.ErrWriteToConnected,
		syscall.EMSGSIZE, syscall.EINVAL, syscall.EADDRINUSE, syscall.EDESTADDRREQ} {
		if errors.Is(err, e) {
			fmt.Fprintf(&b, " is(%v)", e)
		}
	}
	return b.String()
}

// ends are two sockets, by case.
type ends struct {
	a, b socket // on the first host, and on the second
	hosts
}

func (e *ends) toB() netip.AddrPort { return e.b.LocalAddr().(*net.UDPAddr).AddrPort() }

func (e *ends) toA() netip.AddrPort { return e.a.LocalAddr().(*net.UDPAddr).AddrPort() }

// send sends from a to b.
func (e *ends) send(s *said, payload []byte) {
	n, err := e.a.WriteToUDPAddrPort(payload, e.toB())
	if n != len(payload) || err != nil {
		s.add("send of %d: %d, %v", len(payload), n, describe(err))
	}
}

const soon = 30 * time.Millisecond

var parity = []struct {
	name string
	run  func(s *said, e *ends)
}{
	{"read-forms", parityReads},
	{"write-forms", parityWrites},
	{"truncation", parityTruncation},
	{"zero-length", parityZero},
	{"large", parityLarge},
	{"deadlines", parityDeadlines},
	{"closed", parityClosed},
	{"close-wakes", parityCloseWakes},
	{"bad-addresses", parityBadAddresses},
	{"connected", parityConnected},
	{"buffers", parityBuffers},
	{"concurrent", parityConcurrent},
	{"in-use", parityInUse},
}

// conforms are the cases that rows of testdata/conformance.tsv name.
var conforms = map[string]bool{"close-wakes": true, "deadlines": true}

// runParity runs every case on both kinds and compares.
func runParity(t *testing.T, kernel, ours hosts) {
	for _, c := range parity {
		t.Run(c.name, func(t *testing.T) {
			if conforms[c.name] && strings.HasPrefix(t.Name(), "TestParity/both/") {
				shmtest.Conforms(t)
			}
			run := func(h hosts) []string {
				s := &said{t: t}
				e := &ends{h.listen(t, 0, netip.AddrPortFrom(h.addr(0), 0)),
					h.listen(t, 1, netip.AddrPortFrom(h.addr(1), 0)), h}
				must(t, e.a.SetDeadline(time.Now().Add(long)))
				must(t, e.b.SetDeadline(time.Now().Add(long)))
				c.run(s, e)
				e.a.Close()
				e.b.Close()
				return s.lines
			}
			want, got := run(kernel), run(ours)
			if len(want) == 0 {
				t.Fatal("the case says nothing")
			}
			for i := range max(len(want), len(got)) {
				var w, g string
				if i < len(want) {
					w = want[i]
				}
				if i < len(got) {
					g = got[i]
				}
				if w != g {
					t.Errorf("kernel: %s\nours:   %s", w, g)
				}
			}
		})
	}
}

func parityReads(s *said, e *ends) {
	buf, oob := make([]byte, 32), make([]byte, 32)
	from := e.a.LocalAddr().String()
	for range 6 {
		e.send(s, []byte("hello"))
	}
	n, addr, err := e.b.ReadFrom(buf)
	s.add("ReadFrom %q %T %v %v", buf[:n], addr, addr.String() == from, describe(err))
	n, ua, err := e.b.ReadFromUDP(buf)
	s.add("ReadFromUDP %q %v %v", buf[:n], ua.String() == from, describe(err))
	n, ap, err := e.b.ReadFromUDPAddrPort(buf)
	s.add("ReadFromUDPAddrPort %q %v %v", buf[:n], ap == e.toA(), describe(err))
	n, oobn, flags, ua, err := e.b.ReadMsgUDP(buf, oob)
	s.add("ReadMsgUDP %q %d %#x %v %v", buf[:n], oobn, flags, ua.String() == from, describe(err))
	n, oobn, flags, ap, err = e.b.ReadMsgUDPAddrPort(buf, nil)
	s.add("ReadMsgUDPAddrPort %q %d %#x %v %v", buf[:n], oobn, flags, ap == e.toA(), describe(err))
	n, err = e.b.Read(buf)
	s.add("Read %q %v", buf[:n], describe(err))
	s.add("local %T remote %v", e.b.LocalAddr(), e.b.RemoteAddr())
}

func parityWrites(s *said, e *ends) {
	to := net.UDPAddrFromAddrPort(e.toB())
	n, err := e.a.WriteTo([]byte("1"), to)
	s.add("WriteTo %d %v", n, describe(err))
	n, err = e.a.WriteToUDP([]byte("2"), to)
	s.add("WriteToUDP %d %v", n, describe(err))
	n, err = e.a.WriteToUDPAddrPort([]byte("3"), e.toB())
	s.add("WriteToUDPAddrPort %d %v", n, describe(err))
	n, oobn, err := e.a.WriteMsgUDP([]byte("4"), nil, to)
	s.add("WriteMsgUDP %d %d %v", n, oobn, describe(err))
	n, oobn, err = e.a.WriteMsgUDPAddrPort([]byte("5"), nil, e.toB())
	s.add("WriteMsgUDPAddrPort %d %d %v", n, oobn, describe(err))
	mapped := &net.UDPAddr{IP: to.IP.To16(), Port: to.Port}
	n, err = e.a.WriteTo([]byte("6"), mapped)
	s.add("WriteTo mapped %d %v", n, describe(err))
	buf := make([]byte, 8)
	for range 6 {
		n, _, err := e.b.ReadFrom(buf)
		s.add("read %q %v", buf[:n], describe(err))
	}
}

func parityTruncation(s *said, e *ends) {
	for _, size := range []int{0, 1, 7, 8, 9} {
		e.send(s, []byte("12345678"))
		buf := make([]byte, size)
		n, _, flags, _, err := e.b.ReadMsgUDP(buf, nil)
		s.add("%d: %q trunc=%v %v", size, buf[:n], flags&syscall.MSG_TRUNC != 0, describe(err))
	}
	e.send(s, []byte("12345678"))
	e.send(s, []byte("next"))
	buf := make([]byte, 4)
	for range 2 { // the rest is lost
		n, _, err := e.b.ReadFrom(buf)
		s.add("%q %v", buf[:n], describe(err))
	}
}

func parityZero(s *said, e *ends) {
	e.send(s, nil)
	e.send(s, []byte{})
	e.send(s, []byte("x"))
	buf := make([]byte, 4)
	for range 3 {
		n, addr, err := e.b.ReadFrom(buf)
		s.add("%d from %v %v", n, addr != nil, describe(err))
	}
	n, err := e.b.Read(nil)
	s.add("read into nothing %d %v", n, describe(err))
	e.send(s, nil)
	n, err = e.b.Read(buf)
	s.add("empty one %d %v", n, describe(err))
}

func parityLarge(s *said, e *ends) {
	for _, size := range []int{1471, 1472} {
		payload := bytes.Repeat([]byte{7}, size)
		e.send(s, payload)
		buf := make([]byte, 2000)
		n, _, err := e.b.ReadFrom(buf)
		s.add("%d: %v %v", size, bytes.Equal(buf[:n], payload), describe(err))
	}
	n, err := e.a.WriteToUDPAddrPort(make([]byte, 65536), e.toB())
	s.add("beyond what UDP has: %d %v", n, describe(err))
}

func parityDeadlines(s *said, e *ends) {
	buf := make([]byte, 8)
	must(s.t, e.b.SetReadDeadline(time.Now().Add(soon)))
	n, addr, err := e.b.ReadFrom(buf)
	s.add("read %d %v %v", n, addr, describe(err))
	e.send(s, []byte("late"))
	n, _, err = e.b.ReadFromUDPAddrPort(buf)
	s.add("past deadline with data %d %v", n, describe(err))
	must(s.t, e.b.SetReadDeadline(time.Time{}))
	n, _, err = e.b.ReadFromUDPAddrPort(buf)
	s.add("none again %q %v", buf[:n], describe(err))
	must(s.t, e.b.SetDeadline(time.Unix(1, 0)))
	n, err = e.b.WriteTo(buf, e.a.LocalAddr())
	s.add("write %d %v", n, describe(err))
	must(s.t, e.b.SetDeadline(time.Time{}))
	done := make(chan error)
	go func() {
		_, _, _, _, err := e.b.ReadMsgUDP(buf, nil)
		done <- err
	}()
	time.Sleep(soon)
	must(s.t, e.b.SetReadDeadline(time.Now())) // wakes one that waits already
	s.add("moved %v", describe(<-done))
	must(s.t, e.b.SetReadDeadline(time.Now().Add(time.Hour)))
	go func() {
		_, err := e.b.Read(buf)
		done <- err
	}()
	e.send(s, []byte("x"))
	s.add("in time %v", describe(<-done))
}

func parityClosed(s *said, e *ends) {
	e.send(s, []byte("unread"))
	s.add("close %v", describe(e.b.Close()))
	s.add("twice %v", describe(e.b.Close()))
	buf := make([]byte, 8)
	_, err := e.b.Read(buf)
	s.add("Read %v", describe(err))
	_, addr, err := e.b.ReadFrom(buf)
	s.add("ReadFrom %v %v", addr, describe(err))
	_, ua, err := e.b.ReadFromUDP(buf)
	s.add("ReadFromUDP %v %v", ua, describe(err))
	_, ap, err := e.b.ReadFromUDPAddrPort(buf)
	s.add("ReadFromUDPAddrPort %v %v", ap, describe(err))
	_, err = e.b.Write(buf)
	s.add("Write %v", describe(err))
	_, err = e.b.WriteTo(buf, e.a.LocalAddr())
	s.add("WriteTo %v", describe(err))
	_, _, err = e.b.WriteMsgUDP(buf, nil, e.a.LocalAddr().(*net.UDPAddr))
	s.add("WriteMsgUDP %v", describe(err))
	s.add("SetDeadline %v", describe(e.b.SetDeadline(time.Now())))
	s.add("SetReadBuffer %v", describe(e.b.SetReadBuffer(1<<16)))
	s.add("local %v", e.b.LocalAddr() != nil)
}

func parityCloseWakes(s *said, e *ends) {
	must(s.t, e.b.SetDeadline(time.Time{}))
	done := make(chan error, 3)
	for range cap(done) {
		go func() {
			_, _, err := e.b.ReadFrom(make([]byte, 8))
			done <- err
		}()
	}
	time.Sleep(soon)
	must(s.t, e.b.Close())
	for range cap(done) {
		s.add("%v", describe(<-done))
	}
}

func parityBadAddresses(s *said, e *ends) {
	b := []byte("x")
	_, err := e.a.WriteTo(b, &net.TCPAddr{IP: e.toB().Addr().AsSlice(), Port: 1})
	s.add("of TCP %v", describe(err))
	_, err = e.a.WriteTo(b, (*net.UDPAddr)(nil))
	s.add("nil %v", describe(err))
	_, err = e.a.WriteToUDPAddrPort(b, netip.AddrPort{})
	s.add("zero %v", describe(err))
	_, err = e.a.WriteTo(b, &net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 1})
	s.add("of IPv6 %v", describe(err))
	_, err = e.a.WriteTo(b, &net.UDPAddr{IP: e.toB().Addr().AsSlice()})
	s.add("port 0 %v", describe(err))
	_, _, err = e.a.WriteMsgUDP(b, nil, nil)
	s.add("message to nil %v", describe(err))
	_, err = e.a.Write(b)
	s.add("not connected %v", describe(err))
}

// loopback is two hosts that are one: kernel sockets on two addresses of it.
type loopback struct{}

func (loopback) addr(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + host)})
}

func (l loopback) listen(t testing.TB, _ int, local netip.AddrPort) socket {
	return shmtest.Got(l.open(local)).Or(t)
}

func (loopback) open(local netip.AddrPort) (socket, error) {
	network := "udp"
	if local.Addr().IsUnspecified() {
		network = "udp4" // else package net makes it one of IPv6
	}
	return net.ListenUDP(network, net.UDPAddrFromAddrPort(local))
}

func (loopback) dial(t testing.TB, _ int, local, remote netip.AddrPort) socket {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
	must(t, err)
	return c
}

// stacks is two hosts of this package.
type stacks [2]*udp.Stack

func (stacks) addr(host int) netip.Addr { return [2]netip.Addr{addrA, addrB}[host] }

func (s stacks) listen(t testing.TB, host int, local netip.AddrPort) socket {
	return shmtest.Got(s[host].Listen(local)).Or(t)
}

func (s stacks) dial(t testing.TB, host int, local, remote netip.AddrPort) socket {
	return shmtest.Got(s[host].Dial(local, remote)).Or(t)
}

// TestParityFake compares what needs no device with sockets of the kernel.
func TestParityFake(t *testing.T) {
	t.Parallel()
	if c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}); err != nil {
		t.Skip("no second loopback address: ", err) // darwin
	} else {
		c.Close()
	}
	a, b, _, _ := newStacks(t, udp.StackOptions{}, 512)
	runParity(t, loopback{}, stacks{a, b})
}

func parityConnected(s *said, e *ends) {
	c := e.dial(s.t, 0, netip.AddrPortFrom(e.addr(0), 0), e.toB())
	defer c.Close()
	must(s.t, c.SetDeadline(time.Now().Add(long)))
	s.add("remote %v", c.RemoteAddr().String() == e.b.LocalAddr().String())
	n, err := c.Write([]byte("ping"))
	s.add("Write %d %v", n, describe(err))
	buf := make([]byte, 8)
	n, from, err := e.b.ReadFrom(buf)
	s.add("got %q %v %v", buf[:n], from.String() == c.LocalAddr().String(), describe(err))
	other := e.listen(s.t, 1, netip.AddrPortFrom(e.addr(1), 0))
	defer other.Close()
	_, err = other.WriteTo([]byte("stray"), from) // not of the peer: not for us
	s.add("stray %v", describe(err))
	_, err = e.b.WriteTo([]byte("pong"), from)
	s.add("answer %v", describe(err))
	n, err = c.Read(buf)
	s.add("Read %q %v", buf[:n], describe(err))
	_, err = c.WriteTo(buf, e.b.LocalAddr())
	s.add("WriteTo %v", describe(err))
	_, err = c.WriteToUDPAddrPort(buf, e.toB())
	s.add("WriteToUDPAddrPort %v", describe(err))
	_, _, err = c.WriteMsgUDP(buf, nil, e.b.LocalAddr().(*net.UDPAddr))
	s.add("WriteMsgUDP %v", describe(err))
	n, _, err = c.WriteMsgUDP([]byte("more"), nil, nil)
	s.add("WriteMsgUDP nil %d %v", n, describe(err))
	must(s.t, c.SetReadDeadline(time.Unix(1, 0)))
	_, err = c.Read(buf)
	s.add("late %v", describe(err))
	must(s.t, c.Close())
	_, err = c.Read(buf)
	s.add("closed %v", describe(err))
	_, err = c.Write(buf)
	s.add("closed %v", describe(err))
	s.add("closed %v", describe(c.Close()))
}

func parityBuffers(s *said, e *ends) {
	for _, n := range []int{0, 1, 1 << 16, 1 << 30} {
		s.add("%d: %v, %v", n, describe(e.a.SetReadBuffer(n)), describe(e.a.SetWriteBuffer(n)))
	}
	e.send(s, []byte("still works"))
	buf := make([]byte, 16)
	n, _, err := e.b.ReadFrom(buf)
	s.add("%q %v", buf[:n], describe(err))
}

// parityConcurrent: any number of goroutines on either side, none of whose datagrams is mixed up.
func parityConcurrent(s *said, e *ends) {
	const each, many = 200, 4
	must(s.t, e.b.SetReadBuffer(1<<20))
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for range many {
		wg.Go(func() {
			buf := make([]byte, 64)
			for range each {
				n, _, err := e.b.ReadFromUDPAddrPort(buf)
				if err != nil {
					s.t.Error(err)
					return
				}
				mu.Lock()
				got[string(buf[:n])]++
				mu.Unlock()
				if _, err := e.b.WriteToUDPAddrPort(buf[:1], e.toA()); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	acks := make(chan struct{}, each*many)
	wg.Go(func() {
		for range each * many {
			if _, _, err := e.a.ReadFromUDPAddrPort(make([]byte, 8)); err != nil {
				s.t.Error(err)
				return
			}
			acks <- struct{}{}
		}
	})
	for w := range many {
		wg.Go(func() {
			for i := range each {
				if i >= 8 {
					<-acks
				}
				e.send(s, fmt.Append(nil, w, "/", i))
			}
		})
	}
	wg.Wait()
	s.add("%d different", len(got))
}

func parityInUse(s *said, e *ends) {
	s.add("port chosen %v", e.toA().Port() != 0)
	wild := e.listen(s.t, 0, netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	defer wild.Close()
	s.add("wildcard %v", wild.LocalAddr().(*net.UDPAddr).IP)
	to := netip.AddrPortFrom(e.addr(0), wild.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	_, err := e.b.WriteToUDPAddrPort([]byte("x"), to)
	s.add("to it %v", describe(err))
	must(s.t, wild.SetDeadline(time.Now().Add(long)))
	buf := make([]byte, 8)
	n, ap, err := wild.ReadFromUDPAddrPort(buf)
	s.add("%q %v %v", buf[:n], ap == e.toB(), describe(err))
	_, err = wild.WriteToUDPAddrPort([]byte("y"), e.toB())
	s.add("from it %v", describe(err))
	n, from, err := e.b.ReadFrom(buf)
	s.add("%q %v %v", buf[:n], from.String() == to.String(), describe(err))
}
