package udp_test

import (
	"net/netip"
	"testing"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/udp"
)

// BenchmarkEcho is a datagram there and back, blocking on both ends.
func BenchmarkEcho(b *testing.B) {
	for _, c := range []struct {
		name string
		ours [2]bool
	}{{"kernel", [2]bool{}}, {"server", [2]bool{false, true}}, {"both", [2]bool{true, true}}} {
		b.Run(c.name, func(b *testing.B) {
			client, server := benchPair(b, c.ours)
			to := server.LocalAddr()
			go func() {
				buf := make([]byte, 2048)
				for {
					n, from, err := server.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					_, _ = server.WriteToUDPAddrPort(buf[:n], from)
				}
			}()
			buf := make([]byte, 2048)
			for b.Loop() {
				if _, err := client.WriteTo(buf[:64], to); err != nil {
					b.Fatal(err)
				}
				if _, _, err := client.ReadFromUDPAddrPort(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrite is a datagram to a peer that nobody reads at.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name string
		ours [2]bool
	}{{"kernel", [2]bool{}}, {"ours", [2]bool{true, false}}} {
		b.Run(c.name, func(b *testing.B) {
			client, server := benchPair(b, c.ours)
			to := server.LocalAddr()
			buf := make([]byte, 64)
			for b.Loop() {
				if _, err := client.WriteTo(buf, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchPair(b *testing.B, ours [2]bool) (client, server socket) {
	b.Helper()
	p := xdptest.NewPair(b, veth.Config{})
	out := [2]socket{}
	for i, e := range []*veth.End{p.A, p.B} {
		local := netip.AddrPortFrom(e.Addr, 7)
		if ours[i] {
			out[i] = listen(b, openOn(b, e, udp.Options{}), e.Addr, 7)
		} else {
			xdptest.Do(b, e, func() (err error) {
				out[i], err = loopback{}.open(local)
				return err
			})
		}
		b.Cleanup(func() { out[i].Close() })
	}
	return out[0], out[1]
}
