package cq

import (
	"syscall"

	"github.com/shmring/shmring/internal/kind"
)

// SourceMode says what a completion tells about where data came from. It is a property of the
// endpoint that feeds the queue (FI_SOURCE, FI_SOURCE_ERR).
type SourceMode uint32

const (
	// SourceNone reports no source: it is AddrNotAvail.
	SourceNone SourceMode = iota
	// SourceAddr reports the index, or the user id, that the address has in the address vector,
	// and AddrNotAvail if it is not in there (FI_SOURCE).
	SourceAddr
	// SourceErr makes an error entry of a completion whose source is not in the address vector
	// (FI_SOURCE and FI_SOURCE_ERR); see [Writer.PostFrom].
	SourceErr
)

// String returns the lower-case name, without "source".
func (m SourceMode) String() string {
	switch m {
	case SourceNone:
		return "none"
	case SourceAddr:
		return "addr"
	case SourceErr:
		return "err"
	}
	return "unknown"
}

// errNoSource is the error number of a completion that came from nobody known.
const errNoSource = Errno(syscall.EADDRNOTAVAIL)

// PostFrom is Post for a completion of data that came from rawAddr, in the format of the address
// vector av. It fills in e.Src as mode says. The vector may be the application's, opened in this
// process with [AttachAddresses]; nothing is ever inserted into it.
//
// With SourceErr, a completion whose source is not in the vector is posted as an error entry:
// its number is EADDRNOTAVAIL, its fields are those of e and valid, for the data has arrived, and
// its ErrData is the raw address, which [AddressVector.Insert] takes as it is. A raw address longer
// than ErrDataMaxBytes is ErrInvalid in this mode, whether the vector has it or not. Other errors
// are those of Post. A nil vector knows no address.
func (w *Writer) PostFrom(e *Entry, rawAddr []byte, av *AddressVector, mode SourceMode) error {
	return w.postFrom(e, source{raw: rawAddr, av: av, mode: mode}, false)
}

// PostFromCredited is PostFrom with the room of a credit.
func (w *Writer) PostFromCredited(e *Entry, rawAddr []byte, av *AddressVector,
	mode SourceMode) error {
	return w.postFrom(e, source{raw: rawAddr, av: av, mode: mode}, true)
}

// source is where a completion came from, and how to name that.
type source struct {
	raw   []byte
	av    *AddressVector
	mode  SourceMode
	bound bool // to av, which therefore stays open
}

func (w *Writer) postFrom(e *Entry, s source, credited bool) error {
	known, err := s.find(e, w.name)
	switch {
	case err != nil:
		return err
	case known && credited:
		return w.Credits().Post(e)
	case known:
		return w.Post(e)
	case credited:
		return w.Credits().PostError(unknownSource(e, s.raw))
	}
	return w.PostError(unknownSource(e, s.raw))
}

// find fills in e.Src. It reports whether the completion is to be posted as one.
func (s *source) find(e *Entry, name string) (known bool, err error) {
	e.Src = Source{}
	switch s.mode {
	case SourceNone:
		return true, nil
	case SourceAddr, SourceErr:
	default:
		return false, kind.Refuse("post", name, "source mode", uint32(s.mode),
			"SourceNone, SourceAddr or SourceErr", ErrInvalid)
	}
	if s.mode == SourceErr && len(s.raw) > ErrDataMaxBytes {
		return false, kind.Refuse("post", name, "len(rawAddr)", len(s.raw), ErrDataMaxBytes, ErrInvalid)
	}
	from := AddrNotAvail
	switch {
	case s.av == nil:
	case s.bound:
		from, known = s.av.resolve(s.raw)
	default:
		from, known = s.av.Resolve(s.raw)
	}
	e.Src = From(from)
	return known || s.mode == SourceAddr, nil
}

// unknownSource is a completion as the error entry that says where it came from.
func unknownSource(e *Entry, raw []byte) *ErrorEntry {
	out := &ErrorEntry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf, Data: e.Data,
		Tag: e.Tag, Err: errNoSource, ErrData: raw}
	if e.Meta&MetaNoContext != 0 {
		out.Flags |= FlagNoContext
	}
	return out
}
