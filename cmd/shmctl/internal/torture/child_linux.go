package torture

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// config is what a child is started with.
type config struct {
	Index int               `json:"index"` // among the processes of its role
	Place int               `json:"place"` // among all
	Base  string            `json:"base"`  // the directory of the run, which other users cannot enter
	Seed  uint64            `json:"seed"`
	Trust string            `json:"trust"`
	Spoil string            `json:"spoil,omitempty"`
	Step  string            `json:"step,omitempty"` // where it is to die, so that it can go there
	Share map[string]string `json:"share,omitempty"`
	Ends  wire.Ends         `json:"ends"` // of the device and of the wire, if there are
}

// event is a line from a child to the supervisor.
type event struct {
	Role string `json:"role"`
	Kind string `json:"kind"` // what was found, or kindNotice
	N    uint64 `json:"n,omitempty"`
	Text string `json:"text"`
	What string `json:"what,omitempty"` // of a notice: how the death is told
	Pid  int    `json:"pid,omitempty"`
	// Start is when the process began whose death is told, as [cq.PeerEntry] has it.
	Start uint64 `json:"start,omitempty"`
	AtNs  int64  `json:"at_ns,omitempty"`
	// SinceNs is from when on the survivor could be told.
	SinceNs int64 `json:"since_ns,omitempty"`
	// More is how many more died that are told by their number only.
	More uint64 `json:"more,omitempty"`
}

// kindNotice is an event that breaks no promise.
const kindNotice = "notice"

// Directories and files of a run, below its own.
const (
	queuesDir  = "queues"
	ledgerFile = "ledger"
	queueName  = "main"
)

// ledgerFd is the descriptor that a child inherits.
const ledgerFd = 3

// child is one process of a run.
type child struct {
	*stage.Child
	config
	role   *role
	ledger *ledger
	words  []atomic.Uint64 // of the ledger, the role's own
	dir    *shm.Dir        // where queues have names; nil for other users
	pid    int
	// boundNs is since when this process is told of deaths, or was told last.
	boundNs atomic.Int64
	rnd     *rand.Rand
}

// patience is how long anybody waits for anything that must come.
const patience = time.Minute

// Tool is what the processes of a run do.
var Tool = stage.Tool{Name: toolName, Play: func(sc *stage.Child) error {
	c := &child{Child: sc, pid: os.Getpid()}
	if err := c.Script(&c.config); err != nil {
		return err
	}
	// A supervisor that is gone takes everybody along.
	context.AfterFunc(c.Listen(nil), func() { os.Exit(3) })
	before := c.held()
	if err := c.run(); err != nil {
		c.tell(kindFailed, "%v", err)
		return err
	}
	// What the runtime opens for itself does not name the run.
	for what := range c.held() {
		if !before[what] {
			c.tell(kindLeaked, "still there after everything was closed: %s", what)
		}
	}
	return nil
}}

func (c *child) run() (err error) {
	if c.role = roleOf(c.Role); c.role == nil {
		return fmt.Errorf("no role %q", c.Role)
	}
	syscall.CloseOnExec(ledgerFd)
	// It stays mapped: goroutines look at it until the end.
	if c.ledger, err = mapLedger(os.NewFile(ledgerFd, ledgerFile)); err != nil {
		return err
	}
	c.words = c.ledger.region(c.role.name)
	crash.Dying(func() {
		c.ledger.word(wordDeath + c.Place).Store(uint64(spin.Now()))
	})
	go c.beat()
	if crash.On {
		go c.tellSteps()
	}
	if c.role.uid == 0 {
		if err = os.Setenv(shm.EnvDir, c.Base+"/"+queuesDir); err != nil { // for bells
			return err
		}
		if c.dir, err = shm.OpenDir(c.Base + "/" + queuesDir); err != nil {
			return err
		}
		defer c.dir.Close()
	}
	c.rnd = rand.New(rand.NewPCG(c.Seed, uint64(c.Index)))
	return c.role.run(c)
}

// tellSteps adds to the ledger how often each step was passed, as far as this process comes.
func (c *child) tellSteps() {
	told := map[crash.Label]uint64{}
	for ; ; nap(5 * time.Millisecond) {
		for _, l := range crash.Labels() {
			if n := crash.Passed(l); n != told[l] {
				c.ledger.word(wordPassed + int(l)).Add(n - told[l])
				told[l] = n
			}
		}
	}
}

// running returns a context that ends when the run comes to a phase, or stop is called.
func (c *child) running(until uint64) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for c.ledger.phase() < until && ctx.Err() == nil {
			nap(10 * time.Millisecond)
		}
		cancel()
	}()
	return ctx, cancel
}

// tell says what this process found: kindHung and the like.
func (c *child) tell(kind, format string, args ...any) { c.tellN(kind, 1, format, args...) }

// tellN says that it found so many.
func (c *child) tellN(kind string, n uint64, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	c.send(event{Kind: kind, N: n, Text: fmt.Sprintf("%s %d (pid %d): %s", c.Role, c.Index,
		os.Getpid(), text)})
}

func (c *child) send(e event) {
	e.Role = c.Role
	c.Send(e)
}

// held returns what this process has of the run: descriptors and mappings.
func (c *child) held() map[string]bool {
	found := map[string]bool{}
	ours := func(target string) bool {
		return strings.Contains(target, c.Base+"/"+queuesDir) || strings.Contains(target, "memfd:") ||
			strings.Contains(target, "pidfd") || strings.HasPrefix(target, "socket:")
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if target, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && ours(target) {
			found["descriptor "+fd.Name()+" "+target] = true
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if ours(line) {
			found["mapping "+strings.TrimSpace(line)] = true
		}
	}
	return found
}

func nap(d time.Duration) { time.Sleep(d) }

// survives tells whether a process goes on living. One that was killed gives up what it has a
// little before it shows as dead.
func survives(pid int) bool {
	for since := lifetime(); lifetime()-since < patience; nap(time.Millisecond) {
		if !lives(pid) {
			return false
		}
	}
	return true
}

// lives tells whether there is a process of that number, more than what is left of a dead one.
func lives(pid int) bool {
	state, _ := stat(pid)
	return state != "" && !strings.Contains("ZX", state)
}

// stat returns the state of a process, a letter, and when it began in clock ticks, as
// proc_pid_stat(5) has them; "" and 0 if that cannot be found out.
func stat(pid int) (state string, start uint64) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	const startTime = 19 // after the name
	fields := strings.Fields(rest)
	if len(fields) <= startTime {
		return "", 0
	}
	start, _ = strconv.ParseUint(fields[startTime], 10, 64)
	return fields[0], start
}
