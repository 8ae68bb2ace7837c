package endpoint

import "github.com/shmring/shmring/internal/drive"

// turn does everything that can be done without waiting.
func (e *Endpoint) turn(now int64) (work int, err error) {
	if err := e.checkGone(); err != nil {
		return 0, err
	}
	e.round++
	e.rxBlocked = false
	if e.sending > 0 {
		work, err = e.reap()
	}
	filled := e.fill(now)
	if e.cfg.Receive != nil {
		n, e2 := e.receive(now)
		work += n
		if err == nil {
			err = e2
		}
	}
	e2 := e.kick()
	if filled > 0 && e2 == nil {
		e2 = e.linkState(e.socket.WakeFill())
	}
	if e2 != nil {
		e.broke(e2)
		return work, e2
	}
	if now >= e.checkAt {
		if err := e.check(now); err != nil {
			return work, err
		}
	}
	if e.object != nil && e.object.Due(now) {
		e.object.Obey(now)
	}
	e.dirty = e.dirty || work > 0
	if e.dirty && work == 0 || now-e.statsAt >= 1e6 {
		e.publish(now)
	}
	calm := work == 0 && e.stats.Accepted == e.accepted // nothing was posted since the last round
	e.accepted = e.stats.Accepted
	if e.unseen && (calm || now-e.shownAt >= showEveryNs) {
		e.show(now)
	}
	return work, err
}

func (e *Endpoint) check(now int64) error {
	e.checkAt = now + drive.CheckEveryNs
	err := e.linkState(e.socket.Check())
	if err != nil {
		e.broke(err)
	}
	return err
}

// fill gives the kernel frames to receive into.
func (e *Endpoint) fill(now int64) int {
	n := e.socket.Fill(2 * len(e.packets))
	if n == 0 && now-e.starvedAt >= starvedEveryNs {
		e.checkStarved(now)
	}
	return n
}
