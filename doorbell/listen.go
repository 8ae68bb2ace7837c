package doorbell

import (
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/spin"
)

// A producer of another user cannot write to the reader's hints. It counts its rings in a word of
// its own lane, rung, and the reader listens there: H1 turns every count that has changed into the
// ready bit that the producer could not set, and R8 sleeps on these words beside the queue's own.
type listened struct {
	bit   int
	word  *atomic.Uint32 // mapped read-only: the producer writes it
	heard uint32         // what it held when it was last turned into a mark
	alarms
}

// alarms find out a producer that rings though it has published nothing: soon nobody listens to it
// for a while, so that it cannot keep the reader busy. Its own entries are what comes late then.
type alarms struct {
	tail     uint64 // as far as it had come at a ring
	mistaken int    // rings in a row that stood for nothing
	quietNs  int64  // until when nobody listens; 0 is not at all
}

const (
	// falseAlarms are believed before the first pause: attaching, closing, overrunning and dying
	// ring without an entry.
	falseAlarms  = 8
	minQuietNs   = 1_000_000
	maxQuietness = 7 // doublings: 128 ms
)

// note notes a ring that found the lane's tail there. A tail never goes back: one that swings
// between two places says no more than one that stands.
func (a *alarms) note(tail uint64) {
	a.quietNs = 0
	if int64(tail-a.tail) > 0 {
		a.tail, a.mistaken = tail, 0
		return
	}
	if a.mistaken++; a.mistaken > falseAlarms {
		a.quietNs = spin.Now() + minQuietNs<<min(a.mistaken-falseAlarms-1, maxQuietness)
	}
}

// quiet reports that nobody listens at present. The clock is asked about offenders only.
func (a *alarms) quiet() bool { return a.quietNs != 0 && spin.Now() < a.quietNs }

// listen begins with what the word holds: whoever adds a lane looks at it afterwards.
func (b *Bell) listen(bit int, word *atomic.Uint32) {
	b.unlisten(bit)
	if word != nil {
		l := listened{bit: bit, word: word, heard: word.Load()}
		_, l.tail = b.lanes[bit].Source.Level()
		b.listened = append(b.listened, l)
	}
	if n := len(b.listened) + 1; cap(b.sleepOn) < n {
		b.sleepOn = make([]futex.Watched, 0, 2*n)
	}
}

func (b *Bell) unlisten(bit int) {
	for i := range b.listened {
		if b.listened[i].bit == bit {
			b.listened = append(b.listened[:i], b.listened[i+1:]...)
			return
		}
	}
}

// hear is H1. The load pairs with the producer's addition in Q3, before which its tail is stored.
func (b *Bell) hear() {
	for i := range b.listened {
		l := &b.listened[i]
		v := l.word.Load()
		if v == l.heard || l.quiet() {
			continue
		}
		l.heard = v
		_, tail := b.lanes[l.bit].Source.Level()
		l.note(tail)
		crash.At(crash.OthersHeard)
		mark(b.hints.ready, l.bit)
	}
}

// tailOf returns how far a lane that is known has come.
func (b *Bell) tailOf(bit int) uint64 {
	if !b.Knows(bit) {
		return 0
	}
	_, tail := b.lanes[bit].Source.Level()
	return tail
}

// unheard reports whether hear would find anything.
func (b *Bell) unheard() bool {
	for i := range b.listened {
		if l := &b.listened[i]; l.word.Load() != l.heard && !l.quiet() {
			return true
		}
	}
	return false
}

// listensToParked reports whether a lane can have entries that no ready bit tells of.
func (b *Bell) listensToParked() bool {
	for i := range b.listened {
		if !b.hot.has(b.listened[i].bit) {
			return true
		}
	}
	return false
}

// doze is R8. The reader of a queue that is not shared sleeps on its lanes' words itself; in a
// shared one Forward rings the queue's own word for them.
func (b *Bell) doze(e uint32, deadlineNs int64) {
	if b.shared || len(b.listened) == 0 { // in this order: others may change the list of a shared one
		futex.Wait(b.hints.epoch, e, deadlineNs)
		return
	}
	words := append(b.sleepOn[:0], futex.Watched{Value: uint64(e), Word: b.hints.epoch})
	for i := range b.listened {
		l := &b.listened[i]
		if l.quiet() {
			if deadlineNs == 0 || l.quietNs < deadlineNs {
				deadlineNs = l.quietNs
			}
			continue
		}
		words = append(words, futex.Watched{Value: uint64(l.heard), Word: l.word})
	}
	_ = futex.WaitMany(words, deadlineNs)
}

// ringFor rings for a producer of another user: P3 to P7. It may be called from anywhere.
func (b *Bell) ringFor(bit int) {
	mark(b.hints.ready, bit)
	crash.At(crash.RelayMarked)
	w := b.arm.Word.Load()
	if w&armFlags == 0 {
		return
	}
	ringQueue(w, b.hints, func(uint64) int {
		if b.face == nil {
			return -1
		}
		return b.face.EventFD()
	})
	if s := b.seat.Load(); s != nil && w&(armDom|armNotify) != 0 {
		s.ringer.ring()
	}
}
