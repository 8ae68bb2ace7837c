package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

const (
	fuzzPort       = 5001
	fuzzSlots      = 8
	fuzzSlotBytes  = 2048
	fuzzGeneration = 7
)

var (
	fuzzFour    = netip.MustParseAddr("192.0.2.2")
	fuzzSix     = netip.MustParseAddr("fd00::2")
	fuzzPending = netip.MustParseAddr("192.0.2.99")
)

// fuzzWays knows two destinations, and one that is never resolved.
type fuzzWays struct{}

func (fuzzWays) Lookup(dst netip.Addr) (xdp.Hop, error) {
	h := xdp.Hop{LocalMAC: [6]byte{2, 1}, NextMAC: [6]byte{2, 2}, Generation: 1}
	switch dst {
	case fuzzFour:
		h.Source = netip.MustParseAddr("192.0.2.1")
		return h, nil
	case fuzzSix:
		h.Source = netip.MustParseAddr("fd00::1")
		return h, nil
	case fuzzPending:
		return xdp.Hop{}, packet.ErrResolving
	}
	return xdp.Hop{}, packet.ErrUnreachable
}

// fuzzRig is a server's engine over a simulated kernel, with one application that has one frame: of
// its own memory, or in place. The test turns the crank.
type fuzzRig struct {
	en    *engine
	wire  *xskernel.Kernel
	in    []byte    // a packet that is the application's
	lent  *cq.Entry // the frame that is out in place
	a     *app
	app   *cq.Queue  // the application's completions
	asker *cq.Writer // and its commands
	sent  [][]byte
}

var must = shmtest.Must

func newFuzzRig(f testing.TB, inPlace bool) *fuzzRig {
	name := map[bool]string{true: "in-place-"}[inPlace]
	r := &fuzzRig{a: &app{peer: &place.Peer{}, inPlace: inPlace,
		account: &account{ways: newWays(newHolders(fuzzWays{}), 1), Allow: Allow{Any: true}},
		owns:    map[uint16]bool{fuzzPort: true},
		routes:  map[target]*route{}, pool: newPool(32), slot: fuzzSlotBytes, limit: fuzzSlots}}
	d := shmtest.Got(shm.OpenDir("")).Or(f)
	r.app = shmtest.Got(cq.Create(cq.Named(d, name+"app"), cq.Options{})).Or(f)
	r.a.q = shmtest.Got(cq.Create(cq.Named(d, name+"commands"), cq.Options{Wait: cq.WaitFD})).Or(f)
	attach := func(name string) *cq.Writer {
		w := shmtest.Got(cq.Attach(f.Context(), cq.Named(d, name), cq.WriterOptions{})).Or(f)
		return w
	}
	a := r.a
	a.rx, a.tx, r.asker = attach(name+"app"), attach(name+"app"), attach(name+"commands")
	a.page = shmtest.Got(newPage(32, fuzzSlots, 1)).Or(f)
	a.payload = shmtest.Got(newPayload(fuzzSlots, fuzzSlotBytes)).Or(f)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range a.payload.Bytes() {
		a.payload.Bytes()[i] = byte(rnd.Uint32())
	}
	sock, kernel := xdptest.NewSim(f, xdp.UMEMOptions{Frames: 32},
		xdptest.SimOptions{Options: xdp.Options{SendFrames: 16}})
	own := sock.UMEM()
	if a.umem = own; !inPlace {
		a.umem = xdptest.NewUMEM(f, xdp.UMEMOptions{Frames: 32})
	}
	a.geo = a.umem.Geometry()
	r.wire, r.in = kernel, fuzzPacket(f)
	kernel.OnSend(func(b []byte) { r.sent = append(r.sent, bytes.Clone(b)) })
	q := &queue{umem: own, sock: sock, packets: make([]xdp.Received, 16),
		object: capture.Observe(true, nil, sock, status.Info{}),
		done:   make([]xdp.Sent, 16), sends: make([]sendRow, 32), sums: make([]packet.Checksum, 16)}
	server := &Server{c: Config{TxBatch: 32, Resolver: fuzzWays{}}, mtu: 1500,
		watcher: &netif.Watcher{}}
	server.parkedNs.Store(parkedNs)
	r.en = &engine{s: server,
		queues: []*queue{q}, byPort: make([]*app, 1<<16),
		calls: make(chan func(), 16)}
	r.en.local.Store(&xdp.Local{})
	r.en.attach(a)
	r.en.byPort[fuzzPort] = a
	f.Cleanup(func() {
		err := errors.Join(a.rx.Close(), a.tx.Close(), r.asker.Close(), a.q.Close(), r.app.Close(),
			sock.Close(), a.page.close(), closeRegion(a.payload), d.Close())
		must(f, err)
	})
	return r
}

// fuzzPacket is a datagram to the application.
func fuzzPacket(f testing.TB) []byte {
	tpl, err := packet.NewTemplate([6]byte{2, 2}, [6]byte{2, 1}, netip.AddrPortFrom(fuzzFour, 53),
		netip.MustParseAddrPort("192.0.2.1:5001"))
	must(f, err)
	b := make([]byte, 128)
	n := shmtest.Got(tpl.Build(b, []byte("in"))).Or(f)
	return b[:n]
}

// out makes sure that the application has a frame, and says where its chunk begins in the UMEM and
// what a return has to name.
func (r *fuzzRig) out(t testing.TB) (chunk, generation uint64) {
	t.Helper()
	if !r.a.inPlace {
		if !r.a.pool.loaned[0] { // the free frames are a stack, of which it is on top
			if frame, ok := r.a.pool.loan(fuzzGeneration); frame != 0 || !ok {
				t.Fatal("frame 0 is not free")
			}
		}
		return 0, fuzzGeneration
	}
	if !r.isOut() {
		var es [2]cq.Entry
		if !r.wire.Deliver(r.in) {
			t.Fatal("the packet did not arrive")
		}
		shmtest.Got(r.en.Round(r.en.now)).Or(t)
		if n, err := cq.Read(r.app, es[:]); n != 1 || !r.isOut() {
			t.Fatalf("%d received: %v, %+v", n, err, r.en.stats)
		}
		r.lent = &es[0]
	}
	return r.a.geo.Chunk(r.lent.Buf.Offset()), uint64(r.lent.Meta.Seq())
}

// isOut reports whether the application has that frame.
func (r *fuzzRig) isOut() bool {
	if !r.a.inPlace {
		return r.a.pool.loaned[0]
	}
	lent := r.en.queues[0].sock.FrameStats().Loaned
	return lent == 1 && r.a.pool.out == 1
}

// turn goes on until all sends have ended, one way or another.
func (r *fuzzRig) turn(t testing.TB) {
	t.Helper()
	for range 100 {
		r.en.now += parkedNs / 4
		shmtest.Got(r.en.Round(r.en.now)).Or(t)
		if r.a.dead != nil {
			t.Fatalf("the application is to be hung up on: %v", r.a.dead)
		}
		if s := r.en.queues[0].sock.FrameStats(); s.Sum() != s.Frames || s.Illegal != 0 {
			t.Fatalf("frames: %+v", s)
		}
	}
	lent := r.en.queues[0].sock.FrameStats().Loaned
	if r.a.inPlace && lent != uint64(r.a.pool.out) {
		t.Fatalf("%d frames are lent, %d counted", lent, r.a.pool.out)
	}
	if a := r.a; a.underWay != 0 || a.parked.count != 0 || len(a.pending) != 0 ||
		r.en.sending != 0 || !a.inPlace && len(a.pool.free)+a.pool.out != 32 {
		t.Fatalf("%d sends under way, %d parked, %d with the kernel", a.underWay, a.parked.count,
			r.en.sending)
	}
}

// answers takes all completions.
func (r *fuzzRig) answers(t testing.TB) (contexts []uint64, why cq.Errno) {
	t.Helper()
	var es [4]cq.Entry
	for {
		n, err := cq.Read(r.app, es[:])
		for _, e := range es[:n] {
			contexts = append(contexts, e.Context)
		}
		if errors.Is(err, cq.ErrAvail) {
			var x cq.ErrorEntry
			must(t, r.app.ReadErr(&x))
			contexts, why = append(contexts, x.Context), x.Err
		} else if n == 0 {
			return contexts, why
		}
	}
}

// sendable says in other words than the engine whether a command asks for a datagram that may be
// sent, and which.
func (r *fuzzRig) sendable(e *cq.Entry) (payload []byte, to netip.AddrPort, ok bool) {
	var ip [16]byte
	binary.LittleEndian.PutUint64(ip[:], e.Data)
	binary.LittleEndian.PutUint64(ip[8:], e.Tag)
	to = netip.AddrPortFrom(netip.AddrFrom16(ip).Unmap(), uint16(e.Src.Addr()))
	most := map[netip.Addr]uint64{fuzzFour: 1500 - 20 - 8, fuzzSix: 1500 - 40 - 8}[to.Addr()]
	const all = fuzzSlots * fuzzSlotBytes
	at := e.Buf.Offset()
	ok = uint16(e.Src.Addr()>>16) == fuzzPort && to.Port() != 0 && most > 0 && e.Len <= most &&
		e.Buf.Region() == r.a.payload.ID() && at < all && e.Len <= all-at
	if ok {
		payload = r.a.payload.Bytes()[at : at+e.Len]
	}
	return payload, to, ok
}

// FuzzSubmission posts one command of any content. It is answered once, unless it is a return or
// a send without a completion; a packet leaves exactly if the application may send it, with the
// bytes that the command names; a frame comes back exactly if it was out under that generation.
func FuzzSubmission(f *testing.F) {
	rigs := [...]*fuzzRig{newFuzzRig(f, false), newFuzzRig(f, true)}
	four, six := netip.AddrPortFrom(fuzzFour, 53), netip.AddrPortFrom(fuzzSix, 53)
	for i, c := range []cq.Entry{sendCommand(1, sendFlags, 0, 100, fuzzPort, four),
		sendCommand(2, injectFlags, 4096, 1452, fuzzPort, six),
		sendCommand(3, sendFlags, 14*1024, 1473, fuzzPort, four),
		sendCommand(4, sendFlags, fuzzSlots*fuzzSlotBytes-8, 9, fuzzPort, four),
		sendCommand(5, sendFlags, 1<<47, 0, fuzzPort, six),
		sendCommand(6, sendFlags, 0, 10, 5002, four), {},
		sendCommand(7, injectFlags, 0, 10, fuzzPort, netip.AddrPortFrom(fuzzPending, 53)),
		{Flags: returnFlags, Data: fuzzGeneration}, {Flags: returnFlags, Data: fuzzGeneration + 1<<32},
		{Flags: returnFlags, Buf: 1<<47 | 4096, Data: fuzzGeneration}, {Flags: ^cq.Flags(0)}} {
		for region := range uint8(8) {
			f.Add(c.Context, uint64(c.Flags), c.Len, c.Buf.Offset(), c.Data, c.Tag, uint64(c.Src.Addr()),
				uint64(i), region)
		}
	}
	f.Fuzz(func(t *testing.T, context, flags, n, offset, data, tag, src, meta uint64, which uint8) {
		r := rigs[which/4%2]
		regions := [...]uint16{r.a.payload.ID(), r.a.umem.Region().ID(), 0, 0xffff}
		chunk, generation := r.out(t)
		if cq.Flags(flags) == returnFlags { // so that one input names the frame that is out of either
			offset, data = offset+chunk, data-fuzzGeneration+generation
		}
		offset &= 1<<48 - 1
		r.sent = r.sent[:0]
		e := cq.Entry{Context: context, Flags: cq.Flags(flags), Len: n,
			Buf: shm.MakeRef(regions[which%4], offset), Data: data, Tag: tag,
			Src: cq.From(cq.Addr(src)), Meta: cq.Meta(meta)}
		must(t, r.asker.Post(&e))
		r.turn(t)
		contexts, why := r.answers(t)
		payload, to, may := r.sendable(&e)
		asked := e.Flags == sendFlags || e.Flags == injectFlags
		wantAnswers := 1
		if e.Flags == returnFlags || e.Flags == injectFlags && may {
			wantAnswers = 0
		}
		if len(contexts) != wantAnswers || wantAnswers == 1 && contexts[0] != context {
			t.Fatalf("answers %v to %+v", contexts, e)
		}
		if (why == 0) != (wantAnswers == 0 || asked && may) {
			t.Fatalf("error %v for %+v", why, e)
		}
		if sent := len(r.sent) == 1; sent != (asked && may) || len(r.sent) > 1 {
			t.Fatalf("%d packets, expected: %v", len(r.sent), asked && may)
		}
		if asked && may {
			wantPacket(t, r.sent[0], payload, to)
		}
		back := e.Flags == returnFlags && which%4 == 1 && data == generation &&
			offset-chunk < uint64(r.a.geo.ChunkBytes)
		if r.isOut() == back {
			t.Fatalf("the frame is out: %v, returned: %v", r.isOut(), back)
		}
	})
}

func wantPacket(t *testing.T, b, payload []byte, to netip.AddrPort) {
	t.Helper()
	var d packet.Datagram
	must(t, packet.Parse(b, &d))
	if d.Dst != to || d.Src.Port() != fuzzPort ||
		!bytes.Equal(b[d.PayloadOff:d.PayloadOff+d.PayloadLen], payload) {
		t.Fatalf("%v to %v with %d bytes, want %d to %v", d.Src, d.Dst, d.PayloadLen, len(payload), to)
	}
}

// flipTB is what a rig needs of a test, in a child that is none.
type flipTB struct {
	testing.TB
	undo []func()
}

func (t *flipTB) Helper()                  {}
func (t *flipTB) Context() context.Context { return context.Background() }
func (t *flipTB) Cleanup(f func())         { t.undo = append(t.undo, f) }
func (t *flipTB) Fatal(args ...any)        { panic(fmt.Sprint(args...)) }
func (t *flipTB) Skipf(format string, args ...any) {
	t.Fatalf(format, args...)
}
func (t *flipTB) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
func (t *flipTB) end() {
	for _, f := range slices.Backward(t.undo) {
		f()
	}
}

// Sections of a lane, as package cq lays them out.
const (
	flipLaneWords shm.SectionKind = 0x103
	flipLaneSlots shm.SectionKind = 0x104
)

// flipCommand is a device process whose application is attacked while a command of its is carried
// out. What the application may write is its lane.
type flipCommand struct {
	command func(r *fuzzRig) cq.Entry

	t     *flipTB
	r     *fuzzRig
	lane  *flip.Object
	entry cq.Entry
	err   error
}

// FlipScenes are the calls of a device process that are attacked by TestFlip.
func FlipScenes() map[string]flip.Scene {
	scenes := map[string]flip.Scene{}
	to := netip.AddrPortFrom(fuzzFour, 53)
	at := func(r *fuzzRig, e cq.Entry, region uint16) cq.Entry {
		e.Buf = shm.MakeRef(region, e.Buf.Offset())
		return e
	}
	for name, command := range map[string]func(r *fuzzRig) cq.Entry{
		"send": func(r *fuzzRig) cq.Entry {
			return at(r, sendCommand(1, sendFlags, 0, 100, fuzzPort, to), r.a.payload.ID())
		},
		"inject": func(r *fuzzRig) cq.Entry {
			return at(r, sendCommand(1, injectFlags, fuzzSlotBytes, 1472, fuzzPort, to),
				r.a.payload.ID())
		},
		"return": func(r *fuzzRig) cq.Entry {
			return cq.Entry{Context: 1, Flags: returnFlags, Data: fuzzGeneration,
				Buf: shm.MakeRef(r.a.umem.Region().ID(), 0)}
		},
	} {
		s := &flipCommand{command: command}
		scenes[name] = flip.Scene{Prepare: s.prepare, Call: s.call, Result: s.result}
	}
	return scenes
}

func (s *flipCommand) renew() {
	if s.t != nil {
		s.t.end()
	}
	s.t = &flipTB{}
	dir := shmtest.Got(shm.OpenDir("")).Or(s.t)
	defer dir.Close()
	for _, name := range []string{"app", "commands"} { // of the rig before
		_ = os.RemoveAll(dir.Path() + "/" + name)
	}
	s.lane = shmtest.Got(flip.AddedWith("/commands/", flipLaneSlots, func() (int, error) {
		s.r = newFuzzRig(s.t, false)
		must(s.t, s.r.asker.Post(&cq.Entry{Flags: returnFlags}))
		s.r.turn(s.t)
		return s.r.asker.Lane(), nil
	})).Or(s.t)
}

func (s *flipCommand) prepare() []flip.Word {
	if s.r == nil || s.r.a.dead != nil {
		s.renew()
	}
	a := s.r.a
	if !a.pool.loaned[0] {
		if frame, ok := a.pool.loan(fuzzGeneration); frame != 0 || !ok {
			s.t.Fatal("frame 0 is not free")
		}
	}
	s.r.sent = s.r.sent[:0]
	s.r.answers(s.t)
	at := s.r.asker.Next() % uint64(s.r.asker.Stats().Size) * 64
	s.entry = s.command(s.r)
	must(s.t, s.r.asker.Post(&s.entry))
	lane := uint32(s.r.asker.Lane())
	words, err := s.lane.Words("lane", flipLaneWords, lane, 0, 8, 16, 256, 264, 272, 512)
	must(s.t, err)
	for i := range 3 {
		words[i].Index = true
	}
	more, err := s.lane.Words("slot", flipLaneSlots, lane, at, at+8, at+16, at+24, at+32, at+40, at+48,
		at+56)
	must(s.t, err)
	for i := range more {
		more[i].Name = fmt.Sprintf("slot+%d", 8*i)
	}
	s.err = nil
	return append(words, more...)
}

func (s *flipCommand) call() {
	s.r.en.now++
	s.r.en.takeCommands()
}

func (s *flipCommand) result() (o flip.Outcome) {
	defer func() {
		if r := recover(); r != nil {
			o.Broken = fmt.Sprint(r)
		}
	}()
	a := s.r.a
	if o.Poisoned = a.dead != nil; a.dead == nil {
		s.rest()
	}
	if a.dead != nil && !errors.Is(a.dead, cq.ErrCorrupt) {
		o.Broken = a.dead.Error()
		return o
	}
	contexts, why := s.r.answers(s.t)
	o.Shape = fmt.Sprintf("frame 0 is out: %v; %d answers, error %d; packets:", a.pool.loaned[0],
		len(contexts), why)
	for _, p := range s.r.sent {
		o.Shape += fmt.Sprintf(" %d bytes", len(p))
	}
	for _, c := range contexts {
		if c == s.entry.Context {
			c = 0
		}
		o.Data = append(o.Data, c)
	}
	return o
}

// rest has all sends end, unless the application is given up now: it has no connection to be hung
// up, so no round is made after that.
func (s *flipCommand) rest() {
	a := s.r.a
	for range 20 {
		s.r.en.now += parkedNs / 4
		if s.r.en.takeCommands(); a.dead != nil {
			return
		}
		shmtest.Got(s.r.en.Round(s.r.en.now)).Or(s.t)
	}
	if a.underWay != 0 || a.parked.count != 0 || s.r.en.sending != 0 ||
		len(a.pool.free)+a.pool.out != 32 {
		panic(fmt.Sprintf("%d sends under way, %d parked", a.underWay, a.parked.count))
	}
}
