package torture

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
)

// noticeLatest is when a survivor must know of a death at the latest, in time that it could run.
const noticeLatest = 5 * time.Second

// death is one that somebody may notice.
type death struct {
	role string
	atNs int64
}

// span is a time in which a process was stopped; to is 0 as long as it is.
type span struct{ from, to int64 }

// process is one among those that had its number, in a run in which numbers come round.
type process struct {
	pid   int
	start uint64 // in clock ticks, 0: whoever has the number now, or had it last
}

// word is the process in a word of the ledger.
func (p process) word() uint64 { return p.start<<22 | uint64(p.pid)&(1<<22-1) }

// noticeKey says whose death, how it is told, and by whom: every survivor has to tell it.
type noticeKey struct {
	process
	kind string
	by   process
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
	stops  map[process][]span
	ns     map[string][]int64  // by kind
	duties map[string]Duties   // by kind
	merged map[noticeKey]int64 // when a survivor last told a kind of deaths by their number only
	hasty  []event             // told before the death, in order
}

func newNotices() notices {
	return notices{deaths: map[process]death{}, early: map[noticeKey]event{},
		names: map[process]string{}, starts: map[int]uint64{}, closed: map[process]bool{},
		due: map[noticeKey]*duty{}, told: map[noticeKey]bool{},
		stops: map[process][]span{}, ns: map[string][]int64{}, duties: map[string]Duties{},
		merged: map[noticeKey]int64{}}
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
			n.one(key.by, e)
		}
	}
}

// came notes what a survivor tells.
func (n *notices) came(by process, e event) {
	n.one(by, e)
	if e.More > 0 {
		n.merge(by, e)
	}
}

// one notes the death that is named.
func (n *notices) one(by process, e event) {
	key := noticeKey{process{e.Pid, e.Start}, e.What, by}
	if key.start == 0 {
		key.start = n.starts[e.Pid]
	}
	d, ok := n.deaths[key.process]
	if !ok {
		n.early[key] = e
		return
	}
	// Of a device process its end is told, too, see unfounded.
	if e.AtNs < d.atNs && key.kind != noticeServer {
		n.hasty = append(n.hasty, e)
	}
	if n.due[key] != nil {
		n.over(key)
		n.count(key.kind, func(c *Duties) { c.Told++ })
	}
	if n.told[key] { // of several lanes, say
		return
	}
	n.told[key] = true
	kind := n.sort(key, d, e)
	n.ns[kind] = append(n.ns[kind], max(0, e.AtNs-d.atNs))
}

// sort tells which times a notice belongs to: those of survivors that were there when it happened
// and could run since are apart.
func (n *notices) sort(key noticeKey, d death, e event) string {
	if e.SinceNs > d.atNs {
		return noticeLate
	}
	for _, s := range n.stops[key.by] {
		if s.from < e.AtNs && (s.to == 0 || s.to > d.atNs) {
			return noticeStopped
		}
	}
	return key.kind
}

// stopped notes that a process is stopped from now on, and the end of that.
func (n *notices) stopped(p process, nowNs int64) (ended func(nowNs int64)) {
	at := len(n.stops[p])
	n.stops[p] = append(n.stops[p], span{from: nowNs})
	return func(nowNs int64) { n.stops[p][at].to = nowNs }
}

// unfounded counts the living who were told to be dead. Nobody lives any more who could die.
func (s *supervisor) unfounded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.notes.hasty {
		s.count(e.Role, kindUsurped, 1, "%s: %s told the death (%s) of process %d before it died: %s",
			kindUsurped, e.Role, e.What, e.Pid, e.Text)
	}
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
		AtNs: spin.Now(), Text: fmt.Sprintf("%+v", p), SinceNs: c.boundNs.Load(), More: p.More})
}
