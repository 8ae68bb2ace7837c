package endpoint

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
)

// openObject makes what tools see of the endpoint. Without it the endpoint works all the same: it
// may run where there is no directory, or no room in it.
func (e *Endpoint) openObject() {
	if e.cfg.NoObject {
		return
	}
	i := status.Info{Posted: e.cfg.Posted, Shared: e.cfg.Shared, Local: e.cfg.Local}
	name := func(w *cq.Writer) (string, shm.UUID) {
		if w == nil {
			return "", shm.UUID{}
		}
		s := w.Stats()
		return s.Queue, s.QueueID
	}
	i.Receive, i.ReceiveID = name(e.cfg.Receive)
	i.Transmit, i.TransmitID = name(e.cfg.Transmit)
	if o, err := capture.Follow(e.cfg.Directory, e.socket, i); err == nil {
		e.object = o
	}
}

func (e *Endpoint) closeObject() {
	if e.object != nil {
		e.object.Close()
		e.object = nil
	}
}

// traffic is what tools see of the counters.
func (s *Stats) traffic() status.Traffic {
	return status.Traffic{Received: s.Received, Malformed: s.Malformed,
		BadChecksum: s.BadChecksum, UnknownSource: s.UnknownSource, Truncated: s.Truncated,
		Overrun: s.Overrun, Returned: s.Returned, RxBlocked: s.RxBlocked, NoBuffer: s.NoBuffer,
		Accepted: s.Accepted, Completed: s.Completed, Refused: s.Refused,
		Unreachable: s.Unreachable, Cancelled: s.Cancelled, NoFrame: s.NoFrame,
		Resolving: s.Resolving, LinkDown: s.LinkDown, Starved: s.Starved, Polls: s.Polls}
}
