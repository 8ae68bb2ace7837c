package cq

import (
	"sync/atomic"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
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
		s, row := &m.seats[i], &c.words.Rows[i]
		mark, o := row.Sits()
		if s.mark, s.owner = mark, o; mark != 0 && m.gone(i) {
			s.settled, s.ahead = mark, 1
		}
		last, deaths := row.Fallen()
		if s.former, s.deaths = last.Mark, deaths; last.Mark == mark {
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
	s, row := &m.seats[i], &m.c.words.Rows[i]
	// The row before the record: whoever is seen in the row has recorded his predecessor.
	mark, o := row.Sits()
	if last, deaths := row.Fallen(); last.Mark != 0 && last.Mark != s.former {
		since := deaths - s.deaths
		if int64(since) < 1 {
			since = 1 // a count that cannot be
		}
		s.former, s.deaths = last.Mark, deaths
		if last.Mark != s.settled {
			p := m.entry(i, last.Mark, last.Owner)
			p.More = min(since-min(since, 1+s.ahead), kind.MostFallen)
			out = append(out, peerNews{EventPeerDeath, p})
			s.settled = last.Mark
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
	if (s.ended.Load() || s.blind) && m.gone(i) && row.Mark.Load() == mark {
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
	stop, err := shm.FollowOwner(s.owner, func() {
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
		return &Error{Pkg: kind.Pkg, Op: "bind events", Name: c.name, Err: ErrClosed}
	}
	defer c.guard.leaveAny()
	err := c.deaths.bind(c.fid, events, func(former mourner) mourner {
		if m, ok := former.(*counterMourner); ok {
			return m
		}
		return newCounterMourner(c)
	})
	if err != nil {
		return &Error{Pkg: kind.Pkg, Op: "bind events", Name: c.name, Err: err}
	}
	return nil
}
