package device_test

import (
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// hesitant does not know the way when it is asked the next few times.
type hesitant struct {
	wires atomic.Pointer[wires]
	left  atomic.Int64
}

func (h *hesitant) Lookup(dst netip.Addr) (xdp.Hop, error) {
	if h.left.Add(-1) >= 0 {
		return xdp.Hop{}, packet.ErrResolving
	}
	return h.wires.Load().Lookup(dst)
}

// TestParkedOrder: whenever the way becomes known, nothing overtakes what waited for it.
func TestParkedOrder(t *testing.T) {
	t.Parallel()
	way := &hesitant{}
	r := newRig(t, device.Config{Resolver: way})
	way.wires.Store(&wires{r.pair.B, r.pair.A})
	e := r.dial(device.Request{Ports: []uint16{5000}})
	peer := r.peer(6000)
	buf := make([]byte, 8)
	for round := range 40 {
		way.left.Store(int64(1 + round%7))
		for i := range 5 {
			must(t, e.InjectTo([]byte{byte(i)}, addrOf(peer)))
		}
		for i := range 5 {
			_, _, err := peer.ReadFromUDPAddrPort(buf)
			if err != nil || int(buf[0]) != i {
				t.Fatalf("round %d: %d in place of %d, %v", round, buf[0], i, err)
			}
		}
	}
}
