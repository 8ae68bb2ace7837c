package netif

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp"
)

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
	if err := w.pump(1); err != nil {
		t.Fatal(err)
	}
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
