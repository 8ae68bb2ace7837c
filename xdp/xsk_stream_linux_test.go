package xdp_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

// TestXskSendReceive (SEND_RECEIVE): thousands of packets arrive complete and in order.
func TestXskSendReceive(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	big := xdp.UMEMOptions{ChunkBytes: 4096, Frames: 1024}
	eachXsk(t, xskConfig{txUMEM: big, rxUMEM: big}, func(t *testing.T, x *xsk) {
		x.stream(t, x.tx, x.rx, 4096, always(64))
		x.finish(t)
	})
}

// TestXskSendReceive2K (SEND_RECEIVE_2K_FRAME): the same with chunks of 2048.
func TestXskSendReceive2K(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{start: ^uint32(1000)} // and over the wrap of all indices where they can be set
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		x.stream(t, x.tx, x.rx, 4096, func(n int) int { return 60 + n%1400 })
		x.finish(t)
	})
}

// TestXskSinglePacket (SEND_RECEIVE_SINGLE_PKT): one packet needs no others to get through.
func TestXskSinglePacket(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		x.stream(t, x.tx, x.rx, 1, always(64))
		x.finish(t)
	})
}

func poll(t testing.TB, s *xdp.Socket, events int16, timeoutMs int) int16 {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(s.FD()), Events: events}}
	if _, err := unix.Poll(fds, timeoutMs); err != nil && err != unix.EINTR {
		t.Fatal(err)
	}
	return fds[0].Revents
}

// TestXskPollReceive (POLL_RX): a receiver that only looks after poll said so misses nothing.
func TestXskPollReceive(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		for n := range 200 {
			x.post(t, x.tx, n, 64, 0)
			x.kick(t, x.tx)
			await(t, "poll", func() bool { return poll(t, x.rx, unix.POLLIN, 1000) != 0 })
			if x.take(t, x.rx, always(64)) != 1 {
				t.Fatalf("packet %d: poll says that one waits", n)
			}
			if x.rx.Pending(1) != 0 || poll(t, x.rx, unix.POLLIN, 0) != 0 {
				t.Fatalf("packet %d: poll says that another one waits", n)
			}
		}
		x.finish(t)
	})
}

// TestXskPollSend (POLL_TX): poll alone makes the kernel send, and says when there is room.
func TestXskPollSend(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{real: true, tx: xdp.Options{TxEntries: 64}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		const packets = 640
		await(t, "all packets", func() bool {
			for x.next < packets && x.post(t, x.tx, x.next, 64, 0) {
				x.next++
			}
			x.tx.Flush()
			if poll(t, x.tx, unix.POLLOUT, 1000)&unix.POLLOUT == 0 {
				t.Fatal("no room to send, though the ring was sent from")
			}
			x.done += x.tx.Reap(x.sent[:])
			x.take(t, x.rx, always(64))
			return x.seen == packets && x.done == packets
		})
		if n := x.tx.SyscallStats().Send; n != 0 {
			t.Errorf("%d kicks, where poll should have been enough", n)
		}
		x.finish(t)
	})
}

// TestXskPollNothing (POLL_RXQ_FULL, POLL_TXQ_FULL): poll without traffic times out, also while the
// completion ring is full and nothing can be sent.
func TestXskPollNothing(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{real: true, tx: xdp.Options{TxEntries: 32, CompEntries: 32}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		if poll(t, x.rx, unix.POLLIN, 20) != 0 {
			t.Error("poll tells of a packet that nobody sent")
		}
		for range 2 { // one ring completes and is not reaped, the other waits
			for x.post(t, x.tx, x.next, 64, 0) {
				x.next++
			}
			x.tx.Flush()
			shmtest.Got(x.tx.Kick()).Or(t)
		}
		if x.next != 64 || x.tx.Unsent() != 32 {
			t.Fatalf("%d posted, %d not sent", x.next, x.tx.Unsent())
		}
		if poll(t, x.tx, unix.POLLOUT, 20) != 0 {
			t.Error("poll tells of room in a full ring")
		}
		await(t, "the rest", func() bool { x.kick(t, x.tx); return x.done == 64 })
		x.finish(t)
	})
}

// TestXskHeadroom (UMEM_HEADROOM): packets lie behind the headroom that was asked for, where the
// kernel writes nothing, and the kernel's.
func TestXskHeadroom(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{rxUMEM: xdp.UMEMOptions{HeadroomBytes: 128}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		ours := bytes.Repeat([]byte{0x5a}, 128)
		for f := range x.rx.UMEM().Geometry().Frames {
			copy(xdp.Headroom(x.rx, f), ours)
		}
		x.oneByOne(t, 100, 64, func(n int, r xdp.Received) {
			if b := xdp.Headroom(x.rx, r.Frame); !bytes.Equal(b, ours) {
				t.Fatalf("the kernel wrote to the headroom of frame %d: %x", r.Frame, b)
			}
			if at := r.Off - uint64(r.Frame)*2048; at != 256+128 {
				t.Fatalf("packet at %d of its chunk", at)
			}
			isPacket(t, x.rx.Packet(r), n)
		})
	})
}

// TestXskBidirectional (BIDIRECTIONAL): one direction, then the other, and both at once, with the
// same sockets.
func TestXskBidirectional(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		if x.pair != nil {
			attachProgram(t, x.pair.A, x.mode, false, byQueue).put(t, 0, x.tx)
		}
		x.stream(t, x.tx, x.rx, 1000, always(64))
		x.stream(t, x.rx, x.tx, 1000, always(100))
		back := &xsk{tx: x.rx, rx: x.tx}
		size := always(200)
		for range 20 { // packets of both directions are under way while either is looked at
			for range 16 {
				x.post(t, x.tx, x.next, 200, 0)
				back.post(t, x.rx, back.next, 200, 0)
				x.next++
				back.next++
			}
			await(t, "both", func() bool {
				x.kick(t, x.tx)
				back.kick(t, x.rx)
				x.take(t, x.rx, size)
				back.take(t, x.tx, size)
				return x.seen == x.next && back.seen == back.next
			})
		}
		x.finish(t)
	})
}

// TestXskQueues: in native mode a packet sent by queue 1 comes in by queue 1, in generic mode all
// come in by queue 0.
func TestXskQueues(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	c := xskConfig{real: true, pair: veth.Config{Queues: 2},
		txUMEM: xdp.UMEMOptions{Frames: 128}, tx: xdp.Options{Frames: 64},
		rxUMEM: xdp.UMEMOptions{Frames: 128}, rx: xdp.Options{Frames: 64}}
	eachXsk(t, c, func(t *testing.T, x *xsk) {
		rx := [2]*xdp.Socket{x.rx, xdptest.Open(t, x.pair.B, 1, x.rx.UMEM(), xdp.Options{})}
		x.prog.put(t, 1, rx[1])
		tx := xdptest.Open(t, x.pair.A, 1, x.tx.UMEM(), xdp.Options{})
		want := map[xdp.AttachMode]int{xdp.AttachNative: 1, xdp.AttachGeneric: 0}[x.mode]
		x.stream(t, tx, rx[want], 500, always(64))
		x.finish(t)
		if n := rx[1-want].Pending(1); n != 0 {
			t.Errorf("%d packets at the other queue", n)
		}
	})
}

// TestXskDropHalf (XDP_DROP_HALF): exactly the packets arrive that the program lets through.
func TestXskDropHalf(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{program: dropHalf, real: true}, func(t *testing.T, x *xsk) {
		const packets = 500
		for n := range packets {
			x.post(t, x.tx, n/2+n%2*0x8000, 64, 0) // those that are dropped have other numbers
			x.kick(t, x.tx)
			x.take(t, x.rx, always(64))
		}
		x.until(t, 64, func() bool { return x.seen == packets/2 && x.done == packets })
		x.finish(t)
	})
}

// TestXskMetadata (XDP_METADATA_COPY): what the program writes in front of a packet lies in front
// of it in the frame.
func TestXskMetadata(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{program: withMetadata, real: true}, func(t *testing.T, x *xsk) {
		x.oneByOne(t, 300, 64, func(n int, r xdp.Received) {
			x.checkMetadata(t, r, n)
			isPacket(t, x.rx.Packet(r), n)
		})
	})
}

func (x *xsk) checkMetadata(t testing.TB, r xdp.Received, n int) {
	t.Helper()
	mem := x.rx.UMEM().Region().Bytes()
	if m := binary.LittleEndian.Uint64(mem[r.Off-8:]); m != uint64(n) {
		t.Fatalf("packet %d has metadata %d", n, m)
	}
}

// TestXskAdjustTail (XDP_ADJUST_TAIL_SHRINK, XDP_ADJUST_TAIL_GROW): the program makes packets
// longer and shorter; what the socket sees has that length.
func TestXskAdjustTail(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]int32{"shrink": -4, "grow": 4} {
		t.Run(name, func(t *testing.T) {
			shmtest.Conforms(t)
			eachXsk(t, xskConfig{program: adjustTail(by), real: true}, func(t *testing.T, x *xsk) {
				// Behind packets of other lengths veth in native mode has no room to grow into: it
				// rounds up to cache lines, with 256 bytes in front.
				const size = 60
				x.oneByOne(t, 300, size, func(n int, r xdp.Received) {
					b := x.rx.Packet(r)
					if len(b) != size+int(by) {
						t.Fatalf("packet %d has %d bytes", n, len(b))
					}
					isPacket(t, b[:min(size, len(b))], n)
				})
			})
		})
	}
}

// jumbo is a case of packets in several frames.
func jumbo(program body) xskConfig {
	o := xdp.Options{MultiBuffer: true}
	return xskConfig{pair: veth.Config{MTU: 9000}, tx: o, rx: o, frags: true, program: program,
		real: program != nil}
}

// TestKickGating is the truth table of the system call that sends: made if there is something to
// send, unless the driver is awake and says so.
func TestKickGating(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for row := range 16 {
		zeroCopy, noWakeup, asks, pending := row&1 != 0, row&2 != 0, row&4 != 0, row&8 != 0
		o := xdp.Options{NoNeedWakeup: noWakeup}
		if zeroCopy {
			o.Mode = xdp.BindZeroCopy
		}
		s, k := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 16}, xdptest.SimOptions{Options: o})
		k.NeedWakeup(asks, asks)
		if pending {
			post(t, s, numbered(0, 60), 0)
			s.Flush()
		}
		shmtest.Got(s.Kick()).Or(t)
		must(t, s.WakeFill())
		var want xdp.SyscallStats
		switch {
		case pending && (asks || noWakeup):
			want.Send = 1
		case pending:
			want.Suppressed = 1
		}
		if asks && !noWakeup {
			want.Receive = 1
		}
		if got := s.SyscallStats(); got != want {
			t.Errorf("zeroCopy=%v noWakeup=%v asks=%v pending=%v: %+v, want %+v", zeroCopy, noWakeup,
				asks, pending, got, want)
		}
	}
}

// TestKickCounters: in copy mode every batch needs its call and none is suppressed; and looking for
// packets, filling and reaping make no call at all.
func TestKickCounters(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eachXsk(t, xskConfig{}, func(t *testing.T, x *xsk) {
		const batches = 50
		for b := range batches {
			for i := range 8 {
				x.post(t, x.tx, b*8+i, 64, 0)
			}
			x.kick(t, x.tx)
			await(t, "a batch", func() bool { x.take(t, x.rx, always(64)); return x.seen == 8*(b+1) })
		}
		if s := x.tx.SyscallStats(); s.Send != batches || s.Suppressed != 0 || s.Receive != 0 {
			t.Errorf("sender: %+v", s)
		}
		must(t, x.rx.WakeFill())
		if s := x.rx.SyscallStats(); s.Send+s.Receive != 0 {
			t.Errorf("receiver: %+v", s)
		}
		x.finish(t)
	})
}

// TestBusyPollOptions: what is asked for is asked of the kernel and read back. That it has an
// effect cannot be shown on veth, which has no queue to poll.
func TestBusyPollOptions(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	b := xdp.BusyPoll{Prefer: true, TimeoutUs: 20, BudgetCount: 64}
	x := newXsk(t, xdp.AttachNative, xskConfig{rx: xdp.Options{BusyPoll: b}})
	if g := x.rx.Info(); g.BusyPoll != b || g.BusyPollErr != nil || g.Mode != xdp.BindCopy ||
		!g.NeedWakeup || g.MultiBuffer || g.SendBufferBytes < 4<<20 {
		t.Errorf("%+v", g)
	}
	n, err := unix.GetsockoptInt(x.rx.FD(), unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
	if err != nil || n != 0 {
		t.Errorf("NAPI id %d, %v: veth can be polled, so test that", n, err)
	}
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
}

// TestNoNeedWakeup: without the flag every batch is kicked.
func TestNoNeedWakeup(t *testing.T) {
	t.Parallel()
	x := newXsk(t, xdp.AttachNative, xskConfig{tx: xdp.Options{NoNeedWakeup: true}})
	if x.tx.Info().NeedWakeup {
		t.Error("granted though not wanted")
	}
	x.stream(t, x.tx, x.rx, 500, always(64))
	x.finish(t)
}
