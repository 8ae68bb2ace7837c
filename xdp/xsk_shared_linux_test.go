package xdp_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/xdp"
)

// shareXsk adds sockets to both ends of a case until each has n.
func (x *xsk) share(t *testing.T, n int, o xdp.Options) (tx, rx []*xdp.Socket) {
	t.Helper()
	tx, rx = []*xdp.Socket{x.tx}, []*xdp.Socket{x.rx}
	for i := 1; i < n; i++ {
		if x.pair == nil {
			a, ka := simShared(t, x.tx, o)
			b, kb := simShared(t, x.rx, o)
			xskernel.Connect(ka, kb)
			tx, rx = append(tx, a), append(rx, b)
			continue
		}
		tx = append(tx, openShared(t, x.pair.A, x.tx, o))
		rx = append(rx, openShared(t, x.pair.B, x.rx, o))
		x.prog.put(t, uint32(i), rx[i])
	}
	return tx, rx
}

func openShared(t testing.TB, e *veth.End, first *xdp.Socket, o xdp.Options) *xdp.Socket {
	t.Helper()
	return xdptest.Have(e, func() (*xdp.Socket, error) { return xdp.OpenShared(first, o) }).In(t)
}

func simShared(t testing.TB, first *xdp.Socket, o xdp.Options) (*xdp.Socket, *xskernel.Kernel) {
	t.Helper()
	s, k, err := xdp.SimulateShared(first, o)
	return shmtest.Have(s, err).In(t), k
}

// shared has so many sockets on both ends, and sends shares of the packets by each; packet n is for
// the socket that pick says. Each socket must see its own packets, in their order, and reap its own
// sends, though one completion ring serves all.
func (x *xsk) shared(t *testing.T, sockets int, o xdp.Options, packets int,
	pick, size func(n int) int) {
	t.Helper()
	tx, rx := x.share(t, sockets, o)
	var want, got, reaped [4][]int
	for n := range packets {
		want[pick(n)] = append(want[pick(n)], n)
	}
	next, round := 0, 0
	seen := func() (n int) {
		for _, g := range got {
			n += len(g)
		}
		return n
	}
	await(t, "all packets and completions", func() bool {
		for ; next < packets && next < seen()+64; next++ {
			if i := pick(next); !x.post(t, tx[i], next, size(next), i) {
				break
			}
		}
		// One of them looks at a time, so that it comes upon what the others sent.
		round++
		j := round / 4 % len(tx)
		completions := 0
		for i := range tx {
			tx[i].Flush()
			shmtest.Got(tx[i].Kick()).Or(t)
			for _, s := range x.sent[:tx[j].Reap(x.sent[:])] {
				reaped[j] = append(reaped[j], int(s.Context))
			}
			for _, r := range x.got[:rx[i].Receive(x.got[:])] {
				n := want[i][len(got[i])]
				isPacket(t, rx[i].Packet(r), n)
				got[i] = append(got[i], n)
				rx[i].Drop(r.Frame)
			}
			rx[(i+1)%len(rx)].Fill(64) // any of them may fill for all
			completions += len(reaped[i])
		}
		return seen() == packets && completions == packets
	})
	for i := range tx {
		for _, c := range reaped[i] {
			if pick(c) != i {
				t.Errorf("socket %d reaped packet %d of socket %d", i, c, pick(c))
			}
		}
		if len(got[i]) != len(want[i]) || xdp.Sending(tx[i]) != 0 {
			t.Errorf("socket %d: %d packets of %d, %d under way", i, len(got[i]), len(want[i]),
				xdp.Sending(tx[i]))
		}
	}
	x.finish(t)
}

// byAddress is a case of several sockets, to which a program steers by address.
var byAddress = xskConfig{program: byMAC, start: ^uint32(99)}

// TestXskShared (XDP_SHARED_UMEM): two sockets on one queue.
func TestXskShared(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, byAddress, func(t *testing.T, x *xsk) {
		x.shared(t, 2, xdp.Options{}, 2000, func(n int) int { return n % 2 }, always(64))
	})
}

// TestXskSharedFour (SHARED_UMEM_4_SOCKETS).
func TestXskSharedFour(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, byAddress, func(t *testing.T, x *xsk) {
		o := xdp.Options{RxEntries: 256, TxEntries: 128}
		x.shared(t, 4, o, 2000, func(n int) int { return n % 4 }, always(64))
	})
}

// TestXskSharedByLength (SHARED_UMEM_LENGTH_BASED): the program steers by the length of packets.
func TestXskSharedByLength(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const limit = 500
	size := func(n int) int { return limit + n*7%3 - 1 } // 499, 500 or 501
	eachXsk(t, xskConfig{program: byLength(limit), real: true}, func(t *testing.T, x *xsk) {
		x.shared(t, 2, xdp.Options{}, 2000, func(n int) int { return max(0, size(n)-limit) }, size)
	})
}

// TestXskSharedUneven (SHARED_UMEM_UNEVEN_DIST): one socket has nearly all of the traffic, and the
// other gets what is its.
func TestXskSharedUneven(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, byAddress, func(t *testing.T, x *xsk) {
		x.shared(t, 2, xdp.Options{}, 3000, func(n int) int { return n % 100 / 99 }, always(64))
	})
}

// TestXskSharedDevices: sockets on two devices use one UMEM, each with frames and rings of its own;
// a packet goes from one part of it to the other.
func TestXskSharedDevices(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{})
	prog := attachProgram(t, pair.B, xdp.AttachNative, false, byQueue)
	u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 512})
	x := &xsk{tx: xdptest.Open(t, pair.A, 0, u, xdp.Options{Frames: 256}),
		rx: xdptest.Open(t, pair.B, 0, u, xdp.Options{})}
	prog.put(t, 0, x.rx)
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
	must(t, x.tx.Close()) // the one that registered the memory, which the other goes on with
	if a, b := x.tx.FrameStats(), x.rx.FrameStats(); a.Frames != 256 || b.Frames != 256 {
		t.Errorf("%d and %d frames", a.Frames, b.Frames)
	}
	other := &xsk{tx: xdptest.Open(t, pair.A, 0, xdptest.NewUMEM(t, xdp.UMEMOptions{}),
		xdp.Options{}), rx: x.rx}
	other.stream(t, other.tx, other.rx, 500, always(64))
	other.finish(t)
}

// TestXskSharedGone: a socket whose device is gone, and which nobody has closed yet, keeps no other
// one from its UMEM.
func TestXskSharedGone(t *testing.T) {
	t.Parallel()
	gone, pair := xdptest.NewPair(t, veth.Config{}), xdptest.NewPair(t, veth.Config{})
	prog := attachProgram(t, pair.B, xdp.AttachNative, false, byQueue)
	u := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 512})
	s := xdptest.Open(t, gone.A, 0, u, xdp.Options{Frames: 100})
	must(t, gone.A.Remove())
	await(t, "the removal", func() bool { return errors.Is(s.Check(), xdp.ErrDeviceGone) })
	open := func(e *veth.End) *xdp.Socket {
		return xdptest.Have(e, func() (*xdp.Socket, error) {
			return xdp.Open(context.Background(), e.Name, 0, u, xdp.Options{Frames: 200})
		}).In(t)
	}
	x := &xsk{tx: open(pair.A), rx: open(pair.B)}
	prog.put(t, 0, x.rx)
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
}

// TestXskSharedQueues: sockets on two queues of a device use one UMEM, each with frames and rings
// of its own.
func TestXskSharedQueues(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	prog := attachProgram(t, pair.B, xdp.AttachNative, false, byQueue)
	tx := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256})
	rx := xdptest.NewUMEM(t, xdp.UMEMOptions{Frames: 256})
	for q := range uint32(2) {
		x := &xsk{tx: xdptest.Open(t, pair.A, q, tx, xdp.Options{Frames: 100}),
			rx: xdptest.Open(t, pair.B, q, rx, xdp.Options{Frames: 100})}
		prog.put(t, q, x.rx)
		x.stream(t, x.tx, x.rx, 500, always(64))
		x.finish(t)
		if f := x.rx.FrameStats(); f.Frames != 100 {
			t.Errorf("queue %d has %d frames", q, f.Frames)
		}
	}
	clear(t, pair.B.Do(func() error {
		_, err := xdp.Open(context.Background(), pair.B.Name, 0, rx, xdp.Options{Frames: 57})
		return err
	}), "56 frames are left", xdp.ErrUMEMUsed)
	clear(t, pair.B.Do(func() error {
		_, err := xdp.Open(context.Background(), pair.B.Name, 0, rx,
			xdp.Options{Frames: 10, BusyTimeout: -1})
		return err
	}), "queue 0", xdp.ErrNoQueue) // the kernel wants a socket of this queue to be shared instead
}

// TestXskCleanup (XDP_PROG_CLEANUP): the program is turned from one socket to another one, which
// goes on when the first is closed; and no frame is lost with a socket that leaves a shared queue.
func TestXskCleanup(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, byAddress, func(t *testing.T, x *xsk) {
		tx, rx := x.share(t, 2, xdp.Options{})
		x.stream(t, x.tx, rx[0], 500, always(64))
		// What lies in the rings of the first ones when they are closed is not lost to the others.
		for n := range 20 {
			x.post(t, tx[0], n, 64, 0)
		}
		x.kick(t, tx[0])
		x.kick(t, tx[0])
		if _, _, ok := tx[0].Acquire(); !ok || !x.post(t, tx[0], 1, 64, 0) {
			t.Fatal("no frame")
		}
		if x.pair != nil {
			x.prog.put(t, 0, rx[1])
			x.prog.remove(t, 1)
		}
		must(t, tx[0].Close())
		must(t, rx[0].Close())
		if _, err := tx[0].Kick(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("kick of a closed socket: %v", err)
		}
		var lost []uint64
		tx[0].Forfeit(func(c uint64) { lost = append(lost, c) })
		if len(lost) != 1 || lost[0] != 1 {
			t.Errorf("given up: %v, want the one that was not flushed", lost)
		}
		x.next, x.seen, x.done = 0, 0, 0
		x.stream(t, tx[1], rx[1], 500, always(64))
		for _, s := range []*xdp.Socket{tx[1], rx[1]} {
			f := s.FrameStats()
			busy := f.Frames - f.Free - f.Fill
			if f.Sum() != f.Frames || busy != 0 || f.Illegal != 0 {
				t.Errorf("%+v", f)
			}
		}
	})
}

// TestOpenSharedFails: what cannot be shared is an error, and the others of the queue go on with
// all frames.
func TestOpenSharedFails(t *testing.T) { // by itself: it looks at the number of a descriptor
	x := newXsk(t, xdp.AttachNative, xskConfig{program: byMAC})
	fails := func(what string, f func() error) {
		if err := x.pair.B.Do(f); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	members := xdp.Members(x.rx)
	for what, o := range map[string]xdp.Options{"no socket": {}, "options": {RxEntries: 3}} {
		null := shmtest.Got(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)).Or(t)
		o.SocketFD = null
		fails(what, func() error {
			_, err := xdp.OpenShared(x.rx, o)
			return err
		})
		if err := unix.Close(null); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: the descriptor that was handed over: %v", what, err)
		}
	}
	if n := xdp.Members(x.rx); n != members {
		t.Errorf("%d numbers of sockets are in use, %d were", n, members)
	}
	must(t, x.pair.A.Do(func() error { // where the interface of the first has another number, or none
		_, err := xdp.OpenShared(x.rx, xdp.Options{BusyTimeout: -1})
		if err == nil {
			return errors.New("shared in another namespace")
		}
		return nil
	}))
	_, rx := x.share(t, 2, xdp.Options{})
	x.stream(t, x.tx, rx[0], 300, always(64))
	x.finish(t)
	must(t, rx[0].Close())
	if _, err := xdp.OpenShared(rx[0], xdp.Options{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("share a closed socket: %v", err)
	}
}
