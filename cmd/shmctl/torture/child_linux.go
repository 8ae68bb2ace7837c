package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/shm/crash"
)

// config is what a child is started with.
type config struct {
	Role  string `json:"role"`
	Index int    `json:"index"`
	Dir   string `json:"dir"`
	Seed  uint64 `json:"seed"`
	Trust string `json:"trust"`
	Spoil string `json:"spoil,omitempty"`
}

// event is a line from a child to the supervisor.
type event struct {
	Kind string `json:"kind"` // hung, leaked, usurped, failed, or nothing that is counted by events
	Text string `json:"text"`
}

// Directories and files of a run, below its own.
const (
	queuesDir  = "queues"
	ledgerFile = "ledger"
	queueName  = "main"
)

// child is one process of a run.
type child struct {
	config
	ledger *ledger
	dir    *shm.Dir
	rnd    *rand.Rand
	mu     sync.Mutex
	out    *json.Encoder

	running     context.Context // of a reader: ends when the writers have ended
	noLane      int             // tries over a socket for which there was no lane, in a row
	noLaneSince time.Time
}

// patience is how long anybody waits for anything that must come.
const patience = 20 * time.Second

// Child runs a child process if args, without the program's name, ask for one. It returns the exit
// code.
func Child(args []string) (handled bool, code int) {
	if len(args) != 2 || args[0] != ChildCommand {
		return false, 0
	}
	// A terminal's signals are the supervisor's business.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	c := &child{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(args[1]), &c.config); err != nil {
		return true, 2
	}
	go func() { // a supervisor that is gone takes everybody along
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	before := c.held()
	if err := c.run(); err != nil {
		c.tell("failed", "%v", err)
		return true, 1
	}
	// What the runtime opens for itself does not name the run.
	for what := range c.held() {
		if !before[what] {
			c.tell("leaked", "still there after everything was closed: %s", what)
		}
	}
	return true, 0
}

func (c *child) run() (err error) {
	if err = os.Setenv(shm.EnvDir, c.Dir+"/"+queuesDir); err != nil { // for bells
		return err
	}
	if c.ledger, err = openLedger(c.Dir + "/" + ledgerFile); err != nil {
		return err
	}
	// It stays mapped: goroutines look at it until the end.
	if c.dir, err = shm.OpenDir(c.Dir + "/" + queuesDir); err != nil {
		return err
	}
	defer c.dir.Close()
	if crash.On {
		go c.tellSteps()
	}
	c.rnd = rand.New(rand.NewPCG(c.Seed, uint64(c.Index)))
	switch c.Role {
	case "writer":
		return c.write()
	case "reader":
		return c.read()
	case "churner":
		return c.churn()
	}
	return fmt.Errorf("no role %q", c.Role)
}

// tellSteps adds to the ledger how often each step was passed, as far as this process comes.
func (c *child) tellSteps() {
	told := map[crash.Label]uint64{}
	for ; ; nap(2 * time.Millisecond) {
		for _, l := range crash.Labels() {
			n := crash.Passed(l)
			c.ledger.word(wordPassed + int(l)).Add(n - told[l])
			told[l] = n
		}
	}
}

func (c *child) tell(kind, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	_ = c.out.Encode(event{kind, fmt.Sprintf("%s %d (pid %d): %s", c.Role, c.Index, os.Getpid(),
		text)})
}

// held returns what this process has of the run: descriptors and mappings.
func (c *child) held() map[string]bool {
	found := map[string]bool{}
	ours := func(target string) bool {
		return strings.Contains(target, c.Dir+"/"+queuesDir) || strings.Contains(target, "memfd:") ||
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
	for range 2000 {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.ContainsAny(state(text), "ZX") {
			return false
		}
		nap(time.Millisecond)
	}
	return true
}

// state returns the letter behind the name of the program.
func state(stat []byte) string {
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:min(1, len(rest))]
}
