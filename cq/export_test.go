package cq

import (
	"net"
	"time"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// What tests need to scribble where only a broken or hostile peer would.
const (
	SectQueue   = kind.SectQueue
	SectRows    = kind.SectRows
	SectHints   = kind.SectHints
	SectLane    = kind.SectLane
	SectSlots   = kind.SectSlots
	SectErrors  = kind.SectErrors
	RowBytes    = kind.RowBytes
	SlotBytes   = kind.SlotBytes
	OffState    = kind.OffState
	OffWakes    = 136 // in the lane's page
	OffFace     = kind.OffFace
	OffHead     = kind.RowOffIndex
	OffLaneOver = 264
	ReaderFile  = kind.ReaderFile
	FIFOFile    = kind.FifoFile
	LaneBudget  = laneBudget
	MaxLanes    = kind.MaxLanes
	MaxCapacity = kind.MaxCapacity
)

// LaneSpec is the layout of a lane object.
func LaneSpec(row, capacity int, queue shm.UUID) shm.Spec {
	return queueShape(Options{Size: capacity}).attrs().LaneSpec("lane", row, queue)
}

// ReaderSpec is the layout of a reader object.
func ReaderSpec(name string, o Options) (shm.Spec, error) {
	o, err := o.resolve("create", name)
	return queueShape(o).attrs().ReaderSpec(name), err
}

// QueueUUID is what a lane must name to belong to the queue.
func QueueUUID(q *Queue) shm.UUID { return q.obj.Header().UUID }

// MarkLane sets a lane's ready bit, as any peer can.
func MarkLane(q *Queue, bit int) { q.bell.Mark(bit) }

// Name is what the queue, the counter or the vector was opened by.
func (q *core) Name() string { return q.name }

// Name is the counter's.
func (c *Counter) Name() string { return c.name }

// Name is the vector's.
func (v *AddressVector) Name() string { return v.name }

// Purge is what an object does that is closed.
func (e *EventQueue) Purge(id FID) error { return e.drop(id) }

// BindEvents is what an object does that reports to the queue, UnbindEvents when it is closed.
func BindEvents(e *EventQueue) error { return e.bind() }

// UnbindEvents ends that.
func UnbindEvents(e *EventQueue) { e.unbind() }

// EventReaderSpec is the layout of an event queue's reader object.
func EventReaderSpec(e *EventQueue) shm.Spec { return e.opt.attrs().ReaderSpec("forged") }

// EventLaneSpec is the layout of a lane object of an event queue.
func EventLaneSpec(row int, e *EventQueue) shm.Spec {
	return e.opt.attrs().LaneSpec("lane", row, e.obj.Header().UUID)
}

// MarkEventLane sets a lane's ready bit, as any peer can.
func MarkEventLane(e *EventQueue, bit int) { e.bell.Mark(bit) }

// PromiseEvents is what an object does when it accepts n operations, KeepEvent what it does when
// one of them ends.
func PromiseEvents(e *EventQueue, n int) error { return e.own.credit(n) }

// KeepEvent reports the end of an operation for which there is room.
func KeepEvent(e *EventQueue, ev *Event) error { return e.post(ev, true) }

// KeepEventError reports that it failed.
func KeepEventError(e *EventQueue, ev *EventError) error { return e.postErr(ev) }

// BreakPromise says that n operations end without an event.
func BreakPromise(e *EventQueue, n int) { e.own.returnCredits(n) }

// BellSpec is the layout of the bell of a reading process.
func BellSpec() shm.Spec { return kind.BellSpec() }

// RingLane marks the writer's lane, as its next publish would, and rings.
func RingLane(w *Writer) { w.ringer.Announce() }

// WritePipe writes to the pipe of the reader's descriptor, as a hostile writer can.
func WritePipe(w *Writer) {
	if d, ok := w.side.(*place.Joining); ok {
		fd, _ := d.OpenFace(nil, nil, uint16(w.reader.Owner().Generation))
		_ = eventfd.Write(fd)
		eventfd.Close(fd)
	}
}

// LoseHandOut makes the ring of the lane that entries are handed out of believe what a second
// goroutine can make it believe: that they are not there.
func LoseHandOut(q *Queue) { q.out.cons.PeekFrom(q.out.cons.Head()-1, 1) }

// LookAgain does what a look at a lane goes on with that found it empty, and returns what a read
// would that found nothing else.
func LookAgain(q *Queue, bit int) error {
	if !q.enter() {
		return q.guard.refusal()
	}
	defer q.leave()
	q.empty(bit)
	_, err := q.result(0)
	return err
}

// StoreMeta writes the last word of a slot of the writer's lane.
func (w *Writer) StoreMeta(at uint64, m Meta) { w.slots[at%uint64(len(w.slots))].Meta = m }

// HoldDeaths keeps the process from looking for dead writers of a queue until look is called.
func HoldDeaths(q *Queue) (look func()) {
	q.deaths.report.mu.Lock()
	return q.deaths.report.mu.Unlock
}

// LookEvery says how often the writer looks for its reader while it waits for room.
func (w *Writer) LookEvery(d time.Duration) { w.look = d }

// LookEvery is the same for a writer of events.
func (w *EventWriter) LookEvery(d time.Duration) { w.look = d }

// GoIn has the caller inside of the lane that is read without the lock, until leave is called.
func GoIn(q *Queue) (leave func()) {
	l := q.open.Load()
	if taken := l.taken.Load(); taken == wake.Shut || !l.taken.CompareAndSwap(taken, wake.Shut) {
		panic("it is shut")
	}
	return func() { l.taken.Store(l.cons.Head()) }
}

// IsEmpty is the look at a shared queue without its lock.
func IsEmpty(q *Queue) bool {
	_, err := readOpen[Context](q, nil, nil)
	return err != nil
}

// What tests need to stop a process half way through an add, or to scribble as a hostile peer.
const (
	SectCounter     = kind.SectCounter
	OffCounterErr   = kind.OffCounterErr
	OffCounterBell  = kind.OffCounterBell
	OffCounterRows  = kind.OffCounterRows
	CounterRowBytes = shm.SeatBytes
)

// AddSilently is the first half of Add: what an adder has done that dies before it rings.
func (c *Counter) AddSilently(n uint64) { c.words.Value.Add(n) }

// CounterSpec is the layout of a counter.
func CounterSpec(name string, o CounterOptions) shm.Spec { return o.spec(name) }

// CounterCheckpoint is what a set keeps of a counter.
type CounterCheckpoint = counterCheckpoint

// Blinded reports which of those who follow a peer for a queue or a counter will have no notice:
// the reader, who reports the deaths of the writer of lane 1, and who waits for the counter.
func Blinded(q *Queue, c *Counter) (reader, reporter, waiter bool) {
	q.deaths.mu.Lock()
	r := q.deaths.report
	q.deaths.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	c.peers.mu.Lock()
	defer c.peers.mu.Unlock()
	w := r.who.(*writerDeaths).lanes[1]
	return q.sliced.Load(), w != nil && w.Notice.Blind, c.peers.sliced
}

// LoseNotice has the notice of the death of a row's writer not come. It is false as long as there
// is none to lose.
func LoseNotice(q *Queue, bit int) bool {
	q.deaths.mu.Lock()
	r := q.deaths.report
	q.deaths.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.who.(*writerDeaths).lanes[bit]
	if w == nil || w.Notice.Generation == 0 || w.Notice.Blind {
		return false
	}
	generation := w.Notice.Generation
	w.Rest()
	w.Notice.Generation = generation
	return true
}

// What tests need to scribble over address vectors.
const (
	SectAddrWords = kind.SectAddrWords
	SectAddrRows  = kind.SectAddrRows
	SectAddrIndex = kind.SectAddrIndex
	AddrRowUsed   = kind.AddrRowUsed
	AddrRowHasID  = kind.AddrRowHasID
)

// AddressCells returns how many cells of the index are in use.
func AddressCells(v *AddressVector) (n int) {
	for i := range v.table.Index {
		if v.table.Index[i].Load() != 0 {
			n++
		}
	}
	return n
}

// AddressSpec is the layout of a vector.
func AddressSpec(name string, o AddressOptions) (shm.Spec, error) {
	o, err := o.resolve("create", name)
	return o.spec(name), err
}

// AddressHome returns the cell of the index that the search for an address begins at.
func AddressHome(v *AddressVector, raw []byte) uint32 {
	return v.table.Key(raw).Hash & v.table.Mask
}

// StoreHead and StorePeeked write what a reader says of a lane.
func StoreHead(q *Queue, bit int, at uint64)   { q.rows[bit].Head.Store(at) }
func StorePeeked(q *Queue, bit int, at uint64) { q.rows[bit].Peeked.Store(at) }

// Decider meets the reader at the other end, and returns what a writer does whose rendezvous broke
// when its lane was sent.
func Decider(conn *net.UnixConn) (decided func() bool, end func(), err error) {
	p, err := place.MeetPeer(conn, nil)
	return func() bool { return place.Decide(p) }, p.Close, err
}

// ShareReader returns a descriptor of a queue's reader object, as writers of other users get it.
func ShareReader(q *Queue) (int, error) { return q.obj.ShareFD() }

// StoreTail writes what a writer says of its own lane.
func (w *Writer) StoreTail(at uint64) { w.words.Tail.Store(at) }

// Forwards reports whether a keeper was to pass on the rings of a row's writer.
func Forwards(q *Queue, bit int) bool { return q.side.Forwards(bit) }

// Steps of a rendezvous, and the descriptors that come with them.
const (
	StepAsk   = place.StepAsk
	StepOffer = place.StepOffer
	StepLane  = place.StepLane
	StepDone  = place.StepDone
	FDReader  = 1 << place.FDReader
	FDLane    = 1 << place.FDLane
	FDEvent   = 1 << place.FDEvent
)

// RendezvousMessage is what one side sends.
func RendezvousMessage(s uint16, status, fds, row uint32, queue shm.UUID) []byte {
	m := place.Message{Step: s, Status: status, FDs: fds, Row: row, Generation: 1, Queue: queue}
	return m.Encode()
}

// LaneFD is a descriptor of a writer's lane.
func LaneFD(w *Writer) int { return w.obj.FD() }

// LaneUUID is what the object of a writer's lane is known by.
func LaneUUID(w *Writer) shm.UUID { return w.obj.Header().UUID }

// ReaderFD is the descriptor of the reader object that a writer gets.
func ReaderFD(q *Queue) int { return q.obj.FD() }

// ShortMeetings makes a peer that is silent for this long one that does not come, until restore.
func ShortMeetings(d time.Duration) (restore func()) {
	was := place.MeetTimeout
	place.MeetTimeout = d
	return func() { place.MeetTimeout = was }
}

// Whoever tests silence says how long it takes. To all others a machine that stands still for ten
// seconds is none.
func init() { place.MeetTimeout = time.Minute }

// Serving is how many connections a queue for other users attaches at once, at the most.
func Serving(q *Queue) int { return 2 * q.opt.rows() }

// RowsOffered is how many rows have been offered to peers that have not brought a lane.
func RowsOffered(q *Queue) (n int) {
	_, n, _ = q.side.Busy()
	return n
}
