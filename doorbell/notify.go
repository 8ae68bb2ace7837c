package doorbell

import "github.com/shmring/shmring/internal/crash"

// What a completion channel is armed for. A later arming before the event can only ask for more.
const (
	NotifyNone      = iota
	NotifySolicited // entries whose poster asked for an event, and errors
	NotifyAny
)

func notifyOf(armed uint64) int {
	return min(int(armed&armNotify>>armNotifyShift), NotifyAny)
}

// notes say since when a channel waits: which entries came after its arming. They are under the
// lock of the queue's bell.
type notes struct {
	base  []uint64 // index at the arming, of the lanes in the set below
	lanes bitset
}

func (n *notes) note(bit int, at uint64) {
	n.base[bit] = at
	n.lanes.set(bit)
}

// forget is harmless on nil.
func (n *notes) forget(bit int) {
	if n != nil {
		n.lanes.clear(bit)
	}
}

// joinChannel makes the lock real, for good: the goroutines that wait on a channel look at the
// queue beside the one that reads it.
func (b *Bell) joinChannel() {
	if !b.shared {
		b.shared = true
	}
	b.Lock()
	b.notes = &notes{base: make([]uint64, len(b.lanes)), lanes: newBitset(len(b.lanes))}
	b.Unlock()
}

func (b *Bell) leaveChannel() {
	b.Lock()
	b.notify(NotifyNone)
	b.notes = nil
	b.Unlock()
}

// due tells whether the arming has its event. Entries are compared with the index at the arming,
// never with what was read: one that was polled before the event was fetched still has it. The
// index of solicited entries is not compared with the tail: the producer may have raised it for a
// batch that it publishes next, and then it hides the one before, whose event is due already.
func (b *Bell) due() (solicited, due bool) {
	mode := notifyOf(b.armed())
	if mode == NotifyNone || b.notes == nil {
		return false, false
	}
	for bit := b.notes.lanes.next(0); bit >= 0; bit = b.notes.lanes.next(bit + 1) {
		src := b.lanes[bit].Source
		if _, tail := src.Level(); tail > b.notes.base[bit] {
			due = true
			solicited = solicited || src.Solicited() > b.notes.base[bit]
		}
	}
	return solicited, due && (solicited || mode == NotifyAny)
}

// fire ends the arming if its event is due, and returns it: once per arming, for the caller alone.
func (b *Bell) fire() (e ChannelEvent, due bool) {
	e.Mode = notifyOf(b.armed())
	if e.Solicited, due = b.due(); due {
		b.notify(NotifyNone)
		crash.At(crash.NotifyFired)
	}
	return e, due
}

// notify stores what the channel waits for, and ends or begins the notes with it.
func (b *Bell) notify(mode int) {
	b.alter(armNotify, uint64(mode)<<armNotifyShift)
	if mode == NotifyNone && b.notes != nil {
		clear(b.notes.lanes)
	}
}

// rebase is N4: what was published so far is the reader's, who drains after the arming. A lane that
// is no candidate is parked and empty, and is noted when it is marked.
func (b *Bell) rebase() {
	clear(b.notes.lanes)
	for bit := b.cand.next(0); bit >= 0; bit = b.cand.next(bit + 1) {
		_, tail := b.lanes[bit].Source.Level()
		b.notes.note(bit, tail)
	}
}
