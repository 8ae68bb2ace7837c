package device_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// TestSilentPeers: connections of one user that say nothing do not keep another user out, and keep
// one of their own waiting for no longer than they last.
func TestSilentPeers(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{MaxApps: 8, Allow: bothUsers()})
	var mute []*net.UnixConn
	for range 40 {
		mute = append(mute, r.raw())
	}
	must(t, shm.SendFDs(mute[0], device.Hello())) // half of it
	await(t, "the refusal of most", func() bool { return r.server.Stats().Refused >= 32 })
	p := r.app(5001) // of the other user
	dialled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		e, err := device.Dial(ctx, r.path, device.Request{})
		if err == nil {
			err = e.Close()
		}
		dialled <- err
	}()
	for _, c := range mute {
		_ = c.Close()
	}
	must(t, <-dialled)
	must(t, p.in.Close())
	must(t, p.cmd.Wait())
	await(t, "the end of all", func() bool { return len(r.server.Stats().Apps) == 0 })
	if err := r.reported(); !errors.Is(err, device.ErrBusy) {
		t.Errorf("%v", err)
	}
}

// TestLaneMemory: the memory that an application makes the server take for its queues counts, and
// is given back.
func TestLaneMemory(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{Allow: []device.Allow{{ID: 0, MemoryMiB: 1}}})
	large := device.Request{QueueOptions: cq.Options{Size: 1 << 13}}
	for range 3 {
		if e, err := device.Dial(t.Context(), r.path, large); err == nil {
			must(t, e.Close())
			t.Fatal("two lanes of more than half of the memory")
		} else if !errors.Is(err, device.ErrBudget) && !errors.Is(err, shm.ErrNoSpace) {
			t.Error(err)
		}
		e, err := device.Dial(t.Context(), r.path, device.Request{})
		must(t, err)
		must(t, e.Close())
		await(t, "the end of it", func() bool { return len(r.server.Stats().Apps) == 0 })
	}
	if err := r.reported(); !errors.Is(err, device.ErrBudget) {
		t.Errorf("%v", err)
	}
	await(t, "the memory", func() bool { return r.server.LaneBytes() == 0 })
}

// laterTable is a table that is opened when the interface is there.
type laterTable struct{ atomic.Pointer[netif.Table] }

func (l *laterTable) Lookup(dst netip.Addr) (xdp.Hop, error) { return l.Load().Lookup(dst) }
func (l *laterTable) Forget(dst netip.Addr)                  { l.Load().Forget(dst) }

// TestSpray: an application that sends to ever more addresses behind a gateway is served, and has
// the table remember no more of them than its line of the allow-list may.
func TestSpray(t *testing.T) {
	shmtest.Conforms(t)
	resolver := &laterTable{}
	r := newRig(t, device.Config{Resolver: resolver,
		Allow: []device.Allow{{ID: 0, Destinations: 8}}})
	var table *netif.Table
	xdptest.Do(t, r.pair.B, func() (err error) {
		if err = netlink.RouteAdd(&netlink.Route{LinkIndex: r.pair.B.Index,
			Gw: r.pair.A.Addr.AsSlice()}); err == nil {
			table, err = netif.OpenTable(r.pair.B.Index, netif.TableOptions{})
		}
		return err
	})
	defer table.Close()
	resolver.Store(table)
	e := r.dial(device.Request{Ports: []uint16{5000}, Sends: 32})
	const n = 300
	ended := 0
	take := func() {
		var es [32]cq.Entry
		k, err := cq.Read(e.Queue(), es[:])
		if errors.Is(err, cq.ErrAvail) {
			c := nextError(t, e)
			t.Fatalf("%+v", c)
		}
		ended += k
	}
	for i := range n {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 9)
		await(t, "a slot", func() bool {
			take()
			err := e.SendTo([]byte("x"), to, uint64(i))
			return err == nil
		})
	}
	await(t, "all ends", func() bool { take(); return ended == n })
	if s := table.Stats(); s.Destinations > 8 || s.RouteQuestions < n {
		t.Errorf("%+v", s)
	}
}

// TestUnreadablePayload: an application whose memory cannot be read while a packet is built of it
// is hung up on, and the packet's frame is free again.
func TestUnreadablePayload(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	l := bystander(r)
	e, err := device.Dial(t.Context(), r.path, device.Request{Ports: []uint16{5001},
		NoReconnect: true})
	must(t, err)
	to := addrOf(r.peer(6001))
	must(t, e.SendTo([]byte("x"), to, 1))
	next(t, e)
	must(t, r.server.Unreadable(5001))
	must(t, e.SendTo([]byte("x"), to, 2))
	if c := nextError(t, e); c.Context != 2 {
		t.Errorf("%+v", c)
	}
	must(t, e.Close())
	l.goesOn()
	await(t, "the frames and rows", func() bool {
		s := r.server.Stats()
		sum, all := frameSum(s)
		return s.SendsInUse == 0 && sum == all && !sending(s)
	})
	if r.reported() == nil {
		t.Error("nothing was reported")
	}
}

// sending reports whether a frame is being filled to be sent, or is.
func sending(s device.Stats) bool {
	for _, f := range s.Frames {
		if f.States[xdp.FrameBuild]+f.States[xdp.FrameSend] > 0 {
			return true
		}
	}
	return false
}
