package kind

import "github.com/shmring/shmring/shm"

// Details is the array parallel to a lane's slots: a record a slot, at the same index, that begins
// with an Record, whose data goes on to the record's end.
type Details struct {
	Mem    []byte
	Stride uint64
	Mask   uint64
}

// DetailsOf lays records over the section of a lane. Their size comes from the queue's options,
// which were bounded.
func DetailsOf(obj *shm.Object, bit int, q Queue) (Details, error) {
	mem, _, err := obj.Section(SectErrors, uint32(bit))
	if err != nil {
		return Details{}, err
	}
	d := Details{Mem: mem, Stride: uint64(q.DetailBytes), Mask: uint64(q.Capacity) - 1}
	if want := d.Stride * uint64(q.Capacity); uint64(len(mem)) != want {
		return d, Refuse("map lane", obj.Name(), "detail bytes", len(mem), want, ErrCorrupt)
	}
	return d, nil
}

// Record returns the header of a record, with the first bytes of its data.
func (d *Details) Record(index uint64) *Record {
	return Overlay[Record](d.Mem[(index&d.Mask)*d.Stride:])
}

// Data returns the whole data of a record.
func (d *Details) Data(index uint64) []byte {
	at := (index & d.Mask) * d.Stride
	return d.Mem[at+DetailHeaderBytes : at+d.Stride : at+d.Stride]
}

// Room returns how much data a record can hold.
func (d *Details) Room() int { return int(d.Stride) - DetailHeaderBytes }

// CopyData copies a record's error data to the memory of buf as far as that goes, and says how much
// there was. The record's header is a private copy, whose length is bounded here.
func (d *Record) CopyData(buf, data []byte) (out []byte, dataBytes int) {
	n := min(d.DataBytes, uint64(len(data)))
	out = buf[:min(n, uint64(cap(buf)))]
	copy(out, data)
	return out, int(n)
}
