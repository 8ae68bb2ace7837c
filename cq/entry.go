package cq

import (
	"strconv"
	"strings"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// Addr is an index into an address vector.
type Addr uint64

// AddrNotAvail says that the source of a completion is not known (FI_ADDR_NOTAVAIL).
const AddrNotAvail Addr = ^Addr(0)

// Source says where the data of a completion came from. The zero value says that this is not known;
// [From] names an address.
type Source struct {
	AddrPlus1 uint64 // the address + 1, as it lies in the slot
}

// From returns the source with an address: none for AddrNotAvail.
func From(a Addr) Source { return Source{uint64(a) + 1} }

// Addr returns the address, or AddrNotAvail.
func (s Source) Addr() Addr { return Addr(s.AddrPlus1 - 1) }

// String returns the address in decimal, or "none".
func (s Source) String() string {
	if s.AddrPlus1 == 0 {
		return "none"
	}
	return strconv.FormatUint(s.AddrPlus1-1, 10)
}

// Entry is a completion as it lies in a lane: one cache line. Writers fill it, readers see it in
// place through Peek. The four formats are its prefixes.
type Entry struct {
	Context uint64  // token of the operation that completed
	Flags   Flags   // what completed
	Len     uint64  // bytes received
	Buf     shm.Ref // where they are, for a loaned frame or a multi-receive buffer
	Data    uint64  // remote CQ data, with FlagRemoteCQData
	Tag     uint64  // of a tagged receive
	Src     Source  // the sender, none if nobody said
	Meta    Meta
}

// Meta is the last word of an entry. A writer may set MetaSolicited and MetaNoContext; everything
// else is stamped when the entry is published.
//
//	bits 0..7    kind: completion or error
//	bits 8..15   marks
//	bits 32..63  sequence: low half of the entry's index in its lane
type Meta uint64

// Marks that a writer may set.
const (
	MetaSolicited Meta = 1 << 8 // the poster asked for an event at a channel armed for these
	MetaNoContext Meta = 1 << 9 // no posted operation stands behind the entry
)

const (
	metaMarks      = MetaSolicited | MetaNoContext
	kindMask  Meta = kind.SlotKindMask
	kindEntry Meta = kind.SlotEntry
	kindError Meta = kind.SlotError
)

// Seq returns the sequence number of a published entry within its lane, modulo 2^32. For a loaned
// frame it is the generation that its return carries.
func (m Meta) Seq() uint32 { return uint32(m >> 32) }

// Context is the smallest format (FI_CQ_FORMAT_CONTEXT).
type Context struct {
	Context uint64
}

// Msg adds what happened and how much was received (FI_CQ_FORMAT_MSG).
type Msg struct {
	Context uint64
	Flags   Flags
	Len     uint64
}

// Data adds where it is and the sender's word (FI_CQ_FORMAT_DATA).
type Data struct {
	Context uint64
	Flags   Flags
	Len     uint64
	Buf     shm.Ref
	Data    uint64
}

// Tagged adds the tag (FI_CQ_FORMAT_TAGGED).
type Tagged struct {
	Context uint64
	Flags   Flags
	Len     uint64
	Buf     shm.Ref
	Data    uint64
	Tag     uint64
}

// Readable is what [Read] can fill: the four formats, and a whole Entry.
type Readable interface {
	Context | Msg | Data | Tagged | Entry
}

// Format is the detail that a queue keeps (enum fi_cq_format), fixed when it is created. A queue
// can be read in its own format and every smaller one.
type Format uint32

// The formats of libfabric, in its order.
const (
	FormatUnspec  Format = iota // resolved to FormatTagged at creation
	FormatContext               // only the operation's token
	FormatMsg                   // with flags and length
	FormatData                  // with buffer and remote data
	FormatTagged                // with tag
)

var formatNames = []string{"unspec", "context", "msg", "data", "tagged"}

// String returns the lower-case name.
func (f Format) String() string { return text.Name(f, "format", formatNames...) }

// bytes returns how much of a slot a queue of the format may be asked for.
func (f Format) bytes() uintptr {
	switch f {
	case FormatContext:
		return bytesOf[Context]()
	case FormatMsg:
		return bytesOf[Msg]()
	case FormatData:
		return bytesOf[Data]()
	}
	return bytesOf[Entry]()
}

// formatOf returns the least format that a queue must have to be read as T.
func formatOf[T Readable]() Format {
	var t T
	switch any(t).(type) {
	case Context:
		return FormatContext
	case Msg:
		return FormatMsg
	case Data:
		return FormatData
	}
	return FormatTagged
}

// ErrorEntry is a failed operation, as [Queue.ReadErr] returns it (struct fi_cq_err_entry). It is
// an error too: it unwraps to Err. It has only a number: compare it with numbers, such as
// syscall.ECONNRESET, and not with errors of calls, such as fabric.ErrPeerDied.
type ErrorEntry struct {
	Context      uint64
	Flags        Flags
	Len          uint64
	Buf          shm.Ref
	Data         uint64
	Tag          uint64
	Src          Source
	OverrunBytes uint64 // olen: bytes that did not fit
	Err          Errno  // positive, as in libfabric
	ProvErrno    int32  // the poster's own number; see StrError
	// ErrData is the poster's own detail. A read copies it to the memory that stands here, as far
	// as its capacity goes, and sets the length; so one entry can be read into again and again. A
	// post of more than ErrDataMaxBytes is refused.
	ErrData []byte
	// ErrDataBytes is how much there was: more than len(ErrData) if that was truncated. A post ignores
	// it.
	ErrDataBytes int
	// Redelivered is set if an earlier reader may have seen the entry.
	Redelivered bool
	// From is filled by a read, if it is not nil, with who posted the entry.
	From *Lane
}

// ErrDataMaxBytes is how much detail an error entry can carry.
const ErrDataMaxBytes = 40

// Flags describe a completion. The values are libfabric's (rdma/fabric.h), so that a log of one
// can be read with the manual of the other; bits 60 and up are a provider's own, which is us.
type Flags uint64

// Flags of libfabric that occur in completions, or in what is asked of an operation (FI_COMPLETION,
// FI_INJECT, FI_MORE and what a completion is to wait for).
const (
	FlagMsg              Flags = 1 << 1
	FlagRMA              Flags = 1 << 2
	FlagTagged           Flags = 1 << 3
	FlagAtomic           Flags = 1 << 4
	FlagMulticast        Flags = 1 << 5
	FlagCollective       Flags = 1 << 6
	FlagRead             Flags = 1 << 8
	FlagWrite            Flags = 1 << 9
	FlagRecv             Flags = 1 << 10
	FlagSend             Flags = 1 << 11
	FlagRemoteRead       Flags = 1 << 12
	FlagRemoteWrite      Flags = 1 << 13
	FlagMultiRecv        Flags = 1 << 16
	FlagRemoteCQData     Flags = 1 << 17
	FlagMore             Flags = 1 << 18
	FlagPeek             Flags = 1 << 19
	FlagFence            Flags = 1 << 21
	FlagCompletion       Flags = 1 << 24
	FlagInject           Flags = 1 << 25
	FlagInjectComplete   Flags = 1 << 26
	FlagTransmitComplete Flags = 1 << 27
	FlagDeliveryComplete Flags = 1 << 28
	FlagCommitComplete   Flags = 1 << 30
	FlagMatchComplete    Flags = 1 << 31
	FlagRMAEvent         Flags = 1 << 56
	FlagDiscard          Flags = 1 << 58
	FlagClaim            Flags = 1 << 59
)

// Flags of libfabric that say what something is bound for or can do; they occur in no completion.
const (
	FlagTransmit            = FlagSend
	FlagSelectiveCompletion = Flags(1 << 59) // the number of FlagClaim: it is for binding only
	FlagSource              = Flags(1 << 57) // completions name their source
	FlagSourceErr           = Flags(1 << 50) // and are errors if it is not in the address vector
)

// Flags of this library.
const (
	// FlagRedelivered marks an entry that a reader who died, or detached, had been handed
	// before: it may have been acted on already.
	FlagRedelivered Flags = 1 << 63
	// FlagNoContext marks an entry that belongs to no posted operation. Its context is 0, which
	// is also a legal token; libfabric reports NULL here.
	FlagNoContext Flags = 1 << 62
	// FlagFrame says that Buf is a loan of a received frame, to be given back.
	FlagFrame Flags = 1 << 61
	// FlagInjectCall marks an operation that was posted by a call that never completes into a
	// queue (fi_inject, fi_tinject, fi_inject_write and so on). FlagInject, which an operation
	// of any call can have, only frees its buffer at once and completes as others do.
	FlagInjectCall Flags = 1 << 60
)

var flagNames = []struct {
	flag Flags
	name string
}{
	{FlagMsg, "MSG"}, {FlagRMA, "RMA"}, {FlagTagged, "TAGGED"}, {FlagAtomic, "ATOMIC"},
	{FlagMulticast, "MULTICAST"}, {FlagCollective, "COLLECTIVE"}, {FlagRead, "READ"},
	{FlagWrite, "WRITE"}, {FlagRecv, "RECV"}, {FlagSend, "SEND"},
	{FlagRemoteRead, "REMOTE_READ"}, {FlagRemoteWrite, "REMOTE_WRITE"},
	{FlagMultiRecv, "MULTI_RECV"}, {FlagRemoteCQData, "REMOTE_CQ_DATA"}, {FlagMore, "MORE"},
	{FlagPeek, "PEEK"}, {FlagFence, "FENCE"},
	{FlagCompletion, "COMPLETION"}, {FlagInject, "INJECT"},
	{FlagInjectComplete, "INJECT_COMPLETE"}, {FlagTransmitComplete, "TRANSMIT_COMPLETE"},
	{FlagDeliveryComplete, "DELIVERY_COMPLETE"}, {FlagCommitComplete, "COMMIT_COMPLETE"},
	{FlagMatchComplete, "MATCH_COMPLETE"}, {FlagRMAEvent, "RMA_EVENT"},
	{FlagDiscard, "DISCARD"}, {FlagClaim, "CLAIM"}, {FlagInjectCall, "INJECT_CALL"},
	{FlagFrame, "FRAME"}, {FlagNoContext, "NO_CONTEXT"}, {FlagRedelivered, "REDELIVERED"},
}

// String returns the names of the bits, separated by a bar.
func (f Flags) String() string {
	var b strings.Builder
	for _, n := range flagNames {
		if f&n.flag == 0 {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(n.name)
		f &^= n.flag
	}
	if f != 0 {
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString("0x")
		const digits = "0123456789abcdef"
		for shift := 60; shift >= 0; shift -= 4 {
			if v := f >> shift; v != 0 {
				b.WriteByte(digits[v&15])
			}
		}
	}
	return b.String()
}

// shape is what is fixed when a queue is created.
type shape struct {
	Options
	events      bool // an event queue
	detailBytes int  // size of a detail record
}

// queueShape returns the shape of a completion queue.
func queueShape(o Options) shape { return shape{Options: o, detailBytes: kind.ErrorBytes} }

// attrs returns what the attributes of the queue's object say.
func (o shape) attrs() kind.Queue {
	return kind.Queue{Events: o.events, Format: uint64(o.Format), Overrun: uint64(o.Overrun),
		Lifetime: uint64(o.Lifetime), Wait: uint64(o.Wait), Trust: uint64(o.Trust),
		ReaderPays: !o.WritersPay, Capacity: o.Size, Rows: o.rows(), DetailBytes: o.detailBytes}
}

// stored returns the options that a reader object was created with, bounded.
func stored(op, name string, h shm.Header) (shape, error) {
	a, err := kind.StoredQueue(op, name, h)
	return shape{Options: Options{Format: Format(a.Format), Size: a.Capacity, MaxLanes: a.Rows - 1,
		Overrun: Overrun(a.Overrun), Lifetime: Lifetime(a.Lifetime), Wait: WaitObject(a.Wait),
		WritersPay: !a.ReaderPays, Trust: Trust(a.Trust),
	}, events: a.Events, detailBytes: a.DetailBytes}, err
}

func (o shape) fidKind() FIDKind {
	if o.events {
		return FIDEvents
	}
	return FIDQueue
}

// checkKind refuses to use one kind of queue as the other.
func (o shape) checkKind(op, name string, want shape) error {
	if o.events != want.events {
		return kind.Refuse(op, name, "kind", o.attrs().Kind(), want.attrs().Kind(), shm.ErrKind)
	}
	return nil
}

// keeps refuses error data that a record has no room for.
func keeps(d *kind.Details, errData []byte, op, name string) error {
	if len(errData) > d.Room() {
		return kind.Refuse(op, name, "len(ErrData)", len(errData), d.Room(), ErrInvalid)
	}
	return nil
}

// notifyFlagsOnly clears the flags that are not guaranteed with Options.NotifyFlagsOnly.
func notifyFlagsOnly[T Readable](dst []T) {
	const kept = FlagRemoteRead | FlagRemoteWrite | FlagRemoteCQData | FlagMultiRecv |
		FlagFrame | FlagNoContext | FlagRedelivered
	for i := range dst {
		if f := flagsOf(&dst[i]); f != nil {
			*f &= kept
		}
	}
}

// markEntry sets this library's flags in formats that have flags.
func markEntry[T Readable](t *T, m Meta, redelivered bool) {
	f := flagsOf(t)
	if f == nil {
		return
	}
	if redelivered {
		*f |= FlagRedelivered
	}
	if m&MetaNoContext != 0 {
		*f |= FlagNoContext
	}
}
