package torture

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/doorbell"
)

// noticeLatest is when a survivor must know of a death at the latest.
const noticeLatest = 5 * time.Second

// death is one that somebody may notice.
type death struct {
	role string
	atNs int64
}

// noticeKey says whose death, and how it is told.
type noticeKey struct {
	pid  int
	kind string
}

// notices matches deaths with what survivors tell of them. Either may come first: others know of a
// process that dies at a step before we do.
type notices struct {
	deaths map[int]death
	early  map[noticeKey]event // of which the death is not known yet
	due    map[noticeKey]death // must come
	names  map[int]string      // of all processes, by number
	closed map[int]bool        // processes that ended by themselves at the end of the run
	told   map[noticeKey]bool
	ns     map[string][]int64 // by kind
}

func newNotices() notices {
	return notices{deaths: map[int]death{}, early: map[noticeKey]event{},
		names: map[int]string{}, closed: map[int]bool{},
		due: map[noticeKey]death{}, told: map[noticeKey]bool{},
		ns: map[string][]int64{}}
}

// born forgets what had the number of a process before.
func (n *notices) born(pid int, name string) {
	n.names[pid] = name
	delete(n.deaths, pid)
	for key := range n.told {
		if key.pid == pid {
			delete(n.told, key)
		}
	}
}

// dead notes a death.
func (n *notices) dead(pid int, d death) {
	n.deaths[pid] = d
	for key, e := range n.early {
		if key.pid == pid {
			delete(n.early, key)
			n.came(e)
		}
	}
}

// came notes what a survivor tells.
func (n *notices) came(e event) {
	key := noticeKey{e.Pid, e.What}
	d, ok := n.deaths[e.Pid]
	if !ok {
		n.early[key] = e
		return
	}
	if e.SinceNs > d.atNs {
		key.kind = noticeLate
	}
	if !n.told[key] { // a second survivor, or the successor of the first, may tell it again
		n.told[key] = true
		n.ns[key.kind] = append(n.ns[key.kind], max(0, e.AtNs-d.atNs))
	}
	delete(n.due, key)
}

// expect says that a death must be told in a way. It is for role.died.
func (s *supervisor) expect(p *proc, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, key := &s.notes, noticeKey{p.pid(), kind}
	if d, ok := n.deaths[key.pid]; ok && !n.told[key] {
		n.due[key] = d
	}
}

// overdue counts what should have been told and was not.
func (s *supervisor) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := doorbell.Now()
	for key, d := range s.notes.due {
		if now-d.atNs > int64(noticeLatest) {
			delete(s.notes.due, key)
			s.count(d.role, kindUnnoticed, 1, "%s: the death of %s (pid %d) was not told as %s in %v",
				kindUnnoticed, d.role, key.pid, key.kind, noticeLatest)
		}
	}
}

// unfounded counts the living who were told to be dead. Nobody lives any more who could die.
func (s *supervisor) unfounded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.notes.early {
		// An application is told that its device process is gone, whether that closed or died: it
		// has to do the same. Everything else that is closed says so in its object before its lock
		// goes and its process ends, and is looked at after that: it is never told as dead.
		if s.notes.closed[key.pid] && key.kind == noticeServer {
			s.report.Roles[e.Role].Counts["closed_told_dead"]++
			continue
		}
		s.count(e.Role, kindUsurped, 1, "%s: %s told the death (%s) of process %d (%s), which nobody "+
			"killed", kindUsurped, e.Role, key.kind, key.pid, s.notes.names[key.pid])
	}
}

// notice tells the supervisor that this process learned of a death.
func (c *child) notice(kind string, pid int) {
	c.send(event{Kind: kindNotice, What: kind, Pid: pid, AtNs: doorbell.Now(), Text: fmt.Sprint(pid),
		SinceNs: c.boundNs.Load()})
}
