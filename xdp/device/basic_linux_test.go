package device_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp/device"
)

// TestSendAndReceive: an application gets what a kernel socket sends, in memory of its own or where
// the kernel put it, and what it sends arrives there.
func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	t.Run("copied", func(t *testing.T) { sendAndReceive(t, false) })
	t.Run("in place", func(t *testing.T) { sendAndReceive(t, true) })
}

func sendAndReceive(t *testing.T, inPlace bool) {
	r := newRig(t, device.Config{Frames: 512})
	e := r.dial(device.Request{Name: "first", Ports: []uint16{5000}, InPlace: inPlace})
	if frames, _ := e.Regions(); inPlace != (frames == device.UMEMOf(r.server).Region().ID()) {
		t.Errorf("frames are in region %d", frames)
	}
	peer := r.peer(6000)
	for i := range 600 { // more than there are frames, so they come round
		want := fmt.Sprint("datagram ", i)
		if _, err := peer.WriteToUDPAddrPort([]byte(want), r.target(5000)); err != nil {
			t.Fatal(err)
		}
		entry := next(t, e)
		rec, err := e.Record(&entry)
		must(t, err)
		if rec.Src != addrOf(peer) || rec.Dst != r.target(5000) || rec.RxNs == 0 {
			t.Fatalf("record %+v", rec)
		}
		if got := text(t, e, &entry); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	buf := make([]byte, 2000)
	for i := range 300 {
		want := fmt.Sprint("answer ", i)
		must(t, e.SendTo([]byte(want), addrOf(peer), uint64(i)))
		n, from, err := peer.ReadFromUDPAddrPort(buf)
		must(t, err)
		if string(buf[:n]) != want || from.Port() != 5000 {
			t.Fatalf("got %q from %v", buf[:n], from)
		}
		if c := next(t, e); c.Context != uint64(i) || c.Flags != cq.FlagSend|cq.FlagMsg {
			t.Fatalf("completion %+v", c)
		}
	}
	await(t, "the last return", func() bool {
		s := r.server.Stats()
		sum, all := frameSum(s)
		return len(s.Apps) == 1 && s.Apps[0].Loaned == 0 && s.Apps[0].Returned == 600 &&
			s.Apps[0].UnderWay == 0 && s.Apps[0].Sent == 300 && sum == all
	})
	if s := e.Stats(); s.Received != 600 || s.Sent != 300 || s.Stale != 0 {
		t.Errorf("%+v", s)
	}
	must(t, r.reported())
}

// TestAddressVector: an endpoint sends to indices of an address vector, and says which there are
// not.
func TestAddressVector(t *testing.T) {
	t.Parallel()
	r := newRig(t, device.Config{})
	peer := r.peer(6000)
	v, err := cq.CreateAddresses(cq.Unnamed("peers"), cq.AddressOptions{})
	must(t, err)
	defer func() { must(t, v.Close()) }()
	e := r.dial(device.Request{Ports: []uint16{5000}, Addresses: v})
	index, err := v.Insert([][]byte{cq.Sockaddr(addrOf(peer))})
	must(t, err)
	to := index[0]
	must(t, e.Send([]byte("by index"), to, 9))
	buf := make([]byte, 100)
	n, err := peer.Read(buf)
	must(t, err)
	if c := next(t, e); string(buf[:n]) != "by index" || c.Context != 9 {
		t.Errorf("got %q, %+v", buf[:n], c)
	}
	must(t, e.Inject([]byte("again"), to))
	if n, err = peer.Read(buf); err != nil || string(buf[:n]) != "again" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	if err := e.Send([]byte("nobody"), to+1, 9); !errors.Is(err, device.ErrOptions) {
		t.Error(err)
	}
}
