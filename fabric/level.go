package fabric

import (
	"bytes"
	"math/bits"
	"slices"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/ring"
)

// asks are the sends to one peer that went at once and complete when the receiver has matched them:
// at most 64, each of which has a bit of one word in the row. The receiver changes the bit, in
// whatever order it matches. What finds no bit goes by its header alone, whose bytes are asked for
// by a match.
//
// What is to last asks likewise. If the file does not take it no bit changes, and a record says so.
type asks struct {
	open  uint64 // bits of sends that have not completed
	heard uint64 // the word, when it was looked at last
	sends []sendOp
}

const awaited = cq.FlagMatchComplete | cq.FlagCommitComplete

// full reports whether a send needs a bit, and there is none.
func (a *asks) full(op *sendOp) bool {
	return op.flags&awaited != 0 && a.open == ^uint64(0)
}

// begin takes a bit for a send, and returns what its slot says of that.
func (a *asks) begin(op *sendOp) (flag uint64, bit uint16) {
	if op.flags&awaited == 0 {
		return 0, 0
	}
	if a.sends == nil {
		a.sends = make([]sendOp, kind.FabricMostAsks)
	}
	i := bits.TrailingZeros64(^a.open)
	a.open |= 1 << i
	a.sends[i] = *op
	return kind.FabricAsks, uint16(i)
}

// takeMatched completes what was matched. Fewer than none: what nobody asks about was.
func (l *outLane) takeMatched() (work int) {
	now := l.row.Matched.Load()
	done := now ^ l.asks.heard
	if done&^l.asks.open != 0 {
		return -1
	}
	l.asks.heard = now
	l.asks.open &^= done
	for ; done != 0; done &= done - 1 {
		l.p.e.endSend(&l.asks.sends[bits.TrailingZeros64(done)], 0)
		work++
	}
	return work
}

// unwritten fails what the file did not take. It reports false if that was not asked for.
func (l *outLane) unwritten(bit, generation uint16) bool {
	a := &l.asks
	if generation != 0 || bit >= kind.FabricMostAsks || a.open>>bit&1 == 0 ||
		a.sends[bit].flags&cq.FlagCommitComplete == 0 {
		return false
	}
	a.open &^= 1 << bit
	l.p.e.endSend(&a.sends[bit], errIO)
	return true
}

// endAsks fails what was not matched.
func (l *outLane) endAsks(num cq.Errno) {
	for left := l.asks.open; left != 0; left &= left - 1 {
		l.p.e.endSend(&l.asks.sends[bits.TrailingZeros64(left)], num)
	}
	l.asks = asks{}
}

// answers are what a receiver has to say to asks.
type answers struct {
	word  uint64
	asked bool // ever
}

// answer notes that a message has its receive, or is dropped.
func (l *inLane) answer(m *arrival) {
	if m.asks {
		l.answers.word ^= 1 << m.op
		l.answers.asked = true
	}
}

// tellMatched publishes the word, after the head of what it says.
func (l *inLane) tellMatched() {
	if l.answers.asked {
		ring.StoreRelease(&l.row.Matched, l.answers.word)
		crash.At(crash.FabricMatched)
	}
}

// later are sends that wait behind a fence, or for a header to be alone no more, in their order.
// They are accepted, and have their room in the queue.
type later []deferred

type deferred struct {
	sendOp
	payload []byte
}

// takesLater reports whether one more can wait. Those that have room in the queue are bounded by
// that.
func (e *Endpoint) takesLater(q later, op *sendOp) bool {
	return len(q) < kind.FabricMostOps || e.tx != nil && e.tx.Holds(op.flags)
}

// fenced reports whether a fence is among them.
func (q later) fenced() bool {
	return slices.ContainsFunc(q, func(d deferred) bool { return d.flags&cq.FlagFence != 0 })
}

func (q *later) add(e *Endpoint, payload []byte, op *sendOp) {
	d := deferred{*op, payload}
	if op.copied() {
		d.payload = bytes.Clone(payload)
	}
	if x, _ := e.pool.holds(payload, op); x != nil {
		d.hold(x)
	}
	*q = append(*q, d)
}

// next takes the first out, if all that its fence is for has come about. The rest of the queue is
// that of nobody meanwhile: sends may add to it.
func (q *later) next(may func(op *sendOp) bool) (d deferred, ok bool) {
	if len(*q) == 0 || !may(&(*q)[0].sendOp) {
		return d, false
	}
	d = (*q)[0]
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	return d, true
}

func (q *later) fail(e *Endpoint, num cq.Errno) {
	for i := range *q {
		e.endSend(&(*q)[i].sendOp, num)
	}
	*q = nil
}

// resume sends what waits, as far as it may and there is room.
func (l *outLane) resume() {
	for l.hasSlot() && !l.full() {
		d, ok := l.later.next(l.behind)
		if !ok {
			return
		}
		crash.At(crash.FabricFenced)
		l.put(d.payload, &d.sendOp)
	}
}

// behind reports whether nothing keeps a send back: all before a fence have completed, and have
// their receives if it is to say so. That is what the grants say which are no more than a window.
func (l *outLane) behind(op *sendOp) bool {
	return op.flags&cq.FlagFence == 0 ||
		l.seen == l.sent && len(l.free) == len(l.pushes) && l.asks.open == 0 &&
			(op.flags&cq.FlagMatchComplete == 0 || l.granted >= l.p.window+l.bytes)
}
