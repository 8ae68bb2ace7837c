// Package hostile has peers write anything and proves that it harms nobody else.
//
// A supervisor attacks one surface after the other. A surface has a victim, which uses the library
// as any application would; attackers, which have the right to attach; bystanders, whose traffic
// goes on all the while; and a newcomer, who is honest too and comes, posts or sends, and leaves
// again and again. All are real processes, of different users where the surface is a
// border between users ("others"). Where it is none ("user": what only processes of one user can
// share) nothing protects the memory that is shared, and only that nobody is ended or held up by it
// is asked; there a wake may come late, until the next post.
//
//	lane, event-lane      a writer's lane, against the reader and its other writers
//	reader, event-reader  a reader's object, against its writers
//	user-lane, -reader    the same between processes of one user, with the hints that all write
//	counter, vector       counters, address vectors
//	meet-accept, -attach  messages and descriptors of a rendezvous, against either side
//	meet-dial             the same of a device process, against applications
//	device-meet           and against the device process
//	device-app            payload, commands and queues of applications, against a device process
//	device-server         UMEM, status page and lanes of a device process, against applications
//
// # What attackers do
//
// They use the library in the role that they have, to be met and mapped at all. Meanwhile a
// goroutine on a thread of its own, pinned to a processor, writes to every word of every mapping
// that they may write and others read, found in /proc/self/maps and not by what the library says.
// It aims at indices, at entries and their records, at the header, at anything; stores chosen
// values (0, 1, -1, a power of two and its neighbours, what stands there and its neighbours, what
// stood somewhere before) and random ones; or turns one word back and forth for those who look
// twice, or lengths and kinds of the entries that are read next. It wakes for nothing, or not at
// all, and writes to pipes until they are full. When they are found out, or after some
// milliseconds, they leave and come again; now and then a whole process does, and at the end all
// are killed in the middle of what they do. Those who meet others say what the protocol wants, but
// for little, or anything, in pieces or twice, with descriptors of all kinds and of wrong sizes
// and seals; and keep connections open in silence. Each store and each message is a mutation;
// bursts of stores go at full speed and some microseconds lie between them, so that many states
// are seen and not the last one often.
//
// # What is provable
//
// Nothing of the library decides whether it did well:
//
//   - A victim that panics, or touches memory that it does not have, ends, and its supervisor sees
//     how. Every mapping stands between pages that nobody may touch (see package shm).
//   - Entries of bystanders carry a number and a seal over it with a key that attackers do not
//     have. Each is to come once and in order, and none may be missing at the end; what has no such
//     seal is foreign, and may be anything.
//   - A newcomer of a user of its own is let in within twenty seconds, and nothing that it does
//     then is refused; what it posts is read as that of bystanders is. It comes three times at
//     least during each attack at a border between users.
//   - Each call of a victim is watched: one that takes over a minute hangs. It may compute for two
//     seconds, as the clock of its thread counts them, and is asked how many system calls it made
//     to sleep, wake or order: 32 may be, 400 while it waits, 1000 while it waits for a context.
//   - Every error is held against a list of what callers can ask for with errors.Is.
//   - Each attack must have provoked something: lanes that were given up where lanes are attacked,
//     errors that blame a peer elsewhere, counters excepted, of which any value is a value.
//   - When the attackers are gone, descriptors, mappings and goroutines of the victim must be as
//     few as before the first came.
//
// The seed replays the choices of each process, not the schedule of all of them.
package hostile

import (
	"errors"
	"fmt"
	"time"

	"github.com/shmring/shmring/internal/stage"
)

// patience is how long anybody waits for anything that must come. It is less only in tests of what
// has to be found.
var patience = time.Minute

// keptBound is how long an honest process may have to try until it is let in, while others attack:
// a thousand times what it takes. It is less in tests of what must be found.
var keptBound = 20 * time.Second

const toolName = "hostile"

// Options of a run.
type Options struct {
	Mutations uint64   // at least so many in all; 0 is a million
	Seed      uint64   // of the choices
	Surfaces  []string // names of those to attack; none stands for all
	// Progress is told now and then how far it is.
	Progress func(r *Report)

	// spoil has a process do what must be found: for tests of the run itself.
	spoil string
}

// Surface is what was done to one surface, and what came of it.
type Surface struct {
	Name       string `json:"name"`
	Trust      string `json:"trust"` // others: of different users; user: of the same one
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations"`   // hostile stores and messages
	Attaches   uint64 `json:"attaches"`    // of attackers that succeeded
	Attackers  uint64 `json:"attackers"`   // processes, one after the other
	Calls      uint64 `json:"calls"`       // of the attacked side, that looked at hostile memory
	StepsMost  uint64 `json:"steps_most"`  // system calls of one call, to sleep, wake or order
	CPUMostNs  uint64 `json:"cpu_most_ns"` // time of a processor that one call took
	Poisoned   uint64 `json:"poisoned"`    // lanes and readers given up, each with a typed error
	GivenUp    uint64 `json:"given_up"`    // the same as the statistics of the queues count it
	Refused    uint64 `json:"refused"`     // meetings that ended with a typed error
	Ended      uint64 `json:"ended"`       // other typed errors, as that of a peer that closed
	Corrupt    uint64 `json:"corrupt"`     // of all errors, those that blame what a peer wrote or said
	Foreign    uint64 `json:"foreign"`     // entries of attackers that were read
	Sent       uint64 `json:"bystander_sent"`
	Seen       uint64 `json:"bystander_seen"`
	Visits     uint64 `json:"newcomers"`        // honest ones that came, did their work and left
	TurnedAway uint64 `json:"newcomer_retries"` // how often they had to try again
	KeptMostNs uint64 `json:"newcomer_most_ns"` // how long one tried to get in at most
	Violations
}

// Violations counts what must not be.
type Violations struct {
	Panics        uint64 `json:"panics"`
	Hangs         uint64 `json:"hangs"`
	Wild          uint64 `json:"wild"` // accesses outside of a mapping
	BystanderLost uint64 `json:"bystander_lost"`
	Untyped       uint64 `json:"untyped"` // errors that nothing can be asked of
	Unbounded     uint64 `json:"unbounded"`
	Leaked        uint64 `json:"leaked"`
	KeptOut       uint64 `json:"kept_out"`  // honest newcomers that did not get in, or had to leave
	Failed        uint64 `json:"failed"`    // processes that ended otherwise than told
	Toothless     uint64 `json:"toothless"` // attacks that provoked nothing, and so proved nothing
}

func (v *Violations) sum() (n uint64) {
	for _, b := range v.breaches() {
		n += *b.n
	}
	return n
}

// Add adds another one.
func (v *Violations) Add(w *Violations) {
	for i, b := range w.breaches() {
		*v.breaches()[i].n += *b.n
	}
}

// Report of a run.
type Report struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations"`
	Poisoned   uint64 `json:"poisoned"`
	Refused    uint64 `json:"refused"`
	Violations
	Surfaces []Surface `json:"surfaces"`
	// Skipped are surfaces that this machine does not have, with the reason.
	Skipped []string      `json:"skipped"`
	Notes   []string      `json:"notes"` // the first violations in words
	Machine stage.Machine `json:"machine"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("hostile: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool { return r.Violations.sum() == 0 }

// maxNotes bounds what is kept in words; all violations are counted.
const maxNotes = 20

func (r *Report) note(format string, args ...any) {
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
	}
}

func (r *Report) add(s *Surface) {
	r.Surfaces = append(r.Surfaces, *s)
	r.Mutations += s.Mutations
	r.Poisoned += s.Poisoned
	r.Refused += s.Refused
	r.Violations.Add(&s.Violations)
}

// breach is a kind of violation in words, and how often it was.
type breach struct {
	what string
	n    *uint64
}

// breaches lists all kinds.
func (v *Violations) breaches() []breach {
	return []breach{
		{"processes ended by a peer", &v.Panics},
		{fmt.Sprintf("calls that took more than %v", patience), &v.Hangs},
		{"accesses outside of a mapping", &v.Wild},
		{"bystanders' entries lost", &v.BystanderLost},
		{"errors without a type", &v.Untyped},
		{"calls that did unbounded work", &v.Unbounded},
		{"resources of attackers not given back", &v.Leaked},
		{fmt.Sprintf("newcomers kept out for %v", keptBound), &v.KeptOut},
		{"processes that failed", &v.Failed},
		{"attacks that provoked nothing", &v.Toothless},
	}
}

// AddTo adds what was found.
func (v *Violations) AddTo(s *stage.Sheet) {
	for _, b := range v.breaches() {
		s.Row(b.what, *b.n)
	}
}

// Sheet is the report for people, or as a document.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	s.Row("hostile stores and messages", r.Mutations)
	s.Row("lanes and readers given up", r.Poisoned)
	s.Row("meetings refused", r.Refused)
	r.AddTo(s)
	s.Each("skipped", r.Skipped)
	s.Each("found", r.Notes)
	s.Table("surface", "between", "mutations", "attackers", "attached", "calls", "steps", "cpu",
		"given up", "refused", "blamed", "bystanders", "newcomers", "retries", "longest")
	for i := range r.Surfaces {
		u := &r.Surfaces[i]
		between := "users"
		if u.Trust == "user" {
			between = "one user"
		}
		s.Row(u.Name, between, u.Mutations, u.Attackers, u.Attaches, u.Calls, u.StepsMost,
			time.Duration(u.CPUMostNs), u.Poisoned, u.Refused, u.Corrupt, u.Seen, u.Visits,
			u.TurnedAway, time.Duration(u.KeptMostNs))
	}
	s.Text("Steps and cpu are the most system calls and time of a processor that one call of the " +
		"victim took; longest is how long a newcomer tried to get in.")
	return s
}
