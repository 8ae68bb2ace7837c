package cq

import (
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// sectCounter is the one section of a counter's object. Every process that has the counter open
// writes it; the header, with the options, belongs to nobody once the object stands.
//
//	0     value
//	128   error value; number of times that one of the two was set
//	256   bell: epoch, armed, rung, joined, seats, standing (doorbell.CountWords)
//	384   a threshold for each seat
//	896   zero
//	1024  a row for each seat
const sectCounter shm.SectionKind = 0x300

// Attributes of a counter's object.
const (
	attrCounterEvents = iota
	attrCounterLifetime
)

// A row is written by the handle that has the seat, and says whose death the others must watch.
//
//	0    mark: drawn at random when the seat is taken, stored last; 0: nobody
//	8    process id, PID namespace, start time
//	32   the same four of the last who died in the seat, and how many did
const (
	offCounterErr   = 128
	offCounterBell  = 256
	offCounterRows  = 1024
	counterRowBytes = 128
	counterBytes    = offCounterRows + doorbell.CountSeats*counterRowBytes
)

func (o CounterOptions) spec(name string) shm.Spec {
	s := shm.Spec{Kind: shm.KindCounter, Name: name, Sections: []shm.Section{
		{Kind: sectCounter, Length: counterBytes, ElemSize: counterBytes, Capacity: 1,
			LayoutHash: layoutVersion}}}
	s.Attrs[attrCounterEvents] = uint64(o.Events)
	s.Attrs[attrCounterLifetime] = uint64(o.Lifetime)
	return s
}

// storedCounter returns the options with which a counter was created.
func storedCounter(op, name string, h shm.Header) (CounterOptions, error) {
	if h.Kind != shm.KindCounter {
		return CounterOptions{}, refuse(op, name, "kind", h.Kind, shm.KindCounter, shm.ErrKind)
	}
	o := CounterOptions{Events: CounterEvents(h.Attrs[attrCounterEvents]),
		Lifetime: Lifetime(h.Attrs[attrCounterLifetime])}
	want := o.spec(name)
	if err := o.check(op, name); err != nil || h.Attrs != want.Attrs {
		return o, refuse(op, name, "attributes", h.Attrs, "what CreateCounter writes", ErrCorrupt)
	}
	return o, hasSections(op, name, h, want)
}
