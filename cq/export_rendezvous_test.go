package cq

import (
	"context"
	"time"

	"github.com/shmring/shmring/shm"
)

// Steps of a rendezvous, and the descriptors that come with them.
const (
	StepAsk   = stepAsk
	StepOffer = stepOffer
	StepLane  = stepLane
	StepDone  = stepDone
	FDReader  = 1 << fdReader
	FDLane    = 1 << fdLane
	FDEvent   = 1 << fdEvent
)

// RendezvousMessage is what one side sends.
func RendezvousMessage(s uint16, status, fds, row uint32, queue shm.UUID) []byte {
	m := message{step: s, status: status, fds: fds, row: row, generation: 1, queue: queue}
	return m.encode()
}

// ReaderFD is the descriptor of the reader object that a writer gets.
func ReaderFD(q *Queue) int { return q.obj.FD() }

// ShortMeetings makes a peer that is silent for this long one that does not come, until restore.
func ShortMeetings(d time.Duration) (restore func()) {
	was := meetTimeout
	meetTimeout = d
	return func() { meetTimeout = was }
}

// Whoever tests silence says how long it takes. To all others a machine that stands still for ten
// seconds is none.
func init() { meetTimeout = time.Minute }

// Places are those of a Serve.
type Places struct{ *places }

func NewPlaces(most int) Places { return Places{newPlaces(most)} }

// Take takes a place, which out ends; leave gives it back, and may be called again.
func (p Places) Take(user int, out context.CancelCauseFunc) (leave func(), err error) {
	c, err := p.take(user, out)
	return func() { p.leave(c) }, err
}

func (p Places) Await(ctx context.Context) error { return p.await(ctx) }

// Free is how many places nobody has.
func (p Places) Free() int { return p.free }

// Serving is how many connections a queue for other users attaches at once, at the most.
func Serving(q *Queue) int { return 2 * q.opt.rows() }

// RowsOffered is how many rows have been offered to peers that have not brought a lane.
func RowsOffered(q *Queue) (n int) {
	h := q.home.(*memfdHome)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.lanes {
		if h.lanes[i].busy {
			n++
		}
	}
	return n
}
