package cq

import (
	"github.com/shmring/shmring/shm"
)

// Bounds of a detail record. A completion queue has the smallest; the records of an event queue
// hold what comes with an event, so their size is fixed when the queue is created.
const (
	minDetailBytes    = errorBytes
	maxDetailBytes    = 64 << 10
	detailHeaderBytes = errorBytes - ErrDataMaxBytes
)

// details is the array parallel to a lane's slots: a record a slot, at the same index, that begins
// with an errorRecord, whose data goes on to the record's end.
type details struct {
	mem    []byte
	stride uint64
	mask   uint64
}

// detailsOf lays records over the section of a lane. Their size comes from the queue's options,
// which were bounded.
func detailsOf(obj *shm.Object, bit int, o shape) (details, error) {
	mem, _, err := obj.Section(sectErrors, uint32(bit))
	if err != nil {
		return details{}, err
	}
	d := details{mem: mem, stride: uint64(o.detailBytes), mask: uint64(o.Size) - 1}
	if want := d.stride * uint64(o.Size); uint64(len(mem)) != want {
		return d, refuse("map lane", obj.Name(), "detail bytes", len(mem), want, ErrCorrupt)
	}
	return d, nil
}

// record returns the header of a record, with the first bytes of its data.
func (d *details) record(index uint64) *errorRecord {
	return overlay[errorRecord](d.mem[(index&d.mask)*d.stride:])
}

// data returns the whole data of a record.
func (d *details) data(index uint64) []byte {
	at := (index & d.mask) * d.stride
	return d.mem[at+detailHeaderBytes : at+d.stride : at+d.stride]
}

// room returns how much data a record can hold.
func (d *details) room() int { return int(d.stride) - detailHeaderBytes }

// keeps refuses error data that a record has no room for.
func (d *details) keeps(errData []byte, op, name string) error {
	if len(errData) > d.room() {
		return refuse(op, name, "len(ErrData)", len(errData), d.room(), ErrInvalid)
	}
	return nil
}

// copyData copies a record's error data to the memory of buf as far as that goes, and says how much
// there was. The record's header is a private copy, whose length is bounded here.
func (d *errorRecord) copyData(buf, data []byte) (out []byte, dataBytes int) {
	n := min(d.dataBytes, uint64(len(data)))
	out = buf[:min(n, uint64(cap(buf)))]
	copy(out, data)
	return out, int(n)
}

// shape is what is fixed when a queue is created.
type shape struct {
	Options
	events      bool // an event queue
	detailBytes int  // size of a detail record
}

// queueShape returns the shape of a completion queue.
func queueShape(o Options) shape { return shape{Options: o, detailBytes: errorBytes} }

// detailPossible bounds what a header says.
func (o shape) detailPossible() bool {
	if !o.events {
		return o.detailBytes == errorBytes
	}
	return o.detailBytes >= minDetailBytes && o.detailBytes <= maxDetailBytes &&
		o.detailBytes%minDetailBytes == 0
}

// kind returns what the reader object is.
func (o shape) kind() shm.Kind {
	if o.events {
		return shm.KindEvents
	}
	return shm.KindQueue
}

// slotsVersion says what the words of the slots mean. An event has no source.
func (o shape) slotsVersion() uint64 {
	if o.events {
		return layoutVersion
	}
	return slotsVersion
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
		return refuse(op, name, "kind", o.kind(), want.kind(), shm.ErrKind)
	}
	return nil
}
