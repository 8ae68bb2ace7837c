package torture

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/crash"
)

// role is one kind of process of a run, with what the supervisor has to know of it. Functions that
// are nil do nothing. All but run are called in the supervisor's process by its one goroutine.
type role struct {
	name   string
	places int // how many processes of it live at once
	// steps lists where its processes can die.
	steps []crash.Label
	// words is how many words of the ledger are its own.
	words int
	// asked says that it takes part only if it is named.
	asked bool
	// with names roles without which it makes no sense.
	with []string
	// uid is the user that its processes run as: they have the ledger and the program, and can
	// reach no directory of the run but what prepare makes for them.
	uid uint32
	// tells are the roles whose processes are to tell the death of one of its own, if they share
	// what it had, with how they tell it.
	tells map[string]string
	// site is where its processes meet those who write to them, or whom they write to; nil is nowhere.
	site *site
	// lacks tells what the machine does not have that its processes need; nil if it has all.
	lacks func() error
	// safe says that its processes are never killed or stopped.
	safe bool
	// grows says that they say when they have come so far that their death shows anything.
	grows bool
	// stops says that its processes may be stopped and continued.
	stops bool
	// drains says that it ends last, in phaseDrain: others still need it. A process of it that
	// dies then has a successor, which is to finish.
	drains bool
	// lingers says that what its processes have may end a little after they closed it.
	lingers bool
	// tries is how long a process may take to get to its step before it is killed like others; 0
	// is two seconds.
	tries time.Duration
	// run is the process.
	run func(c *child) error

	// prepare makes, before any process starts, what the processes of the role need beside the
	// run's directory, and puts into s.share what they have to be told. undo removes it.
	prepare func(s *supervisor) (undo func(), err error)
	// starting is called before a process starts at a place.
	starting func(s *supervisor, p *proc)
	// calm is called now and then between two kills, when nobody is stopped: nobody is killed from
	// outside before it returns.
	calm func(s *supervisor, r *role) error
	// died is called after one has died, by a kill or at its step.
	died func(s *supervisor, p *proc) error
	// settled tells whether the place of a dead process may be taken by the next.
	settled func(s *supervisor, p *proc) bool
	// counts are the words of its own that are reported as they are, by name.
	counts map[string]int
	// sum takes into the report what the ledger counts beside, at any time of the run. The report
	// begins with what was told.
	sum func(s *supervisor, r *role, to *RoleReport)
	// check looks, when all processes have ended, at what must hold then. It counts with s.broken.
	check func(s *supervisor, r *role)
	// leftovers collects at the end what the dead left, and returns what cannot be collected.
	leftovers func(s *supervisor) []string
}

// table is the list of all roles. The order is that in which they start and in the ledger.
var table []*role

func init() { // which may say what refers to the table
	table = []*role{queueNamed.readerRole(), queueNamed.writerRole(), churnerRole(),
		eventsNamed.readerRole(), eventsNamed.writerRole(), setNamed.readerRole(),
		setNamed.writerRole(), counterRole(), vectorOwnerRole(), vectorUserRole(),
		watched.readerRole(), watched.writerRole(), queuesBetween.readerRole(),
		queuesBetween.writerRole(), eventsBetween.readerRole(), eventsBetween.writerRole(),
		deviceRole(), wireRole(), appRole(), app2Role(), endpointRole()}
}

// at returns the steps of these names; a name that ends with a dash stands for all that begin so.
func at(names string) (all []crash.Label) {
	for name := range strings.FieldsSeq(names) {
		before := len(all)
		for _, l := range crash.Labels() {
			text := l.String()
			if text == name || strings.HasSuffix(name, "-") && strings.HasPrefix(text, name) {
				all = append(all, l)
			}
		}
		if len(all) == before {
			panic("torture: no step " + name)
		}
	}
	return all
}

// roleOf returns the role of a name, or nil.
func roleOf(name string) *role {
	for _, r := range table {
		if r.name == name {
			return r
		}
	}
	return nil
}

// choose returns the roles that take part: those named, with what they need, or the usual ones.
func choose(names []string) []*role {
	wanted := map[string]bool{}
	var want func(names []string)
	want = func(names []string) {
		for _, name := range names {
			if !wanted[name] {
				wanted[name] = true
				want(roleOf(name).with)
			}
		}
	}
	want(names)
	return slices.DeleteFunc(slices.Clone(table), func(r *role) bool {
		return len(names) == 0 && r.asked || len(names) > 0 && !wanted[r.name]
	})
}

// Steps returns the steps at which processes of these roles die, and of those that they need. None
// is the usual ones.
func Steps(names []string) []crash.Label {
	var all []crash.Label
	for _, r := range choose(names) {
		all = append(all, r.steps...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Lacks tells why a role, or one that it needs, cannot take part on this machine; nil if it can.
// What those need is tried once.
func Lacks(name string) error {
	for _, r := range choose([]string{name}) {
		if r.lacks == nil {
			continue
		}
		if err := r.lacks(); err != nil {
			return err
		}
	}
	return nil
}

// Roles returns the names of all roles.
func Roles() []string {
	var names []string
	for _, r := range table {
		names = append(names, r.name)
	}
	return names
}

// region returns the words of the ledger that are a role's own.
func (l *ledger) region(name string) []atomic.Uint64 {
	at, n := l.at(name), roleOf(name).words
	return l.words[at : at+n : at+n]
}

// at returns where they begin, and without a name where all of them end.
func (l *ledger) at(name string) int {
	at := ledgerHead
	for _, r := range table {
		if r.name == name {
			break
		}
		at += r.words
	}
	return at
}

// ledgerWords is how many words a ledger has.
func ledgerWords() int { return (*ledger)(nil).at("") }

// often are steps that a process passes many times a second.
var often = at("filled stamped publish- take-marks peek- releasing released fabric-filled " +
	"fabric-published fabric-looked fabric-examined fabric-head-stored fabric-granted " +
	"fabric-told app-filled app-posted app-giving app-returned dev-taken dev-building " +
	"dev-posted dev-done dev-released dev-kicked dev-reaped dev-marked dev-completed " +
	"dev-received dev-copied dev-published dev-dropped dev-returned")

// aim chooses where a process of a role is to die, and at which passage: most likely at a step that
// lags far behind, in this run and those before. None is a process that dies from outside; there is
// nothing left to do at its steps, then.
func (s *supervisor) aim(r *role) (crash.Label, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.o.UntilSteps
	if want == 0 { // nobody lags behind those that killed most, by more than they did
		for _, l := range r.steps {
			want = max(want, s.killed(l)+1)
		}
	}
	chosen := Draw(s.rnd, r.steps, want, s.killed)
	switch frequent := slices.Contains(often, chosen); {
	case chosen == crash.None:
		return chosen, 0
	case frequent && chosen >= crash.AppHello: // packets come less often than entries
		return chosen, 1 + s.rnd.IntN(100)
	case frequent:
		return chosen, 1 + s.rnd.IntN(500)
	}
	return chosen, 1 + s.rnd.IntN(3)
}

// sent says that all but one in so many are sent to steps: more of them while there is a number of
// deaths that steps lack.
func (s *supervisor) sent() int {
	if s.o.UntilSteps > 0 {
		return 8
	}
	return 4
}

// killed returns how often a step killed, in this run and those before. The caller has the mutex.
func (s *supervisor) killed(l crash.Label) uint64 {
	return s.report.Steps[l.String()] + s.o.Before[l.String()]
}

// spare returns how long a process that has just been started is not killed from outside.
func (s *supervisor) spare(p *proc, aimed bool) time.Duration {
	switch {
	case !s.o.Steps:
		return 0
	case p.step != crash.None:
		return cmp.Or(p.role.tries, 2*time.Second)
	case aimed || len(p.role.steps) == 0: // others need what it does
		return time.Duration(s.rnd.Int64N(int64(spareHelper)))
	}
	return time.Duration(s.rnd.Int64N(int64(spareOther)))
}
