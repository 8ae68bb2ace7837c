package torture

import (
	"sync/atomic"
	"syscall"
	"time"
)

// duty is that of one survivor, to tell of a death.
type duty struct {
	death
	by *proc // its place
	// bound tells whether it is still in a position to be told; nil is as long as it lives.
	bound func() bool
	owes  *atomic.Uint64 // tells the survivor
	known bool           // the next are set
	own   time.Duration  // this process's life, when it last looked
	seen  time.Duration  // the survivor's, then
	lived time.Duration  // for how long both could run since
}

// noticeUsual is when most survivors know.
const noticeUsual = noticeLatest / 50

// lookEvery is the least life between two looks at a duty. Lives go on in steps: of two that do so
// in turns, looks that are closer would see now the one stand still, now the other.
const lookEvery = 5 * livedEvery

// wasBound tells whether one that died had surely what its role makes others mourn.
func (s *supervisor) wasBound(p *proc) bool { return s.ledger.word(wordBound+p.place).Load() != 0 }

// expectAll demands of each process of a role that it tells a death, if it was bound by then and as
// long as it stays so. It is for role.died.
func (s *supervisor) expectAll(p *proc, role, kind string) {
	for _, by := range s.procs {
		word := s.ledger.word(wordBound + by.place)
		since := word.Load()
		if by != p && by.role.name == role && since != 0 && int64(since) < s.diedAt(p) {
			s.expect(p, by, kind, func() bool { return word.Load() == since })
		}
	}
}

// expect says that a survivor must tell a death in a way, as long as it is bound. It is for
// role.died.
func (s *supervisor) expect(p, by *proc, kind string, bound func() bool) {
	if by.empty || by.Over() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, key := &s.notes, noticeKey{p.process(), kind, by.process()}
	d, ok := n.deaths[key.process]
	if !ok { // it ended, and was not killed
		return
	}
	n.count(kind, func(c *Duties) { c.Demanded++ })
	switch {
	case n.told[key]:
		n.count(kind, func(c *Duties) { c.Told++ })
	case d.atNs <= n.merged[noticeKey{kind: kind, by: key.by}]:
		n.count(kind, func(c *Duties) { c.Excused++ })
	default:
		n.due[key] = &duty{death: d, by: by, bound: bound, owes: s.ledger.word(wordOwes + by.place)}
		n.due[key].owes.Store(key.by.word())
	}
}

// overdue counts what should have been told and was not, when the survivor and this process, which
// has to hear it, could run for so long. own is the life of this one. Who died, or is not bound any
// more, owes nothing.
func (s *supervisor) overdue(own time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, d := range s.notes.due {
		if d.by.empty || d.by.Over() || d.by.process() != key.by || d.bound != nil && !d.bound() {
			s.notes.excuse(key)
			continue
		}
		now := time.Duration(s.ledger.word(wordLived + d.by.place).Load())
		if d.known && max(own-d.own, now-d.seen) < lookEvery {
			continue
		}
		if d.known {
			d.lived += min(own-d.own, now-d.seen)
		}
		d.known, d.own, d.seen = true, own, now
		if d.lived > noticeLatest {
			s.notes.over(key)
			s.count(d.role, kindUnnoticed, 1, "%s: the death of %s (pid %d, %s) at %d was not told as "+
				"%s by %s %d (pid %d, bound since %d) in %v", kindUnnoticed, d.role, key.pid,
				s.notes.names[key.process], d.atNs, key.kind, d.by.role.name, d.by.index,
				key.by.pid, s.ledger.word(wordBound+d.by.place).Load(), noticeLatest)
			s.ask(d.by)
		}
	}
}

// ask has one that did not tell a death say on standard error what its goroutines do, which ends
// it. The caller has the mutex.
func (s *supervisor) ask(p *proc) {
	if !s.dumped {
		s.dumped, p.shot = true, true
		p.Signal(syscall.SIGQUIT)
	}
}

// late tells whether the process of a place has not told a death that it might have told by now.
func (s *supervisor) late(p *proc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.notes.due {
		if d.by == p && d.lived > noticeUsual {
			return true
		}
	}
	return false
}

// count counts in the report what was due of a kind.
func (n *notices) count(kind string, one func(*Duties)) {
	c := n.duties[kind]
	one(&c)
	n.duties[kind] = c
}

// over ends a duty, and says so to the survivor with its last one.
func (n *notices) over(key noticeKey) {
	owes := n.due[key].owes
	delete(n.due, key)
	for other := range n.due {
		if other.by == key.by {
			return
		}
	}
	owes.CompareAndSwap(key.by.word(), 0) // a successor may have the place
}

// excuse takes back what was due.
func (n *notices) excuse(key noticeKey) {
	n.over(key)
	n.count(key.kind, func(c *Duties) { c.Excused++ })
}

// merge takes back what a survivor was to tell when it told only how many more had died: those
// whom nobody remembers one by one.
func (n *notices) merge(by process, e event) {
	n.merged[noticeKey{kind: e.What, by: by}] = e.AtNs
	for key, d := range n.due {
		if key.by == by && key.kind == e.What && d.atNs <= e.AtNs {
			n.excuse(key)
		}
	}
}
