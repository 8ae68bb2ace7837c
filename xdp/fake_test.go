package xdp

import (
	"math/rand/v2"
	"sync/atomic"
)

// fakeRing is the memory of one ring, seen from the kernel's side.
type fakeRing[E uint64 | Desc] struct {
	prodWord, consWord, flagsWord atomic.Uint32
	slots                         []E
}

func newFakeRing[E uint64 | Desc](entries int, start uint32) *fakeRing[E] {
	r := &fakeRing[E]{slots: make([]E, entries)}
	r.prodWord.Store(start)
	r.consWord.Store(start)
	return r
}

func (r *fakeRing[E]) words() ringWords {
	return ringWords{prod: &r.prodWord, cons: &r.consWord, flags: &r.flagsWord}
}

func (r *fakeRing[E]) mask() uint32 { return uint32(len(r.slots)) - 1 }

func (r *fakeRing[E]) pop() (e E, ok bool) {
	cons := r.consWord.Load()
	if r.prodWord.Load() == cons {
		return e, false
	}
	e = r.slots[cons&r.mask()]
	r.consWord.Store(cons + 1)
	return e, true
}

func (r *fakeRing[E]) push(e E) bool {
	prod := r.prodWord.Load()
	if prod-r.consWord.Load() > r.mask() {
		return false
	}
	r.slots[prod&r.mask()] = e
	r.prodWord.Store(prod + 1)
	return true
}

// fakeKernel is the other side of four rings over ordinary memory. It keeps the frames that it
// owns, as the kernel does, and can be told to lie.
type fakeKernel struct {
	fill, comp *fakeRing[uint64]
	rx, tx     *fakeRing[Desc]
	mem        []byte
	headroom   uint64
	sending    []Desc // taken from tx
}

// fakeConfig sizes a fake device. Zero values give 32 frames of 2048 bytes, half of them to send,
// and rings of 16.
type fakeConfig struct {
	frames, rxFrames, entries int
	start                     uint32 // of all indices
}

func newFake(c fakeConfig) (*core, *fakeKernel) {
	if c.frames == 0 {
		c.frames = 32
	}
	if c.rxFrames == 0 {
		c.rxFrames = c.frames / 2
	}
	if c.entries == 0 {
		c.entries = 16
	}
	k := &fakeKernel{
		fill:     newFakeRing[uint64](c.entries, c.start),
		comp:     newFakeRing[uint64](c.entries, c.start),
		rx:       newFakeRing[Desc](c.entries, c.start),
		tx:       newFakeRing[Desc](c.entries, c.start),
		mem:      make([]byte, c.frames*2048),
		headroom: RecordBytes,
	}
	return &core{
		mem: k.mem, chunk: 2048, headroom: k.headroom, maxPacket: 1518, mtu: 1500,
		frames:  newFrameTable(uint32(c.frames), uint32(c.rxFrames)),
		fill:    newProducer(k.fill.words(), k.fill.slots),
		rx:      newConsumer(k.rx.words(), k.rx.slots),
		tx:      newProducer(k.tx.words(), k.tx.slots),
		comp:    newConsumer(k.comp.words(), k.comp.slots),
		context: make([]uint64, c.frames),
	}, k
}

// deliver receives one packet, as a driver does: a frame from the fill ring, the packet behind both
// headrooms, a descriptor. It reports whether there was a frame and room.
func (k *fakeKernel) deliver(packet []byte) bool {
	if k.rx.prodWord.Load()-k.rx.consWord.Load() > k.rx.mask() {
		return false
	}
	addr, ok := k.fill.pop()
	if !ok {
		return false
	}
	at := addr + k.headroom + kernelHeadroomBytes
	copy(k.mem[at:], packet)
	return k.rx.push(Desc{Addr: at, Len: uint32(len(packet))})
}

// begin takes one packet to be sent.
func (k *fakeKernel) begin() bool {
	d, ok := k.tx.pop()
	if ok {
		k.sending = append(k.sending, d)
	}
	return ok
}

// finish completes one of the packets begun, any of them.
func (k *fakeKernel) finish(pick int) bool {
	if len(k.sending) == 0 {
		return false
	}
	pick %= len(k.sending)
	if !k.comp.push(k.sending[pick].Addr) {
		return false
	}
	k.sending = append(k.sending[:pick], k.sending[pick+1:]...)
	return true
}

// lie says something that a kernel must not.
func (k *fakeKernel) lie(r *rand.Rand) {
	addr := r.Uint64N(uint64(len(k.mem)) + 4096)
	if r.IntN(8) == 0 {
		addr = r.Uint64()
	}
	switch r.IntN(3) {
	case 0:
		k.rx.push(Desc{Addr: addr, Len: r.Uint32N(4096), Options: r.Uint32N(2)})
	case 1:
		k.comp.push(addr)
	case 2:
		k.rx.push(Desc{Addr: addr &^ 2047, Len: r.Uint32()})
	}
}
