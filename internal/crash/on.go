//go:build shmring_steps

package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// On says whether the program was built with the tag shmring_steps.
const On = true

var (
	passed [count]atomic.Uint64
	victim Label
	fatal  uint64 = 1 // the passage of victim that kills
	dying  atomic.Pointer[func()]
	halts  atomic.Pointer[halt]
)

// halt is where the process does something else than die.
type halt struct {
	at Label
	n  uint64 // the passage, of all
	f  func()
}

// The environment is read once: what a test changes later concerns its children only.
func init() {
	name, nth, given := strings.Cut(os.Getenv(Env), ":")
	if name == "" {
		return
	}
	l, ok := Parse(name)
	n, err := uint64(1), error(nil)
	if given {
		n, err = strconv.ParseUint(nth, 10, 64)
	}
	if !ok || err != nil || n == 0 {
		// A run whose step is misspelt would pass for one that survived it.
		fmt.Fprintf(os.Stderr, "%s=%q: want label:n, as in publish-stored:3\n", Env, os.Getenv(Env))
		os.Exit(2)
	}
	victim, fatal = l, n
}

// At counts a passage, and kills the process if it is the one that was asked for.
func At(l Label) {
	n := passed[l].Add(1)
	if h := halts.Load(); h != nil && l == h.at && n == h.n {
		h.f()
	}
	if l == victim && n == fatal {
		if f := dying.Load(); f != nil {
			(*f)()
		}
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // other threads may have the signal first
	}
}

// Dying sets what is called before the process dies at a step, in the goroutine that dies: it must
// not wait for anything, and sees all that the process has as it is.
func Dying(f func()) { dying.Store(&f) }

// Passing sets what is called at the n-th passage of a step from now on, in the goroutine that
// passes, which goes on afterwards. There is one such step in a process.
func Passing(l Label, n uint64, f func()) { halts.Store(&halt{l, passed[l].Load() + n, f}) }
