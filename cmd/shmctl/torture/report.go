package torture

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/shmring/shmring/shm/crash"
)

// Options of a run.
type Options struct {
	Duration time.Duration // 0 is until Kills
	Kills    uint64        // ends the run after so many; 0 is until Duration
	Seed     uint64
	Steps    bool   // kill at steps too; the program must be built with the tag shmring_steps
	Trust    string // of the queues that are met over sockets: TrustBoth, which is "", or one kind
	Dir      string // where the directory of the run is made; "" is the default directory
	// Progress is told now and then how far it is.
	Progress func(done time.Duration, r *Report)

	// spoil makes a process do what must be found: for tests of the torture itself.
	spoil string
	// passed is told how often steps were passed, as far as is known.
	passed map[crash.Label]uint64
}

// Kinds of Options.Trust.
const (
	TrustBoth   = "both"
	TrustUser   = "user"
	TrustOthers = "others"
)

// Notice is how long it took until a survivor knew of a death, in nanoseconds; nil without any.
type Notice struct {
	P50 *int64 `json:"p50"`
	P99 *int64 `json:"p99"`
	Max *int64 `json:"max"`
}

// Report of a run.
type Report struct {
	Seed        uint64            `json:"seed"`
	DurationNs  int64             `json:"duration_ns"`
	Kills       uint64            `json:"kills"`
	Stops       uint64            `json:"stops"`
	Sessions    uint64            `json:"sessions"`
	Adoptions   uint64            `json:"adoptions"`
	Published   uint64            `json:"published"`
	InDoubt     uint64            `json:"in_doubt"`
	Read        uint64            `json:"read"`
	Redelivered uint64            `json:"redelivered"`
	Lost        uint64            `json:"lost"`
	Duplicate   uint64            `json:"duplicate"`
	Unpublished uint64            `json:"unpublished"`
	Hung        uint64            `json:"hung"`
	Leaked      uint64            `json:"leaked"`
	Usurped     uint64            `json:"usurped"`
	Failed      uint64            `json:"failed"`
	NoticeNs    Notice            `json:"notice_ns"`
	Steps       map[string]uint64 `json:"steps"` // kills by step; null without steps
	Violations  []string          `json:"violations"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("torture: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool {
	return r.Lost+r.Duplicate+r.Unpublished+r.Hung+r.Leaked+r.Usurped+r.Failed == 0 &&
		len(r.Violations) == 0
}

// maxViolations bounds what is kept in words; all are counted.
const maxViolations = 20

func (r *Report) note(format string, args ...any) {
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

// measure sums up the times.
func (r *Report) measure(ns []int64) {
	if len(ns) == 0 {
		return
	}
	slices.Sort(ns)
	at := func(percent int) *int64 { return &ns[min(len(ns)-1, len(ns)*percent/100)] }
	r.NoticeNs = Notice{P50: at(50), P99: at(99), Max: &ns[len(ns)-1]}
}

// Print writes the report for people.
func (r *Report) Print(w io.Writer) {
	row := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%-13s%s\n", name, fmt.Sprintf(format, args...))
	}
	row("seed", "%d", r.Seed)
	row("time", "%v", time.Duration(r.DurationNs).Round(time.Millisecond))
	row("kills", "%d, and %d stops", r.Kills, r.Stops)
	row("sessions", "%d of writers, %d of readers", r.Sessions, r.Adoptions)
	row("published", "%d, and %d in doubt at a kill", r.Published, r.InDoubt)
	row("read", "%d, and %d again, marked", r.Read, r.Redelivered)
	row("lost", "%d", r.Lost)
	row("duplicate", "%d", r.Duplicate)
	row("unpublished", "%d", r.Unpublished)
	row("hung", "%d", r.Hung)
	row("leaked", "%d", r.Leaked)
	row("usurped", "%d", r.Usurped)
	row("failed", "%d", r.Failed)
	if n := r.NoticeNs; n.P50 != nil {
		row("notice", "p50 %v, p99 %v, max %v", time.Duration(*n.P50), time.Duration(*n.P99),
			time.Duration(*n.Max))
	}
	if len(r.Steps) > 0 {
		var parts []string
		for name, n := range r.Steps {
			parts = append(parts, fmt.Sprintf("%s %d", name, n))
		}
		slices.Sort(parts)
		row("steps", "%s", strings.Join(parts, ", "))
	}
	for _, v := range r.Violations {
		fmt.Fprintln(w, v)
	}
}

// ChildCommand is the hidden first argument that turns the program into one of its children.
const ChildCommand = "__torture"
