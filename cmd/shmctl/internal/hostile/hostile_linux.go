package hostile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
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
	Surfaces  []string // of [Names], those to attack; none stands for all
	// Progress is told now and then how far it is.
	Progress func(r *Report)

	// spoil has a process do what must be found: for tests of the run itself.
	spoil string
}

// Brought is what attackers did, of which there may be many, one after the other.
type Brought struct {
	Mutations uint64 `json:"mutations" count:"hostile stores and messages"`
	Attaches  uint64 `json:"attaches" count:""` // that succeeded
}

// Surface is what was done to one surface, and what came of it.
type Surface struct {
	Name       string `json:"name"`
	Trust      string `json:"trust"` // others: of different users; user: of the same one
	DurationNs int64  `json:"duration_ns"`
	Brought
	// Attackers are processes, one after the other, Calls those of the attacked side that looked at
	// hostile memory. StepsMost is system calls of one of them, to sleep, wake or order, CPUMostNs
	// the time of a processor that one took.
	Attackers uint64 `json:"attackers"`
	Calls     uint64 `json:"calls" count:""`
	StepsMost uint64 `json:"steps_most" count:""`
	CPUMostNs uint64 `json:"cpu_most_ns" count:""`
	// Poisoned are lanes and readers that were given up, each with a typed error; GivenUp the same as
	// the statistics of the queues count it.
	Poisoned uint64 `json:"poisoned" count:""`
	GivenUp  uint64 `json:"given_up" count:""`
	Refused  uint64 `json:"refused" count:""` // meetings that ended with a typed error
	Ended    uint64 `json:"ended" count:""`   // other typed errors, as that of a peer that closed
	Corrupt  uint64 `json:"corrupt" count:""` // of all errors, those that blame a peer
	Foreign  uint64 `json:"foreign" count:""` // entries of attackers that were read
	Sent     uint64 `json:"bystander_sent" count:""`
	Seen     uint64 `json:"bystander_seen" count:""`
	// Visits are honest newcomers that came, did their work and left, TurnedAway how often they had to
	// try again, KeptMostNs how long one tried to get in at most.
	Visits     uint64 `json:"newcomers" count:""`
	TurnedAway uint64 `json:"newcomer_retries" count:""`
	KeptMostNs uint64 `json:"newcomer_most_ns" count:""`
	Violations
}

// Violations counts what must not be. The bounds in words are patience and keptBound.
type Violations struct {
	Panics        uint64 `json:"panics" count:"processes ended by a peer"`
	Hangs         uint64 `json:"hangs" count:"calls that took more than 1m0s"`
	Wild          uint64 `json:"wild" count:"accesses outside of a mapping"`
	BystanderLost uint64 `json:"bystander_lost" count:"bystanders' entries lost"`
	// Untyped are those that nothing can be asked of.
	Untyped   uint64 `json:"untyped" count:"errors without a type"`
	Unbounded uint64 `json:"unbounded" count:"calls that did unbounded work"`
	Leaked    uint64 `json:"leaked" count:"resources of attackers not given back"`
	// KeptOut are honest newcomers that did not get in, or had to leave.
	KeptOut uint64 `json:"kept_out" count:"newcomers kept out for 20s"`
	// Failed are processes that ended otherwise than told.
	Failed uint64 `json:"failed" count:"processes that failed"`
	// Toothless are attacks that so proved nothing.
	Toothless uint64 `json:"toothless" count:"attacks that provoked nothing"`
}

// Report of a run.
type Report struct {
	Seed       uint64 `json:"seed"`
	DurationNs int64  `json:"duration_ns"`
	Mutations  uint64 `json:"mutations" count:"hostile stores and messages"`
	Poisoned   uint64 `json:"poisoned" count:"lanes and readers given up"`
	Refused    uint64 `json:"refused" count:"meetings refused"`
	Violations
	Surfaces []Surface `json:"surfaces"`
	// Skipped are surfaces that this machine does not have, with the reason.
	Skipped []string      `json:"skipped"`
	Notes   stage.Notes   `json:"notes"` // the first violations in words
	Machine stage.Machine `json:"machine"`
}

// ErrViolation says that a run found something; the report has what.
var ErrViolation = errors.New("hostile: a promise was broken")

// Good reports whether nothing was found.
func (r *Report) Good() bool { return r.Violations == Violations{} }

// Sheet is the report for people, or as a document.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	s.Text("Seed %d, which replays the choices and not the schedule; %v on %v.", r.Seed,
		time.Duration(r.DurationNs).Round(time.Millisecond), r.Machine)
	s.Counts(r)
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

// config is what a child is started with.
type config struct {
	Surface string    `json:"surface"`
	Index   int       `json:"index"`
	Dir     string    `json:"dir"` // of sockets, for all users
	Shm     string    `json:"shm"` // of objects, for root
	Seed    uint64    `json:"seed"`
	Key     uint64    `json:"key,omitempty"` // of honest entries; attackers do not know it
	Ends    wire.Ends `json:"ends"`
	Spoil   string    `json:"spoil,omitempty"`
}

// report is a line from a child to the supervisor.
type report struct {
	Ready bool    `json:"ready,omitempty"`
	Did   Surface `json:"did"` // its counts since the child began
	Note  string  `json:"note,omitempty"`
}

// child is one process of a run.
type child struct {
	*stage.Child
	config
	did Surface         // its counts, which are atomic
	ctx context.Context // ends when the supervisor says so
	s   *surface
	dir *shm.Dir   // of objects with names, which only processes of one user have
	mu  sync.Mutex // of tell, rnd and watched
	rnd *rand.Rand
	// watched are calls that are under way, by what they are to do.
	watched map[*call]struct{}
	spoiled atomic.Bool
}

// settleTime is until what attackers brought is given back.
var settleTime = patience

// Tool is what the processes of a run do.
var Tool = stage.Tool{Name: toolName, Play: func(sc *stage.Child) error {
	c := &child{Child: sc, watched: map[*call]struct{}{}}
	if err := c.Script(&c.config); err != nil {
		return err
	}
	switch c.Spoil { // what is to be found need not be waited for as long
	case spoilHang:
		patience = 2 * time.Second
	case spoilLeak:
		settleTime = 2 * time.Second
	case spoilBusy:
		cpuBound = 200 * time.Millisecond
	case spoilShut:
		keptBound = time.Second
	}
	c.rnd = rand.New(rand.NewPCG(c.Seed, uint64(c.Index)))
	c.ctx = c.Listen(nil) // a supervisor that is gone takes everybody along
	go c.tellOn()
	err := c.play()
	if err != nil {
		c.note("%v", err)
	}
	c.tell(report{})
	return err
}}

func (c *child) play() error {
	if err := os.Setenv(shm.EnvDir, c.Shm); err != nil {
		return err
	}
	at := slices.Index(Names(), c.Surface)
	if at < 0 {
		return fmt.Errorf("no surface %q", c.Surface)
	}
	c.s = surfaces[at]
	play := map[string]func(*child) error{roleVictim: c.s.victim, roleAttacker: c.s.attack,
		roleHonest: (*child).stays, roleNewcomer: (*child).newcomers}[c.Role]
	if play == nil {
		return fmt.Errorf("no %s of %q", c.Role, c.Surface)
	}
	if c.s.trust == cq.SameUser {
		d, err := shm.OpenDir("")
		if err != nil {
			return err
		}
		defer d.Close()
		c.dir = d
	}
	return play(c)
}

// tell tells how far it is: what is counted later is told later.
func (c *child) tell(r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := stage.CountsOf(&r.Did)
	for i, n := range stage.CountsOf(&c.did) {
		*told[i].N = atomic.LoadUint64(n.N)
	}
	c.Send(r)
}

func (c *child) ready() { c.tell(report{Ready: true}) }

func (c *child) note(format string, args ...any) {
	c.tell(report{Note: fmt.Sprintf("%s %s %d: %s", c.Surface, c.Role, c.Index,
		fmt.Sprintf(format, args...))})
}

// add adds to a count of [child.did].
func add(n *uint64, more uint64) uint64 { return atomic.AddUint64(n, more) }

// broken counts a violation and says what it was.
func (c *child) broken(what *uint64, format string, args ...any) {
	if add(what, 1) <= 3 {
		c.note(format, args...)
	}
}

// Ways in which a victim is to fail: see Options.spoil.
const (
	spoilPanic = "panic"
	spoilWild  = "wild"
	spoilLose  = "lose"
	spoilHang  = "hang"
	spoilError = "error"
	spoilLeak  = "leak"
	spoilSteps = "steps"
	spoilBusy  = "busy"
	spoilFail  = "fail"
	spoilTame  = "tame" // attackers post and leave memory alone
	spoilShut  = "shut" // the victim lets nobody new in
)

// spoilAfter is how many entries come before that.
const spoilAfter = 100

// spoilt does what a broken library would, once it has read some entries.
func (c *child) spoilt() {
	n := atomic.LoadUint64(&c.did.Seen)
	if n < spoilAfter || !c.spoiled.CompareAndSwap(false, true) {
		return
	}
	switch c.Spoil {
	case spoilPanic:
		_ = make([]int, 3)[n]
	case spoilWild:
		for _, a := range areas("", "") { // one word too far
			last := &a.words[len(a.words)-1]
			after(last).Load()
		}
	case spoilHang:
		<-make(chan int)
	case spoilError:
		c.assess("spoil", errors.New("something is wrong"))
	case spoilLeak:
		for range 2 {
			_, _, _ = eventfd.NewPipe()
		}
	case spoilSteps:
		c.steps("spoil", waitBound+1, waitBound)
	case spoilBusy:
		for from := ownCPU(); ownCPU()-from < 2*cpuBound; {
		}
	case spoilFail:
		os.Exit(3)
	}
}

// split returns a source of choices for another goroutine.
func (c *child) split() *rand.Rand {
	c.mu.Lock()
	defer c.mu.Unlock()
	return rand.New(rand.NewPCG(c.rnd.Uint64(), c.rnd.Uint64()))
}

const lastErrno = syscall.ERFKILL + 1

// typedErrors are what callers can ask for, beside numbers of the operating system and of
// libfabric, of which each sentinel but one has one. Anything else is a violation.
var typedErrors = []error{cq.ErrAvail, context.Canceled, context.DeadlineExceeded,
	os.ErrDeadlineExceeded, io.EOF, net.ErrClosed, os.ErrClosed}

// assess counts what an error says that came from a peer's doing.
func (c *child) assess(what string, err error) {
	if err == nil {
		return
	}
	var errno syscall.Errno
	var number cq.Errno
	known := errors.As(err, &errno) || errors.As(err, &number)
	for _, t := range typedErrors {
		known = known || errors.Is(err, t)
	}
	for e := syscall.Errno(1); !known && e <= lastErrno; e++ {
		known = errors.Is(err, e) // of every sentinel there is one of the same meaning
	}
	for _, blame := range []error{cq.ErrCorrupt, shm.ErrCorrupt, device.ErrProtocol} {
		if errors.Is(err, blame) {
			add(&c.did.Corrupt, 1)
			break
		}
	}
	lane := new(cq.LaneError)
	switch {
	case !known:
		c.broken(&c.did.Untyped, "%s: %T %v", what, err, err)
	case errors.As(err, &lane):
		add(&c.did.Poisoned, 1)
		if !errors.Is(err, cq.ErrCorrupt) {
			c.broken(&c.did.Untyped, "%s: a lane was given up, and the error blames no peer: %v", what, err)
		}
	case errors.Is(err, cq.ErrWouldBlock), errors.Is(err, cq.ErrFull), errors.Is(err, cq.ErrAvail),
		errors.Is(err, cq.ErrTimedOut), errors.Is(err, cq.ErrSignaled):
	default:
		add(&c.did.Ended, 1)
	}
}

// holdings counts what a process has of others.
type holdings struct{ files, mappings, goroutines, threads int }

func held() (h holdings) {
	named := os.Getenv(shm.EnvDir) + "/"
	open, mapped := stage.Held("memfd:", "socket:", "pipe:", "pidfd", named)
	h.files, h.mappings = len(open), len(mapped)
	h.goroutines = runtime.NumGoroutine()
	tasks, _ := os.ReadDir("/proc/self/task")
	h.threads = len(tasks)
	return h
}

// maxThreads is how many threads a victim may have ever had: none of its own for each attacker.
const maxThreads = 64

// settles checks that everything that attackers brought is given back, now that they are gone.
// look does what the application would do meanwhile; lanes is how many lanes there are, which is
// asked between processes of one user only.
func (c *child) settles(before holdings, lanes func() int, look func()) {
	end, own := time.Now().Add(settleTime), before
	for {
		look()
		now := held()
		if c.s.trust == cq.SameUser { // lanes wait for their next writer, and the bell is made
			n := lanes() + 2
			before.files, before.mappings = own.files+n, own.mappings+n
			before.files++ // of the queue, for writers who get its descriptor
		}
		if now.files <= before.files && now.mappings <= before.mappings &&
			now.goroutines <= before.goroutines+2 {
			if now.threads > maxThreads {
				c.broken(&c.did.Leaked, "%d threads", now.threads)
			}
			return
		}
		if time.Now().After(end) {
			c.broken(&c.did.Leaked, "it holds %+v after the attack, and held %+v before", now, before)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// call is a call of the library that is under way.
type call struct {
	what  string
	since time.Time
}

const tellEvery = 20 * time.Millisecond

// tellOn tells how far it is, and looks for calls that do not return.
func (c *child) tellOn() {
	for ; ; time.Sleep(tellEvery) {
		c.tell(report{})
		c.mu.Lock()
		var late string
		for w := range c.watched {
			if time.Since(w.since) > patience {
				late = w.what
			}
		}
		c.mu.Unlock()
		if late != "" {
			add(&c.did.Hangs, 1)
			c.note("%s does not return", late)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
			os.Exit(4)
		}
	}
}

// watch watches a call that must return, and what it costs a victim; the function, which the same
// goroutine calls, ends that.
func (c *child) watch(what string) (over func()) {
	w := &call{what, time.Now()}
	c.mu.Lock()
	c.watched[w] = struct{}{}
	c.mu.Unlock()
	end := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watched, w)
	}
	if c.Role != roleVictim { // bystanders watch many calls at once
		return end
	}
	runtime.LockOSThread()
	from, began := ownCPU(), stage.Lifetime()
	return func() {
		cost := ownCPU() - from
		runtime.UnlockOSThread()
		end()
		c.costs(what, cost, stage.Lifetime()-began)
	}
}

// cpuBound is how long a call may compute because of others: a thousand times what any does. It
// is time of a processor that the thread had, which others who compute do not change.
var cpuBound = 2 * time.Second

// costs assesses the time that a call computed for, while this process could run for so long: when
// the machine stands still a kernel can count that as anybody's time.
func (c *child) costs(what string, cost, lived time.Duration) {
	if c.most(&c.did.CPUMostNs, uint64(cost)); min(cost, lived) > cpuBound {
		c.broken(&c.did.Unbounded, "%s computed for %v, while the process could run for %v", what, cost,
			lived)
	}
}

// ownCPU is how long the thread has computed.
func ownCPU() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// processCPU is how long all threads of the process have.
func processCPU() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}

// most keeps the largest value.
func (c *child) most(what *uint64, n uint64) {
	for is := atomic.LoadUint64(what); n > is && !atomic.CompareAndSwapUint64(what, is, n); {
		is = atomic.LoadUint64(what)
	}
}

// How many steps, which are system calls, one call may make because of others: some times what any
// of its kind does, which is 6 (of 4 posts), 64 (a wait for 64 entries that come one by one) and 5.
const (
	plainBound = 32
	// One that waits some milliseconds may be woken for nothing, but not as often as somebody likes.
	waitBound = 400
	// One that waits for a context does so until another goroutine ends it, which has to run first.
	contextBound = 1000
)

func (c *child) steps(what string, n, bound uint64) {
	if add(&c.did.Calls, 1); n > bound {
		c.broken(&c.did.Unbounded, "%s made %d system calls", what, n)
	}
	c.most(&c.did.StepsMost, n)
}
