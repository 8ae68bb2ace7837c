package endpoint

import (
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/capture"
	"github.com/shmring/shmring/xdp/status"
)

// object is what tools see of an endpoint, and the capture that one of them may want.
type object struct {
	*status.Object
	dir      *shm.Dir
	ours     bool // the directory was opened here
	socket   *xdp.Socket
	counters status.Counters
	tap      *capture.Tap // nil most of the time
	askAt    int64
}

// openObject makes the object. Without one the endpoint works all the same: it may run where there
// is no directory, or no room in it.
func (e *Endpoint) openObject() {
	if e.cfg.NoObject {
		return
	}
	o := &object{dir: e.cfg.Directory, socket: e.socket}
	if o.dir == nil {
		dir, err := shm.OpenDir("")
		if err != nil {
			return
		}
		o.dir, o.ours = dir, true
	}
	var err error
	if o.Object, err = status.Create(o.dir, e.info()); err != nil {
		o.leaveDir()
		return
	}
	e.object = o
}

func (o *object) leaveDir() {
	if o.ours {
		_ = o.dir.Close()
	}
}

func (e *Endpoint) closeObject() {
	if o := e.object; o != nil {
		o.untap()
		_ = o.Close()
		o.leaveDir()
		e.object = nil
	}
}

func (e *Endpoint) info() status.Info {
	s := e.socket
	g := s.Granted()
	i := status.Info{Queue: s.Queue(), NetNS: s.NetNSCookie(), Bind: g.Mode,
		NeedWakeup: g.NeedWakeup, MultiBuffer: g.MultiBuffer,
		Posted: e.cfg.Posted, Shared: e.cfg.Shared, Geometry: s.UMEM().Geometry(),
		UMEM: s.UMEM().Region().Object().Header().UUID, Rings: s.RingSizes(), Local: e.cfg.Local}
	i.Interface, i.Index = s.Interface()
	name := func(w *cq.Writer) (string, shm.UUID) {
		if w == nil {
			return "", shm.UUID{}
		}
		return w.Queue()
	}
	i.Receive, i.ReceiveID = name(e.cfg.Receive)
	i.Transmit, i.TransmitID = name(e.cfg.Transmit)
	return i
}

// update publishes counters.
func (o *object) update(now int64, s *Stats) {
	c := &o.counters
	c.UpdatedNs = uint64(now)
	c.Program, c.Attach = 0, 0
	if p := o.socket.Program(); p != nil {
		c.Program, c.Attach = uint64(p.ID()), uint64(p.Mode())
	}
	c.Kernel, c.Frames, c.Rings, c.Syscalls = s.Kernel, s.Frames, s.Rings, s.Syscalls
	c.Traffic = status.Traffic{Received: s.Received, Malformed: s.Malformed,
		BadChecksum: s.BadChecksum, UnknownSource: s.UnknownSource, Truncated: s.Truncated,
		Overrun: s.Overrun, Returned: s.Returned, RxBlocked: s.RxBlocked, NoBuffer: s.NoBuffer,
		Accepted: s.Accepted, Completed: s.Completed, Refused: s.Refused,
		Unreachable: s.Unreachable, Cancelled: s.Cancelled, NoFrame: s.NoFrame,
		Resolving: s.Resolving, LinkDown: s.LinkDown, Starved: s.Starved, Polls: s.Polls}
	o.Update(c)
}

// due reports whether a tool wants something else than before, or whether it is time to see that
// the one that captures lives.
func (o *object) due(now int64) bool { return o.Wanted() || o.tap != nil && now >= o.askAt }

// retap does what tools want.
func (o *object) retap(now int64) {
	if !o.Wanted() {
		o.askAt = now + checkEveryNs
		if !o.tap.Alive() {
			o.untap()
		}
		return
	}
	o.untap()
	id := o.Wish()
	if id.IsZero() {
		return
	}
	tap, err := capture.Attach(o.dir, id, o.socket.Queue())
	if err != nil {
		return // the tool is gone by now, or is of another version
	}
	o.tap, o.askAt = tap, now+checkEveryNs
	o.socket.SetTap(tap)
}

func (o *object) untap() {
	if o.tap != nil {
		o.socket.SetTap(nil)
		o.tap.Close()
		o.tap = nil
	}
}
