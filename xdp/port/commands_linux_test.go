package port_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/port"
)

// TestReceive follows datagrams to the application and their frames back.
func TestReceive(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	free := r.socket.FrameStats()
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
		if e.Flags&^cq.FlagNoContext != cq.FlagRecv|cq.FlagMsg|cq.FlagFrame || e.Src.Addr() != src ||
			e.Data != 0 || e.Buf.Region() != r.umem.Region().ID() || !bytes.Equal(r.bytes(e), want) {
			t.Fatalf("completion %+v of %q", e, r.bytes(e))
		}
		rec := xdp.ReadRecord(r.umem.Region().Bytes()[e.Buf.Offset()&^2047:])
		if rec.Sequence != uint64(i) || uint32(rec.Sequence) != e.Meta.Seq() || rec.RxNs == 0 ||
			rec.Dst != rigLocal || i%3 != 0 && rec.Src != rigPeer || rec.Queue != rigQueue ||
			uint64(rec.PayloadOff) != e.Buf.Offset()&2047 || int(rec.PayloadLen) != len(want) {
			t.Fatalf("record %+v", rec)
		}
		if i%2 == 0 {
			r.ask(t, port.ReturnCommand(e))
			r.ask(t, port.ReturnCommand(e)) // the second one is stale
		} else {
			stale := port.ReturnCommand(e)
			stale.Data++
			r.ask(t, stale)
			r.ask(t, port.ReturnCommand(e))
		}
		r.rounds(t)
		r.checkFrames(t)
	}
	s := r.port.Stats()
	if s.Received != n || s.Returned != n || s.Frames.StaleReturn != n || s.BadCommands != 0 {
		t.Errorf("%+v", s)
	}
	if s.Frames.States != free.States {
		t.Errorf("frames went from %v to %v", free.States, s.Frames.States)
	}
}

// TestSend follows sends to the wire and their completions back.
func TestSend(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	var wire [][]byte
	r.kernel.OnSend(func(p []byte) {
		var d packet.Datagram
		if err := packet.Parse(p, &d); err != nil || d.Src != rigLocal || d.Dst != rigPeer {
			t.Errorf("on the wire: %+v, %v", d, err)
		}
		wire = append(wire, bytes.Clone(p[d.PayloadOff:d.PayloadOff+d.PayloadLen]))
	})
	for i := range 100 {
		wire = wire[:0]
		mem := r.payload.Bytes()[i*64:]
		for j := range 3 {
			copy(mem[j*16:], fmt.Sprintf("payload %4d %2d", i, j))
			r.ask(t, port.SendCommand(uint64(i*10+j), r.payload.Ref(uint64(i*64+j*16)), 15, 1))
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
	if s.Accepted != 300 || s.Completed != 300 || s.BadCommands != 0 || r.tx.Credits() != 0 {
		t.Errorf("%+v, %d credits", s, r.tx.Credits())
	}
	if s.Syscalls.Send != 100 {
		t.Errorf("%d kicks for 100 batches", s.Syscalls.Send)
	}
}

// TestSendNoRoom: commands wait while there is no frame or no room for their completions.
func TestSendNoRoom(t *testing.T) {
	r := newPortRig(t, rigOptions{lane: 8, send: 4})
	r.kernel.HoldCompletions(true)
	const n = 12
	for i := range n {
		r.ask(t, port.SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	r.rounds(t)
	if s := r.socket.FrameStats(); s.States[xdp.FrameSend] != 4 || s.States[xdp.FrameBuild] != 0 {
		t.Fatalf("%+v", s) // there are no more frames
	}
	r.kernel.HoldCompletions(false)
	r.kernel.Complete(64)
	for range 4 {
		_, err := r.port.Progress()
		must(t, err)
	}
	if r.port.Stats().TxBlocked == 0 || r.tx.Free() != 0 {
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

// TestBadCommands: each is answered with its context and a number that says what is wrong.
func TestBadCommands(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	other := newPayload(t, 4096)
	ok := r.payload.Ref(0)
	end := uint64(len(r.payload.Bytes()))
	flagged := port.SendCommand(0, ok, 8, 1)
	flagged.Flags |= cq.FlagRMA
	huge := port.SendCommand(0, ok, 8, 1)
	huge.Len = 1 << 63
	for name, c := range map[string]struct {
		cmd  cq.Entry
		want error
	}{
		"region":   {port.SendCommand(0, other.Ref(0), 8, 1), cq.ENoKey},
		"zero ref": {port.SendCommand(0, 0, 8, 1), cq.ENoKey},
		"range":    {port.SendCommand(0, r.payload.Ref(end-7), 8, 1), syscall.EINVAL},
		"far":      {port.SendCommand(0, r.payload.Ref(1<<47), 8, 1), syscall.EINVAL},
		"long":     {port.SendCommand(0, ok, 1473, 1), syscall.EMSGSIZE},
		"huge":     {huge, syscall.EMSGSIZE},
		"negative": {port.SendCommand(0, ok, -1, 1), syscall.EMSGSIZE},
		"peer":     {port.SendCommand(0, ok, 8, 2), syscall.EINVAL},
		"nobody":   {port.SendCommand(0, ok, 8, cq.AddrNotAvail), syscall.EINVAL},
		"flags":    {flagged, syscall.EINVAL},
		"nothing":  {cq.Entry{}, cq.EBadFlags},
		"all":      {cq.Entry{Flags: ^cq.Flags(0)}, cq.EBadFlags},
	} {
		t.Run(name, func(t *testing.T) {
			before := r.port.Stats()
			c.cmd.Context = 0xabc
			r.ask(t, c.cmd)
			r.ask(t, port.SendCommand(0xdef, ok, 1472, 1)) // the longest that fits goes through
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
			if s.BadCommands != before.BadCommands+1 || r.tx.Credits() != 0 {
				t.Errorf("%+v, %d credits", s, r.tx.Credits())
			}
		})
	}
	t.Run("error entry", func(t *testing.T) {
		before := r.port.Stats().BadCommands
		must(t, r.asker.PostError(&cq.ErrorEntry{Context: 5, Err: cq.EOther}))
		r.ask(t, port.SendCommand(6, ok, 8, 1))
		r.rounds(t)
		if es := r.read(t); len(es) != 1 || es[0].Context != 6 {
			t.Errorf("%+v", es)
		}
		if n := r.port.Stats().BadCommands; n != before+1 {
			t.Errorf("%d refused", n)
		}
	})
}

// TestForgedReturns: no return takes anything from anybody.
func TestForgedReturns(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	r.arrive(t, r.from, []byte("mine"))
	r.rounds(t)
	es := r.read(t)
	good := port.ReturnCommand(&es[0])
	forge := func(f func(e *cq.Entry)) {
		e := good
		f(&e)
		r.ask(t, e)
	}
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(r.umem.Region().ID()+1, e.Buf.Offset()) })
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(r.umem.Region().ID(), 1<<48-1) })
	forge(func(e *cq.Entry) { e.Buf = shm.MakeRef(r.umem.Region().ID(), e.Buf.Offset()^2048) })
	forge(func(e *cq.Entry) { e.Data |= 1 << 32 })
	forge(func(e *cq.Entry) { e.Data = ^uint64(0) })
	forge(func(e *cq.Entry) { e.Buf = 0 })
	r.rounds(t)
	if s := r.port.Stats(); s.Frames.StaleReturn != 6 || s.Frames.States[xdp.FrameLoaned] != 1 {
		t.Fatalf("%+v", s)
	}
	r.ask(t, good)
	r.rounds(t)
	if s := r.port.Stats(); s.Returned != 1 || s.Frames.States[xdp.FrameLoaned] != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDeviceGone: what was accepted is answered, and so is what was taken.
func TestDeviceGone(t *testing.T) {
	r := newPortRig(t, rigOptions{send: 4})
	r.kernel.SetDown(true)
	for i := range 6 {
		r.ask(t, port.SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	r.rounds(t)
	if s := r.port.Stats(); s.LinkDown == 0 || s.Accepted != 4 {
		t.Fatalf("%+v", s)
	}
	r.kernel.Remove()
	if _, err := r.port.Progress(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Fatal(err)
	}
	must(t, r.port.Close())
	for i := range 6 {
		e := r.readErr(t)
		if e.Context != uint64(i) || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("send %d: %+v", i, e)
		}
	}
	s := r.port.Stats()
	if s.Cancelled != 4 || s.Unsent != 2 || s.Abandoned+s.Unanswered != 0 || r.tx.Credits() != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := r.port.Progress(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := r.port.Run(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// TestAllocatesNothing measures a whole turn of a received and a sent datagram.
func TestAllocatesNothing(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	var buf [8]cq.Entry
	n, err := r.from.Build(r.frame[:], make([]byte, 100))
	must(t, err)
	turn := func() {
		if !r.kernel.Deliver(r.frame[:n]) {
			t.Fatal("no frame")
		}
		cmd := port.SendCommand(1, r.payload.Ref(0), 100, 1)
		must(t, r.asker.Post(&cmd))
		for got := 0; got < 2; {
			_, err := r.port.Progress()
			must(t, err)
			n, _ := cq.Read(r.app, buf[:])
			for i := range buf[:n] {
				if buf[i].Flags&cq.FlagFrame != 0 {
					cmd := port.ReturnCommand(&buf[i])
					must(t, r.asker.Post(&cmd))
				}
			}
			got += n
		}
	}
	if n := testing.AllocsPerRun(1000, turn); n != 0 && !raceEnabled {
		t.Errorf("%v allocations a turn", n)
	}
}
