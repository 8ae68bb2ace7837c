package cq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// WriterOptions of Attach. The zero value attaches to a queue that exists now.
type WriterOptions struct {
	// Wait waits for a queue that is Named to be created, until the context ends.
	Wait bool
	// Format is the detail that this writer fills in. A queue with a smaller format is
	// ErrFormat; 0 does not ask.
	Format Format
	// Trust is how far Attach trusts the reader; a queue that was created otherwise is
	// ErrInvalid. A queue with a name is SameUser.
	Trust Trust
	// Allow lists the users and groups that the reader may belong to with CrossUser. nil allows
	// this process's own user only.
	Allow *shm.AllowList
	// MaxBytes bounds how much memory Attach may take with CrossUser, as its lane is as
	// large as the reader says, and how large the reader's own object may be. 0 is 64 MiB.
	MaxBytes uint64

	events bool // attach to an event queue
}

// attachEvery is how often Attach looks for a queue that does not exist yet.
const attachEvery = 5 * time.Millisecond

// Attach becomes a writer of a queue, with a lane of its own: a new one, or one whose writer
// detached or is provably dead, which goes on where that one stopped. It may be called from
// anywhere.
//
// A queue that is [Named] need not have a living reader. While another process removes a queue that
// nobody uses, Attach waits for the outcome, a second at most. It waits likewise while a lane may
// come free, or while a lane of an earlier queue of that name is in the place of one that it could
// have.
//
// [Over] a socket the reader must call [Queue.Accept] at the other end; the context alone says how
// long to wait for it. The connection stays the caller's, as with Accept, and may be closed; kept
// open it is a life line to a reader that calls Serve. With WriterOptions.Trust the reader may be
// another user's, of WriterOptions.Allow. The writer keeps a descriptor of the connection until
// Close; once the reader is proved dead, posts are ErrPeerGone: see [Writer.ReaderGone].
//
// Errors are fs.ErrNotExist, ErrClosed, ErrLanes, ErrFormat, ErrBusy if a removal did not come to
// an end, ErrInvalid for another kind of trust, and those of opening shared memory; over a socket
// also ErrPeerGone, ErrCorrupt, [shm.ErrVersion] and [shm.ErrOwner], and what the reader refused
// for: it is ECONNREFUSED besides, whatever it was for.
func Attach(ctx context.Context, p Place, o WriterOptions) (*Writer, error) {
	if err := p.only("attach", placeNamed|placeOver); err != nil {
		return nil, err
	}
	if p.form == placeOver {
		return attachConn(ctx, p.conn, o, nil)
	}
	var met collect.Contest
	for {
		w, err := attach(p.dir, p.name, o)
		pause, again := met.Wait(err, time.Now())
		if o.Wait && errors.Is(err, fs.ErrNotExist) {
			pause, again = attachEvery, true
		}
		if !again {
			return w, met.Outcome(err)
		}
		select {
		case <-ctx.Done():
			e := &Error{Pkg: kind.Pkg, Op: "attach", Name: p.name, Err: kind.Ended(ctx)}
			if why := new(Error); errors.As(err, &why) { // what it waited for
				e.Hint = why.Hint
			}
			return nil, e
		case <-time.After(pause):
		}
	}
}

func attach(d *shm.Dir, name string, o WriterOptions) (*Writer, error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, failed("attach", name, err)
	}
	w := &Writer{laneWriter{name: name, side: place.NewNamed(d, name, dir)}}
	return given(w, w.opened(w.open(o)))
}

// attachConn becomes a writer, with what another reader left if there is any.
func attachConn(ctx context.Context, conn *net.UnixConn, o WriterOptions, l *handover) (*Writer,
	error) {
	if o.Trust > CrossUser {
		return nil, kind.Refuse("attach", "", "Trust", uint32(o.Trust), "SameUser or CrossUser",
			ErrInvalid)
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultPeerBytes
	}
	w := &Writer{}
	to := place.JoinOptions{Trust: uint32(o.Trust), Allow: o.Allow, MaxBytes: o.MaxBytes}
	if w.follows = l != nil; w.follows {
		to.Fill = l.fill
	}
	d := place.Join(ctx, conn, to)
	w.side = d
	err := w.open(o)
	d.Settle(err)
	w.peer = d.Peer
	if err = w.opened(err); err != nil {
		return nil, err
	}
	if o.Trust == CrossUser {
		w.opt = o
		w.watchReader()
	}
	return w, nil
}

// defaultPeerBytes is WriterOptions.MaxBytes where it is 0.
const defaultPeerBytes = 64 << 20

// opened gives back what open took if that failed.
func (w *laneWriter) opened(err error) error {
	if err == nil {
		return nil
	}
	_ = w.giveBack(errors.Is(err, ErrClosed)) // then the reader may have left it because of our lane
	return failed("attach", w.name, err)
}

// giveBack gives back what open took: the lane first, if it was claimed. remove says whether the
// directory is to go, which it also does if this was the last writer.
func (w *laneWriter) giveBack(remove bool) (err error) {
	if w.obj != nil {
		var last bool
		last, err = w.side.Leave(w.obj, w.isOver)
		remove = remove || last
		crash.At(crash.WriterReleased)
	}
	if w.ringer != nil {
		if w.trust == CrossUser {
			w.ringer.Announce() // the reader retires the lane
		}
		w.ringer.Close()
		w.reach.Close()
	}
	w.peer.Close()
	w.unmap()
	if remove {
		w.side.RemoveDir()
	}
	_ = w.side.Close()
	return err
}

// isOver reports that nobody can use the queue any more. The queue's state does not say that: who
// removes it can take that back, and a reader that adopts it meanwhile has this lane open, perhaps
// with entries that it has not read.
func (w *laneWriter) isOver() bool {
	gone, err := w.side.Gone(w.reader)
	return err == nil && gone || w.row.Bell.Parked.Load()&kind.RowClosed != 0
}

// open maps the queue, claims a lane and tells the reader.
func (w *laneWriter) open(o WriterOptions) (err error) {
	if w.reader, err = w.side.OpenReader(); err != nil {
		return err
	}
	h := w.reader.Header()
	w.name = cmp.Or(w.name, h.Name)
	opt, err := stored("attach", w.name, h)
	if err != nil {
		return err
	}
	if err := opt.checkKind("attach", w.name, shape{events: o.events}); err != nil {
		return err
	}
	if o.Trust != opt.Trust {
		return kind.Refuse("attach", w.name, "Trust", opt.Trust, o.Trust, ErrInvalid)
	}
	w.trust = opt.Trust
	if o.Format > opt.Format {
		return kind.Refuse("attach", w.name, "Format", opt.Format, o.Format, ErrFormat)
	}
	words, err := kind.WordsOf[kind.QueueWords](w.reader, kind.SectQueue, 0)
	if err != nil {
		return err
	}
	if err := place.TakesWriters(words.State.Load(), w.name); err != nil {
		return err
	}
	rows, err := kind.RowsOf(w.reader, opt.rows())
	if err != nil {
		return err
	}
	hints, err := w.mapHints(opt)
	if err != nil {
		return err
	}
	if w.obj, w.bit, err = w.side.ClaimLane(w.reader, rows, opt.attrs()); err != nil {
		return err
	}
	w.row = &rows[w.bit]
	crash.At(crash.AttachClaimed)
	// The queue may have been destroyed between the look at its state and the claim. Entries that
	// it was brought are its own then all the same.
	if w.follows {
		return w.start(w.obj, w.row, words, hints, opt)
	}
	gone, err := w.side.Gone(w.reader)
	switch {
	case gone:
		err = ErrClosed
	case err != nil:
		err = errors.Join(err, ErrClosed)
	default:
		err = place.TakesWriters(words.State.Load(), w.name)
	}
	if err != nil {
		return err
	}
	return w.start(w.obj, w.row, words, hints, opt)
}

// mapHints maps what a writer may write of the reader's object: nothing if that is another user's.
func (w *laneWriter) mapHints(opt shape) (*wake.Hints, error) {
	if opt.others() {
		return nil, nil
	}
	return hintsOf(w.reader, false, opt)
}

// hintsOf maps the hints of a reader's object, which is this process's own or not.
func hintsOf(reader *shm.Object, own bool, opt shape) (*wake.Hints, error) {
	mem, _, err := reader.Section(kind.SectHints, 0)
	if !own {
		mem, err = reader.MapWritable(kind.SectHints, 0)
	}
	if err != nil {
		return nil, err
	}
	return wake.MapHints(mem, opt.rows())
}

// start lays the producer over a lane that this process owns, and announces it.
func (w *laneWriter) start(obj *shm.Object, row *kind.RowWords, words *kind.QueueWords,
	hints *wake.Hints,
	opt shape) error {
	m, err := kind.LaneOf[Entry](obj, w.bit, opt.attrs())
	if err != nil {
		return err
	}
	w.words, w.detail, w.policy = m.Words, m.Detail, opt.Overrun
	w.row, w.slots, w.queue = row, m.Slots, w.queueHere()
	if w.policy == OverrunQueue && m.Words.Overrun.Load() != 0 {
		w.halt.Store(haltLost)
	}
	at := m.Words.Tail.Load()
	// Who died over a publish may have raised these for an entry that never came.
	for _, last := range []*atomic.Uint64{&m.Words.Sol, &m.Words.Err} {
		last.Store(min(last.Load(), at))
	}
	order := ring.SeqCst
	if !opt.WritersPay && barrier.Register() == nil {
		order = ring.Release
	}
	w.prod = ring.NewProducer(&m.Words.Tail, &row.Head, m.Slots, at, order)
	m.Words.Order.Store(uint64(order))
	gen := obj.Generation()
	e := &m.Words.Epochs[gen%kind.LaneEpochs]
	e.Start.Store(at)
	e.Generation.Store(gen)
	cfg := wake.RingerConfig{Row: &row.Bell, Arm: &words.Arm, Hints: hints, Bit: w.bit,
		Beside: w.beside}
	if !w.own {
		r := &place.Reach{Side: w.side, Reader: w.reader, Words: words, Hints: hints}
		r.Open()
		w.reach, cfg.Face, cfg.Domain = r, r.Face, r.Domain
	}
	if order == ring.Release {
		cfg.Fence = w.prod.Republish
	}
	if opt.others() && !w.own {
		cfg.Rung, cfg.Domain = &m.Words.Rung, nil
	}
	w.ringer = wake.NewRinger(cfg)
	if err := w.prod.Err(); err != nil { // now the reader can be told that the lane is free
		return &LaneError{Lane: w.bit, Field: "head", Err: err}
	}
	crash.At(crash.AttachWritten)
	w.ringer.Announce()
	crash.At(crash.AttachAnnounced)
	w.woke = countLoad(&m.Words.Wakes)
	return nil
}

// Writer returns a writer on the queue's own lane, for completions that the reader's process makes
// itself. There is one at a time, else ErrBusy; it must be closed before the queue. Any one
// goroutine may use it. Writer may be called from anywhere; after Close it is ErrClosed.
// The first one is [shm.ErrNoSpace] if there is no memory left for the lane.
func (q *Queue) Writer() (*Writer, error) {
	q.selfMu.Lock() // before the guard: Close holds it while it waits for the guard
	defer q.selfMu.Unlock()
	if !q.guard.enterAny() {
		return nil, ErrClosed
	}
	defer q.guard.leaveAny()
	if q.self != nil && !q.self.guard.isOver() {
		return nil, &Error{Pkg: kind.Pkg, Op: "writer", Name: q.name, Err: ErrBusy,
			Hint: "the queue's own lane has a writer; close it first"}
	}
	w, err := q.ownWriter()
	if err != nil {
		return nil, err
	}
	q.self = w
	return w, nil
}

func (q *core) ownWriter() (*Writer, error) {
	hints, err := hintsOf(q.obj, true, q.opt)
	if err == nil {
		err = failed("writer", q.name, q.obj.Provide(kind.SectSlots, 0))
	}
	if err != nil {
		return nil, err
	}
	w := &Writer{laneWriter{name: q.name, reader: q.obj, beside: q.bell, own: true,
		trust: q.opt.Trust}}
	return w, w.start(q.obj, &q.rows[0], q.words, hints, q.opt)
}

// Close ends the writer. What it posted stays for the reader; its lane goes to the next writer. It
// waits for calls in other goroutines to end. It fails with ErrBusy while an endpoint is bound to
// it. Closing twice is harmless. Other errors are the operating system's; the writer is gone all
// the same.
func (w *Writer) Close() error {
	if err := w.refuseHolders(); err != nil {
		return err
	}
	return w.end()
}

// refuseHolders refuses holders of a writer from now on, or is ErrBusy if there are any.
func (w *laneWriter) refuseHolders() error {
	if err := w.holders.close(); err != nil && !w.guard.isOver() {
		return &Error{Pkg: kind.Pkg, Op: "close writer", Name: w.name, Err: err,
			Hint: "close the endpoints that post with it and what reports by it, or bind that elsewhere"}
	}
	return nil
}

// end closes the writer whatever is bound to it.
func (w *laneWriter) end() error {
	first, err := w.guard.close(func() {})
	if !first || err != nil {
		return err
	}
	if w.own {
		w.ringer.Close()
		return nil
	}
	w.deaths.unbind()
	crash.At(crash.WriterClosing)
	if err = w.giveBack(false); err != nil && !removed(err) {
		return fmt.Errorf("cq: close writer of %q: %w", w.name, err)
	}
	return nil
}

func (w *laneWriter) unmap() {
	for _, o := range []*shm.Object{w.obj, w.reader} {
		if o != nil {
			_ = o.Close()
		}
	}
}

// watchReader has posts fail once the reader of another user is proved dead.
func (w *laneWriter) watchReader() {
	w.gone = make(chan struct{})
	var once sync.Once
	w.peer.Watch(func() {
		if w.peer.Gone() || w.peer.HungUp() && w.left() {
			w.halt.Or(haltGone)
			once.Do(func() { close(w.gone) })
			processWatch.nudge()
		}
	})
}

// ReaderGone returns a channel that is closed when the reader, of another user, is proved dead: its
// process has ended, and the connection over which this writer attached; or when it has detached
// and closed that connection. From then on posts are ErrPeerGone, and [Writer.Follow] goes on with
// a successor. For a queue of one's own user it is nil, which never becomes ready. A reader that
// closes the queue is told of by ErrClosed at the next post.
func (w *laneWriter) ReaderGone() <-chan struct{} { return w.gone }
