package netif

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// FuzzMessages: whatever stands in a datagram, messages lie in it, and taking them apart neither
// fails nor reads beyond them.
func FuzzMessages(f *testing.F) {
	a := netip.MustParseAddr("192.0.2.1")
	b := appendGetRoute(nil, 1, a, 3)
	f.Add(b)
	f.Add(appendUse(b, 2, 3, netip.MustParseAddr("2001:db8::1")))
	f.Add(appendGetLink(nil, 4, 5))
	f.Add(appendDumpNeighbours(appendDumpAddresses(nil, 1), 2, 3))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for m := range messages(b) {
			n += headerBytes + len(m.Body)
			kinds := []uint16{unix.RTM_NEWLINK, unix.RTM_NEWADDR, unix.RTM_NEWNEIGH,
				unix.RTM_NEWROUTE, unix.NLMSG_ERROR, m.Type}
			for _, m.Type = range kinds {
				if l, ok := m.Link(); ok && l.MTU < 0 {
					t.Errorf("%+v", l)
				}
				if a, ok := m.Address(); ok && !a.Prefix.IsValid() {
					t.Errorf("%+v", a)
				}
				if v, ok := m.Neighbour(); ok && (!v.Addr.IsValid() || v.Addr.Zone() != "") {
					t.Errorf("%+v", v)
				}
				if r, ok := m.Route(); ok && r.MTU < 0 {
					t.Errorf("%+v", r)
				}
				_, _ = m.Errno()
			}
		}
		if n > len(b) {
			t.Errorf("%d bytes of messages in %d", n, len(b))
		}
	})
}

// receiveUntil takes datagrams until one has what ok looks for.
func receiveUntil(t *testing.T, c *conn, what string, ok func(message) bool) {
	t.Helper()
	stop := time.AfterFunc(time.Minute, func() { _ = c.Close() })
	defer stop.Stop()
	buf := make([]byte, bufferBytes)
	for {
		n, err := c.Receive(buf)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for m := range messages(buf[:n]) {
			if ok(m) {
				return
			}
		}
	}
}

// TestReceiveMeetsDump: a Receive that comes to go on with a dump when Send has ended it waits on.
func TestReceiveMeetsDump(t *testing.T) {
	t.Parallel()
	c, err := openConn(0)
	must(t, err)
	go func() {
		for seq := range uint32(100_000) {
			_ = c.Send(appendDumpNeighbours(appendGetLink(nil, seq, 1), seq, 1))
		}
		_ = c.Close()
	}()
	for buf := make([]byte, bufferBytes); err != errClosed; {
		if _, err = c.Receive(buf); err != nil && err != errLost && err != errClosed {
			t.Fatal(err)
		}
	}
}

// TestConn: questions have answers, changes are told, and closing ends the wait.
func TestConn(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{MTU: 1400})
	c := xdptest.Have(p.A, func() (*conn, error) {
		return openConn(join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR))
	}).In(t)
	send := func(b []byte) {
		t.Helper()
		must(t, c.Send(b))
	}
	send(appendGetLink(nil, 5, p.A.Index))
	receiveUntil(t, c, "link", func(m message) bool {
		l, ok := m.Link()
		if ok && (m.Seq != 5 || m.Port != c.Port() || l.Name != p.A.Name || l.MTU != 1400 ||
			l.MAC != [6]byte(p.A.MAC) || !l.Up() || l.Index != p.A.Index || l.ProgramID != 0) {
			t.Errorf("%+v, %+v", m, l)
		}
		return ok
	})
	send(appendDumpAddresses(nil, 6))
	var found bool
	receiveUntil(t, c, "addresses", func(m message) bool {
		if a, ok := m.Address(); ok && a.Index == p.A.Index {
			found = a.Prefix == netip.PrefixFrom(p.A.Addr, 24) && !a.Tentative
		}
		return m.Type == unix.NLMSG_DONE && m.Seq == 6
	})
	if !found {
		t.Error("no address")
	}
	send(appendGetLink(nil, 7, 4711))
	receiveUntil(t, c, "error", func(m message) bool {
		errno, ok := m.Errno()
		return ok && m.Seq == 7 && errno == unix.ENODEV
	})
	must(t, p.A.Change(func(l netlink.Link) error {
		return netlink.LinkSetMTU(l, 1300)
	}))
	receiveUntil(t, c, "change", func(m message) bool {
		l, ok := m.Link()
		return ok && m.Port != c.Port() && l.MTU == 1300
	})
	time.AfterFunc(10*time.Millisecond, func() { _ = c.Close() })
	if _, err := c.Receive(make([]byte, bufferBytes)); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestConnLost: a receiver that sleeps too long is told, and can go on.
func TestConnLost(t *testing.T) {
	p := xdptest.NewPair(t, veth.Config{})
	c := xdptest.Have(p.A, func() (*conn, error) { return openConn(join(unix.RTNLGRP_LINK)) }).In(t)
	if err := c.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		must(t, p.A.SetUp(i%2 == 0))
	}
	buf := make([]byte, bufferBytes)
	for deadline := time.AfterFunc(time.Minute, func() { _ = c.Close() }); ; {
		_, err := c.Receive(buf)
		if err == errLost {
			deadline.Stop()
			break
		}
		must(t, err)
	}
}

// TestRequestHeaders: each header that requests are made of has as many bytes as its memory, which
// the netlink library reads through a pointer.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	for _, h := range []nl.NetlinkRequestData{&nl.IfInfomsg{}, &nl.IfAddrmsg{}, &nl.RtMsg{},
		&netlink.Ndmsg{}} {
		memory := int(reflect.TypeOf(h).Elem().Size())
		if len(h.Serialize()) != memory || h.Len() != memory {
			t.Errorf("%T: %d bytes of %d", h, len(h.Serialize()), memory)
		}
	}
}

// TestInNamespace: what is called is there, from there and from elsewhere, and nobody else is.
func TestInNamespace(t *testing.T) {
	t.Parallel()
	p := xdptest.NewPair(t, veth.Config{NameA: "inside"})
	ns := int(p.A.NetNS().Fd())
	mine := errors.New("mine")
	look := func() error {
		if _, err := net.InterfaceByName("inside"); err != nil {
			return err
		}
		return mine
	}
	for range 10 {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		if err := look(); err == mine {
			t.Error("still there")
		}
	}
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(ns, look); err != mine {
			t.Error(err)
		}
		return nil
	})
	file := shmtest.Have(OpenNamespace()).In(t)
	xdptest.Do(t, p.A, func() error {
		if err := InNamespace(int(file.Fd()), look); err == mine {
			t.Error("not elsewhere")
		}
		if err := look(); err != mine {
			t.Error(err)
		}
		return nil
	})
}

// FuzzHandle: whatever the kernel says, a table and a watcher stand. The table knows no destination
// but the ones that were looked up, and the watcher tells no difference twice.
func FuzzHandle(f *testing.F) {
	dst := addr("192.0.2.2")
	f.Add(linkMessage(0, 0, unix.IFF_UP, 9000))
	f.Add(neighbourMessage(unix.RTM_NEWNEIGH, 0, 0, 0, dst, unix.NUD_STALE, 2, 0, 0, 0, 0, 2))
	f.Add(neighbourMessage(unix.RTM_DELNEIGH, 2, ourPort, unix.NLM_F_DUMP_INTR, dst, 0))
	f.Add(addressMessage(unix.RTM_NEWADDR, 0, 0, 0, dst))
	f.Add(addressMessage(unix.RTM_DELADDR, 2, ourPort, unix.NLM_F_DUMP_INTR, dst))
	for seq := range uint32(6) {
		f.Add(routeMessage(seq, ourPort, ourIndex))
		f.Add(datagram(unix.NLMSG_ERROR, seq, ourPort, 0, raw{0xff, 0xff, 0xff, 0xff}))
		f.Add(datagram(unix.NLMSG_DONE, seq, ourPort, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzzWatcher(t, b)
		table, _ := scripted(t, TableOptions{})
		_, _ = table.Lookup(dst)
		pump(t, table, 3)
		table.handle(b)
		pump(t, table, 4)
		hop, err := table.Lookup(dst)
		if err == nil && (hop.MTU < 0 || hop.NextMAC == [6]byte{} && hop.LocalMAC != [6]byte{}) {
			// A neighbour's all-zero address can only be what the message says.
			if !table.neighbours[dst].HasMAC {
				t.Errorf("%+v", hop)
			}
		}
		if err != nil && hop != (xdp.Hop{Generation: hop.Generation}) {
			t.Errorf("%+v with %v", hop, err)
		}
		table.advance(5e9)
		pump(t, table, 5e9)
		if n := len(table.dests); n != 1 {
			t.Errorf("%d destinations", n)
		}
	})
}

func fuzzWatcher(t *testing.T, b []byte) {
	s := newScript()
	s.silent = true
	w := newWatcher(s, ourIndex, WatchOptions{})
	w.askAll()
	must(t, w.pump(1))
	w.told = w.State()
	limit := 10 + len(b)
	w.opt.OnEvent = func(e Event) bool {
		if limit--; limit < 0 {
			t.Fatalf("no end of %+v", e)
		}
		return true
	}
	w.handle(b)
	w.round(2, false)
}
