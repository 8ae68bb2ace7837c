package place

import (
	"errors"
	"time"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Reach is how a writer gets at what wakes a reader that sleeps elsewhere than on its queue: the
// descriptor of the queue, and the bell of the reader's process. For want of a descriptor or memory
// it may not get there, and there may be no other publish. Then it rings once more when it can.
type Reach struct {
	Side   WriterSide
	Reader *shm.Object
	Words  *kind.QueueWords
	Hints  *wake.Hints // nil of a queue of another user, which needs neither

	bell  BellHold    // of the goroutine that posts
	later retry.Later // rings
}

// Open makes it ready for the goroutine that posts.
func (r *Reach) Open() { r.bell, r.later.Try = r.hold(), r.ringLater }

// Close is the last call of that goroutine, and nothing rings after it. It rings if nobody did.
func (r *Reach) Close() {
	r.bell.Drop()
	if r.later.Close() {
		_ = r.ring()
	}
}

// hold returns a hold on the bell of the reader's process.
func (r *Reach) hold() BellHold {
	h := BellHold{Words: &r.Words.Bell, Owner: r.Reader.Owner}
	h.Dir, h.FD = r.Side.Bell()
	return h
}

// Face returns a descriptor that wakes the reader's user, or -1.
func (r *Reach) Face(generation uint16) int {
	fd, err := r.Side.OpenFace(r.Reader, r.Words, generation)
	r.missed(err)
	return fd
}

// Domain returns the bell of the reader's process, or nil.
func (r *Reach) Domain(generation uint16) *wake.DomainRinger {
	d := r.bell.Ring(generation)
	r.missed(r.bell.Err)
	return d
}

// missed has it ring later if an error is one that passes.
func (r *Reach) missed(err error) {
	if r.Hints != nil && kind.Starved(err) {
		r.later.Want()
	}
}

// ringLater rings, and once more if it still cannot.
func (r *Reach) ringLater(time.Duration) { r.missed(r.ring()) }

// ring rings beside the goroutine that posts. What came over a socket is that goroutine's, and at
// hand.
func (r *Reach) ring() (err error) {
	fd, bell := -1, r.hold()
	wake.Ring(&r.Words.Arm, r.Hints, func(generation uint16) int {
		if _, over := r.Side.(*Joining); !over {
			fd, err = r.Side.OpenFace(r.Reader, r.Words, generation)
		}
		return fd
	}, bell.Ring)
	eventfd.Close(fd)
	bell.Drop()
	return errors.Join(err, bell.Err)
}
