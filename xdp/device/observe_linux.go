package device

import (
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/status"
)

// kernelEveryNs is how often the kernel's counters are asked for: that is a system call.
const kernelEveryNs = 100e6

// observe makes what tools see of a queue's socket: an object, by which "shmctl xdp" lists it and
// "shmctl capture" copies what all applications receive and send. It is there for processes of the
// server's own user, and the server works without.
func (s *Server) observe(q *queue) {
	if s.c.NoObject {
		return
	}
	if f, err := capture.Follow(s.c.Directory, q.sock, status.Info{}); err == nil {
		q.object = f
	}
}

// obey does what tools want of a queue. Without one that wants something it costs a load.
func (q *queue) obey(now int64) {
	if q.object != nil && q.object.Due(now) {
		q.object.Obey(now)
	}
}

// ask has the kernel say what it counted for a queue.
func (q *queue) ask(now int64) {
	if now < q.kernelAt {
		return
	}
	q.kernelAt = now + kernelEveryNs
	if k, err := q.sock.KernelStats(); err == nil {
		q.kernel = k
	}
}

// show publishes a queue's counters to tools.
func (q *queue) show(now int64) {
	if q.object == nil {
		return
	}
	r := q.sock.RingStats()
	q.object.Update(now, &q.kernel, &status.Traffic{Received: r.Received, Accepted: r.Posted,
		Completed: r.Sent, Malformed: q.malformed, BadChecksum: q.badChecksum})
}

// vanish ends what tools see, and a capture. The socket is still open.
func (q *queue) vanish() {
	if q.object != nil {
		q.object.Close()
		q.object = nil
	}
}
