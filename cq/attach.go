package cq

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// WriterOptions of Attach. The zero value attaches to a queue that exists now.
type WriterOptions struct {
	// Wait waits for the queue to be created, until the context ends.
	Wait bool
	// Format is the detail that this writer fills in. A queue with a smaller format is
	// ErrFormat; 0 does not ask.
	Format Format
}

// attachEvery is how often Attach looks for a queue that does not exist yet.
const attachEvery = 5 * time.Millisecond

// Attach becomes a writer of a queue, with a lane of its own: a new one, or one whose writer
// detached or is provably dead, which goes on where that one stopped. The queue need not have a
// living reader. Errors are fs.ErrNotExist, ErrClosed, ErrLanes, ErrFormat, and those of opening
// shared memory.
func Attach(ctx context.Context, d *shm.Dir, name string, o WriterOptions) (*Writer, error) {
	for {
		w, err := attach(d, name, o)
		if err == nil || !o.Wait || !errors.Is(err, fs.ErrNotExist) {
			return w, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("cq: attach %q: %w", name, ended(ctx))
		case <-time.After(attachEvery):
		}
	}
}

func attach(d *shm.Dir, name string, o WriterOptions) (*Writer, error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, failed("attach", name, err)
	}
	w := &Writer{name: name, home: d.Path(), dir: dir}
	if err := w.open(o); err != nil {
		w.unmap()
		if errors.Is(err, ErrClosed) {
			removeHome(w.home, name) // the reader may have left it because of our lane
		}
		return nil, failed("attach", name, err)
	}
	return w, nil
}

// open maps the queue, claims a lane and tells the reader.
func (w *Writer) open(o WriterOptions) (err error) {
	if w.reader, err = w.dir.Open(readerFile, shm.ReadOnly); err != nil {
		return err
	}
	h := w.reader.Header()
	opt, err := stored("attach", w.name, h)
	if err != nil {
		return err
	}
	if o.Format > opt.Format {
		return refuse("attach", w.name, "Format", opt.Format, o.Format, ErrFormat)
	}
	words, err := wordsOf[queueWords](w.reader, sectQueue, 0)
	if err != nil {
		return err
	}
	if words.state.Load() == stateClosed {
		return ErrClosed
	}
	rows, err := rowsOf(w.reader, opt.rows())
	if err != nil {
		return err
	}
	// Of the reader's object only the hints may be written.
	mem, err := w.reader.MapWritable(sectHints, 0)
	if err != nil {
		return err
	}
	hints, err := doorbell.MapHints(mem, opt.rows())
	if err != nil {
		return err
	}
	if err := w.claimLane(rows, opt); err != nil {
		return err
	}
	// The queue may have been destroyed between the look at its state and the claim. Whoever
	// destroys it closes first and unlinks then, and does not see a lane that came later.
	if linked, err := w.reader.Linked(); err != nil || !linked || words.state.Load() == stateClosed {
		_ = w.obj.Unlink()
		return errors.Join(err, ErrClosed)
	}
	order := ring.SeqCst
	if !opt.WritersPay && doorbell.Register() == nil {
		order = ring.Release
	}
	return w.start(w.obj, &rows[w.bit], words, hints, opt, order)
}

// start lays the producer over a lane that this process owns, and announces it.
func (w *Writer) start(obj *shm.Object, row *rowWords, words *queueWords, hints *doorbell.Hints,
	opt Options, order ring.Order) error {
	m, err := laneMemory(obj, w.bit, opt.Size)
	if err != nil {
		return err
	}
	w.words, w.errs, w.policy = m.words, m.errs, opt.Overrun
	w.lost = w.policy == OverrunQueue && m.words.overrun.Load() != 0
	at := m.words.tail.Load()
	w.prod = ring.NewProducer(&m.words.tail, &row.head, m.slots, at, order)
	if err := w.prod.Err(); err != nil {
		return &LaneError{Lane: w.bit, Field: "head", Err: err}
	}
	m.words.order.Store(uint64(order))
	gen := obj.Generation()
	e := &m.words.epochs[gen%laneEpochs]
	e.start.Store(at)
	e.generation.Store(gen)
	cfg := doorbell.RingerConfig{Row: &row.bell, Arm: &words.arm, Hints: hints, Bit: w.bit,
		Face: func(uint16) int { return w.openFace(words) }}
	if order == ring.Release {
		cfg.Fence = w.prod.Republish
	}
	w.ringer = doorbell.NewRinger(cfg)
	w.ringer.Attach()
	w.woke = countLoad(&m.words.wakes)
	countStore(&m.words.wakes, w.woke+w.ringer.Wakes())
	return nil
}

// openFace gets a descriptor that wakes the reader's user: the reader's own eventfd, or the
// queue's FIFO where the kernel does not let us have it.
func (w *Writer) openFace(words *queueWords) int {
	if fd := w.takeEvent(words); fd >= 0 {
		return fd
	}
	fd, err := doorbell.OpenFIFO(w.dir.Path() + "/" + fifoFile)
	if err != nil {
		return -1
	}
	return fd
}

// takeEvent duplicates the reader's eventfd, or returns -1. The number must be this reader's, not
// one that its predecessor left; and the reader clears the word before it closes what the number
// means, so that one which still stands afterwards was the right one.
func (w *Writer) takeEvent(words *queueWords) int {
	n, owner := words.face.Load(), w.reader.Owner()
	if n == 0 || n >= 1<<31 || words.faceGen.Load() != owner.Generation {
		return -1
	}
	fd, err := shm.PidfdGetfd(owner, int(n-1))
	if err != nil {
		return -1
	}
	if words.face.Load() != n || !doorbell.IsEvent(fd) {
		doorbell.CloseFD(fd)
		return -1
	}
	return fd
}

// claimLane finds a row that nobody owns. The lock on the lane object is the claim.
func (w *Writer) claimLane(rows []rowWords, opt Options) error {
	queue := w.reader.Header().UUID
	for bit := 1; bit < opt.rows(); bit++ {
		if rows[bit].bell.Parked.Load()&rowPoisoned != 0 {
			continue
		}
		obj, err := w.takeLane(bit, opt, queue, &rows[bit])
		if err != nil {
			return err
		}
		if obj != nil {
			w.obj, w.bit = obj, bit
			return nil
		}
	}
	return &Error{Pkg: pkg, Op: "attach", Name: w.name, Field: "lanes", Got: opt.MaxLanes,
		Err:  ErrLanes,
		Hint: "detach a writer, or create the queue with a larger MaxLanes"}
}

// takeLane tries one row: a nil object without error says that somebody has it.
func (w *Writer) takeLane(bit int, opt Options, queue shm.UUID, row *rowWords) (*shm.Object,
	error) {
	name := fmt.Sprintf(laneFile, bit)
	for range 8 {
		obj, err := w.dir.Open(name, shm.ReadWrite)
		if errors.Is(err, fs.ErrNotExist) {
			obj, err = w.dir.Create(name, laneSpec(name, bit, opt.Size, queue),
				func(o *shm.Object) error { return initLane(o, bit, row) })
			if errors.Is(err, fs.ErrExist) {
				continue // another writer was faster: see whether it is gone already
			}
			return obj, err
		}
		if damaged(err) {
			return nil, nil // nobody's, for as long as it stands there
		}
		if err != nil {
			return nil, err
		}
		former := false
		err = obj.Claim(func() (err error) {
			if former, err = w.laneUsable(obj, bit, opt, queue); former || err != nil {
				return err
			}
			return lanePossible(obj, bit, opt.Size, row)
		})
		if err == nil && !former {
			return obj, nil
		}
		if err == nil {
			err = obj.Unlink()
		}
		_ = obj.Close()
		switch {
		case errors.Is(err, ErrClosed):
			return nil, err
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, shm.ErrStale):
			return nil, nil
		}
		// It was in the way, or somebody removed it under our hands: there is room now.
	}
	return nil, nil
}

// laneUsable checks that a lane is this queue's. former says that it is left over from a queue of
// the same name that was destroyed, and only in the way. While our reader object has its name no
// newer queue can have it; afterwards the lane may be one of those, and is not to be touched.
func (w *Writer) laneUsable(obj *shm.Object, bit int, opt Options, queue shm.UUID) (former bool,
	err error) {
	err = laneBelongs(obj, bit, opt.Size, queue)
	if !errors.Is(err, errOtherQueue) {
		return false, err
	}
	linked, err := w.reader.Linked()
	if err == nil && !linked {
		err = ErrClosed
	}
	return err == nil, err
}

// lanePossible refuses a lane that no writer can go on in: its last one, or the reader, left an
// index there that cannot be.
func lanePossible(obj *shm.Object, bit, capacity int, row *rowWords) error {
	words, err := wordsOf[laneWords](obj, sectLane, uint32(bit))
	if err != nil {
		return err
	}
	head, tail := row.head.Load(), words.tail.Load()
	if tail-head > uint64(capacity) {
		return refuse("open lane", obj.Name(), "tail", tail,
			[2]uint64{head, head + uint64(capacity)}, ErrCorrupt)
	}
	return nil
}

// initLane starts a new lane where the row stands, which is 0 unless an earlier lane of this row
// was removed.
func initLane(obj *shm.Object, bit int, row *rowWords) error {
	words, err := wordsOf[laneWords](obj, sectLane, uint32(bit))
	if err != nil {
		return err
	}
	words.tail.Store(row.head.Load())
	return nil
}

// Writer returns a writer on the queue's own lane, for completions that the reader's process makes
// itself. There is one at a time; it must be closed before the queue. Any one goroutine may use
// it.
func (q *Queue) Writer() (*Writer, error) {
	q.selfMu.Lock() // before the guard: Close holds it while it waits for the guard
	defer q.selfMu.Unlock()
	if !q.guard.enterAny() {
		return nil, ErrClosed
	}
	defer q.guard.leaveAny()
	if q.self != nil && !q.self.guard.isOver() {
		return nil, &Error{Pkg: pkg, Op: "writer", Name: q.name, Err: ErrBusy,
			Hint: "the queue's own lane has a writer; close it first"}
	}
	mem, _, err := q.obj.Section(sectHints, 0)
	if err != nil {
		return nil, err
	}
	hints, err := doorbell.MapHints(mem, q.opt.rows())
	if err != nil {
		return nil, err
	}
	w := &Writer{name: q.name, reader: q.obj, dir: q.dir, own: true}
	if err := w.start(q.obj, &q.rows[0], q.words, hints, q.opt, ring.SeqCst); err != nil {
		return nil, err
	}
	q.self = w
	return w, nil
}

// Close ends the writer. What it posted stays for the reader; its lane goes to the next writer. It
// waits for calls in other goroutines to end. Closing twice is harmless.
func (w *Writer) Close() error {
	first, err := w.guard.close(func() {})
	if !first || err != nil {
		return err
	}
	w.ringer.Close()
	if w.own {
		return nil
	}
	gone := w.ringer.Flags()&rowClosed != 0
	if gone {
		err = w.obj.Unlink()
	} else {
		err = w.obj.Release()
		if w.ringer.Flags()&rowClosed != 0 && w.obj.Claim(nil) == nil {
			// Closed between the look and the release: its reader found the lane ours.
			gone, err = true, w.obj.Unlink()
		}
	}
	w.unmap()
	if gone {
		// The reader left the directory to the last writer.
		removeHome(w.home, w.name)
	}
	if err != nil && !removed(err) {
		return fmt.Errorf("cq: close writer of %q: %w", w.name, err)
	}
	return nil
}

func (w *Writer) unmap() {
	for _, o := range []*shm.Object{w.obj, w.reader} {
		if o != nil {
			_ = o.Close()
		}
	}
	_ = w.dir.Close()
}
