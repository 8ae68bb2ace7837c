package cq

import (
	"sync/atomic"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// counterMourner tells one handle of a counter of the others that died. Whoever has a seat wrote
// into its row who he is, and takes that back before he leaves: so a row of somebody who is gone
// means that he died with it. Whoever sits there next keeps it in the row beside his own, so that
// no death is hidden by another one.
type counterMourner struct {
	c     *Counter
	seats [doorbell.CountSeats]seatWitness
	kept  []peerNews // for the next event queue
}

// seatWitness follows one row.
type seatWitness struct {
	mark    uint64 // of the row that was seen last; 0: nobody's
	owner   shm.Owner
	settled uint64 // mark of one whose death is news no more
	ahead   uint64 // 1: that one is not recorded in the row yet
	former  uint64 // mark of the last one of the record that was seen
	deaths  uint64 // how many the record had then

	watching bool
	stop     func()
	ended    atomic.Bool
	blind    bool // its death gives no notice
}

// newCounterMourner begins with those who are there: who died before is no news.
func newCounterMourner(c *Counter) *counterMourner {
	m := &counterMourner{c: c}
	for i := range m.seats {
		s, row := &m.seats[i], &c.words.rows[i]
		mark, o := row.sits()
		if s.mark, s.owner = mark, o; mark != 0 && m.gone(i) {
			s.settled, s.ahead = mark, 1
		}
		last, deaths := row.fallen()
		if s.former, s.deaths = last.mark, deaths; last.mark == mark {
			s.ahead = 0
		}
	}
	return m
}

func (m *counterMourner) look() (out []peerNews) {
	out, m.kept = m.kept, nil
	for i := range m.seats {
		if i != m.c.seat.Index() {
			out = m.lookAt(i, out)
		}
	}
	return out
}

func (m *counterMourner) lookAt(i int, out []peerNews) []peerNews {
	s, row := &m.seats[i], &m.c.words.rows[i]
	// The row before the record: whoever is seen in the row has recorded his predecessor.
	mark, o := row.sits()
	if last, deaths := row.fallen(); last.mark != 0 && last.mark != s.former {
		since := deaths - s.deaths
		if int64(since) < 1 {
			since = 1 // a count that cannot be
		}
		s.former, s.deaths = last.mark, deaths
		if last.mark != s.settled {
			p := m.entry(i, last.mark, last.owner)
			p.More = min(since-min(since, 1+s.ahead), mostFallen)
			out = append(out, peerNews{EventPeerDeath, p})
			s.settled = last.mark
		}
		s.ahead = 0
	}
	if mark != s.mark {
		s.rest()
		s.mark, s.owner = mark, o
	}
	if mark == 0 || mark == s.settled {
		return out
	}
	if !s.watching {
		s.watch()
	}
	if (s.ended.Load() || s.blind) && m.gone(i) && row.mark.Load() == mark {
		s.rest()
		s.settled, s.ahead = mark, 1
		out = append(out, peerNews{EventPeerDeath, m.entry(i, mark, s.owner)})
	}
	return out
}

// gone reports that who sits in a row, as it was seen, is proved dead.
func (m *counterMourner) gone(i int) bool {
	s := &m.seats[i]
	alive, known := shm.ProcessAlive(s.owner)
	if known {
		return !alive
	}
	taken, err := m.c.obj.Seated(i) // the kernel drops that with the process, wherever it is
	return err == nil && !taken
}

func (m *counterMourner) entry(i int, mark uint64, o shm.Owner) PeerEntry {
	return PeerEntry{Role: PeerUser, Lane: i, PID: o.PID, PIDNS: o.PIDNS, StartTicks: o.StartTicks,
		Object: m.c.obj.Header().UUID, Generation: mark}
}

func (m *counterMourner) telling(*peerNews) {}
func (m *counterMourner) told(*peerNews)    {}

func (m *counterMourner) close(untold []peerNews) {
	m.kept = append(untold, m.kept...) // nobody need have looked since it was bound
	for i := range m.seats {
		m.seats[i].rest()
	}
}

// watch asks for a notice of the death of who sits there.
func (s *seatWitness) watch() {
	s.watching = true
	if me := shm.Self(); s.owner.PID == me.PID && s.owner.PIDNS == me.PIDNS &&
		s.owner.StartTicks == me.StartTicks {
		return // it dies with us
	}
	stop, err := shm.WatchDeath(s.owner, func() {
		s.ended.Store(true)
		processWatch.nudge()
	})
	s.stop, s.blind = stop, err != nil
}

// rest ends the watch.
func (s *seatWitness) rest() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
	s.ended.Store(false)
	s.watching, s.blind = false, false
}

// sits returns who has a row, or nobody while that is being written.
func (r *counterRow) sits() (mark uint64, o shm.Owner) {
	mark = r.mark.Load()
	o = r.owner()
	if mark == 0 || r.mark.Load() != mark {
		return 0, shm.Owner{}
	}
	return mark, o
}

// fallen is one who died in a seat.
type fallen struct {
	mark  uint64
	owner shm.Owner
}

// mostFallen bounds what a row may claim.
const mostFallen = 1 << 20

// fallen returns the last who died in a row, and how many did with him. While that is being written
// it is nobody, and how many did before.
func (r *counterRow) fallen() (last fallen, deaths uint64) {
	last = fallen{r.formerMark.Load(), boundOwner(r.formerPID.Load(), r.formerPIDNS.Load(),
		r.formerStart.Load())}
	deaths = r.deaths.Load()
	if last.mark == 0 || r.formerMark.Load() != last.mark {
		return fallen{}, deaths / 2
	}
	return last, deaths/2 + deaths%2
}

// bury records who died in the seat, if anybody did. It is for who has it now, and may be killed
// over it: the next one begins again. The count of deaths is twice that, and odd from before a
// record is begun until after it is written: so who finds it odd can tell by the record whether
// that one is counted.
func (r *counterRow) bury() {
	mark := r.mark.Load()
	former, deaths := r.formerMark.Load(), r.deaths.Load()
	if mark == 0 || former == mark {
		return // he left by himself, or died before he said who he is; or it is done
	}
	if former != 0 {
		deaths += deaths % 2 // who wrote the record was killed before he said that it is whole
	}
	r.formerMark.Store(0)
	r.deaths.Store(deaths | 1)
	r.formerPID.Store(r.pid.Load())
	r.formerPIDNS.Store(r.pidNS.Load())
	r.formerStart.Store(r.start.Load())
	r.formerMark.Store(mark) // who sees it sees the rest
	r.deaths.Store((deaths | 1) + 1)
}

// BindEvents makes this handle report to an event queue the deaths of other processes that have the
// counter open: an EventPeerDeath with the counter's FID, the seat as Data and a [PeerEntry] as
// payload, one for each handle that a process had open when it was killed or ended without closing
// it. What it had added is in the value by then. Each handle that is bound reports by itself, each
// death once. What happened before BindEvents is not reported. When events come, and what is no
// death, is as with [Queue.BindEvents]: a process that is stopped is not dead, nor is a handle that
// was closed.
//
// Handles beyond the first 64 that are open at a time have no seat, and nobody is told of their
// deaths; they can be told of others'.
//
// An event queue of this process cannot be closed while it is bound (EBUSY). Another sink replaces
// it, and gets what that one had no room for; nil ends it, as does closing the handle. It may be
// called from anywhere. The error is ErrClosed.
func (c *Counter) BindEvents(events EventSink) error {
	if !c.guard.enterAny() {
		return &Error{Pkg: pkg, Op: "bind events", Name: c.name, Err: ErrClosed}
	}
	defer c.guard.leaveAny()
	err := c.deaths.bind(c.fid, events, func(former mourner) mourner {
		if m, ok := former.(*counterMourner); ok {
			return m
		}
		return newCounterMourner(c)
	})
	if err != nil {
		return &Error{Pkg: pkg, Op: "bind events", Name: c.name, Err: err}
	}
	return nil
}
