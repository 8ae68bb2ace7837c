package cq

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Writer posts completions to a queue through a lane of its own. It is one goroutine's at a time; a
// second one gets ErrBusy where it is noticed.
// Close and Stats may be called from anywhere.
type Writer struct{ laneWriter }

// laneWriter is what a Writer and an EventWriter are alike: the writing end of one lane.
type laneWriter struct {
	name   string
	bit    int
	obj    *shm.Object      // the lane, nil for the reader's own
	reader *shm.Object      // the queue's reader object
	side   place.WriterSide // nil for the reader's own
	beside *wake.Bell       // of the reader's own process, on its own lane
	prod   *ring.Producer[Entry]
	detail kind.Details
	words  *kind.LaneWords
	row    *kind.RowWords
	ringer *wake.Ringer
	guard  guard
	own    bool // on lane 0: the queue owns the memory
	// detailed says that detail records have memory, see provideDetails.
	detailed bool

	holders holders  // endpoints, and objects that report by it
	queue   shm.UUID // that these hold as well, zero if it is not this process's

	policy   Overrun
	credits  uint64 // promised and not used
	reserved int    // slots that Reserve returned and Commit may publish
	// halt is not 0 when posting is over, for the reasons of the halt constants.
	halt  atomic.Uint32
	trust Trust
	peer  *place.Peer   // the reader of another user
	gone  chan struct{} // closed when it is proved dead; nil for one of the same user
	woke  uint64        // wakes of the lane's writers before this one

	deaths deathBinding  // of readers
	look   time.Duration // of a wait for room, for the reader; 0 is 100 ms

	// Of a writer of another user's queue.
	opt     WriterOptions
	slots   []Entry
	follows bool // it goes on in the place of another

	reach *place.Reach // nil for the reader's own
}

// Why a writer cannot post any more, beyond what the reader tells it.
const (
	haltLost = 1 << iota // this lane overran, under this writer or one before: it is final
	haltGone             // the reader is proved dead
)

// Lane returns the writer's lane number.
func (w *laneWriter) Lane() int { return w.bit }

// Next returns the index that the next published entry gets; its low 32 bits are that entry's
// sequence (see [Meta.Seq]). Only the goroutine that posts may ask.
func (w *Writer) Next() uint64 { return w.prod.Tail() }

// Post publishes one completion (fi_peer: write of struct fi_ops_cq_owner). nil says that the
// reader will get it, if it does not close the queue first; ErrFull that the reader is behind;
// ErrClosed that the queue or the writer is closed; ErrOverrun that the queue was overrun, now or
// before. Only the marks of e.Meta are taken.
func (w *Writer) Post(e *Entry) error {
	if !w.guard.enterAlone() {
		return ErrClosed
	}
	slot, err := w.prod.Next(w.credits), error(nil)
	if slot == nil || w.halt.Load() != 0 || w.ringer.Flags() > wake.Parked {
		slot, err = w.slotFor(false)
	}
	if err == nil {
		at := w.prod.Tail()
		*slot = *e
		slot.Meta = e.Meta&metaMarks | kindEntry | Meta(at)<<32
		if crash.On {
			crash.At(crash.Filled)
		}
		var holds wake.Holds
		if e.Meta&MetaSolicited != 0 {
			w.words.Sol.Store(at + 1)
			holds = wake.HoldsSolicited
		}
		w.reserved = 0
		plainCount(&w.words.Publishes, 1)
		w.prod.Commit(1)
		if crash.On {
			crash.At(crash.PublishStored)
		}
		if row := w.ringer.Published(at+1, holds); row != 0 {
			w.rang()
		}
		if crash.On {
			crash.At(crash.PublishEnded)
		}
	}
	w.guard.leaveAlone()
	return err
}

// slotFor returns the slot of the next entry, in room that a credit reserved if it is credited.
func (w *laneWriter) slotFor(credited bool) (*Entry, error) {
	keep := w.credits
	if credited {
		if w.credits == 0 {
			return nil, ErrNoCredit
		}
		keep--
	}
	a, _, err := w.reserve(1, keep)
	if err != nil {
		return nil, err
	}
	if credited {
		w.credits = max(1, w.credits) - 1
	}
	return &a[0], nil
}

// commit publishes k slots and rings.
func (w *laneWriter) commit(k int, holds wake.Holds) {
	plainCount(&w.words.Publishes, 1)
	if crash.On { // not even the mark of an inlined call
		crash.At(crash.Stamped)
	}
	w.prod.Commit(k)
	if crash.On {
		crash.At(crash.PublishStored)
	}
	if row := w.ringer.Published(w.prod.Tail(), holds); row != 0 {
		w.rang()
	}
}

func (w *laneWriter) rang() { countStore(&w.words.Wakes, w.woke+w.ringer.Wakes()) }

// PostBatch publishes the first n of es with one store and returns n, less than len(es) when the
// lane has no room for all; then the error is ErrFull if n is 0, and nil if not.
func (w *Writer) PostBatch(es []Entry) (int, error) {
	if len(es) == 0 {
		return 0, nil
	}
	if !w.guard.enter() {
		return 0, w.guard.refusal()
	}
	a, b, err := w.reserve(len(es), w.credits)
	if err == nil {
		at := w.prod.Tail()
		marks := fill(a, es, at) | fill(b, es[len(a):], at+uint64(len(a)))
		w.publishStamped(a, b, marks, kindEntry)
	}
	w.guard.leave()
	return len(a) + len(b), err
}

// Reserve returns up to n free slots to be filled in place, as one span or, around the end of the
// lane, two. Each slot must be assigned as a whole, since it holds what was there before. Nothing
// is published before Commit, and the slots go with Close: nobody may close the writer while they
// are being filled. Room that credits were given for is not handed out. Errors are those of
// [Writer.Post].
func (w *Writer) Reserve(n int) (a, b []Entry, err error) {
	if !w.guard.enter() {
		return nil, nil, w.guard.refusal()
	}
	a, b, err = w.reserve(n, w.credits)
	w.guard.leave()
	return a, b, err
}

func (w *laneWriter) reserve(n int, keep uint64) (a, b []Entry, err error) {
	if n <= 0 {
		return nil, nil, kind.Refuse("reserve", w.name, "n", n, "1 or more", ErrInvalid)
	}
	if f := w.ringer.Flags(); f > wake.Parked {
		return nil, nil, w.refused(f)
	}
	if h := w.halt.Load(); h != 0 {
		return nil, nil, halted(h)
	}
	a, b = w.prod.Reserve(n + int(keep))
	room := len(a) + len(b) - int(keep)
	if room <= 0 {
		return nil, nil, w.full()
	}
	n = min(n, room, len(a)+len(b)) // two goroutines may have made anything of the credits
	if n <= len(a) {
		a, b = a[:n:n], nil
	} else {
		b = b[: n-len(a) : n-len(a)]
	}
	w.reserved = n
	return a, b, nil
}

// Commit publishes the first k of the slots that the last Reserve returned, with one store, and
// wakes the reader if it sleeps. More slots than those are ErrInvalid, and nothing is published;
// after Close it is ErrClosed.
func (w *Writer) Commit(k int) error {
	if !w.guard.enter() {
		return w.guard.refusal()
	}
	if k < 0 || k > w.reserved {
		w.guard.leave()
		return kind.Refuse("commit", w.name, "k", k, w.reserved, ErrInvalid)
	}
	w.publish(k, kindEntry)
	w.guard.leave()
	return nil
}

// publish is P1 to P7 for k filled slots. Kind and sequence are stamped here; they are visible
// before the tail is.
func (w *laneWriter) publish(k int, kind Meta) {
	at := w.prod.Tail()
	a, b := w.prod.Reserve(k)
	w.publishStamped(a, b, stamp(a, at, kind)|stamp(b, at+uint64(len(a)), kind), kind)
}

// publishStamped publishes slots that are complete, and have these marks among them.
func (w *laneWriter) publishStamped(a, b []Entry, marks, kind Meta) {
	w.reserved = 0
	at, k := w.prod.Tail(), len(a)+len(b)
	next := at + uint64(k)
	var holds wake.Holds
	if marks&MetaSolicited != 0 || kind == kindError {
		w.words.Sol.Store(lastMarked(a, b, at, kind))
		holds = wake.HoldsSolicited
	}
	if kind == kindError {
		w.words.Err.Store(next)
		holds |= wake.HoldsError
	}
	w.commit(k, holds)
}

// fill copies entries to slots, which begin at an index, completes the last word of each, and
// returns all marks that were set. It copies by words: a load of more than the caller has stored at
// once waits until that has left the store buffer, behind slots whose lines the reader has.
func fill(slots, es []Entry, at uint64) (marks Meta) {
	es = es[:len(slots)]
	for i := range slots {
		to, e := &slots[i], &es[i]
		to.Context, to.Flags, to.Len, to.Buf = e.Context, e.Flags, e.Len, e.Buf
		to.Data, to.Tag, to.Src = e.Data, e.Tag, e.Src
		m := e.Meta & metaMarks
		marks |= m
		to.Meta = m | kindEntry | Meta(uint32(at)+uint32(i))<<32
	}
	return marks
}

// stamp completes the last word of each entry and returns all marks that were set.
func stamp(es []Entry, at uint64, kind Meta) (marks Meta) {
	for i := range es {
		m := es[i].Meta & metaMarks
		marks |= m
		es[i].Meta = m | kind | Meta(uint32(at)+uint32(i))<<32
	}
	return marks
}

// lastMarked returns the index after the last entry that an event for solicited ones is due for.
func lastMarked(a, b []Entry, at uint64, kind Meta) uint64 {
	if kind == kindError {
		return at + uint64(len(a)+len(b))
	}
	for i := len(b) - 1; i >= 0; i-- {
		if b[i].Meta&MetaSolicited != 0 {
			return at + uint64(len(a)+i) + 1
		}
	}
	for i := len(a) - 1; i >= 0; i-- {
		if a[i].Meta&MetaSolicited != 0 {
			return at + uint64(i) + 1
		}
	}
	return at
}

// PostError publishes a failed operation, which the reader takes with ReadErr, in order with the
// completions of this lane (fi_peer: writeerr). Errors are those of Post, ErrInvalid for more than
// ErrDataMaxBytes of e.ErrData, and of a writer's first one [shm.ErrNoSpace] if there is no memory
// left for details of errors.
func (w *Writer) PostError(e *ErrorEntry) error {
	if !w.guard.enter() {
		return w.guard.refusal()
	}
	defer w.guard.leave()
	if err := keeps(&w.detail, e.ErrData, "posterr", w.name); err != nil {
		return err
	}
	if err := w.provideDetails(); err != nil {
		return failed("posterr", w.name, err)
	}
	slot, err := w.slotFor(false)
	if err != nil {
		return err
	}
	w.fillError(slot, e)
	w.publish(1, kindError)
	return nil
}

// provideDetails gives the lane's detail records their memory. It comes before each credit, so that
// no error is refused for want of it which has one.
func (w *laneWriter) provideDetails() error {
	if w.detailed {
		return nil
	}
	obj := w.obj
	if w.own {
		obj = w.reader
	}
	err := obj.Provide(kind.SectErrors, uint32(w.bit))
	w.detailed = err == nil
	return err
}

func (w *laneWriter) fillError(slot *Entry, e *ErrorEntry) {
	*slot = Entry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf, Data: e.Data,
		Tag: e.Tag, Src: e.Src}
	if e.Flags&FlagNoContext != 0 {
		slot.Flags &^= FlagNoContext
		slot.Meta = MetaNoContext
	}
	d := w.detail.Record(w.prod.Tail())
	*d = kind.Record{OverrunBytes: e.OverrunBytes, Err: int32(e.Err), ProvErrno: e.ProvErrno}
	d.DataBytes = uint64(copy(d.Data[:], e.ErrData))
}

// Credits returns the writer's credits: room that is kept for completions which must not be
// refused, those of operations that were accepted. It allocates nothing and is not counted as a
// call; the methods of what it returns are, as any of the writer's.
func (w *Writer) Credits() *Credits { return (*Credits)(&w.laneWriter) }

// Credits is the room of a lane that its [Writer] keeps for completions that must not be refused:
// with it an operation that was accepted completes (fi_domain(3), FI_RM_ENABLED).
type Credits laneWriter

// Add reserves room for n completions, which are 0 or more. It reserves all or nothing; ErrFull
// says that there is not that much room beside what Reserve handed out last. Other errors are those
// of Post, ErrInvalid, and of a writer's first ones [shm.ErrNoSpace], as of [Writer.PostError].
func (c *Credits) Add(n int) error { return (*laneWriter)(c).addCredits(n) }

// Return gives up n credits without posting, or all of them if there are fewer.
func (c *Credits) Return(n int) { (*laneWriter)(c).dropCredits(n) }

// Len returns for how many completions room is reserved and not used.
func (c *Credits) Len() int { return int(c.credits) }

// Post is [Writer.Post] with the room of one credit, which it uses up: it is never refused for lack
// of room. Without a credit it is ErrNoCredit.
func (c *Credits) Post(e *Entry) error {
	return (*laneWriter)(c).credited(func(slot *Entry) Meta { *slot = *e; return kindEntry })
}

// PostError is [Writer.PostError] with the room of one credit, as Post.
func (c *Credits) PostError(e *ErrorEntry) error {
	w := (*laneWriter)(c)
	if err := keeps(&w.detail, e.ErrData, "posterr", w.name); err != nil {
		return err
	}
	return w.credited(func(slot *Entry) Meta { w.fillError(slot, e); return kindError })
}

func (w *laneWriter) addCredits(n int) (err error) {
	if !w.guard.enter() {
		return w.guard.refusal()
	}
	switch f, h := w.ringer.Flags(), w.halt.Load(); {
	case n < 0:
		err = kind.Refuse("credit", w.name, "n", n, "0 or more", ErrInvalid)
	case f > wake.Parked:
		err = w.refused(f)
	case h != 0:
		err = halted(h)
	// What Reserve handed out may still be committed. Free looks at the reader's line, if need be.
	case w.prod.Next(w.credits+uint64(w.reserved+n)) == nil &&
		n > w.prod.Free()-int(w.credits)-w.reserved:
		w.remind()
		err = ErrFull
	default:
		if err = w.provideDetails(); err == nil {
			w.credits += uint64(n)
		} else {
			err = failed("credit", w.name, err)
		}
	}
	w.guard.leave()
	return err
}

func (w *laneWriter) credited(fill func(*Entry) Meta) error {
	if !w.guard.enter() {
		return w.guard.refusal()
	}
	defer w.guard.leave()
	slot, err := w.slotFor(true)
	if err != nil {
		return err
	}
	kind := fill(slot)
	w.publish(1, kind)
	return nil
}

func (w *laneWriter) dropCredits(n int) {
	have := w.credits
	w.credits = have - min(have, uint64(max(n, 0)))
}

// Free returns how many entries can be posted now without a credit.
func (w *Writer) Free() int {
	if !w.guard.enter() {
		return 0
	}
	defer w.guard.leave()
	return max(0, w.prod.Free()-int(w.credits))
}

// WriterStats are counts of a writer.
type WriterStats struct {
	Queue     string   // the name of the queue
	QueueID   shm.UUID // which one of that name, as its object says
	Size      int      // entries that the lane holds
	Bytes     uint64   // of memory that it may take and this process made; 0 for the reader's own
	Unread    int      // entries that the reader has not released, and leaves when it dies
	Overrun   Overrun  // what becomes of a post for which there is no room
	Reader    uint64   // generation of the reader: with CrossUser a later queue has a higher one
	Posted    uint64   // entries published by this lane, all its writers together
	Publishes uint64   // batches
	Wakes     uint64   // batches that made a system call to wake the reader
	Refused   uint64   // posts for which there was no room
}

// Stats returns counters. It may be called from anywhere while the writer is open.
func (w *laneWriter) Stats() WriterStats {
	if !w.guard.enterAny() {
		return WriterStats{}
	}
	defer w.guard.leaveAny()
	t, size := w.words.Traffic(), w.prod.Cap()
	tail := w.words.Tail.Load()
	unread := min(tail-w.row.Head.Load(), uint64(size))
	s := WriterStats{Queue: w.name, QueueID: w.reader.Header().UUID, Size: size,
		Unread: int(unread), Overrun: w.policy, Reader: w.reader.Generation(), Posted: tail,
		Publishes: t.Publishes, Wakes: t.Wakes, Refused: t.Refused}
	if w.obj != nil {
		s.Bytes = uint64(len(w.obj.Bytes()))
	}
	return s
}

// plainCount adds to a counter that only this goroutine writes and inspectors read. No order is
// needed, so it costs no XCHG; a 64-bit aligned store does not tear.
func plainCount(p *atomic.Uint64, n uint64) { countStore(p, countLoad(p)+n) }

// halted says why a writer cannot go on.
func halted(h uint32) error {
	if h&haltGone != 0 {
		return ErrPeerGone
	}
	return ErrOverrun
}

// refused translates what the reader wrote beside the parked bit. It is never nil.
func (w *laneWriter) refused(flags uint64) error {
	switch {
	case flags&kind.RowClosed != 0:
		return ErrClosed
	case flags&kind.RowOverrun != 0:
		return ErrOverrun
	case flags&(kind.RowLeft|kind.RowPoisoned) == kind.RowLeft && w.trust == CrossUser:
		return ErrPeerGone
	}
	e := &LaneError{Lane: w.bit, PID: w.reader.Owner().PID, Field: "lane", Err: ErrCorrupt}
	if flags&kind.RowPoisoned == 0 { // bits that mean nothing: the reader cannot be trusted
		e.Field = "row"
	}
	return e
}

// full says what no room means in this queue, and why there may be none.
func (w *laneWriter) full() error {
	if err := w.prod.Err(); errors.Is(err, ring.ErrMisuse) {
		return errInUse
	} else if err != nil {
		return &LaneError{Lane: w.bit, PID: w.reader.Owner().PID, Field: "head", Err: err}
	}
	plainCount(&w.words.Refused, 1)
	if w.policy != OverrunQueue {
		w.remind()
		return ErrFull
	}
	// From here on the lane is final: the reader drains it and tells the queue. It is marked also
	// if the reader is awake, who would find out only when the lane is drained.
	w.halt.Or(haltLost)
	w.words.Overrun.Store(w.prod.Tail() + 1)
	crash.At(crash.Overran)
	w.ringer.Announce()
	return ErrOverrun
}

// remind rings for a lane that is parked and has too little room for what was asked. The mark of
// what was published last is a hint, which another process of the same user can have taken to its
// grave or wiped, and no publish may come before there is room: the reader would wait for a mark,
// and the writer for room. It rings as that publish did, but a full lane ends any wait.
func (w *laneWriter) remind() {
	if w.trust != SameUser || w.ringer.Flags() != wake.Parked {
		return
	}
	switch w.prod.Free() {
	case w.prod.Cap():
		return // more was asked than the lane can hold
	case 0:
		w.ringer.Announce()
	default:
		holds := wake.HoldsSolicited
		if w.words.Err.Load() > w.prod.Head() {
			holds |= wake.HoldsError
		}
		w.ringer.Remind(w.prod.Tail(), holds)
	}
}
