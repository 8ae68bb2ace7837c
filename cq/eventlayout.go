package cq

import "github.com/shmring/shmring/internal/kind"

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
