package torture

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/stage"
)

const toolName = "torture"

// Options of a run.
type Options struct {
	Duration time.Duration // ends the run; 0 is until Kills and UntilSteps
	Kills    uint64        // ends it after so many; 0 is until Duration
	// UntilSteps ends it when each step that its roles can die at has killed so often, those of
	// Before included, and there were Kills. Nobody is sent any more to a step that has. The program
	// must be built with the tag shmring_steps, and Steps set.
	UntilSteps uint64
	Seed       uint64
	Steps      bool // kill at steps too; needs the tag
	// Before is how often steps killed in earlier runs: those that did seldom are chosen more often.
	// The seed replays the choice of steps only with the same Before.
	Before map[string]uint64
	Roles  []string // of [Roles], that take part, with what they need; none is the usual ones
	Dir    string   // where the directory of the run is made; "" is the default directory
	// Progress is told now and then how far it is, with a report that does not change any more.
	Progress func(done time.Duration, r *Report)

	// spoil makes a process do what must be found: for tests of the torture itself. latest is what
	// counts in place of seenLatest then, if it is not 0.
	spoil  string
	latest time.Duration
}

// Kinds of broken promises.
const (
	kindLost        = "lost"
	kindDuplicate   = "duplicate"
	kindUnpublished = "unpublished"
	kindHung        = "hung"
	kindLeaked      = "leaked"
	kindUsurped     = "usurped"
	kindUnnoticed   = "unnoticed"
	kindBroken      = "broken"
	kindFailed      = "failed"
)

// Tally is what a role, or a run, went through and what was found.
type Tally struct {
	Published   uint64 `json:"published" count:""`
	InDoubt     uint64 `json:"in_doubt" count:"in doubt at a kill"`
	Read        uint64 `json:"read" count:""`
	Redelivered uint64 `json:"redelivered" count:"read again, marked as redelivered"`
	// Gone is what was published between users and not read when both had died: it was in their
	// memory, which has no name, and nowhere else.
	Gone uint64 `json:"gone_with_both" count:"gone with a dead writer and reader"`
	Found
}

// Found counts broken promises.
type Found struct {
	Lost        uint64 `json:"lost" count:""`
	Duplicate   uint64 `json:"duplicate" count:""`
	Unpublished uint64 `json:"unpublished" count:""`
	Hung        uint64 `json:"hung" count:""`
	Leaked      uint64 `json:"leaked" count:""`
	Usurped     uint64 `json:"usurped" count:""`
	Unnoticed   uint64 `json:"unnoticed" count:""`
	Broken      uint64 `json:"broken" count:""` // invariants of objects
	Failed      uint64 `json:"failed" count:""`
}

// add counts n of a kind. What is of no kind is a failure of the process that says so.
func (f *Found) add(kind string, n uint64) {
	to := &f.Failed
	for _, c := range stage.CountsOf(f) {
		if c.Key == kind {
			to = c.N
		}
	}
	*to += n
}

// RoleReport is what one kind of process did.
type RoleReport struct {
	Places int    `json:"places"` // how many at once
	Starts uint64 `json:"starts"`
	Kills  uint64 `json:"kills"`
	Stops  uint64 `json:"stops"`
	Tally
	// Counts are what only this role has, by name.
	Counts map[string]uint64 `json:"counts"`
}

// Outcome is what a run of any length went through, and what it found.
type Outcome struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	Kills      uint64 `json:"kills" count:""`
	Stops      uint64 `json:"stops" count:"stops (SIGSTOP, SIGCONT)"`
	Checked    uint64 `json:"checked" count:"checked after deaths at steps"` // objects
	Tally
	Noticed
	Steps      map[string]uint64 `json:"steps"`       // kills by step; null without steps
	UntilSteps uint64            `json:"until_steps"` // 0 if nobody asked for it
	Below      []string          `json:"below"`       // steps that killed less often than that
	Violations stage.Notes       `json:"violations"`  // the first of them in words
	Machine    stage.Machine     `json:"machine"`
}

// NewOutcome begins that of a run, in which steps kill if steps is not nil.
func NewOutcome(seed, untilSteps uint64, steps []crash.Label) Outcome {
	o := Outcome{Seed: seed, UntilSteps: untilSteps, Below: []string{}, Violations: []string{},
		Noticed: Noticed{Notices: map[string]Notice{}, Duties: map[string]Duties{}}}
	if steps != nil {
		o.Steps = map[string]uint64{}
	}
	for _, l := range steps {
		o.Steps[l.String()] = 0
	}
	return o
}

// Add adds what another run did; what it found in words is not added.
func (o *Outcome) Add(other *Outcome) {
	stage.Add(o, other)
	for step, n := range other.Steps {
		o.Steps[step] += n
	}
	o.Noticed.Add(&other.Noticed)
}

// AddTo adds what was done and what was found.
func (o *Outcome) AddTo(s *stage.Sheet) {
	s.Counts(o)
	o.Noticed.sheet(s)
}

// SheetSteps adds how often each step killed, if there are steps, and which were to kill more.
func (o *Outcome) SheetSteps(s *stage.Sheet, wanted uint64) {
	if wanted > 0 {
		s.Text("%d steps killed less than %d times: %s", len(o.Below), wanted,
			strings.Join(o.Below, ", "))
	}
	if len(o.Steps) == 0 {
		return
	}
	s.Table("step", "deaths")
	for _, name := range slices.Sorted(maps.Keys(o.Steps)) {
		s.Row(name, o.Steps[name])
	}
}

// Report of a run.
type Report struct {
	Outcome
	// Interrupted says that the run ended before its time. Then all its processes were killed in
	// the middle, and what may be left at the end was not looked for.
	Interrupted bool                   `json:"interrupted"`
	Roles       map[string]*RoleReport `json:"roles"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("torture: a promise was broken")

// Able returns which of some roles can take part on this machine, and says of the others why they
// cannot, a text for each reason. lacks tells why a role cannot, as [Lacks] does.
func Able(roles []string, lacks func(name string) error) (able, missing []string) {
	names := map[string][]string{}
	var reasons []string
	for _, name := range roles {
		err := lacks(name)
		if err == nil {
			able = append(able, name)
			continue
		}
		if names[err.Error()] == nil {
			reasons = append(reasons, err.Error())
		}
		names[err.Error()] = append(names[err.Error()], name)
	}
	for _, why := range reasons {
		missing = append(missing, strings.Join(names[why], ", ")+": "+why)
	}
	return able, missing
}

// Draw draws one of the steps of a run that lag behind want, the more likely the further they do;
// [crash.None] if there is none. killed tells how often a step has killed.
func Draw(rnd *rand.Rand, steps []crash.Label, want uint64,
	killed func(crash.Label) uint64) (chosen crash.Label) {
	sum := uint64(0)
	for _, l := range steps {
		if n := killed(l); n < want {
			weight := (want - n) * (want - n)
			if sum += weight; rnd.Uint64N(sum) < weight {
				chosen = l
			}
		}
	}
	return chosen
}

// Good reports whether nothing was found.
func (r *Report) Good() bool { return r.Found == Found{} && len(r.Violations) == 0 }

// clone returns a copy that has nothing in common with r that changes while a run is on.
func (r *Report) clone() *Report {
	c := *r
	c.Steps, c.Violations = maps.Clone(r.Steps), slices.Clone(r.Violations)
	c.Roles = map[string]*RoleReport{}
	for name, role := range r.Roles {
		one := *role
		one.Counts = maps.Clone(role.Counts)
		c.Roles[name] = &one
	}
	return &c
}

// total makes the counts of the run of those of its roles.
func (r *Report) total() {
	r.Tally = Tally{}
	for _, role := range r.Roles {
		stage.Add(&r.Tally, &role.Tally)
	}
}

// Below returns the steps of a report that killed less often than n, in the order of crash.Labels.
func Below(steps map[string]uint64, n uint64) []string {
	below := []string{}
	for _, l := range crash.Labels() {
		if killed, ok := steps[l.String()]; ok && killed < n {
			below = append(below, l.String())
		}
	}
	return below
}

// noticeAdopted is how the death of one that had a thing is told by the one that got it. That is no
// notice through an event queue, and includes the time until there is one to get it.
const noticeAdopted = "adopted"

// noticeLate is how a death is told that came before the one it is told to.
const noticeLate = "to-successors"

// noticeStopped is how a death is told by a survivor that was stopped meanwhile.
const noticeStopped = "to-stopped"

// Notice is how long it took until a survivor knew of a death, in nanoseconds; nil without any.
type Notice struct {
	Count int    `json:"count"`
	P50   *int64 `json:"p50"`
	P99   *int64 `json:"p99"`
	Max   *int64 `json:"max"`
}

// Duties is what was demanded of survivors: of each of them, for each death that it was bound to
// be told of. What was neither told nor excused is "unnoticed", or open.
type Duties struct {
	Demanded uint64 `json:"demanded" count:""`
	Told     uint64 `json:"told" count:""`
	// Excused died itself before it was told or was not bound any more, or was told a number only.
	Excused uint64 `json:"excused" count:""`
	Open    uint64 `json:"open" count:""` // at the end of the run
}

// String says how many there were.
func (d Duties) String() string {
	return fmt.Sprintf("%d demanded: %d told, %d excused, %d open at the end", d.Demanded, d.Told,
		d.Excused, d.Open)
}

// AllDuties adds up what was demanded.
func (n *Noticed) AllDuties() (all Duties) {
	for _, d := range n.Duties {
		stage.Add(&all, &d)
	}
	return all
}

// Noticed is how long it took until survivors knew of deaths.
type Noticed struct {
	NoticeNs Notice            `json:"notice_ns"` // through event queues, of each survivor
	Notices  map[string]Notice `json:"notices"`   // by how they were told
	Duties   map[string]Duties `json:"duties"`    // by how deaths were to be told

	// AllNs are the times that this sums up, by how they were told.
	AllNs map[string][]int64 `json:"-"`
}

// Add adds what another run found to that.
func (n *Noticed) Add(other *Noticed) {
	if n.AllNs == nil {
		n.AllNs = map[string][]int64{}
	}
	for kind, ns := range other.AllNs {
		n.AllNs[kind] = append(n.AllNs[kind], ns...)
	}
	if n.Duties == nil {
		n.Duties = map[string]Duties{}
	}
	for kind, d := range other.Duties {
		stage.Add(&d, new(n.Duties[kind]))
		n.Duties[kind] = d
	}
	n.sum()
}

// sum sums up.
func (n *Noticed) sum() {
	var all []int64
	n.Notices = map[string]Notice{}
	for kind, ns := range n.AllNs {
		n.Notices[kind] = summary(ns)
		if kind != noticeAdopted && kind != noticeLate && kind != noticeStopped {
			all = append(all, ns...)
		}
	}
	n.NoticeNs = summary(all)
}

func summary(ns []int64) Notice {
	if len(ns) == 0 {
		return Notice{}
	}
	slices.Sort(ns)
	at := func(percent int) *int64 { return &ns[min(len(ns)-1, len(ns)*percent/100)] }
	return Notice{Count: len(ns), P50: at(50), P99: at(99), Max: &ns[len(ns)-1]}
}

// String says how many there were and how long they took.
func (n Notice) String() string {
	if n.P50 == nil {
		return "none"
	}
	return fmt.Sprintf("%d told: p50 %v, p99 %v, max %v", n.Count, time.Duration(*n.P50),
		time.Duration(*n.P99), time.Duration(*n.Max))
}

// Sheet is the report for people, or as a document: what is kept of a long run says what it said.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	if r.Interrupted {
		s.Row("interrupted", "before its time: nothing was looked for at the end")
	}
	r.AddTo(s)
	s.Each("found", r.Violations)
	s.Table("role", "places", "starts", "kills", "stops", "published", "read", "counts")
	for _, name := range slices.Sorted(maps.Keys(r.Roles)) {
		role := r.Roles[name]
		s.Row(name, role.Places, role.Starts, role.Kills, role.Stops, role.Published, role.Read,
			counted(role.Counts))
	}
	r.SheetSteps(s, r.UntilSteps)
	return s
}

// sheet adds how long it took to notice deaths, and of how many that was demanded.
func (n *Noticed) sheet(s *stage.Sheet) {
	s.Row("noticed", n.NoticeNs)
	for _, kind := range slices.Sorted(maps.Keys(n.Notices)) {
		s.Row("noticed: "+kind, n.Notices[kind])
	}
	s.Row("survivors", n.AllDuties())
	for _, kind := range slices.Sorted(maps.Keys(n.Duties)) {
		s.Row("survivors: "+kind, n.Duties[kind])
	}
}

// counted lists counts by name.
func counted(counts map[string]uint64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	return strings.Join(parts, ", ")
}

// newReport begins the report of a run.
func newReport(o Options, roles []*role) *Report {
	r := &Report{Roles: map[string]*RoleReport{}}
	var steps []crash.Label
	if o.Steps {
		steps = []crash.Label{}
	}
	for _, role := range roles {
		r.Roles[role.name] = &RoleReport{Places: role.places, Counts: map[string]uint64{}}
		if o.Steps {
			steps = append(steps, role.steps...)
		}
	}
	r.Outcome = NewOutcome(o.Seed, o.UntilSteps, steps)
	return r
}

// broken counts n breaches of a promise, of a role and in all, and says the first ones in words.
func (s *supervisor) broken(role, kind string, n uint64, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(role, kind, n, kind+": "+format, args...)
}

func (s *supervisor) count(role, kind string, n uint64, format string, args ...any) {
	if s.report.Roles[role] == nil { // nobody's in particular
		role = s.roles[0].name
	}
	if kind == kindHung {
		s.hung = role
	}
	found := s.found[role]
	found.add(kind, n)
	s.found[role] = found
	s.report.Violations.Add(format, args...)
}

// check looks at the end whether what must hold does, and what is left.
func (s *supervisor) check() {
	s.sum()
	for _, r := range s.roles {
		if r.check != nil {
			r.check(s, r)
		}
		if r.leftovers == nil {
			continue
		}
		for _, what := range r.leftovers(s) {
			s.broken(r.name, kindLeaked, 1, "%s", what)
		}
	}
	for _, what := range s.leftovers() {
		s.broken("", kindLeaked, 1, "%s", what)
	}
	s.unfounded()
	s.close()
}

// close completes the report with what is known so far.
func (s *supervisor) close() {
	s.sum()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.notes.due {
		s.notes.count(key.kind, func(c *Duties) { c.Open++ })
	}
	s.report.Noticed.Add(&Noticed{AllNs: s.notes.ns, Duties: s.notes.duties})
	s.report.Below = s.below()
	s.report.Machine = stage.Here()
}

// below returns the steps that killed less often than they are to. The caller has the mutex.
func (s *supervisor) below() []string {
	total := map[string]uint64{}
	for step, n := range s.report.Steps {
		total[step] = n + s.o.Before[step]
	}
	return Below(total, s.o.UntilSteps)
}

// sum takes into the report what the ledger and others counted. The caller has the mutex, or is
// alone.
func (s *supervisor) sum() {
	for _, r := range s.roles {
		report := s.report.Roles[r.name]
		report.Tally = Tally{Found: s.found[r.name]}
		for name, at := range r.counts {
			report.Counts[name] = s.ledger.region(r.name)[at].Load()
		}
		if r.sum != nil {
			r.sum(s, r, report)
		}
	}
	s.report.total()
}

// examineShare is the share of its time, as one of so many, for which the supervisor examines.
const examineShare = 10

// examine checks all that has a name while it is as a death at a step left it: what shmctl check
// says of objects is to hold at every moment, whoever is in the middle of what.
func (s *supervisor) examine(p *proc) {
	begin := time.Now()
	if p.shot || p.step == crash.None || begin.Before(s.examined) {
		return
	}
	r, err := ctl.Check(ctl.CheckOptions{}, s.base+"/"+queuesDir)
	s.examined = time.Now().Add((examineShare - 1) * time.Since(begin))
	s.mu.Lock()
	s.report.Checked += uint64(r.Objects)
	s.mu.Unlock()
	for _, f := range r.Findings {
		s.broken(p.role.name, kindBroken, 1, "after %s %d died at %v: %s %s: %s is %s, want %s",
			p.role.name, p.index, p.step, f.Path, f.Section, f.Invariant, f.Got, f.Want)
	}
	if err != nil {
		s.broken(p.role.name, kindBroken, 1, "after %s %d died at %v: %v", p.role.name, p.index,
			p.step, err)
	}
}

// leftovers collects what the dead left, and returns what is there beside.
func (s *supervisor) leftovers() (left []string) {
	all, err := ctl.Collect(s.dir, ctl.CollectOptions{Remove: true})
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range all {
		if r.Fate != ctl.FateRemoved {
			left = append(left, fmt.Sprintf("%s, which is %s: %s", r.Name, r.Fate, r.Reason))
		}
	}
	entries, err := os.ReadDir(s.dir.Path())
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, "file "+e.Name())
	}
	return left
}
