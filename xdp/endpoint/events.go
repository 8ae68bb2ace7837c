package endpoint

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/xdp"
)

// EventStarved says that the kernel has no frame left to receive into: all are lent, and nobody
// gives them back. It comes once a second at most; Data is the number of frames that are lent.
const EventStarved = cq.EventStarved

// starvedEveryNs bounds how often a lack of frames is looked for and told.
const starvedEveryNs = 1e9

// fillLeft is how many frames the kernel can receive into.
func (e *Endpoint) fillLeft() uint64 {
	return e.socket.FrameStats().States[xdp.FrameFill]
}

// checkStarved is asked when nothing could be given to the kernel.
func (e *Endpoint) checkStarved(now int64) {
	s := e.socket.FrameStats()
	if s.States[xdp.FrameFill] > 0 || s.States[xdp.FrameLoaned] == 0 {
		return
	}
	e.starvedAt = now
	e.stats.Starved++
	// An event queue that is full is told again in a second.
	_ = e.tell(&cq.Event{Event: EventStarved, FID: e.FID(), Context: e.cfg.Context,
		Data: s.States[xdp.FrameLoaned]})
}

// FID is the endpoint's identifier in events: its id is that of the interface's index and queue.
func (e *Endpoint) FID() cq.FID {
	index := e.socket.Info().Index
	return cq.FID{Kind: cq.FIDEndpoint, ID: uint64(uint32(index))<<32 | uint64(e.queue)}
}
