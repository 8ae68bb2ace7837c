package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/packet"
)

// TestPortReceive follows datagrams to the application and their frames back.
func TestPortReceive(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	free := r.core.FrameStats()
	const n = 200
	for i := range n {
		from, src := r.from, cq.Addr(1)
		if i%3 == 0 {
			from, src = r.strange, cq.AddrNotAvail
		}
		want := fmt.Appendf(nil, "datagram %d", i)
		if !r.arrive(t, from, want) {
			t.Fatalf("no frame for datagram %d", i)
		}
		r.rounds(t)
		es := r.read(t)
		if len(es) != 1 {
			t.Fatalf("%d completions", len(es))
		}
		e := &es[0]
		if e.Flags&^cq.FlagNoContext != cq.FlagRecv|cq.FlagMsg|cq.FlagFrame || e.Src != src ||
			e.Data != 0 || e.Buf.Region() != fakeUMEM || !bytes.Equal(r.bytes(e), want) {
			t.Fatalf("completion %+v of %q", e, r.bytes(e))
		}
		rec := ReadRecord(r.kernel.mem[e.Buf.Offset()&^2047:])
		if rec.Sequence != uint64(i) || uint32(rec.Sequence) != e.Meta.Seq() || rec.RxNs == 0 ||
			rec.Dst != rigLocal || i%3 != 0 && rec.Src != rigPeer || rec.Queue != 3 ||
			uint64(rec.PayloadOff) != e.Buf.Offset()&2047 || int(rec.PayloadLen) != len(want) {
			t.Fatalf("record %+v", rec)
		}
		if i%2 == 0 {
			r.ask(t, ReturnCommand(e))
			r.ask(t, ReturnCommand(e)) // the second one is stale
		} else {
			stale := ReturnCommand(e)
			stale.Data++
			r.ask(t, stale)
			r.ask(t, ReturnCommand(e))
		}
		r.rounds(t)
		r.checkFrames(t)
	}
	s := r.port.Stats()
	if s.Received != n || s.Returned != n || s.Frames.StaleReturn != n || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	if s.Frames.States != free.States {
		t.Errorf("frames went from %v to %v", free.States, s.Frames.States)
	}
}

// TestPortReceiveNoRoom: packets wait in the ring while the application does not read, none is
// lost or reordered, and it goes on where it stopped.
func TestPortReceiveNoRoom(t *testing.T) {
	r := newPortRig(t, rigOptions{lane: 4, fake: fakeConfig{frames: 32, rxFrames: 24}})
	for i := range 12 {
		if !r.arrive(t, r.from, []byte{byte(i)}) {
			t.Fatal("no frame")
		}
	}
	r.rounds(t)
	if n := r.core.Pending(16); n != 8 {
		t.Fatalf("%d packets left in the ring", n)
	}
	if r.port.Stats().RxBlocked == 0 || !r.port.rxBlocked {
		t.Error("back-pressure not counted")
	}
	for got := 0; got < 12; {
		for _, e := range r.read(t) {
			if b := r.bytes(&e); len(b) != 1 || int(b[0]) != got {
				t.Fatalf("datagram %v, want %d", b, got)
			}
			r.ask(t, ReturnCommand(&e))
			got++
		}
		r.rounds(t)
	}
	if s := r.core.FrameStats(); s.States[FrameLoaned] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPortMalformed: what is no datagram is dropped, those around it are not.
func TestPortMalformed(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	for i := range 9 {
		if i%3 == 1 {
			r.kernel.deliver(make([]byte, 60))
			continue
		}
		r.arrive(t, r.from, []byte{byte(i)})
	}
	r.rounds(t)
	want := []byte{0, 2, 3, 5, 6, 8}
	for i, e := range r.read(t) {
		rec := ReadRecord(r.kernel.mem[e.Buf.Offset()&^2047:])
		if r.bytes(&e)[0] != want[i] || rec.Sequence != uint64(i) || e.Meta.Seq() != uint32(i) {
			t.Errorf("entry %d: %v, %+v", i, r.bytes(&e), rec)
		}
		r.ask(t, ReturnCommand(&e))
	}
	r.rounds(t)
	if s := r.port.Stats(); s.Malformed != 3 || s.Received != 6 || s.Returned != 6 {
		t.Errorf("%+v", s)
	}
}

// TestPortSend follows sends to the wire and their completions back.
func TestPortSend(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	var wire [][]byte
	r.dev.sent = func(p []byte) {
		var d packet.Datagram
		if err := packet.Parse(p, &d); err != nil || d.Src != rigLocal || d.Dst != rigPeer {
			t.Errorf("on the wire: %+v, %v", d, err)
		}
		wire = append(wire, bytes.Clone(p[d.PayloadOff:d.PayloadOff+d.PayloadLen]))
	}
	for i := range 100 {
		wire = wire[:0]
		mem := r.payload.Bytes()[i*64:]
		for j := range 3 {
			copy(mem[j*16:], fmt.Sprintf("payload %4d %2d", i, j))
			r.ask(t, SendCommand(uint64(i*10+j), r.payload.Ref(uint64(i*64+j*16)), 15, 1))
		}
		r.rounds(t)
		if len(wire) != 3 {
			t.Fatalf("%d packets", len(wire))
		}
		for j, e := range r.read(t) {
			if e.Context != uint64(i*10+j) || e.Flags != cq.FlagSend|cq.FlagMsg {
				t.Fatalf("completion %+v", e)
			}
			if want := fmt.Sprintf("payload %4d %2d", i, j); string(wire[j]) != want {
				t.Fatalf("%q on the wire, want %q", wire[j], want)
			}
		}
	}
	s := r.port.Stats()
	if s.Accepted != 300 || s.Completed != 300 || s.Refused != 0 || r.tx.Credits() != 0 {
		t.Errorf("%+v, %d credits", s, r.tx.Credits())
	}
	if s.Syscalls.Send != 100 {
		t.Errorf("%d kicks for 100 batches", s.Syscalls.Send)
	}
}

// TestPortSendNoRoom: commands wait while there is no frame or no room for their completions.
func TestPortSendNoRoom(t *testing.T) {
	r := newPortRig(t, rigOptions{lane: 8, fake: fakeConfig{frames: 32, rxFrames: 28}})
	r.dev.hold = true
	const n = 12
	for i := range n {
		r.ask(t, SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	r.rounds(t)
	if s := r.core.FrameStats(); s.States[FrameSend] != 4 || s.States[FrameBuild] != 0 {
		t.Fatalf("%+v", s) // there are no more frames
	}
	r.dev.hold = false
	for range 4 {
		_, err := r.port.Progress()
		check(t, err)
	}
	if !r.port.txBlocked || r.tx.Free() != 0 {
		t.Errorf("eight completions and no more, %d free", r.tx.Free())
	}
	next := uint64(0)
	for next < n {
		for _, e := range r.read(t) {
			if e.Context != next {
				t.Fatalf("completion of %d, want %d", e.Context, next)
			}
			next++
		}
		r.rounds(t)
	}
	if s := r.port.Stats(); s.Accepted != n || s.Completed != n || s.TxBlocked == 0 {
		t.Errorf("%+v", s)
	}
}

// TestPortBadCommands: each is answered with its context and a number that says what is wrong.
func TestPortBadCommands(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	other := newPayload(t, 4096)
	ok := r.payload.Ref(0)
	end := uint64(len(r.payload.Bytes()))
	flagged := SendCommand(0, ok, 8, 1)
	flagged.Flags |= cq.FlagRMA
	huge := SendCommand(0, ok, 8, 1)
	huge.Len = 1 << 63
	for name, c := range map[string]struct {
		cmd  cq.Entry
		want error
	}{
		"region":   {SendCommand(0, other.Ref(0), 8, 1), cq.ENoKey},
		"zero ref": {SendCommand(0, 0, 8, 1), cq.ENoKey},
		"range":    {SendCommand(0, r.payload.Ref(end-7), 8, 1), syscall.EINVAL},
		"far":      {SendCommand(0, r.payload.Ref(1<<47), 8, 1), syscall.EINVAL},
		"long":     {SendCommand(0, ok, 1473, 1), syscall.EMSGSIZE},
		"huge":     {huge, syscall.EMSGSIZE},
		"negative": {SendCommand(0, ok, -1, 1), syscall.EMSGSIZE},
		"peer":     {SendCommand(0, ok, 8, 2), syscall.EINVAL},
		"nobody":   {SendCommand(0, ok, 8, cq.AddrNotAvail), syscall.EINVAL},
		"flags":    {flagged, syscall.EINVAL},
		"nothing":  {cq.Entry{}, cq.EBadFlags},
		"all":      {cq.Entry{Flags: ^cq.Flags(0)}, cq.EBadFlags},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.port.Stats()
			c.cmd.Context = 0xabc
			r.ask(t, c.cmd)
			r.ask(t, SendCommand(0xdef, ok, 1472, 1)) // the longest that fits goes through
			r.rounds(t)
			if es := r.read(t); len(es) != 0 {
				t.Fatalf("completed: %+v", es)
			}
			e := r.readErr(t)
			if e.Context != 0xabc || !errors.Is(&e, c.want) || e.Flags != cq.FlagSend|cq.FlagMsg {
				t.Errorf("answer %+v", e)
			}
			if es := r.read(t); len(es) != 1 || es[0].Context != 0xdef {
				t.Errorf("the good one: %+v", es)
			}
			s := r.port.Stats()
			if s.Refused != before.Refused+1 || r.tx.Credits() != 0 {
				t.Errorf("%+v, %d credits", s, r.tx.Credits())
			}
		})
	}
	t.Run("error entry", func(t *testing.T) {
		before := r.port.Stats().Refused
		check(t, r.asker.PostError(&cq.ErrorEntry{Context: 5, Err: cq.EOther}))
		r.ask(t, SendCommand(6, ok, 8, 1))
		r.rounds(t)
		if es := r.read(t); len(es) != 1 || es[0].Context != 6 {
			t.Errorf("%+v", es)
		}
		if n := r.port.Stats().Refused; n != before+1 {
			t.Errorf("%d refused", n)
		}
	})
}

// TestPortForgedReturns: no return takes anything from anybody.
func TestPortForgedReturns(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	r.arrive(t, r.from, []byte("mine"))
	r.rounds(t)
	es := r.read(t)
	good := ReturnCommand(&es[0])
	forge := func(f func(e *cq.Entry)) {
		e := good
		f(&e)
		r.ask(t, e)
	}
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(fakeUMEM+1, e.Buf.Offset()) })
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(fakeUMEM, 1<<48-1) })
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(fakeUMEM, e.Buf.Offset()^2048) })
	forge(func(e *cq.Entry) { e.Data |= 1 << 32 })
	forge(func(e *cq.Entry) { e.Data = ^uint64(0) })
	forge(func(e *cq.Entry) { e.Buf = 0 })
	r.rounds(t)
	if s := r.port.Stats(); s.Frames.StaleReturn != 6 || s.Frames.States[FrameLoaned] != 1 {
		t.Fatalf("%+v", s)
	}
	r.ask(t, good)
	r.rounds(t)
	if s := r.port.Stats(); s.Returned != 1 || s.Frames.States[FrameLoaned] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestPortDeviceGone: what was accepted is answered, and so is what was taken.
func TestPortDeviceGone(t *testing.T) {
	r := newPortRig(t, rigOptions{fake: fakeConfig{frames: 32, rxFrames: 28}})
	r.dev.down = true
	for i := range 6 {
		r.ask(t, SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	r.rounds(t)
	if s := r.port.Stats(); s.LinkDown == 0 || s.Accepted != 4 {
		t.Fatalf("%+v", s)
	}
	r.dev.gone = true
	if _, err := r.port.Progress(); !errors.Is(err, ErrDeviceGone) {
		t.Fatal(err)
	}
	check(t, r.port.Close())
	for i := range 6 {
		e := r.readErr(t)
		if e.Context != uint64(i) || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("send %d: %+v", i, e)
		}
	}
	s := r.port.Stats()
	if s.Cancelled != 6 || s.Abandoned != 0 || s.Frames.States[FrameQuarantine] != 4 ||
		r.dev.open || r.tx.Credits() != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := r.port.Progress(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := r.port.Run(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestPortAllocatesNothing measures a whole turn of a received and a sent datagram.
func TestPortAllocatesNothing(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	var buf [8]cq.Entry
	n, err := r.from.Build(r.frame[:], make([]byte, 100))
	check(t, err)
	turn := func() {
		if !r.kernel.deliver(r.frame[:n]) {
			t.Fatal("no frame")
		}
		cmd := SendCommand(1, r.payload.Ref(0), 100, 1)
		check(t, r.asker.Post(&cmd))
		for got := 0; got < 2; {
			_, err := r.port.Progress()
			check(t, err)
			n, _ := cq.Read(r.app, buf[:])
			for i := range buf[:n] {
				if buf[i].Flags&cq.FlagFrame != 0 {
					cmd := ReturnCommand(&buf[i])
					check(t, r.asker.Post(&cmd))
				}
			}
			got += n
		}
	}
	if n := testing.AllocsPerRun(1000, turn); n != 0 {
		t.Errorf("%v allocations a turn", n)
	}
}
