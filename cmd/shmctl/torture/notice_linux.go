package torture

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
)

// noticeLatest is when a survivor must know of a death at the latest, in time that it could run.
const noticeLatest = 5 * time.Second

// death is one that somebody may notice.
type death struct {
	role string
	atNs int64
}

// duty is to tell of a death.
type duty struct {
	death
	known bool          // is since set
	since time.Duration // of the mourners
}

// process is one among those that had its number, in a run in which numbers come round.
type process struct {
	pid   int
	start uint64 // in clock ticks, 0: whoever has the number now, or had it last
}

// noticeKey says whose death, and how it is told.
type noticeKey struct {
	process
	kind string
}

// notices matches deaths with what survivors tell of them. Either may come first: others know of a
// process that dies at a step before we do.
type notices struct {
	deaths map[process]death
	early  map[noticeKey]event // of which the death is not known yet
	due    map[noticeKey]*duty // must come
	names  map[process]string
	starts map[int]uint64   // of who had a number last
	closed map[process]bool // ended by themselves at the end of the run
	told   map[noticeKey]bool
	ns     map[string][]int64 // by kind
}

func newNotices() notices {
	return notices{deaths: map[process]death{}, early: map[noticeKey]event{},
		names: map[process]string{}, starts: map[int]uint64{}, closed: map[process]bool{},
		due: map[noticeKey]*duty{}, told: map[noticeKey]bool{},
		ns: map[string][]int64{}}
}

// born notes who has a number now.
func (n *notices) born(p process, name string) {
	n.names[p], n.starts[p.pid] = name, p.start
}

// dead notes a death.
func (n *notices) dead(p process, d death) {
	n.deaths[p] = d
	for key, e := range n.early {
		if key.process == p {
			delete(n.early, key)
			n.came(e)
		}
	}
}

// came notes what a survivor tells.
func (n *notices) came(e event) {
	key := noticeKey{process{e.Pid, e.Start}, e.What}
	if key.start == 0 {
		key.start = n.starts[e.Pid]
	}
	d, ok := n.deaths[key.process]
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
	n, key := &s.notes, noticeKey{p.process(), kind}
	if d, ok := n.deaths[key.process]; ok && !n.told[key] {
		n.due[key] = &duty{death: d}
	}
}

// overdue counts what should have been told and was not, when those who tell have lived so long.
func (s *supervisor) overdue(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, d := range s.notes.due {
		if !d.known {
			d.known, d.since = true, now
		}
		if now-d.since > noticeLatest {
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
		if s.notes.closed[key.process] && key.kind == noticeServer {
			s.report.Roles[e.Role].Counts["closed_told_dead"]++
			continue
		}
		s.count(e.Role, kindUsurped, 1, "%s: %s told the death (%s) of process %d that began at %d "+
			"(%s), which nobody killed: %s", kindUsurped, e.Role, key.kind, key.pid, key.start,
			s.notes.names[key.process], e.Text)
	}
}

// notice tells the supervisor that this process learned of a death.
func (c *child) notice(kind string, p cq.PeerEntry) {
	c.send(event{Kind: kindNotice, What: kind, Pid: p.PID, Start: p.StartTicks,
		AtNs: doorbell.Now(), Text: fmt.Sprintf("%+v", p), SinceNs: c.boundNs.Load()})
}
