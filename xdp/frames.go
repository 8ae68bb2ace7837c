package xdp

import (
	"math/bits"

	"github.com/shmring/shmring/internal/xskernel"
)

// frameState says who owns a frame; FrameStats says what each means.
type frameState uint8

const (
	frameFree frameState = iota
	frameFill
	frameReceived
	frameLoaned
	frameBuild
	frameSend
	// frameQuarantine is for those of which the kernel said something impossible. Nobody can tell
	// whether it still writes to them.
	frameQuarantine

	frameStates
)

// legalFrom holds, for each state, the set of states that a frame may come from.
var legalFrom = [frameStates]uint8{
	frameFree: 1<<frameFill | 1<<frameReceived | 1<<frameLoaned |
		1<<frameBuild | 1<<frameSend,
	frameFill:     1<<frameFree | 1<<frameReceived | 1<<frameLoaned,
	frameReceived: 1 << frameFill,
	frameLoaned:   1 << frameReceived,
	frameBuild:    1 << frameFree,
	frameSend:     1<<frameBuild | 1<<frameReceived | 1<<frameLoaned,
	frameQuarantine: 1<<frameFree | 1<<frameFill | 1<<frameReceived | 1<<frameLoaned |
		1<<frameBuild | 1<<frameSend,
}

// FrameStats counts frames by state, and what was refused.
type FrameStats struct {
	Frames     uint64
	Free       uint64 // belong to the process of the socket and hold nothing
	Fill       uint64 // given to the kernel to receive into, or wait for the Fill that does so
	Received   uint64 // came back with a packet and were not handed on yet
	Loaned     uint64 // read by an application, which has to return them
	Build      uint64 // being written by the process of the socket, to be sent
	Send       uint64 // given to the kernel to send
	Quarantine uint64 // not used again: the kernel may still write to them
	Illegal    uint64 // transitions refused: the kernel or this package was wrong
	// StaleReturn counts returns refused: twice, of an old generation, or of no frame.
	StaleReturn uint64
}

// Sum adds the states up. It equals Frames at all times.
func (s FrameStats) Sum() (n uint64) {
	return s.Free + s.Fill + s.Received + s.Loaned + s.Build + s.Send + s.Quarantine
}

// frameTable holds the state of every frame of a pool, which are the frames of a UMEM from number
// first on. It is private to the process that owns the sockets and used by one goroutine, so that
// no peer can make two owners of one frame.
//
// The first rxFrames of them are at home in the receive stack, the others in the send stack: a
// flood of received packets that nobody returns must not keep anybody from sending. They are stacks
// since the frame used last is the one that is still in the cache.
type frameTable struct {
	first    uint32
	state    []frameState
	loans    []loanMark
	rxFrames uint32
	rxFree   []uint32
	txFree   []uint32
	counts   [frameStates]uint64
	illegal  uint64
	stale    uint64
}

// loanMark says under which generation a frame was handed out last, and by which socket. A return
// has to name both.
type loanMark struct {
	generation uint32
	holder     uint16
}

func newFrameTable(first, frames, rxFrames uint32) *frameTable {
	t := &frameTable{
		first:    first,
		state:    make([]frameState, frames),
		loans:    make([]loanMark, frames),
		rxFrames: rxFrames,
		rxFree:   make([]uint32, 0, rxFrames),
		txFree:   make([]uint32, 0, frames-rxFrames),
	}
	for i := frames; i > 0; i-- {
		t.push(i - 1)
	}
	t.counts[frameFree] = uint64(frames)
	return t
}

// at returns the place of a frame in the table. It is false for a frame that is not of this pool.
func (t *frameTable) at(id uint32) (i uint32, ok bool) {
	i = id - t.first // wraps to something large for a frame before the first
	return i, uint64(i) < uint64(len(t.state))
}

// is reports whether a frame is of this pool and in a state.
func (t *frameTable) is(id uint32, s frameState) bool {
	i, ok := t.at(id)
	return ok && t.state[i] == s
}

func (t *frameTable) push(i uint32) {
	if i < t.rxFrames {
		t.rxFree = append(t.rxFree, i)
		return
	}
	t.txFree = append(t.txFree, i)
}

// set is the only place where a state changes, so the sum cannot. The caller knows that the frame
// is in state from, and that it may go to the other one from there.
func (t *frameTable) set(i uint32, from, to frameState) {
	t.state[i] = to
	t.counts[from]--
	t.counts[to]++
	if to == frameFree {
		t.push(i)
	}
}

// move changes a state if that is a legal step.
func (t *frameTable) move(id uint32, to frameState) bool {
	i, ok := t.at(id)
	if !ok {
		t.illegal++
		return false
	}
	from := t.state[i]
	if legalFrom[to]&(1<<from) == 0 {
		t.illegal++
		return false
	}
	t.set(i, from, to)
	return true
}

// moved accounts for frames whose state a batch changed without move. The batch has looked at the
// state that each one came from, and changed it to one that it may go to.
func (t *frameTable) moved(from, to frameState, n int) {
	t.counts[from] -= uint64(n)
	t.counts[to] += uint64(n)
}

// pop takes a free frame. A frame that was quarantined while free still lies on the stack and is
// skipped here; it is pushed by a move to frameFree only, so no frame lies there twice.
func (t *frameTable) pop(stack *[]uint32, to frameState) (uint32, bool) {
	for n := len(*stack); n > 0; n = len(*stack) {
		i := (*stack)[n-1]
		*stack = (*stack)[:n-1]
		if t.state[i] == frameFree {
			t.set(i, frameFree, to)
			return t.first + i, true
		}
	}
	return 0, false
}

// fromKernel moves a frame that the kernel gave back. If the kernel did not own it, the frame is
// quarantined: two parties may be using it. The step is one that legalFrom has.
func (t *frameTable) fromKernel(id uint32, owned, to frameState) bool {
	if i := id - t.first; uint64(i) < uint64(len(t.state)) && t.state[i] == owned {
		t.set(i, owned, to)
		return true
	}
	t.strange(id)
	return false
}

// strange is the rest of fromKernel, which should never happen.
func (t *frameTable) strange(id uint32) {
	t.illegal++
	if i, ok := t.at(id); ok && t.state[i] != frameQuarantine {
		t.move(id, frameQuarantine)
	}
}

// own moves a frame that this process says it holds. If it does not, nothing changes. The step is
// one that legalFrom has.
func (t *frameTable) own(id uint32, held, to frameState) bool {
	if i := id - t.first; uint64(i) < uint64(len(t.state)) && t.state[i] == held {
		t.set(i, held, to)
		return true
	}
	t.illegal++
	return false
}

// loan hands received frames out under a generation and those after it.
func (t *frameTable) loan(generation uint32, holder uint16, packets []Received) (n int) {
	for k := range packets {
		i := packets[k].Frame - t.first
		if uint64(i) >= uint64(len(t.state)) || t.state[i] != frameReceived {
			t.illegal++
			continue
		}
		t.state[i] = frameLoaned
		t.loans[i] = loanMark{generation + uint32(k), holder}
		n++
	}
	t.moved(frameReceived, frameLoaned, n)
	return n
}

// lent returns the place of a loaned frame if holder and generation are those that it was handed
// out under. The caller is another process: a wrong return is counted and changes nothing.
func (t *frameTable) lent(id, generation uint32, holder uint16) (i uint32, ok bool) {
	if !t.is(id, frameLoaned) || t.loans[id-t.first] != (loanMark{generation, holder}) {
		t.stale++
		return 0, false
	}
	return id - t.first, true
}

// end ends loans in chunks of a power of two bytes, up to the first one that is not the holder's,
// or of a frame that is not at home with the receivers, and returns how many.
func (t *frameTable) end(back []Returned, shift uint8, holder uint16, to frameState) (n int) {
	state, first := t.state[:t.rxFrames], uint64(t.first)
	loans := t.loans[:len(state)]
	for n < len(back) {
		i := back[n].Off>>(shift&63) - first
		if i >= uint64(len(state)) || state[i] != frameLoaned ||
			loans[i] != (loanMark{back[n].Generation, holder}) {
			break
		}
		state[i] = to
		n++
	}
	t.moved(frameLoaned, to, n)
	return n
}

// reclaim takes back every loan of a holder that was made before the one of this generation.
// Generations count up and wrap; no loan is as old as half of their range while receiving goes on
// at all.
func (t *frameTable) reclaim(before uint32, holder uint16) (n int) {
	for i, state := range t.state {
		if m := t.loans[i]; state == frameLoaned && m.holder == holder &&
			int32(before-m.generation) > 0 {
			t.move(t.first+uint32(i), frameFree)
			n++
		}
	}
	return n
}

func (t *frameTable) stats() FrameStats {
	n := &t.counts
	return FrameStats{Frames: uint64(len(t.state)), Free: n[frameFree], Fill: n[frameFill],
		Received: n[frameReceived], Loaned: n[frameLoaned], Build: n[frameBuild],
		Send: n[frameSend], Quarantine: n[frameQuarantine], Illegal: t.illegal,
		StaleReturn: t.stale}
}

// pool is what the sockets on one queue of a device have in common: some frames of a UMEM, the fill
// ring and the completion ring. One goroutine uses all sockets of a pool, since both rings have one
// producer and one consumer each.
//
// The kernel puts the completions of all sockets into the one ring. Each frame knows who sent it,
// so that whoever looks first sorts them.
type pool struct {
	mem      []byte
	chunk    uint64 // bytes, a power of two unless odd
	shift    uint8  // its exponent: a division takes longer than all the rest of a packet
	odd      bool   // chunks are unaligned: of any size, and addresses have an offset in their top
	headroom uint64 // of each chunk, in front of the kernel's own
	room     uint64 // for a packet, behind both
	start    uint64 // of the packet in the first frame

	frames  *frameTable
	fill    producer[uint64]
	comp    consumer[uint64]
	sends   []sending // by place in the table
	members []*core   // by number; nil once closed and told of all that they sent
	open    int       // members that are not closed
	shared  bool      // there is, or was, more than one member
	maps    [][]byte  // the two rings
}

// sending is what is known about a frame that was given to the kernel to send.
type sending struct {
	context uint64
	owner   uint16 // number of the member that posted it
	part    bool   // of a longer packet, and not its last frame
}

// nobody owns a frame whose sender was closed and has been told so.
const nobody = ^uint16(0)

func newPool(mem []byte, g Geometry, first, frames, sendFrames uint32) *pool {
	room := uint64(g.packetBytes())
	return &pool{
		mem: mem, chunk: uint64(g.ChunkBytes), headroom: uint64(g.HeadroomBytes), room: room,
		start: uint64(first+1)*uint64(g.ChunkBytes) - room,
		shift: uint8(bits.TrailingZeros32(g.ChunkBytes)), odd: g.Unaligned,
		frames: newFrameTable(first, frames, frames-sendFrames),
		sends:  make([]sending, frames),
		fill:   deadProducer[uint64](),
		comp:   deadConsumer[uint64](),
	}
}

// join makes c a member. It fails after as many as numbers can tell apart.
func (p *pool) join(c *core) bool {
	if len(p.members) >= int(nobody) {
		return false
	}
	c.pool, c.id = p, uint16(len(p.members))
	p.members = append(p.members, c)
	p.open++
	if len(p.members) < 2 {
		return true
	}
	p.shared = true
	for _, m := range p.members {
		if m != nil && m.routed == nil {
			m.routed = make([]Sent, 0, len(p.sends)) // as many as can ever wait
		}
	}
	return true
}

// leave ends a membership and reports whether it was the last one. Completions are still kept for
// the one that left, until it forfeits them.
func (p *pool) leave() bool {
	p.open--
	return p.open == 0
}

// frameOf returns the number of the frame that an address of the UMEM lies in. The number is no
// frame's if the address is outside.
func (p *pool) frameOf(addr uint64) uint32 {
	if addr >= uint64(len(p.mem)) {
		return ^uint32(0)
	}
	if p.odd {
		return uint32(addr / p.chunk)
	}
	return uint32(addr >> (p.shift & 63))
}

// place returns where in the UMEM the address of a received packet is. With unaligned chunks that
// is where the chunk begins, as it was given to the kernel, and how far from there the packet lies
// in the bits from OffsetShift on.
func (p *pool) place(addr uint64) uint64 {
	if p.odd {
		return addr&(1<<xskernel.OffsetShift-1) + addr>>xskernel.OffsetShift
	}
	return addr
}

// base returns the offset of a frame's chunk.
func (p *pool) base(frame uint32) uint64 { return uint64(frame) * p.chunk }

// completion looks up an address from the completion ring: the packet that it ends, if it ends one,
// and the member that sent it, if it still is one.
func (p *pool) completion(addr uint64) (m *core, s Sent, ok bool) {
	id := p.frameOf(addr)
	if !p.frames.fromKernel(id, frameSend, frameFree) {
		return nil, Sent{}, false
	}
	e := p.sends[id-p.frames.first]
	if e.owner == nobody {
		return nil, Sent{}, true
	}
	m = p.members[e.owner]
	if e.part {
		m = nil
	}
	return m, Sent{Frame: id, Context: e.context}, true
}

// FrameStats counts the frames by state: all frames of the sockets that share them.
func (p *pool) FrameStats() FrameStats { return p.frames.stats() }
