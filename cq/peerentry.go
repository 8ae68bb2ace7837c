package cq

import (
	"encoding/binary"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// PeerRole says what a process was to a queue or another object.
type PeerRole uint32

// The parties of a queue, a counter and an address vector.
const (
	PeerWriter PeerRole = iota + 1
	PeerReader
	PeerUser  // has a counter open
	PeerOwner // of an address vector
)

// String returns "writer", "reader", "user" or "owner", or the number.
func (r PeerRole) String() string {
	switch r {
	case PeerWriter:
		return "writer"
	case PeerReader:
		return "reader"
	case PeerUser:
		return "user"
	case PeerOwner:
		return "owner"
	}
	return fmt.Sprintf("role %d", uint32(r))
}

// PeerEntry is the payload of EventPeerDeath and EventPeerNew: who it is about.
type PeerEntry struct {
	Role PeerRole
	// Lane is that of the writer that died, or the one of the writer that is told of its reader; of
	// a counter it is the seat.
	Lane int
	// PID, PIDNS and StartTicks are the process as it gave itself when it came, in its own PID
	// namespace; 0 is not known. With CrossUser PID is what our kernel says, and the others are 0.
	PID               int
	PIDNS, StartTicks uint64
	// Object and Generation are the writer's lane, or the reader's object, and which of its owners
	// the process was. A counter has no owners: there Generation is a number that was drawn for this
	// handle.
	Object     shm.UUID
	Generation uint64
	// First and End are what was left. Of a writer: its entries have the indices from First to End-1
	// in the lane, of which the reader may have read any number by now; both are the same if it
	// published none, or if four others have had the lane since. Of a reader: from First to End-1 are
	// the entries of the writer that is told which it had not released.
	First, End uint64
	// Again says that an earlier reader of the queue may have reported this death to the same event
	// queue: it died while it did.
	Again bool
	// More counts further deaths that have no event of their own: they came to light while the event
	// queue was full for so long, or several died in one lane or seat between two looks, of whom not
	// all are remembered.
	More uint64
}

const (
	peerEntryBytes = 88
	peerAgain      = 1 << 0
)

// AppendTo appends the entry to b as a payload.
func (p *PeerEntry) AppendTo(b []byte) []byte {
	le := binary.LittleEndian
	flags := uint64(0)
	if p.Again {
		flags |= peerAgain
	}
	b = le.AppendUint32(b, uint32(p.Role))
	b = le.AppendUint32(b, uint32(p.Lane))
	b = le.AppendUint64(b, flags)
	b = le.AppendUint64(b, uint64(p.PID))
	b = le.AppendUint64(b, p.PIDNS)
	b = le.AppendUint64(b, p.StartTicks)
	b = append(b, p.Object[:]...)
	for _, v := range [...]uint64{p.Generation, p.First, p.End, p.More} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// ParsePeerEntry takes the payload of an EventPeerDeath or EventPeerNew of a queue apart. One that
// is too short, as that of an event queue is whose DataMaxBytes are fewer than 88, is ErrCorrupt.
func ParsePeerEntry(payload []byte) (PeerEntry, error) {
	if len(payload) < peerEntryBytes {
		return PeerEntry{}, kind.Refuse("parse", "peer event", "payload length", len(payload),
			fmt.Sprintf("%d or more", peerEntryBytes), ErrCorrupt)
	}
	le := binary.LittleEndian
	word := func(at int) uint64 { return le.Uint64(payload[at:]) }
	return PeerEntry{Role: PeerRole(le.Uint32(payload)), Lane: int(le.Uint32(payload[4:])),
		Again: word(8)&peerAgain != 0, PID: int(word(16)), PIDNS: word(24), StartTicks: word(32),
		Object: shm.UUID(payload[40:56]), Generation: word(56), First: word(64), End: word(72),
		More: word(80)}, nil
}
