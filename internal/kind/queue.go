package kind

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Queue is what is fixed when a queue is created, as the attributes of its object say it.
type Queue struct {
	Events                                 bool // an event queue
	Format, Overrun, Lifetime, Wait, Trust uint64
	ReaderPays                             bool
	Capacity                               int // of each lane
	Rows                                   int // lanes, with the reader's own
	DetailBytes                            int // size of a detail record
}

// What attributes may say at most, and what some of their values mean.
const (
	MostFormat     = 4
	MostOverrun    = 1
	MostLifetime   = 1
	MostWait       = 6
	MostTrust      = 1
	MayOverrun     = 1 // of Overrun: the queue may lose entries
	Persistent     = 1 // of Lifetime: it waits for a successor
	CrossUser      = 1 // of Trust: its writers are other users
	OthersLanes    = 126
	MaxLanes       = 1024
	MaxCapacity    = 1 << 24
	MinDetailBytes = ErrorBytes
	MaxDetailBytes = 64 << 10
)

// queueCodec is that of a reader's object.
func queueCodec(events bool) codec[Queue] {
	detail := Bound{Least: MinDetailBytes, Most: MinDetailBytes, Step: MinDetailBytes}
	if events {
		detail.Most = MaxDetailBytes
	}
	return codec[Queue]{
		{Attribute{"format", Bound{Least: 1, Most: MostFormat}, "what entries say, as cq.Format"},
			func(q *Queue) any { return &q.Format }},
		{Attribute{"capacity", Bound{Least: 1, Most: MaxCapacity, PowerOf2: true},
			"entries of each lane"}, func(q *Queue) any { return &q.Capacity }},
		{Attribute{"lanes", Bound{Least: 2, Most: MaxLanes + 1}, "lanes, with the reader's own"},
			func(q *Queue) any { return &q.Rows }},
		{Attribute{"overrun", Bound{Most: MostOverrun}, "whether entries may be lost"},
			func(q *Queue) any { return &q.Overrun }},
		{Attribute{"lifetime", Bound{Most: MostLifetime}, "as cq.Lifetime"},
			func(q *Queue) any { return &q.Lifetime }},
		{Attribute{"wait", Bound{Most: MostWait}, "the wait object, as cq.WaitObject"},
			func(q *Queue) any { return &q.Wait }},
		{Attribute{"reader pays", Bound{Most: 1}, "whether the reader pays for wakeups"},
			func(q *Queue) any { return &q.ReaderPays }},
		{Attribute{"trust", Bound{Most: MostTrust}, "whose writers it has, as cq.Trust"},
			func(q *Queue) any { return &q.Trust }},
		{Attribute{"detail bytes", detail, "size of a detail record"},
			func(q *Queue) any { return &q.DetailBytes }},
	}
}

// QueueAttributes describes the attributes of a reader's object.
func QueueAttributes(events bool) Attributes { return queueCodec(events).attributes() }

// StoredQueue returns what a reader object was created with, bounded: it indexes memory. What it
// returns beside an error is what the object should be, if its attributes are possible one by one.
func StoredQueue(op, name string, h shm.Header) (q Queue, err error) {
	if h.Kind != shm.KindQueue && h.Kind != shm.KindEvents {
		return q, Refuse(op, name, "kind", h.Kind, shm.KindQueue, shm.ErrKind)
	}
	events := h.Kind == shm.KindEvents
	if q, err = queueCodec(events).take(h); err != nil {
		return q, Refuse(op, name, "attributes", err, "what Create writes", ErrCorrupt)
	}
	q.Events = events
	if q.Others() && (q.Rows > OthersLanes+1 || q.Lifetime == Persistent || q.ReaderPays) {
		return q, Refuse(op, name, "attributes", h.Attrs, "what Create writes", ErrCorrupt)
	}
	return q, HasSections(op, name, h, q.ReaderSpec(name))
}

// Others reports whether the queue is for other users.
func (q Queue) Others() bool { return q.Trust == CrossUser }

// Kind returns what the reader object is.
func (q Queue) Kind() shm.Kind {
	if q.Events {
		return shm.KindEvents
	}
	return shm.KindQueue
}

// SlotsVersion says what the words of the slots mean. An event has no source.
func (q Queue) SlotsVersion() uint64 {
	if q.Events {
		return LayoutVersion
	}
	return SlotsVersion
}

func (q Queue) LaneSections(id uint32) []shm.Section {
	capacity, stride := uint64(q.Capacity), uint64(q.DetailBytes)
	return []shm.Section{
		{Kind: SectLane, ID: id, Length: LaneBytes, ElemSize: LaneBytes, Capacity: 1,
			LayoutHash: LayoutVersion},
		{Kind: SectSlots, ID: id, Length: capacity * SlotBytes, ElemSize: SlotBytes,
			Capacity: capacity, LayoutHash: q.SlotsVersion()},
		{Kind: SectErrors, ID: id, Length: capacity * stride, ElemSize: stride,
			Capacity: capacity, LayoutHash: LayoutVersion},
	}
}

// ReaderSpec is the layout of the reader's object.
func (q Queue) ReaderSpec(name string) shm.Spec {
	s := shm.Spec{Kind: q.Kind(), Name: name, Sections: append([]shm.Section{
		{Kind: SectQueue, Length: QueueBytes, ElemSize: QueueBytes, Capacity: 1,
			LayoutHash: LayoutVersion},
		{Kind: SectRows, Length: uint64(q.Rows) * RowBytes, ElemSize: RowBytes,
			Capacity: uint64(q.Rows), LayoutHash: LayoutVersion},
		{Kind: SectHints, Length: doorbell.HintsBytes(q.Rows),
			ElemSize: doorbell.HintsBytes(q.Rows), Capacity: 1, LayoutHash: LayoutVersion},
	}, q.LaneSections(0)...)}
	queueCodec(q.Events).put(&s, q)
	return s
}

// LaneSpec is the layout of a writer's object.
func (q Queue) LaneSpec(name string, row int, queue shm.UUID) shm.Spec {
	s := shm.Spec{Kind: shm.KindLane, Name: name, Sections: q.LaneSections(uint32(row))}
	s.Attrs[AttrLaneRow] = uint64(row)
	s.Attrs[AttrLaneCapacity] = uint64(q.Capacity)
	s.Attrs[AttrLaneQueueHigh], s.Attrs[AttrLaneQueueLow] = UuidWords(queue)
	return s
}

// ErrOtherQueue: the file is left over from a queue of the same name that was destroyed.
var ErrOtherQueue = errors.New("lane belongs to an earlier queue of this name")

// LaneBelongs checks that a lane object is the one that this row of a queue should have.
func (q Queue) LaneBelongs(obj *shm.Object, row int, queue shm.UUID) error {
	h := obj.Header()
	if h.Kind != shm.KindLane {
		return Refuse("open lane", obj.Name(), "kind", h.Kind, shm.KindLane, shm.ErrKind)
	}
	high, low := UuidWords(queue)
	if h.Attrs[AttrLaneQueueHigh] != high || h.Attrs[AttrLaneQueueLow] != low {
		return ErrOtherQueue
	}
	if h.Attrs[AttrLaneRow] != uint64(row) || h.Attrs[AttrLaneCapacity] != uint64(q.Capacity) {
		return Refuse("open lane", obj.Name(), "row and capacity",
			[2]uint64{h.Attrs[AttrLaneRow], h.Attrs[AttrLaneCapacity]}, [2]int{row, q.Capacity},
			ErrCorrupt)
	}
	return HasSections("open lane", obj.Name(), h, q.LaneSpec("", row, queue))
}

// Lane is the memory of a lane, with slots of 64 bytes.
type Lane[E any] struct {
	Words  *LaneWords
	Slots  []E
	Detail Details
}

// LaneOf lays the structures of a lane over the object that has it, whose attributes were bounded.
func LaneOf[E any](obj *shm.Object, row int, q Queue) (m Lane[E], err error) {
	if m.Words, err = WordsOf[LaneWords](obj, SectLane, uint32(row)); err != nil {
		return m, err
	}
	mem, _, err := obj.Section(SectSlots, uint32(row))
	if err != nil {
		return m, err
	}
	if m.Slots, err = ring.Slots[E](mem); err != nil {
		return m, err
	}
	if len(m.Slots) != q.Capacity {
		return m, Refuse("map lane", obj.Name(), "capacity", len(m.Slots), q.Capacity, ErrCorrupt)
	}
	m.Detail, err = DetailsOf(obj, row, q)
	return m, err
}

// SectionNames are what reports call sections.
var SectionNames = map[shm.SectionKind]string{SectQueue: "queue", SectRows: "rows",
	SectHints: "hints", SectLane: "lane", SectSlots: "slots", SectErrors: "details",
	SectBellArm: "arm", SectBellHints: "hints", SectCounter: "counter", SectAddrWords: "words",
	SectAddrRows: "rows", SectAddrIndex: "index", SectFrames: "frames", SectDone: "done",
	SectCounts: "counts"}
