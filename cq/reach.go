package cq

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
)

// reach is how a writer gets at what wakes a reader that sleeps elsewhere than on its queue: the
// descriptor of the queue, and the bell of the reader's process. For want of a descriptor or memory
// it may not get there, and there may be no other publish. Then it rings once more when it can.
type reach struct {
	w     *laneWriter
	words *kind.QueueWords
	hints *wake.Hints // nil of a queue of another user, which needs neither
	late  atomic.Bool // it will ring
}

// hold returns a hold on the bell of the reader's process.
func (r *reach) hold() place.BellHold {
	h := place.BellHold{Words: &r.words.Bell, Owner: r.w.reader.Owner}
	h.Dir, h.FD = r.w.side.Bell()
	return h
}

// face returns a descriptor that wakes the reader's user, or -1.
func (r *reach) face(generation uint16) int {
	fd, err := r.w.side.OpenFace(r.w.reader, r.words, generation)
	r.missed(err)
	return fd
}

// domain returns the bell of the reader's process, or nil.
func (r *reach) domain(generation uint16) *wake.DomainRinger {
	d := r.w.bell.Ring(generation)
	r.missed(r.w.bell.Err)
	return d
}

// missed has it ring later if an error is one that passes.
func (r *reach) missed(err error) {
	if r.hints != nil && kind.Starved(err) && r.late.CompareAndSwap(false, true) {
		r.ringLater(acceptAgain)
	}
}

// ringLater rings after a pause, and if it still cannot after a longer one. It is in no goroutine
// meanwhile.
func (r *reach) ringLater(pause time.Duration) {
	time.AfterFunc(pause, func() {
		if !r.w.guard.enterAny() {
			return
		}
		defer r.w.guard.leaveAny()
		r.late.Store(false) // before it rings: what is missed from here on asks anew
		if kind.Starved(r.ring()) && r.late.CompareAndSwap(false, true) {
			r.ringLater(min(2*pause, askAgainMost))
		}
	})
}

// ring rings beside the goroutine that posts. What came over a socket is that goroutine's, and at
// hand.
func (r *reach) ring() (err error) {
	fd, bell := -1, r.hold()
	wake.Ring(&r.words.Arm, r.hints, func(generation uint16) int {
		if _, over := r.w.side.(*place.Joining); !over {
			fd, err = r.w.side.OpenFace(r.w.reader, r.words, generation)
		}
		return fd
	}, bell.Ring)
	eventfd.Close(fd)
	bell.Drop()
	return errors.Join(err, bell.Err)
}
