//go:build linux && !race

package device_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp/device"
)

// TestNoAllocations: sending and receiving allocates nothing, on neither side: the server is in
// this process, and its allocations count as well.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{Ports: []uint16{5000}, Frames: 512})
	peer := r.peer(6000)
	to := addrOf(peer)
	payload := make([]byte, 100)
	var es [8]cq.Entry
	var bad error
	sent, end := 0, time.Now().Add(time.Minute)
	if n := testing.AllocsPerRun(5000, func() {
		err := e.SendTo(payload, 0, to, 1)
		for errors.Is(err, device.ErrNoSlot) && time.Now().Before(end) {
			time.Sleep(time.Microsecond) // for one processor runs both sides
			_, _ = cq.Read(e.Queue(), es[:])
			err = e.SendTo(payload, 0, to, 1)
		}
		if err == nil {
			sent++
		} else {
			bad = err
		}
		_, _ = cq.Read(e.Queue(), es[:])
	}); n != 0 {
		t.Errorf("%v allocations to send, %d sent", n, sent)
	}
	must(t, bad)
	const count = 400
	await(t, "the last completion", func() bool { drop(t, e); return e.Stats().Sent == uint64(sent) })
	drop(t, e)
	await(t, "packets", func() bool { // few at once, or the wire has no room for them
		for range min(16, count-int(e.Stats().Received)) {
			_, err := peer.WriteToUDPAddrPort(payload, r.target(5000))
			must(t, err)
		}
		return e.Stats().Received >= count
	})
	got := 0
	if n := testing.AllocsPerRun(count-1, func() {
		if _, err := cq.Read(e.Queue(), es[:1]); err != nil {
			bad = err
			return
		}
		loan, err := e.View(&es[0])
		if err != nil {
			bad = err
			return
		}
		got += len(loan.Bytes())
		loan.Release()
		_, bad = e.Record(&es[0])
		if bad == nil {
			bad = e.Release(es[0])
		}
	}); n != 0 || got != count*len(payload) {
		t.Errorf("%v allocations to receive, %d bytes", n, got)
	}
	must(t, bad)
}
