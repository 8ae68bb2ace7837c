package torture

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
)

// How deaths are told through event queues, to those of one user.
const (
	noticeReader = "reader-death" // to a writer
	noticeWriter = "writer-death" // to a reader
)

// readDeaths passes on what an event queue says of deaths, until the context ends.
func (c *child) readDeaths(ctx context.Context, eq *cq.EventQueue) error {
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	for {
		_, err := eq.ReadContext(ctx, &ev, cq.ReadOptions{})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case ev.Event != cq.EventPeerDeath:
			continue
		}
		p, err := cq.ParsePeerEntry(ev.Payload)
		if err != nil {
			return err
		}
		kind := c.role.site.noticeWriter
		if p.Role == cq.PeerReader {
			kind = c.role.site.noticeReader
		}
		c.notice(kind, p)
	}
}

// withDeaths calls f with an event queue, and passes on each death that it tells. There is none
// where deaths are not to be told.
func (c *child) withDeaths(f func(deaths *cq.EventQueue) error) error {
	if c.role.site.noticeReader == "" {
		return f(nil)
	}
	eq, err := cq.CreateEvents(cq.Unnamed("deaths"), cq.EventOptions{Size: 1024})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.readDeaths(ctx, eq) }()
	err = f(eq)
	stop()
	return errors.Join(err, <-ended, eq.Close())
}

// has says what this process surely has from now on, see wordHas.
func (c *child) has(what uint64) { c.ledger.word(wordHas + c.Place).Store(what) }

// owns says which word of its role names the owner of what this process surely has from now on.
func (c *child) owns(word int) {
	c.ledger.word(wordOwns + c.Place).Store(uint64(c.ledger.at(c.Role) + word))
}

// owned says that it may not have it any more.
func (c *child) owned() { c.ledger.word(wordOwns + c.Place).Store(0) }

// bound says that this process is told from now on.
func (c *child) bound() {
	now := spin.Now()
	c.boundNs.Store(now)
	c.ledger.word(wordBound + c.Place).Store(uint64(now))
}

// unbound says that it is not any more, soon: when it has told what it owes, or nothing would ever
// be demanded of those who are not bound for long.
func (c *child) unbound() {
	_, start := stat(c.pid)
	owes, me := c.ledger.word(wordOwes+c.Place), process{c.pid, start}.word()
	for owes.Load() == me && c.ledger.phase() == phaseRun {
		nap(time.Millisecond)
	}
	c.ledger.word(wordBound + c.Place).Store(0)
	c.ledger.word(wordHad + c.Place).Store(0)
}

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

// duty is that of one survivor, to tell of a death.
type duty struct {
	death
	by *proc // its place
	// bound tells whether it is still in a position to be told; nil is as long as it lives.
	bound func() bool
	owes  *atomic.Uint64 // tells the survivor
	both                 // the other one is the survivor
}

// noticeUsual is when most survivors know.
const noticeUsual = noticeLatest / 50

// lookEvery is the least life between two looks at a duty. Lives go on in steps: of two that do so
// in turns, looks that are closer would see now the one stand still, now the other.
const lookEvery = 5 * stage.LivedEvery

// has returns what the process of a place surely has, or had when it died.
func (s *supervisor) has(p *proc) uint64 { return s.ledger.word(wordHas + p.place).Load() }

// demand demands of each process that shared what a dead one had that it tells its death, if it was
// bound by then and as long as it stays so. One that has gone on to something else is told, too.
func (s *supervisor) demand(p *proc) {
	has := s.has(p)
	for _, by := range s.procs {
		word := s.ledger.word(wordBound + by.place)
		since, had := word.Load(), s.ledger.word(wordHad+by.place).Load()
		kind, tells := p.role.tells[by.role.name]
		if tells && has != 0 && by != p && since != 0 && int64(since) < s.diedAt(p) &&
			(s.has(by) == has || had == has) {
			s.expect(p, by, kind, func() bool { return word.Load() == since })
		}
	}
}

// expect says that a survivor must tell a death in a way, as long as it is bound.
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
		if d.live(own, s.lived(d.by), lookEvery) > noticeLatest {
			s.notes.over(key)
			s.count(d.role, kindUnnoticed, 1, "%s: the death of %s (pid %d, %s) at %d was not told as "+
				"%s by %s %d (pid %d, bound since %d) in %v", kindUnnoticed, d.role, key.pid,
				s.notes.names[key.process], d.atNs, key.kind, d.by.role.name, d.by.index,
				key.by.pid, s.ledger.word(wordBound+d.by.place).Load(), noticeLatest)
			s.dump(d.by)
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
