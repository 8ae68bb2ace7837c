package kind

import (
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// SectCounter is the one section of a counter's object. Every process that has the counter open
// writes it; the header, with the options, belongs to nobody once the object stands.
//
//	0     value
//	128   error value; number of times that one of the two was set
//	256   bell: epoch, armed, rung, joined, seats, standing (counterbell.Words)
//	384   a threshold for each seat
//	896   zero
//	1024  a record for each seat (shm.Seats), which says whose death the others must watch
const SectCounter shm.SectionKind = 0x300

const (
	OffCounterErr  = 128
	OffCounterBell = 256
	OffCounterRows = 1024
	CounterBytes   = OffCounterRows + counterbell.Seats*shm.SeatBytes
)

// Counter is what is fixed when a counter is created, as its attributes say it.
type Counter struct{ Events, Lifetime uint64 }

var counterCodec = codec[Counter]{
	{Attribute{"events", Bound{Most: MostCounterEvents}, "what it counts, as cq.CounterEvents"},
		func(c *Counter) any { return &c.Events }},
	{Attribute{"lifetime", Bound{Most: MostLifetime}, "as cq.Lifetime"},
		func(c *Counter) any { return &c.Lifetime }},
}

const MostCounterEvents = 1

// Spec is the layout of a counter.
func (c Counter) Spec(name string) shm.Spec {
	s := shm.Spec{Kind: shm.KindCounter, Name: name,
		Sections: []shm.Section{section(SectCounter, 1, CounterBytes)}}
	counterCodec.put(&s, c)
	return s
}

// CounterAttributes describes the attributes of a counter.
var CounterAttributes = counterCodec.attributes()

// StoredCounter returns what a counter was created with.
func StoredCounter(op, name string, h shm.Header) (c Counter, err error) {
	if h.Kind != shm.KindCounter {
		return c, Refuse(op, name, "kind", h.Kind, shm.KindCounter, shm.ErrKind)
	}
	if c, err = counterCodec.take(h); err != nil {
		return c, Refuse(op, name, "attributes", err, "what CreateCounter writes", ErrCorrupt)
	}
	return c, HasSections(op, name, h, c.Spec(name))
}

// The bell of a reading process is an object of its own, beside the queues: one futex word that its
// wait sets and completion channels sleep on, and a bit for each of their members.
const (
	SectBellArm   shm.SectionKind = 0x200 + iota // owner-written: the armed word
	SectBellHints                                // producer-written
)

const (
	AttrBellBits = 0
	// DomainBits is how many members all sets and channels of one process can have together.
	DomainBits = 1 << 14
)

// BellAttributes describes the attributes of a bell.
var BellAttributes = Attributes{{"bits", Exactly(DomainBits), "members that it has a bit for"}}

// BellSpec is the layout of a bell.
func BellSpec() shm.Spec {
	s := shm.Spec{Kind: shm.KindBell, Sections: []shm.Section{section(SectBellArm, 1, QueueBytes),
		section(SectBellHints, 1, wake.DomainBytes(DomainBits))}}
	s.Attrs[AttrBellBits] = DomainBits
	return s
}

// BellMemory lays the words over a bell object. A producer may write the hints only.
func BellMemory(obj *shm.Object, producer bool) (*wake.Arm, *wake.Hints, error) {
	arm, err := WordsOf[wake.Arm](obj, SectBellArm, 0)
	if err != nil {
		return nil, nil, err
	}
	var mem []byte
	if producer {
		mem, err = obj.MapWritable(SectBellHints, 0)
	} else {
		mem, _, err = obj.Section(SectBellHints, 0)
	}
	if err != nil {
		return nil, nil, err
	}
	hints, err := wake.MapDomain(mem, DomainBits)
	return arm, hints, err
}
