package torture

import "time"

// duty is that of one survivor, to tell of a death.
type duty struct {
	death
	by *proc // its place
	// bound tells whether it is still in a position to be told; nil is as long as it lives.
	bound func() bool
	known bool          // the next are set
	own   time.Duration // this process's life, when it last looked
	seen  time.Duration // the survivor's, then
	lived time.Duration // for how long both could run since
}

// noticeUsual is when most survivors know.
const noticeUsual = noticeLatest / 50

// expect says that a survivor must tell a death in a way, as long as it is bound. It is for
// role.died.
func (s *supervisor) expect(p, by *proc, kind string, bound func() bool) {
	if by.empty || by.ended() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, key := &s.notes, noticeKey{p.process(), kind, by.process()}
	if d, ok := n.deaths[key.process]; ok && !n.told[key] {
		n.due[key] = &duty{death: d, by: by, bound: bound}
	}
}

// overdue counts what should have been told and was not, when the survivor and this process, which
// has to hear it, could run for so long. own is the life of this one. Who died, or is not bound any
// more, owes nothing.
func (s *supervisor) overdue(own time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, d := range s.notes.due {
		if d.by.empty || d.by.ended() || d.by.process() != key.by || d.bound != nil && !d.bound() {
			delete(s.notes.due, key)
			continue
		}
		now := time.Duration(s.ledger.word(wordLived + d.by.place).Load())
		if d.known {
			d.lived += min(own-d.own, now-d.seen)
		}
		d.known, d.own, d.seen = true, own, now
		if d.lived > noticeLatest {
			delete(s.notes.due, key)
			s.count(d.role, kindUnnoticed, 1, "%s: the death of %s (pid %d) was not told as %s by %s "+
				"%d (pid %d) in %v", kindUnnoticed, d.role, key.pid, key.kind, d.by.role.name,
				d.by.index, key.by.pid, noticeLatest)
		}
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
