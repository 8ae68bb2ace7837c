package udp_test

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

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
