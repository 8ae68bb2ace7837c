package fabric

import (
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
)

// Progress examines what has come, completes what peers examined, and never blocks. work is 0 if
// there was nothing to do. Errors: os.ErrClosed.
func (e *Endpoint) Progress() (work int, err error) {
	e.bell.Lock()
	if err = e.usable(); err == nil {
		work = e.poll()
	}
	e.bell.Unlock()
	return work, err
}

// poll looks at every lane that can have something, and tells senders before it returns.
func (e *Endpoint) poll() (work int) {
	b := e.bell
	if e.posted.Owes() || e.opt.Buffered > 0 || len(e.remote.untold) > 0 {
		work = e.settle() + e.tellReached()
	}
	if !b.Steady() {
		b.Take()
		b.Heat()
		e.leftGroups() // who leaves has marked its lane
	}
	looks, empty := 0, 0
	for bit := b.Next(0); bit >= 0; bit = b.Next(bit + 1) {
		n := 0
		looks++
		if bit < len(e.rows) {
			if l := e.in[bit]; l.has() || l.tells() || l.p.dead.Load() {
				n = l.examine()
			}
		} else {
			l := e.out[bit-len(e.rows)]
			if n = l.look(); n == 0 && l.quiet() {
				l.ignored = true
				b.Ignore(bit)
				continue
			}
		}
		if n == 0 {
			b.Drained(bit)
			empty++
		}
		work += n
	}
	if looks > 2 { // those of one peer are not worth it
		_, _ = b.Cool(empty) // where nothing can be paid for, lanes stay as they are
	}
	e.flush()
	return work
}

// quietAfter is how many injects in a row make a lane quiet.
const quietAfter = 16

// quiet reports that nobody waits for what the receiver tells. For a while there were injects
// alone, and there is room for more. The bell ignores such a lane, and its line stays with the
// receiver. Who closes, or refuses the lane, announces that.
func (l *outLane) quiet() bool {
	return l.sent-l.wanted >= quietAfter && int64(l.seen-l.wanted) >= 0 &&
		l.sent-l.seen <= l.mask/2 && l.adopted && !l.parted() && !l.unused && l.asks.open == 0 &&
		len(l.later) == 0 && len(l.free) == len(l.pushes) && l.p.e.opt.mux == nil &&
		!l.p.e.opt.Datagram
}

// watch ends that the lane is ignored.
func (l *outLane) watch() {
	if l.ignored {
		l.ignored = false
		l.p.e.bell.Consider(len(l.p.e.rows) + l.place)
	}
}

// pollAll examines all that had been published when it was called.
func (e *Endpoint) pollAll() {
	for range kind.FabricMostSlots/mostMessages + 1 {
		if e.poll() == 0 {
			return
		}
	}
}

// flush reports receives, and tells all senders whose messages were examined or matched.
func (e *Endpoint) flush() {
	_ = e.posted.Commit()
	for i, l := range e.dirty {
		l.dirty = false
		if l.heard() {
			l.tell()
		}
		e.dirty[i] = nil
	}
	e.dirty = e.dirty[:0]
}

func (e *Endpoint) dropUser() {
	if e.users--; e.users == 0 {
		e.idle.Broadcast()
	}
}

// feeder is the endpoint as the queues of this process see it.
type feeder struct{ *Endpoint }

// lookEvery is how often those look for whom the kernel refuses what a sleep on the endpoint's bell
// needs.
const lookEvery = time.Millisecond

// Progress implements cq.Feeder.
func (f feeder) Progress() time.Duration {
	work, err := f.Endpoint.Progress()
	switch {
	case err != nil:
		return -1
	case work > 0:
		return 0
	}
	return lookEvery
}

// Overrun implements cq.Feeder: posts notice by themselves.
func (f feeder) Overrun(*cq.Queue) {}

// HoldBell has reads of a queue sleep on the endpoint's bell too.
func (f feeder) HoldBell() *wake.Bell {
	e := f.Endpoint
	e.bell.Lock()
	defer e.bell.Unlock()
	if e.closed {
		return nil
	}
	e.users++
	return e.bell
}

// DropBell ends HoldBell.
func (f feeder) DropBell() {
	f.bell.Lock()
	f.dropUser()
	f.bell.Unlock()
}
