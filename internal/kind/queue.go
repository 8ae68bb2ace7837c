package kind

import (
	"errors"
	"fmt"
	"math"

	"github.com/shmring/shmring/internal/wake"
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
	MostWait       = WaitPollFD
	MostTrust      = 1
	WaitFD         = 2 // of Wait: a descriptor stands behind it
	WaitMutexCond  = 5 // as behind this
	WaitPollFD     = 6 // and this
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

// HasFD reports whether a descriptor stands behind the queue's wait object.
func (q Queue) HasFD() bool {
	return q.Wait == WaitFD || q.Wait == WaitMutexCond || q.Wait == WaitPollFD
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
	all := []shm.Section{section(SectLane, 1, LaneBytes), section(SectSlots, q.Capacity, SlotBytes),
		section(SectErrors, q.Capacity, int(q.DetailBytes))}
	all[1].LayoutHash = q.SlotsVersion()
	for i := range all {
		all[i].ID = id
	}
	return all
}

// ReaderSpec is the layout of the reader's object.
func (q Queue) ReaderSpec(name string) shm.Spec {
	s := shm.Spec{Kind: q.Kind(), Name: name, Sections: append([]shm.Section{
		section(SectQueue, 1, QueueBytes), section(SectRows, q.Rows, RowBytes),
		section(SectHints, 1, wake.HintsBytes(q.Rows))}, q.LaneSections(0)...)}
	queueCodec(q.Events).put(&s, q)
	if q.late() { // slots and details of the reader's own lane
		s.Late = 2
	}
	return s
}

// late reports whether memory that few queues need is not there from the beginning: the slots of
// the reader's own lane, which its first writer provides, and detail records, which who posts the
// first error provides, or reserves room that an error may take. Events need both. What goes to
// other users must be whole.
func (q Queue) late() bool {
	return !q.Events && !q.Others() && uint64(q.Capacity)*SlotBytes >= 2*pageLines*lineBytes
}

// LaneSpec is the layout of a writer's object.
func (q Queue) LaneSpec(name string, row int, queue shm.UUID) shm.Spec {
	s := shm.Spec{Kind: shm.KindLane, Name: name, Sections: q.LaneSections(uint32(row))}
	if !q.Others() { // whose readers take no lane that is larger than it would be without
		// A reader looks at the same word of each lane. At one place of a page they would all be in
		// the same few lines of its first cache.
		s.Sections[0].Offset = lineBytes * (1 + uint64(row)%(pageLines-1))
		for i := range s.Sections {
			s.Sections[i].Align = lineBytes
		}
	}
	if q.late() {
		s.Late = 1
	}
	s.Attrs[AttrLaneRow] = uint64(row)
	s.Attrs[AttrLaneCapacity] = uint64(q.Capacity)
	s.Attrs[AttrLaneQueueHigh], s.Attrs[AttrLaneQueueLow] = UuidWords(queue)
	return s
}

// A lane's words begin at a line of a page that its row says.
const (
	lineBytes = 64
	pageLines = 64
)

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
	SectCounts: "counts", SectFabricPage: "page", SectFabricRows: "rows", SectFabricMail: "mail",
	SectFabricLanes: "lanes", SectFabricSlots: "slots", SectFabricDone: "done",
	SectFabricPool: "pool", SectFabricRegions: "regions", SectFabricUses: "uses",
	SectFabricRemote: "remote", SectGroup: "group"}

// Sections of a queue's objects. The reader object has all of them, with lane 0; a lane object has
// the lane's three.
const (
	SectQueue  shm.SectionKind = 0x100 + iota // reader-written words of the queue
	SectRows                                  // reader-written, a row a lane
	SectHints                                 // producer-written: see package wake
	SectLane                                  // writer-written words of a lane
	SectSlots                                 // entries
	SectErrors                                // detail records, parallel to the entries
)

// Attributes of a lane object.
const (
	AttrLaneRow = iota
	AttrLaneCapacity
	AttrLaneQueueHigh // uuid of the queue it belongs to
	AttrLaneQueueLow
)

// LaneAttributes describes them.
var LaneAttributes = Attributes{
	AttrLaneRow:       {"row", Bound{Least: 1, Most: MaxLanes}, "its row in the reader's object"},
	AttrLaneCapacity:  {"capacity", Bound{Least: 1, Most: MaxCapacity, PowerOf2: true}, "entries"},
	AttrLaneQueueHigh: {"queue, high half", Bound{Most: anyWord}, "uuid of the queue it belongs to"},
	AttrLaneQueueLow:  {"queue, low half", Bound{Most: anyWord}, "the rest of it"},
}

// The queue's page: reader-written, read-only for everybody else.
//
//	0    armed word (wake.Arm)
//	128  state: open, closed, overrun, being removed
//	256  face: number of the eventfd in the reader's process + 1, 0 if there is none
//	264  generation of the reader that wrote it
//	272  generation of the reader that the kernel refused a barrier, 0 if there was none
//	384  the reader's bell: uuid (two words), bit, descriptor + 1, generation; see BellWords
const (
	OffState     = 128
	OffFace      = 256
	QueueBytes   = 4096
	StateOpen    = 1
	StateClosed  = 2
	StateOverrun = 3
	// StateRemoving: somebody is removing the queue, and may not get to the end of it. Writers that
	// attach wait for that for a while, and get ErrBusy then; a reader that adopts it opens it again.
	StateRemoving = 4
)

// A row: reader-written, one a lane, two lines that different sides poll.
//
//	0    parked, with the queue's state in its upper bits; wake index (wake.Row)
//	128  head: released, and so how many were ever read; peeked: handed out; high-water mark;
//	     how many lanes of other users this row has had before, with CrossUser; which writers'
//	     deaths were reported: event queue, generation, generation that was being reported
const (
	RowBytes    = 256
	RowOffIndex = 128
)

// What stands beside wake.Parked in a row word, to send a writer down its slow path.
const (
	RowClosed   = 1 << 1
	RowOverrun  = 1 << 2
	RowPoisoned = 1 << 3
	RowLeft     = 1 << 4 // a reader of another user left the queue to a successor
)

// The words of a lane: writer-written. They begin at the line of a page that the row says, but for
// lanes of other users.
//
//	0    tail; sol: index after the last solicited entry; err: after the last error entry; both
//	     stored before the tail that publishes the entry
//	128  counters: publishes, wakes, refused posts
//	256  order of publishes; index + 1 at which the lane overran, 0 if it did not; again: index
//	     below which a former reader, of another user, may have handed entries out
//	384  who wrote what: the last four {generation, first index}
//	512  rung: with CrossUser the bell of this lane, which its reader sleeps on
const (
	LaneBytes  = 4096
	LaneEpochs = 4
	SlotBytes  = 64
	ErrorBytes = 64
	// A detail record begins with a header; what follows is data, this much in the smallest one.
	ErrorDataBytes    = 40
	DetailHeaderBytes = ErrorBytes - ErrorDataBytes
	OrderSeqCst       = 0
	OrderRelease      = 1
	LayoutVersion     = 1 // in every section's layout hash, but for
	SlotsVersion      = 2 // that of a completion queue's slots: a source is an address + 1
)

// UuidWords returns a uuid as two words of shared memory, UuidOf makes one of them.
func UuidWords(u shm.UUID) (high, low uint64) {
	for i := range 8 {
		high = high<<8 | uint64(u[i])
		low = low<<8 | uint64(u[8+i])
	}
	return high, low
}

// UuidOf returns the uuid that two words are.
func UuidOf(high, low uint64) (u shm.UUID) {
	for i := range 8 {
		u[i] = byte(high >> (56 - 8*i))
		u[8+i] = byte(low >> (56 - 8*i))
	}
	return u
}

// LaneSeals are those of all objects that are passed from process to process.
const LaneSeals = shm.SealShrink | shm.SealGrow | shm.SealSeal

// Level says where a lane stands. Indices count entries since the queue was made:
// Head <= Peeked <= Tail, and Tail - Head is at most the capacity.
type Level struct {
	Head      uint64 // first entry that was not given back to the writer
	Peeked    uint64 // first entry that was not handed to the application
	Tail      uint64 // next entry that will be published
	HighWater uint64 // most entries that were ever waiting, as far as the reader noticed
	Read      uint64 // entries handed to the application for good
}

// Depth returns how many entries occupy room.
func (l Level) Depth() uint64 { return l.Tail - l.Head }

// Unreleased returns how many of them the application has and did not give back.
func (l Level) Unreleased() uint64 { return l.Peeked - l.Head }

// Add sums up, but for the high-water mark, which is the highest one.
func (l *Level) Add(m Level) {
	l.Head += m.Head
	l.Peeked += m.Peeked
	l.Tail += m.Tail
	l.Read += m.Read
	l.HighWater = max(l.HighWater, m.HighWater)
}

// LevelTries bounds the wait for indices that stand still: a busy lane's never do.
const LevelTries = 64

// ReadLevel reads the indices of a lane that may be in use. Indices that moved all the time are
// set to what they were, or must have been, at the moment when head was loaded.
func ReadLevel(r *RowWords, words *LaneWords, capacity uint64, name string) (Level, error) {
	var l Level
	still := false
	for range LevelTries {
		l.Head, l.Peeked, l.Tail = r.Head.Load(), r.Peeked.Load(), words.Tail.Load()
		if still = r.Head.Load() == l.Head && words.Tail.Load() == l.Tail; still {
			break
		}
	}
	if l.Depth() > capacity {
		if still || l.Depth() > math.MaxInt64 {
			return Level{}, Refuse("inspect", name, "distance of tail from head", l.Depth(),
				fmt.Sprintf("at most %d", capacity), ErrCorrupt)
		}
		l.Tail = l.Head + capacity
	}
	switch out := int64(l.Peeked - l.Head); {
	case out < 0: // reading without Peek leaves it behind
		l.Peeked = l.Head
	case uint64(out) > l.Depth():
		l.Peeked = l.Tail
	}
	l.HighWater = max(min(r.HighWater.Load(), capacity), l.Depth())
	l.Read = l.Head // every row begins at 0
	return l, nil
}

// Traffic is what the writers of a lane count.
type Traffic struct {
	Publishes       uint64 // batches
	Wakes           uint64 // batches that made system calls to wake the reader
	WakesSuppressed uint64 // batches that needed none
	Refused         uint64 // posts for which there was no room
}

// Add sums up.
func (t *Traffic) Add(u Traffic) {
	t.Publishes += u.Publishes
	t.Wakes += u.Wakes
	t.WakesSuppressed += u.WakesSuppressed
	t.Refused += u.Refused
}

// Traffic reads what the lane's writers counted. A batch is counted before its wake, and the wakes
// are loaded first, so that there are never more of them; a writer can store what it likes.
func (w *LaneWords) Traffic() Traffic {
	wakes, publishes := w.Wakes.Load(), w.Publishes.Load()
	wakes = min(wakes, publishes)
	return Traffic{Publishes: publishes, Wakes: wakes, WakesSuppressed: publishes - wakes,
		Refused: w.Refused.Load()}
}

// Closed reports whether an address vector, or the reader's object of a queue, was destroyed by its
// owner.
func Closed(obj *shm.Object) (bool, error) {
	if obj.Header().Kind == shm.KindAddresses {
		words, err := WordsOf[AddrWords](obj, SectAddrWords, 0)
		return err == nil && words.State.Load() == StateClosed, err
	}
	words, err := WordsOf[QueueWords](obj, SectQueue, 0)
	return err == nil && words.State.Load() == StateClosed, err
}

// RefuseClosed is an error that matches [ErrClosed] if an object is [Closed].
func RefuseClosed(op, name string, obj *shm.Object) error {
	closed, err := Closed(obj)
	if closed {
		err = &shm.Error{Pkg: Pkg, Op: op, Name: name, Err: ErrClosed,
			Hint: "its owner destroyed it; create it again"}
	}
	return err
}

// InitReader writes what must be in a reader's object before anybody can see it: every row is born
// parked, with wake index 0, so that the first publish in it rings.
func InitReader(obj *shm.Object) error {
	rows, err := RowsOf(obj, 1)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Bell.Parked.Store(wake.Parked)
	}
	words, err := WordsOf[QueueWords](obj, SectQueue, 0)
	if err != nil {
		return err
	}
	words.State.Store(StateOpen)
	return nil
}

// Condemn tells those who come that the queue is closed, and writers at their next post. words is
// nil if they could not be mapped.
func Condemn(words *QueueWords, rows []RowWords) {
	if words != nil {
		words.State.Store(StateClosed)
	}
	for i := range rows {
		rows[i].Bell.Parked.Store(RowClosed | wake.Parked)
	}
}

// InitLane starts a new lane where its row stands, which is 0 unless an earlier lane of this row
// was removed.
func InitLane(obj *shm.Object, row int, r *RowWords) error {
	words, err := WordsOf[LaneWords](obj, SectLane, uint32(row))
	if err != nil {
		return err
	}
	words.Tail.Store(r.Head.Load())
	return nil
}

// LanePossible refuses a lane that no writer can go on in: its last one, or the reader, left an
// index there that cannot be.
func (q Queue) LanePossible(obj *shm.Object, row int, r *RowWords) error {
	words, err := WordsOf[LaneWords](obj, SectLane, uint32(row))
	if err != nil {
		return err
	}
	head, tail := r.Head.Load(), words.Tail.Load()
	if capacity := uint64(q.Capacity); tail-head > capacity {
		return Refuse("open lane", obj.Name(), "tail", tail, [2]uint64{head, head + capacity},
			ErrCorrupt)
	}
	return nil
}

// LaneFits is both: the lane is the one of this row, and a writer can go on in it.
func (q Queue) LaneFits(obj *shm.Object, row int, queue shm.UUID, r *RowWords) error {
	if err := q.LaneBelongs(obj, row, queue); err != nil {
		return err
	}
	return q.LanePossible(obj, row, r)
}

// Slot is an entry as eight words.
type Slot struct{ Context, Flags, Len, Buf, Data, Tag, Src, Meta uint64 }

// The last word of a slot: the index of its entry in the upper half, and below that what it is and
// the marks of its writer.
const (
	SlotKindMask = 0xff
	SlotEntry    = 1
	SlotError    = 2
	SlotMarks    = 3 << 8
)

// Seq returns the sequence number of an entry.
func (s *Slot) Seq() uint32 { return uint32(s.Meta >> 32) }

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

// LaneShare returns which entries of a lane are one writer's, as far as the lane still says so. A
// writer that died between taking the lane and saying where it begins published nothing.
func LaneShare(obj *shm.Object, bit int, generation uint64) (first, end uint64) {
	words, err := WordsOf[LaneWords](obj, SectLane, uint32(bit))
	if err != nil {
		return 0, 0
	}
	start := func(generation uint64) (uint64, bool) {
		e := &words.Epochs[generation%LaneEpochs]
		g := e.Generation.Load()
		at := e.Start.Load()
		return at, g == generation && e.Generation.Load() == g
	}
	end = words.Tail.Load()
	// Loaded after the tail: a successor says where it begins before it publishes.
	for next := generation + 1; next <= generation+LaneEpochs; next++ {
		if at, ok := start(next); ok {
			end = at
			break
		}
	}
	first, ok := start(generation)
	if !ok || first > end {
		first = end
	}
	return first, end
}
