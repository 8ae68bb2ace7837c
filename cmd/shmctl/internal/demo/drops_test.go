package demo

import (
	"slices"
	"testing"

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
