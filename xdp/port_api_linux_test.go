package xdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// runRig starts Run and returns what ends it and what it returns.
func (r *portRig) run(t testing.TB) (stop context.CancelFunc, wait func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.port.Run(ctx) }()
	return stop, func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("Run does not end")
			return nil
		}
	}
}

// asleep waits until Run sleeps, and then some.
func (r *portRig) asleep(t testing.TB) {
	t.Helper()
	for before := r.port.Stats().Polls; r.port.Stats().Polls < before+2; {
		time.Sleep(time.Millisecond)
	}
}

// TestPortRunWakes: a command ends the sleep of Run, and so do the context and Close.
func TestPortRunWakes(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	stop, wait := r.run(t)
	defer stop()
	for i := range uint64(50) {
		if i%10 == 0 {
			r.asleep(t)
		}
		r.ask(t, SendCommand(i, r.payload.Ref(0), 10, 1))
		var m [1]cq.Msg
		if _, err := cq.ReadTimeout(r.app, m[:], 20*time.Second); err != nil || m[0].Context != i {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if _, err := r.port.Progress(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Progress beside Run: %v", err)
	}
	if err := r.port.Run(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Run beside Run: %v", err)
	}
	r.asleep(t)
	stop()
	if err := wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	_, wait = r.run(t) // it can go on
	r.asleep(t)
	check(t, r.port.Close())
	if err := wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	check(t, r.port.Close())
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := r.port.Run(ctx); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestPortQueueClosed: a queue that its reader closed ends the port, and nothing is lost track of.
func TestPortQueueClosed(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	_, wait := r.run(t)
	check(t, r.app.Close())
	r.arrive(t, r.from, []byte("too late"))
	r.ask(t, SendCommand(1, r.payload.Ref(0), 10, 1))
	if err := wait(); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	check(t, r.port.Close())
	if s := r.port.Stats(); s.Frames.States[FrameLoaned] != 0 || s.Frames.Sum() != s.Frames.Frames {
		t.Errorf("%+v", s)
	}
}

// TestPortSuccessor: what a device process before this one had looked at is not sent a second time,
// and what it had not is.
func TestPortSuccessor(t *testing.T) {
	r := newPortRig(t, rigOptions{fake: fakeConfig{frames: 32, rxFrames: 28}})
	r.dev.hold = true
	for i := range 40 {
		r.ask(t, SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	// As if it had been killed: commands were taken, four could be done, none was completed.
	es, err := r.q.Peek(8)
	check(t, err)
	if len(es) != 8 {
		t.Fatal(len(es))
	}
	r.port.pending, r.port.redelivered = es, true
	r.dev.hold = false
	r.rounds(t)
	for i := range uint64(8) {
		if e := r.readErr(t); e.Context != i || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("%+v", e)
		}
	}
	for i, e := range r.read(t) {
		if e.Context != uint64(8+i) {
			t.Errorf("completion of %d", e.Context)
		}
	}
	if s := r.port.Stats(); s.Accepted != 32 || s.Completed != 32 || s.Refused != 8 {
		t.Errorf("%+v", s)
	}
}

// TestPortAbandons: at the end a taken command for whose answer there is no room is counted, and
// the queue of commands can be left to somebody else.
func TestPortAbandons(t *testing.T) {
	r := newPortRig(t, rigOptions{lane: 4})
	for i := range 6 {
		r.ask(t, SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	for range 4 {
		_, err := r.port.Progress()
		check(t, err)
	}
	check(t, r.port.Close())
	if s := r.port.Stats(); s.Completed != 4 || s.Abandoned != 1 || s.Cancelled != 0 {
		t.Errorf("%+v", s)
	}
	if es, err := r.q.Peek(8); err != nil || len(es) != 1 || es[0].Context != 5 {
		t.Errorf("left in the queue: %+v, %v", es, err)
	}
	check(t, r.q.Release(1))
}

func TestNewPortRefuses(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	noFD, err := cq.Create(r.dir, "nofd", cq.Options{})
	check(t, err)
	defer noFD.Close()
	good := func() PortConfig { return PortConfig{RX: r.rx, TX: r.tx, Commands: r.q} }
	for name, change := range map[string]func(c *PortConfig){
		"no lane":    func(c *PortConfig) { c.TX = nil },
		"one lane":   func(c *PortConfig) { c.TX = c.RX },
		"no queue":   func(c *PortConfig) { c.Commands = nil },
		"no FD":      func(c *PortConfig) { c.Commands = noFD },
		"batch":      func(c *PortConfig) { c.RxBatch = -1 },
		"empty peer": func(c *PortConfig) { c.Peers = make([]Peer, 1) },
	} {
		c := good()
		change(&c)
		_, err := newPort(c, r.core, r.dev, fakeUMEM)
		if !errors.Is(err, ErrOptions) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewPort(good()); !errors.Is(err, ErrOptions) {
		t.Errorf("no socket: %v", err)
	}
}

func TestPortRegions(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	if err := r.port.AddRegion(r.payload); !errors.Is(err, ErrOptions) {
		t.Errorf("twice: %v", err)
	}
	if err := syscall.Ftruncate(r.payload.Object().FD(), 4096); err == nil {
		t.Error("memory that sends refer to got smaller")
	}
	// A file by name can be cut off at any time, and that cannot be forbidden.
	o, err := r.dir.Create("file", shm.Spec{Kind: shm.KindUMEM, Name: "file",
		Sections: []shm.Section{{Kind: secPayload, Length: 4096, ElemSize: 1, Capacity: 4096}}}, nil)
	check(t, err)
	file, err := shm.NewRegion(o, secPayload)
	check(t, err)
	defer func() {
		check(t, o.Unlink())
		check(t, file.Close(context.WithoutCancel(t.Context())))
	}()
	if err := r.port.AddRegion(file); !errors.Is(err, ErrOptions) {
		t.Errorf("a named file: %v", err)
	}
	r.port.RemoveRegion(file) // never added
	r.port.RemoveRegion(r.payload)
	r.ask(t, SendCommand(1, r.payload.Ref(0), 1, 1))
	r.rounds(t)
	r.read(t)
	if e := r.readErr(t); !errors.Is(&e, cq.ENoKey) {
		t.Errorf("removed: %v", &e)
	}
	check(t, r.port.AddRegion(r.payload))
	r.ask(t, SendCommand(2, r.payload.Ref(0), 1, 1))
	r.rounds(t)
	if es := r.read(t); len(es) != 1 {
		t.Errorf("added again: %+v", es)
	}
}

func TestReadFrameChecks(t *testing.T) {
	g := Geometry{Frames: 4, ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	r := newPayload(t, g.Bytes())
	want := Record{Sequence: 9, Src: rigPeer, Dst: rigLocal}
	want.Put(r.Bytes()[2048:])
	for _, off := range []uint64{2048, 2048 + 362, 4095} {
		if got, err := ReadFrame(r, g, r.Ref(off)); err != nil || got != want {
			t.Errorf("at %d: %+v, %v", off, got, err)
		}
	}
	for ref, wantErr := range map[shm.Ref]error{
		r.Ref(g.Bytes()): ErrFrame, r.Ref(1<<48 - 1): ErrFrame,
		shm.MakeRef(r.ID()+1, 0): shm.ErrStale,
	} {
		if _, err := ReadFrame(r, g, ref); !errors.Is(err, wantErr) {
			t.Errorf("%v: %v", ref, err)
		}
	}
	// A geometry that is larger than the memory.
	g.Frames = 1000
	if _, err := ReadFrame(r, g, r.Ref(5*2048)); !errors.Is(err, shm.ErrCorrupt) {
		t.Error(err)
	}
	for range 1000 {
		_, _ = ReadFrame(r, g, shm.Ref(rand.Uint64()))
	}
}

// BenchmarkPort turns packets into completions and takes their frames back, 32 at a time, with a
// reader that copies, all in one goroutine: what a port adds to a socket and the queues.
func BenchmarkPort(b *testing.B) {
	r := newPortRig(b, rigOptions{fake: fakeConfig{frames: 256, rxFrames: 192, entries: 128}})
	var buf [32]cq.Entry
	n, err := r.from.Build(r.frame[:], make([]byte, 64))
	check(b, err)
	b.ReportAllocs()
	for b.Loop() {
		for range buf {
			r.kernel.deliver(r.frame[:n])
		}
		for got := 0; got < len(buf); {
			_, err := r.port.Progress()
			check(b, err)
			n, _ := cq.Read(r.app, buf[:])
			for i := range buf[:n] {
				buf[i] = ReturnCommand(&buf[i])
			}
			_, err = r.asker.PostBatch(buf[:n])
			check(b, err)
			got += n
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(len(buf)*b.N), "ns/packet")
}
