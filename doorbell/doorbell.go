// Package doorbell wakes the reader of rings of your own, and makes no system call while it keeps
// up.
//
// Producers publish into rings, of package ring or others, in memory that they share with one
// reader. Beside the rings lie the [Words]. A producer has a [Ringer] for its lane and calls
// Published after each publish: that is one load while the reader is awake. The reader has a
// [Bell]. It reads for as long as there is something, and then waits on the words, or on a
// descriptor. No wake is lost, also where producers publish with release stores, and where one dies
// at any point: whoever notices that marks its lane.
//
//	for {
//		if bell.Only() == doorbell.Several {
//			bell.Look()
//		}
//		n := 0
//		for lane := bell.Next(0); lane >= 0; lane = bell.Next(lane + 1) {
//			got := drain(lane)
//			if got == 0 {
//				bell.Drained(lane)
//			}
//			n += got
//		}
//		if n == 0 {
//			err := bell.Wait(0)
//			...
//		}
//	}
//
// # How it works
//
// A reader that finds a lane empty parks it: it says so in one word that the lane's producer loads
// after each publish. It looks at the lane again, arms the bell, looks again at what producers
// marked meanwhile, and sleeps. A producer that finds itself parked marks its lane, loads the armed
// word, and wakes whoever sleeps. Between a publish and the look at the parked word something has
// to keep the order. Either the producer does, with a sequentially consistent publish, or the
// reader, with a membarrier(2) each time it parks a lane that was in use.
//
// Queues of package cq wait by the same protocol. It is package internal/wake, whose comment names
// its steps; what that has beside this, wait sets over many queues, completion channels, thresholds
// and producers of other users, a program has by package cq.
//
// # Trust
//
// Who maps the words writable can forge a mark, which costs a look, and keep a reader asleep until
// it is woken in another way. Nothing else depends on them.
package doorbell

import (
	"fmt"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
)

// Words are what the reader and the producers of some rings share beside them: the armed word, a
// row for each lane, which is the ring of one producer, and hints.
type Words struct {
	mem   []byte
	arm   *wake.Arm
	rows  []*wake.Row
	hints *wake.Hints
}

// Each word that is written often has a line of its own, and the next one for the prefetcher.
const lineBytes = 128

// maxLanes bounds what is asked for; with more, a look at all marks takes too long.
const maxLanes = 1 << 16

// Bytes returns how much memory the words for so many lanes take.
func Bytes(lanes int) uint64 {
	return uint64(1+lanes)*lineBytes + wake.HintsBytes(lanes)
}

// Map lays the words for so many lanes over memory, which begins at a multiple of 128 and has
// [Bytes] of room; else the error is EINVAL. All processes map them with the same number.
func Map(mem []byte, lanes int) (*Words, error) {
	if lanes < 1 || lanes > maxLanes || uint64(len(mem)) < Bytes(lanes) {
		return nil, fmt.Errorf("doorbell: words for %d lanes in %d bytes: %w", lanes, len(mem),
			syscall.EINVAL)
	}
	w := &Words{mem: mem[:Bytes(lanes)], rows: make([]*wake.Row, lanes)}
	var err error
	if w.arm, err = wake.ArmAt(mem, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", err, syscall.EINVAL)
	}
	for i := range w.rows {
		if w.rows[i], err = wake.RowAt(mem, uint64(1+i)*lineBytes); err != nil {
			return nil, fmt.Errorf("%w: %w", err, syscall.EINVAL)
		}
	}
	w.hints, err = wake.MapHints(mem[uint64(1+lanes)*lineBytes:], lanes)
	return w, err
}

// Init makes the words those of rings that nobody reads yet: each first publish is marked. The
// maker of the memory calls it before anybody else has that.
func (w *Words) Init() {
	clear(w.mem)
	for _, row := range w.rows {
		row.Parked.Store(wake.Parked)
	}
}

// Options say how a reader reads.
type Options struct {
	// Levels has a function for each lane, which loads the index of what is published afresh and
	// returns it with the index up to which the reader took entries. It is asked when a lane is
	// parked, never per entry. Of a ring that cannot be trusted it says that there is something, so
	// that the reader looks at it and finds out.
	Levels []func() (head, tail uint64)
	// ReleaseStores says that producers publish with release stores. Their Ringers have a Fence then.
	ReleaseStores bool
	// Descriptor makes the bell have a descriptor beside the words.
	Descriptor bool
	// Generation tells this reader from those before it, whose descriptors producers may still have.
	Generation uint16
}

// Bell is the reader's half. One goroutine uses it, except where a method says otherwise.
type Bell struct {
	bell *wake.Bell
	face *wake.Face
}

// level is a lane as the protocol asks it.
type level func() (head, tail uint64)

func (f level) Level() (head, tail uint64) { return f() }
func (f level) Solicited() uint64          { return 0 }

// NewBell returns the bell of the reader. Each lane counts as one that may have something. Errors:
// EINVAL if there are not as many levels as lanes, and what the system says of a descriptor.
func NewBell(w *Words, o Options) (*Bell, error) {
	if len(o.Levels) != len(w.rows) {
		return nil, fmt.Errorf("doorbell: levels of %d lanes for %d: %w", len(o.Levels), len(w.rows),
			syscall.EINVAL)
	}
	b := &Bell{}
	if o.Descriptor {
		face, err := wake.NewFace(-1)
		if err != nil {
			return nil, fmt.Errorf("doorbell: %w", err)
		}
		b.face = face
	}
	b.bell = wake.NewBell(wake.Config{Arm: w.arm, Hints: w.hints, Lanes: len(w.rows),
		Generation: o.Generation, Face: b.face,
		Open: func(int) (wake.LaneConfig, bool) { return wake.LaneConfig{}, false }})
	for lane, f := range o.Levels {
		b.bell.Add(lane, wake.LaneConfig{Row: w.rows[lane], Source: level(f),
			ReaderPays: o.ReleaseStores})
	}
	return b, nil
}

// Results of [Bell.Only] that are no lane.
const (
	Nobody  = wake.Nobody  // no lane has anything
	Several = wake.Several // that needs a closer look: Look, and Next
)

// Only returns the lane that alone can have anything, [Nobody], or [Several]. It is the short cut
// of a reader that keeps up with one producer: until something happened it need not call Look.
func (b *Bell) Only() int {
	if b.bell.Wide() {
		return b.bell.OnlyOfMany()
	}
	return b.bell.Only()
}

// Look takes what producers marked. From the second Look after a wait on it lets those that have
// something publish without marking.
func (b *Bell) Look() {
	b.bell.Take()
	b.bell.Heat()
}

// Next returns the first lane from this one on that may have something, or -1.
func (b *Bell) Next(lane int) int { return b.bell.Next(lane) }

// Drained says that a lane was found empty.
func (b *Bell) Drained(lane int) { b.bell.Drained(lane) }

// Wait parks all lanes, and sleeps unless one has something. It returns when a look is worth while,
// after the timeout unless that is 0, or for no reason, and has looked as Look does. With a
// negative timeout it does not sleep. The error is the kernel's if it refuses membarrier(2), which
// [Options].ReleaseStores needs.
func (b *Bell) Wait(timeout time.Duration) error {
	more, err := b.bell.Park()
	if err != nil {
		return err
	}
	if !more && timeout >= 0 {
		var w wake.Wait
		if timeout > 0 {
			w.DeadlineNs = spin.Now() + int64(timeout)
		}
		b.bell.Sleep(w)
	}
	b.Look()
	return nil
}

// TryWait parks all lanes and arms the descriptor. If it says that nothing is ready, the caller may
// wait until [Bell.FD] is readable, in its own epoll(7), and look then. A signal that is pending is
// taken, and makes the bell ready. Errors are those of Wait, and EINVAL without a descriptor.
func (b *Bell) TryWait() (ready, signaled bool, err error) {
	if b.face == nil {
		return false, false, fmt.Errorf("doorbell: no Options.Descriptor: %w", syscall.EINVAL)
	}
	return b.bell.TryWait()
}

// FD returns the descriptor that is readable when a look is worth while, or -1. It is not to be
// read from, and goes with Close.
func (b *Bell) FD() int {
	if b.face == nil {
		return -1
	}
	return b.face.FD()
}

// EventFD returns the descriptor that producers of this bell write to, or -1. The reader passes it
// to their processes.
func (b *Bell) EventFD() int {
	if b.face == nil {
		return -1
	}
	return b.face.EventFD()
}

// Signal ends one Wait: the present one, or the next. It may be called from anywhere.
func (b *Bell) Signal() { b.bell.Signal() }

// TakeSignal reports whether there was a signal, and takes it.
func (b *Bell) TakeSignal() bool { return b.bell.TakeSignal() }

// Mark does what a producer that died between publish and mark did not do any more: the reader
// looks at the lane. It may be called from anywhere.
func (b *Bell) Mark(lane int) { b.bell.Mark(lane) }

// Close says that nobody reads any more, and closes the descriptors. Producers go on, and the next
// reader finds what they published. No other call may run meanwhile, or come later.
func (b *Bell) Close() {
	b.bell.Disarm()
	b.face.Close()
}

// RingerOptions say how a producer rings.
type RingerOptions struct {
	// Fence is a full fence behind the publish, nil if publishes are sequentially consistent: that of
	// ring.Release is Producer.Republish.
	Fence func()
	// Descriptor returns a descriptor of the reader's [Bell.EventFD] for this process, or -1 if it
	// has none. It is asked again when the reader is another one, and the Ringer closes what it
	// returned. nil stands for a reader that sleeps on the words alone.
	Descriptor func(generation uint16) int
}

// Ringer is the producer's half of one lane. One goroutine at a time uses it.
type Ringer struct {
	row    *wake.Row
	ringer *wake.Ringer
}

// NewRinger returns the ringer of a lane. Errors: EINVAL if there is no such lane; and what the
// kernel says if it refuses membarrier(2) to this process, in which case the reader cannot pay for
// its release stores.
func NewRinger(w *Words, lane int, o RingerOptions) (*Ringer, error) {
	if lane < 0 || lane >= len(w.rows) {
		return nil, fmt.Errorf("doorbell: lane %d of %d: %w", lane, len(w.rows), syscall.EINVAL)
	}
	if o.Fence != nil {
		if err := barrier.Register(); err != nil {
			return nil, err
		}
	}
	row := w.rows[lane]
	return &Ringer{row, wake.NewRinger(wake.RingerConfig{Row: row, Arm: w.arm, Hints: w.hints,
		Bit: lane, Fence: o.Fence, Face: o.Descriptor})}, nil
}

// Published is to be called after each publish, with the index up to which is published. It wakes
// the reader if that sleeps.
func (r *Ringer) Published(tail uint64) {
	if r.row.Parked.Load() != 0 {
		r.parked(tail)
	}
}

// parked is apart, so that Published is inlined. It asks once more, which is as good.
//
//go:noinline
func (r *Ringer) parked(tail uint64) { r.ringer.Published(tail, 0) }

// Close closes the descriptor that the ringer has.
func (r *Ringer) Close() { r.ringer.Close() }
