package cq

import (
	"time"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
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

// Announce marks the writer's lane, as its next publish would.
func (w *Writer) Announce() { w.ringer.Attach() }

// PostEvent is what an object of the library does.
func PostEvent(e *EventQueue, ev *Event) error { return e.post(ev, false) }

// PostEventError is what an operation of the library does that fails.
func PostEventError(e *EventQueue, ev *EventError) error { return e.postErr(ev, false) }

// BindEvents is what an object does that reports to the queue, UnbindEvents when it is closed.
func BindEvents(e *EventQueue) error { return e.bind() }

// UnbindEvents ends that.
func UnbindEvents(e *EventQueue) { e.unbind() }

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
func KeepEventError(e *EventQueue, ev *EventError) error { return e.postErr(ev, true) }

// BreakPromise says that n operations end without an event.
func BreakPromise(e *EventQueue, n int) { e.own.returnCredits(n) }

// BellSpec is the layout of the bell of a reading process.
func BellSpec() shm.Spec { return kind.BellSpec() }

// RingLane rings for nothing, as a hostile writer can.
func RingLane(w *Writer) { w.ringer.Attach() }

// WritePipe writes to the pipe of the reader's descriptor, as a hostile writer can.
func WritePipe(w *Writer) {
	if d, ok := w.door.(*memfdDoor); ok && d.fds[fdEvent] >= 0 {
		_ = eventfd.Write(d.fds[fdEvent])
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
func (w *EventWriter) LookEvery(d time.Duration) { w.lane.w.look = d }

// IsEmpty is the look at a shared queue without its lock.
func IsEmpty(q *Queue) bool { return q.isEmpty() }
