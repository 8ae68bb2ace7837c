package cq

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// EventKind says what happened. Numbers below 1<<31 are libfabric's (rdma/fi_eq.h).
type EventKind uint32

// The events of libfabric. What an [Event] carries beside FID, Context and Data is said with each.
const (
	EventNotify       EventKind = iota // asynchronous news about the object; nothing
	EventConnReq                       // somebody wants to connect to a passive endpoint; a [CMEntry]
	EventConnected                     // an endpoint is connected; a [CMEntry], with data if active
	EventShutdown                      // the peer of the endpoint disconnected; a [CMEntry]
	EventMRComplete                    // a memory region was registered; nothing
	EventAVComplete                    // addresses were inserted, Data of them; nothing
	EventJoinComplete                  // a multicast group was joined; nothing
)

// Events of this library, and of applications: from EventUser on every number is free.
const (
	// EventPeerDeath: a process on the other side of the object is proved dead; a [PeerEntry], or
	// nothing, for objects that stand for one process
	EventPeerDeath EventKind = 1<<31 + iota
	EventPeerNew             // another process took its place; a [PeerEntry]
	EventUser      EventKind = 1<<31 + 1<<16
)

// Events of device endpoints. They are about the endpoint.
const (
	// EventStarved: all frames are lent and none is left to receive into; Data of them.
	EventStarved        EventKind = 1<<31 + 0x100 + iota
	EventLinkUp                   // the interface is up, with a carrier; nothing
	EventLinkDown                 // it is down, or has no carrier; nothing
	EventMTU                      // Data is the interface's MTU in bytes
	EventMAC                      // the payload is the interface's hardware address
	EventAddressAdded             // the payload is an IP address of it, Data the prefix length
	EventAddressRemoved           // likewise
	EventProgram                  // Data is the id of the XDP program that is there now, or 0
	EventQueues                   // Data is receive queues in use << 32 | transmit queues
)

var deviceNames = [...]string{"frames starved", "link up", "link down", "MTU changed",
	"hardware address changed", "address added", "address removed", "XDP program changed",
	"queue count changed"}

var eventNames = []string{"notify", "connection request", "connected", "shutdown",
	"memory registered", "addresses inserted", "joined"}

// String returns the kind in words, or its number.
func (k EventKind) String() string {
	switch {
	case k >= EventUser:
		return text.Name(k-EventUser, "user event")
	case k >= EventStarved && int(k-EventStarved) < len(deviceNames):
		return deviceNames[k-EventStarved]
	case k == EventPeerDeath:
		return "peer death"
	case k == EventPeerNew:
		return "peer replaced"
	}
	return text.Name(k, "event", eventNames...)
}

// EventHeaderBytes is what every event takes of a read's count before its payload: object, context
// and data (struct fi_eq_entry).
const EventHeaderBytes = 24

// EventErrorBytes is what reading or writing an error event counts (struct fi_eq_err_entry).
const EventErrorBytes = 48

// Event is what an event queue reports (struct fi_eq_entry, and fi_eq_cm_entry with its payload).
type Event struct {
	Event EventKind
	FID   FID // the object that it is about
	// Context is the context of the operation that completed. An operation that had none has that
	// of its object: whoever writes the event puts it here.
	Context uint64
	Data    uint64
	// Payload is what comes with events of some kinds. A read copies it to the memory that stands
	// here, as far as its capacity goes, and sets the length.
	Payload []byte
	// Redelivered is set by a read if an earlier reader had peeked at the event.
	Redelivered bool
	// From is filled by a read, if it is not nil, with who wrote the event.
	From *Lane
}

// EventError is a failed operation, as [EventQueue.ReadErr] returns it (struct fi_eq_err_entry). It
// is an error too: it unwraps to Err.
type EventError struct {
	FID       FID
	Context   uint64
	Data      uint64
	Err       Errno // positive, as in libfabric
	ProvErrno int32 // the poster's own number; see StrError
	// ErrData is the poster's own detail. A read copies it to the memory that stands here, as far
	// as its capacity goes, and sets the length; so one entry can be read into again and again. A
	// write of more than EventOptions.DataMaxBytes is refused.
	ErrData []byte
	// ErrDataBytes is how much there was: more than len(ErrData) if that was truncated. A write
	// ignores it.
	ErrDataBytes int
	// Redelivered is set by a read if an earlier reader had peeked at the entry.
	Redelivered bool
	// From is filled by a read, if it is not nil, with who wrote the entry.
	From *Lane
}

// Error names the operation, its object and both error numbers.
func (e *EventError) Error() string {
	return fmt.Sprintf("cq: operation %#x of %v failed: %v (provider error %d)",
		e.Context, e.FID, e.Err, e.ProvErrno)
}

// Unwrap returns the error number.
func (e *EventError) Unwrap() error { return e.Err }

// CMEntry is the payload of connection events (struct fi_eq_cm_entry).
type CMEntry struct {
	// Info describes the endpoint that wants to connect, in the form of whoever made the event.
	Info []byte
	// Data is what the peer sent with its request or answer. The protocol of a connection may pad
	// it: it can be longer than what was sent, never shorter. This library adds nothing.
	Data []byte
}

const cmHeaderBytes = 8 // length of Info, zero

// AppendTo appends the entry to b as a payload. An Info whose length needs more than 32 bits is
// ErrInvalid.
func (c *CMEntry) AppendTo(b []byte) ([]byte, error) {
	if uint64(len(c.Info)) > math.MaxUint32 {
		return b, kind.Refuse("encode", "connection event", "len(Info)", len(c.Info), "32 bits",
			ErrInvalid)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(len(c.Info)))
	return append(append(b, c.Info...), c.Data...), nil
}

// ParseCMEntry takes the payload of a connection event apart. Info and Data point into it. One that
// a peer made wrong is ErrCorrupt.
func ParseCMEntry(payload []byte) (CMEntry, error) {
	if len(payload) < cmHeaderBytes {
		return CMEntry{}, kind.Refuse("parse", "connection event", "payload length", len(payload),
			"8 or more", ErrCorrupt)
	}
	n, rest := binary.LittleEndian.Uint64(payload), payload[cmHeaderBytes:]
	if n > uint64(len(rest)) {
		return CMEntry{}, kind.Refuse("parse", "connection event", "info length", n,
			fmt.Sprintf("at most %d", len(rest)), ErrCorrupt)
	}
	return CMEntry{Info: rest[:n:n], Data: rest[n:]}, nil
}

// An event in a slot, which is an Entry. The names of the entry's words do not fit; what stands in
// them is
//
//	Context  context
//	Flags    bits 0..31 event kind, bits 32..63 kind of the object
//	Len      bytes of payload, which begins the data of the detail record
//	Buf      0
//	Data     data
//	Tag      id of the object
//	Src      generation of the object, as it is
//	Meta     as in every entry; the kind tells events from error events
//
// An error event has its numbers and error data in the detail record, as the error entry of a
// completion queue has, and no length in the slot.

func packKind(k EventKind, f FIDKind) Flags { return Flags(k) | Flags(f)<<32 }

func eventFID(s *Entry) FID {
	return FID{Kind: FIDKind(s.Flags >> 32), ID: s.Tag, Generation: s.Src.AddrPlus1}
}

// store fills all words of a slot but the last, one by one: a copy of the whole would have to wait
// until the words that it is made of have left the processor's store buffer.
func (ev *Event) store(s *Entry) {
	s.Context, s.Flags = ev.Context, packKind(ev.Event, ev.FID.Kind)
	s.Len, s.Buf = uint64(len(ev.Payload)), 0
	s.Data, s.Tag, s.Src = ev.Data, ev.FID.ID, Source{ev.FID.Generation}
}

// load takes what a slot says about the event, each word once.
func (ev *Event) load(s *Entry) {
	flags := s.Flags
	ev.Event, ev.FID.Kind = EventKind(uint32(flags)), FIDKind(flags>>32)
	ev.FID.ID, ev.FID.Generation = s.Tag, s.Src.AddrPlus1
	ev.Context, ev.Data = s.Context, s.Data
}

func (e *EventError) slot() Entry {
	return Entry{Context: e.Context, Flags: packKind(0, e.FID.Kind), Data: e.Data, Tag: e.FID.ID,
		Src: Source{e.FID.Generation}}
}

// decode fills ev from a private copy of a slot and the data of its record, which the writer may
// change all the time. It returns how much payload the slot claims and copies nothing unless that
// fits both the record and the caller's memory.
func (ev *Event) decode(s *Entry, data []byte) (payload uint64, ok bool) {
	if s.Len > uint64(len(data)) || s.Len > uint64(cap(ev.Payload)) {
		return s.Len, false
	}
	ev.load(s)
	ev.Payload = ev.Payload[:s.Len]
	if s.Len > 0 {
		copy(ev.Payload, data)
	}
	return s.Len, true
}

// decode fills e likewise. d is a private copy of the record's header.
func (e *EventError) decode(s *Entry, d *kind.Record, data []byte) {
	buf, n := d.CopyData(e.ErrData, data)
	*e = EventError{FID: eventFID(s), Context: s.Context, Data: s.Data, Err: Errno(d.Err),
		ProvErrno: d.ProvErrno, ErrData: buf, ErrDataBytes: n, From: e.From}
}

// FIDKind says what kind of object a fabric identifier means (the class of a struct fid).
type FIDKind uint32

// The kinds of objects that an event can be about.
const (
	FIDNone FIDKind = iota
	FIDQueue
	FIDEvents
	FIDCounter
	FIDAddresses
	FIDMemory
	FIDPollSet
	FIDWaitSet
	FIDChannel
	FIDEndpoint
	FIDPassiveEndpoint
	FIDConnRequest
	FIDDomain
	FIDFabric
	FIDUser  // an application's own object
	FIDGroup // a multicast group
)

var fidNames = []string{"none", "queue", "events", "counter", "addresses", "memory", "poll set",
	"wait set", "channel", "endpoint", "passive endpoint", "connection request", "domain", "fabric",
	"user", "group"}

// String returns the kind in a word, or its number.
func (k FIDKind) String() string { return text.Name(k, "kind", fidNames...) }

// FID names an object to every process (in place of libfabric's pointer, struct fid). The id of a
// shared object is drawn from its uuid; that of an object of one process is drawn at random. The
// generation grows when another process takes a shared object over. The zero FID means no object.
type FID struct {
	Kind       FIDKind
	ID         uint64
	Generation uint64
}

// String returns kind, id in hexadecimal and generation.
func (f FID) String() string {
	return fmt.Sprintf("%v %016x.%d", f.Kind, f.ID, f.Generation)
}

// objectFID returns the identifier of a shared object as its present owner has it. The object must
// stay open meanwhile.
func objectFID(kind FIDKind, obj *shm.Object) FID {
	return FID{Kind: kind, ID: objectID(obj), Generation: obj.Owner().Generation}
}

// objectID is FID.ID of a shared object, which may be closed at any time: its memory is not looked
// at.
func objectID(obj *shm.Object) uint64 {
	u := obj.Header().UUID
	return binary.LittleEndian.Uint64(u[:8])
}

// FID returns the queue's identifier, by which events mean it.
func (q *core) FID() FID { return q.fid }

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
	return text.Name(r, "role", "", "writer", "reader", "user", "owner")
}

// PeerEntry is the payload of EventPeerDeath and EventPeerNew: who it is about.
type PeerEntry struct {
	Role PeerRole
	// Lane is that of the writer that died, or the one of the writer that is told of its reader; of
	// a counter it is the number of the handle among those that are open.
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

// appendTo appends the entry to b as a payload.
func (p *PeerEntry) appendTo(b []byte) []byte {
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
