package cq

import (
	"time"

	"github.com/shmring/shmring/shm"
)

// Steps of a rendezvous, and the descriptors that come with them.
const (
	StepAsk   = uint16(stepAsk)
	StepOffer = uint16(stepOffer)
	StepLane  = uint16(stepLane)
	StepDone  = uint16(stepDone)
	FDReader  = 1 << fdReader
	FDLane    = 1 << fdLane
	FDEvent   = 1 << fdEvent
)

// RendezvousMessage is what one side sends.
func RendezvousMessage(s uint16, status, fds, row uint32, queue shm.UUID) []byte {
	m := message{step: step(s), status: status, fds: fds, row: row, generation: 1, queue: queue}
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
