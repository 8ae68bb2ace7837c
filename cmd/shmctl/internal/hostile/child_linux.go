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
	"strings"
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
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

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
	Ready  bool              `json:"ready,omitempty"`
	Counts map[string]uint64 `json:"counts"` // since the child began, as in a [Surface]
	Note   string            `json:"note,omitempty"`
}

// child is one process of a run.
type child struct {
	*stage.Child
	config
	counts map[string]*atomic.Uint64
	ctx    context.Context // ends when the supervisor says so
	s      *surface
	dir    *shm.Dir   // of objects with names, which only processes of one user have
	mu     sync.Mutex // of tell, rnd and watched
	rnd    *rand.Rand
	// watched are calls that are under way, by what they are to do.
	watched map[*call]struct{}
	spoiled atomic.Bool
}

// settleTime is until what attackers brought is given back.
var settleTime = patience

// Tool is what the processes of a run do.
var Tool = stage.Tool{Name: toolName, Play: func(sc *stage.Child) error {
	c := &child{Child: sc, watched: map[*call]struct{}{}, counts: map[string]*atomic.Uint64{}}
	for _, n := range stage.CountsOf(&Surface{}) {
		c.counts[n.Key] = new(atomic.Uint64)
	}
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
		roleHonest: c.s.honest, roleNewcomer: c.s.newcomer}[c.Role]
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
	r.Counts = map[string]uint64{}
	for key, n := range c.counts {
		r.Counts[key] = n.Load()
	}
	c.Send(r)
}

func (c *child) ready() { c.tell(report{Ready: true}) }

func (c *child) note(format string, args ...any) {
	c.tell(report{Note: fmt.Sprintf("%s %s %d: %s", c.Surface, c.Role, c.Index,
		fmt.Sprintf(format, args...))})
}

// broken counts a violation and says what it was.
func (c *child) broken(what string, format string, args ...any) {
	if c.counts[what].Add(1) <= 3 {
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

// spoilt does what a broken library would, once it has read some entries.
func (c *child) spoilt(n uint64) {
	if n < 500 || !c.spoiled.CompareAndSwap(false, true) {
		return
	}
	switch c.Spoil {
	case spoilPanic:
		_ = make([]int, 3)[n]
	case spoilWild:
		for _, a := range areas("", false) { // one word too far
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

// typedErrors are what callers can ask for, beside numbers of the operating system. Anything else
// is a violation.
var typedErrors = []error{cq.ErrCorrupt, cq.ErrClosed, cq.ErrWouldBlock, cq.ErrFull, cq.ErrAvail,
	cq.ErrOverrun, cq.ErrPeerGone, cq.ErrTimedOut, cq.ErrLanes, cq.ErrInvalid, cq.ErrBusy,
	cq.ErrFormat, cq.ErrNoCredit, cq.ErrTimedOut, cq.ErrSignaled, shm.ErrCorrupt,
	shm.ErrOwner, shm.ErrVersion, shm.ErrTruncated, shm.ErrNoSpace, shm.ErrKind, shm.ErrStale,
	shm.ErrName, xdp.ErrDeviceGone, device.ErrProtocol,
	device.ErrRefused, device.ErrBudget, device.ErrPortTaken, device.ErrServerGone,
	device.ErrNoSlot, syscall.ECONNREFUSED, context.Canceled, context.DeadlineExceeded,
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
			c.counts[corrupt].Add(1)
			break
		}
	}
	lane := new(cq.LaneError)
	switch {
	case !known:
		c.broken(untyped, "%s: %T %v", what, err, err)
	case errors.As(err, &lane):
		c.counts[poisoned].Add(1)
		if !errors.Is(err, cq.ErrCorrupt) {
			c.broken(untyped, "%s: a lane was given up, and the error blames no peer: %v", what, err)
		}
	case errors.Is(err, cq.ErrWouldBlock), errors.Is(err, cq.ErrFull), errors.Is(err, cq.ErrAvail),
		errors.Is(err, cq.ErrTimedOut), errors.Is(err, cq.ErrSignaled):
	default:
		c.counts[ended].Add(1)
	}
}

// holdings counts what a process has of others.
type holdings struct{ files, mappings, goroutines, threads int }

func held() (h holdings) {
	named := os.Getenv(shm.EnvDir) + "/"
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		link, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		for _, kind := range []string{"memfd:", "socket:", "pipe:", "pidfd", named} {
			if strings.Contains(link, kind) {
				h.files++
			}
		}
	}
	text, _ := os.ReadFile("/proc/self/maps")
	h.mappings = strings.Count(string(text), "memfd:") + strings.Count(string(text), named)
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
		}
		if now.files <= before.files && now.mappings <= before.mappings &&
			now.goroutines <= before.goroutines+2 {
			if now.threads > maxThreads {
				c.broken(leaked, "%d threads", now.threads)
			}
			return
		}
		if time.Now().After(end) {
			c.broken(leaked, "it holds %+v after the attack, and held %+v before", now, before)
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
			c.counts[hung].Add(1)
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
	if c.most(cpuMostNs, uint64(cost)); min(cost, lived) > cpuBound {
		c.broken(unbounded, "%s computed for %v, while the process could run for %v", what, cost, lived)
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
func (c *child) most(what string, n uint64) {
	for is := c.counts[what].Load(); n > is && !c.counts[what].CompareAndSwap(is, n); {
		is = c.counts[what].Load()
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
	if c.counts[calls].Add(1); n > bound {
		c.broken(unbounded, "%s made %d system calls", what, n)
	}
	c.most(stepsMost, n)
}
