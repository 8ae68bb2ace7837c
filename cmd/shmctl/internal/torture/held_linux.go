package torture

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// Words of a role of which one process has a thing and the others wait for it to die, at the
// beginning of its words. Whoever has it stores them.
const (
	heldBy    = iota // its number, 0 while nobody surely has it
	heldTimes        // how often it was got
	heldEnded        // it is done with, and being destroyed
	heldAgain        // entries that came again, marked
	heldWords
)

// held is a thing that one process has at a time.
type held interface {
	Detach() error
	Close() error
}

// hold gets the thing when nobody has it, and uses it until it is done. make says that it may not
// exist; once it is destroyed nobody is to make it again.
func (c *child) hold(open func(make bool) (held, error),
	use func(running context.Context) (done bool, err error)) error {
	running, stop := c.running(phaseDrain)
	defer stop()
	for since := lifetime(); c.words[heldEnded].Load() == 0; {
		h, err := open(c.words[heldTimes].Load() == 0)
		switch {
		case errors.Is(err, syscall.EBUSY), errors.Is(err, cq.ErrClosed),
			errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrExist), errors.Is(err, shm.ErrStale):
			// Somebody has it, or destroys it.
			if lifetime()-since > patience/4 {
				since = c.barred(since, err)
			}
			nap(500 * time.Microsecond)
			continue
		case err != nil:
			return fmt.Errorf("open: %w", err)
		}
		if err := c.have(running, h, use); err != nil {
			return err
		}
		since = lifetime()
	}
	return nil
}

// barred tells what keeps this process from a thing that nobody has. It returns since when nobody
// has it, as far as it looked: those who wait may wait for ever while somebody does.
func (c *child) barred(since time.Duration, err error) time.Duration {
	holder := int(c.words[heldBy].Load())
	if text, e := os.ReadFile(fmt.Sprintf("/proc/%d/stat", holder)); holder != 0 && e == nil &&
		!strings.ContainsAny(state(text), "ZX") {
		return lifetime()
	}
	if lifetime()-since < patience {
		return since
	}
	c.tell(kindHung, "cannot get what nobody has (%d had it): %v", holder, err)
	return lifetime()
}

// have is one time with it.
func (c *child) have(running context.Context, h held,
	use func(running context.Context) (done bool, err error)) error {
	holder := &c.words[heldBy]
	if former := int(holder.Load()); former != 0 && former != os.Getpid() {
		if survives(former) {
			c.tell(kindUsurped, "got what the living process %d has", former)
		}
		c.notice(noticeAdopted, cq.PeerEntry{PID: former})
	}
	holder.Store(uint64(os.Getpid()))
	c.words[heldTimes].Add(1)
	done, err := use(running)
	holder.Store(0)
	if err != nil {
		return errors.Join(err, h.Detach())
	}
	if !done {
		return h.Detach()
	}
	// Who dies over the destruction leaves something to be collected, and nothing to be got.
	c.words[heldEnded].Store(1)
	return h.Close()
}

// heldPossession: nobody else gets it from a process that is stopped.
func heldPossession(s *supervisor, p *proc) func() string {
	words := s.ledger.region(p.role.name)
	if words[heldBy].Load() != uint64(p.PID()) {
		return func() string { return "" }
	}
	had := words[heldTimes].Load()
	return func() string {
		if words[heldBy].Load() != uint64(p.PID()) || words[heldTimes].Load() > had+1 {
			return "another one got what it has"
		}
		return ""
	}
}

func sumHeld(name string) func(*supervisor, *RoleReport) {
	return func(s *supervisor, r *RoleReport) {
		words := s.ledger.region(name)
		r.Redelivered = words[heldAgain].Load()
		r.Counts["adoptions"] = words[heldTimes].Load()
	}
}

func checkHeld(name string) func(*supervisor) {
	return func(s *supervisor) {
		if s.ledger.region(name)[heldEnded].Load() == 0 {
			s.broken(name, kindHung, 1, "nobody came to the end of it")
		}
	}
}
