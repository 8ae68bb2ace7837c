package demo

import (
	"slices"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

func TestDrops(t *testing.T) {
	const table = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0
 veth0: 1048576    2048    0   12    0     0          0         0   262144    2048    0    3    0
`
	want := []string{"packets dropped by veth0 on receipt: 12",
		"packets dropped by veth0 when sending: 3"}
	if got := dropsIn(table); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	lost := device.Stats{Dropped: 1, Kernel: []xdp.KernelStats{{RxQueueFull: 2, TxRingEmpty: 7}}}
	got := dropsOf(&lost)
	want = []string{"packets dropped for want of a frame or of room: 1",
		"packets dropped for a full receive ring: 2"}
	if len(got) < 2 || !slices.Equal(got[:2], want) {
		t.Errorf("got %q", got)
	}
}

func TestTally(t *testing.T) {
	b := make([]byte, wire.PayloadMaxBytes)
	tl := newTally(10)
	for _, seq := range []uint64{0, 9, 3, 3, 10} {
		tl.add(b[:wire.Put(b, seq)])
	}
	b[20] ^= 1
	tl.add(b[:64])
	if tl.Arrived != 3 || tl.Duplicate != 1 || tl.Unexpected != 1 || tl.Corrupt != 1 {
		t.Errorf("%+v", tl)
	}
}
