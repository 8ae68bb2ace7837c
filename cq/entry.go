package cq

import (
	"strconv"

	"github.com/shmring/shmring/internal/kind"
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

// String returns the lower-case name.
func (f Format) String() string {
	switch f {
	case FormatUnspec:
		return "unspec"
	case FormatContext:
		return "context"
	case FormatMsg:
		return "msg"
	case FormatData:
		return "data"
	case FormatTagged:
		return "tagged"
	}
	return "unknown"
}

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
// an error too: it unwraps to Err.
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
