package xdp

import "fmt"

// FrameState says who owns a frame.
type FrameState uint8

// The states of a frame. Their numbers of frames always add up to the number of frames.
const (
	// FrameFree frames belong to the device process and hold nothing.
	FrameFree FrameState = iota
	// FrameFill frames were given to the kernel to receive into.
	FrameFill
	// FrameReceived frames came back with a packet and were not handed on yet.
	FrameReceived
	// FrameLoaned frames are read by an application, which has to return them.
	FrameLoaned
	// FrameBuild frames are being written by the device process, to be sent.
	FrameBuild
	// FrameSend frames were given to the kernel to send.
	FrameSend
	// FrameQuarantine frames are those of which the kernel said something impossible. Nobody can
	// tell whether it still writes to them, so they are not used again.
	FrameQuarantine

	frameStates
)

var frameStateNames = [frameStates]string{
	"free", "fill", "received", "loaned", "build", "send", "quarantine",
}

func (s FrameState) String() string {
	if s < frameStates {
		return frameStateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// legalFrom holds, for each state, the set of states that a frame may come from.
var legalFrom = [frameStates]uint8{
	FrameFree: 1<<FrameFill | 1<<FrameReceived | 1<<FrameLoaned |
		1<<FrameBuild | 1<<FrameSend,
	FrameFill:     1 << FrameFree,
	FrameReceived: 1 << FrameFill,
	FrameLoaned:   1 << FrameReceived,
	FrameBuild:    1 << FrameFree,
	FrameSend:     1 << FrameBuild,
	FrameQuarantine: 1<<FrameFree | 1<<FrameFill | 1<<FrameReceived | 1<<FrameLoaned |
		1<<FrameBuild | 1<<FrameSend,
}

// FrameStats counts frames by state, and what was refused.
type FrameStats struct {
	Frames      uint64
	States      [frameStates]uint64 // indexed by FrameState
	Illegal     uint64              // transitions refused: the kernel or this package was wrong
	StaleReturn uint64              // returns refused: twice, of an old generation, or of no frame
}

// Sum adds the states up. It equals Frames at all times.
func (s FrameStats) Sum() (n uint64) {
	for _, v := range s.States {
		n += v
	}
	return n
}

// frameTable holds the state of every frame of a UMEM. It is private to the device process and used
// by one goroutine, so that no peer can make two owners of one frame.
//
// Frames below rxFrames are at home in the receive pool, the others in the send pool: a flood of
// received packets that nobody returns must not keep anybody from sending. Both pools are stacks,
// since the frame used last is the one that is still in the cache.
type frameTable struct {
	state      []FrameState
	generation []uint32 // of the last hand-out; a return has to name it
	rxFrames   uint32
	rxFree     []uint32
	txFree     []uint32
	counts     [frameStates]uint64
	illegal    uint64
	stale      uint64
}

func newFrameTable(frames, rxFrames uint32) *frameTable {
	t := &frameTable{
		state:      make([]FrameState, frames),
		generation: make([]uint32, frames),
		rxFrames:   rxFrames,
		rxFree:     make([]uint32, 0, rxFrames),
		txFree:     make([]uint32, 0, frames-rxFrames),
	}
	for i := frames; i > 0; i-- {
		t.push(i - 1)
	}
	t.counts[FrameFree] = uint64(frames)
	return t
}

func (t *frameTable) push(id uint32) {
	if id < t.rxFrames {
		t.rxFree = append(t.rxFree, id)
		return
	}
	t.txFree = append(t.txFree, id)
}

// move is the only place where a state changes, so the sum cannot.
func (t *frameTable) move(id uint32, to FrameState) bool {
	if uint64(id) >= uint64(len(t.state)) {
		t.illegal++
		return false
	}
	from := t.state[id]
	if legalFrom[to]&(1<<from) == 0 {
		t.illegal++
		return false
	}
	t.state[id] = to
	t.counts[from]--
	t.counts[to]++
	if to == FrameFree {
		t.push(id)
	}
	return true
}

// pop takes a free frame. A frame that was quarantined while free still lies on the stack and is
// skipped here; it is pushed by a move to FrameFree only, so no frame lies there twice.
func (t *frameTable) pop(stack *[]uint32, to FrameState) (uint32, bool) {
	for n := len(*stack); n > 0; n = len(*stack) {
		id := (*stack)[n-1]
		*stack = (*stack)[:n-1]
		if t.state[id] == FrameFree {
			return id, t.move(id, to)
		}
	}
	return 0, false
}

func (t *frameTable) takeFill() (uint32, bool)  { return t.pop(&t.rxFree, FrameFill) }
func (t *frameTable) takeBuild() (uint32, bool) { return t.pop(&t.txFree, FrameBuild) }

// fromKernel moves a frame that the kernel gave back. If the kernel did not own it, the frame is
// quarantined: two parties may be using it.
func (t *frameTable) fromKernel(id uint32, owned, to FrameState) bool {
	if uint64(id) >= uint64(len(t.state)) {
		t.illegal++
		return false
	}
	if t.state[id] == owned {
		return t.move(id, to)
	}
	t.illegal++
	if t.state[id] != FrameQuarantine {
		t.move(id, FrameQuarantine)
	}
	return false
}

// own moves a frame that this process says it holds. If it does not, nothing changes.
func (t *frameTable) own(id uint32, held, to FrameState) bool {
	if uint64(id) >= uint64(len(t.state)) || t.state[id] != held {
		t.illegal++
		return false
	}
	return t.move(id, to)
}

// loan hands a received frame out under a generation.
func (t *frameTable) loan(id, generation uint32) bool {
	if !t.move(id, FrameLoaned) {
		return false
	}
	t.generation[id] = generation
	return true
}

// giveBack takes a loaned frame back if the generation is the one it was handed out under. The
// caller is another process: a wrong return is counted and changes nothing.
func (t *frameTable) giveBack(id, generation uint32) bool {
	if uint64(id) >= uint64(len(t.state)) || t.state[id] != FrameLoaned ||
		t.generation[id] != generation {
		t.stale++
		return false
	}
	return t.move(id, FrameFree)
}

// reclaim takes back every loan that was made before the one of this generation. Generations count
// up and wrap; no loan is as old as half of their range while receiving goes on at all.
func (t *frameTable) reclaim(before uint32) (n int) {
	for id, state := range t.state {
		if state == FrameLoaned && int32(before-t.generation[id]) > 0 {
			t.move(uint32(id), FrameFree)
			n++
		}
	}
	return n
}

func (t *frameTable) stats() FrameStats {
	return FrameStats{Frames: uint64(len(t.state)), States: t.counts, Illegal: t.illegal,
		StaleReturn: t.stale}
}
