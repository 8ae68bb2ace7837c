package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// queues is what the cq commands of one process use. The directory is that of its side.
type queues struct {
	command string
	dir     *shm.Dir
	own     *cq.Queue
	out     *cq.Writer // to the own queue, or to the other role's
	events  *cq.EventQueue
	counter *cq.Counter
	total   uint64 // that the counter has, as far as we added
	epoll   bool   // the user waits on the descriptor
	sent    uint64
	got     uint64
}

// queueBlock is how many entries are queued at once before they are read, as in libfabric.c.
const queueBlock = 512

// openQueues makes what a command needs: always the same within a row.
func (p *party) openQueues(c command) (err error) {
	if p.queues != nil && p.queues.command == c.name {
		return nil
	}
	p.closeQueues()
	s := &queues{command: c.name}
	p.queues = s
	if s.dir, err = shm.OpenDir(""); err != nil {
		return err
	}
	verb, o, err := parseQueueCommand(c.name)
	if err != nil {
		return err
	}
	s.epoll = o.Wait == cq.WaitFD
	name := func(role int) string { return fmt.Sprintf("role%d", role) }
	if verb == "eq" {
		s.events, err = cq.CreateEvents(s.dir, name(p.role), cq.EventOptions{Write: true})
		return err
	}
	if strings.HasPrefix(verb, "cntr") {
		s.counter, err = cq.CreateCounter(s.dir, name(p.role), cq.CounterOptions{})
		return err
	}
	if s.own, err = cq.Create(s.dir, name(p.role), o); err != nil || verb == "read-bare" {
		return err
	}
	to := name(p.role)
	if !soloVerbs[verb] {
		to = name(1 - p.role)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if s.out, err = cq.Attach(ctx, s.dir, to, cq.WriterOptions{Wait: true}); err != nil {
		return err
	}
	// The first read finds the lane; the other process attaches whenever it likes.
	_, err = cq.Read(s.own, make([]cq.Tagged, 1))
	if errors.Is(err, cq.ErrWouldBlock) {
		err = nil
	}
	return err
}

func (p *party) closeQueues() {
	s := p.queues
	if s == nil {
		return
	}
	if s.out != nil {
		_ = s.out.Close()
	}
	if s.own != nil {
		_ = s.own.Close()
	}
	if s.events != nil {
		_ = s.events.Close()
	}
	if s.counter != nil {
		_ = s.counter.Close()
	}
	if s.dir != nil {
		_ = s.dir.Close()
	}
	p.queues = nil
}

// parseQueueCommand splits cq-VERB+OPTION.
func parseQueueCommand(name string) (verb string, o cq.Options, err error) {
	verb, option, _ := strings.Cut(strings.TrimPrefix(name, queuePrefix), "+")
	switch option {
	case "":
	case "shared":
		o.Shared = true
	case "none":
		o.Wait = cq.WaitNone
	case "fd":
		o.Wait = cq.WaitFD
	case "yield":
		o.Wait = cq.WaitYield
	default:
		err = fmt.Errorf("no such option: %q: %w", option, unix.EINVAL)
	}
	if strings.HasPrefix(verb, "sread") {
		o.Spin = -1 // it is about sleeping
	}
	return verb, o, err
}

// soloVerbs are those that role 0 does alone.
var soloVerbs = map[string]bool{"read-bare": true, "read-empty": true, "read": true, "eq": true,
	"cntr-add": true, "cntr-read": true, "post-read": true}

func (p *party) queueRunner(c command) (func() (uint64, bool, error), error) {
	if err := p.openQueues(c); err != nil {
		return nil, err
	}
	verb, _, _ := parseQueueCommand(c.name)
	n, s := int(c.count), p.queues
	if soloVerbs[verb] && p.role == 1 {
		return p.sleepOut, nil
	}
	solo := func(f func(n int) (time.Duration, error)) func() (uint64, bool, error) {
		return func() (uint64, bool, error) {
			took, err := f(n)
			p.took = took
			p.done.Store(soloDone)
			return 0, true, err
		}
	}
	switch verb {
	case "read-bare", "read-empty":
		return solo(s.readEmpty), nil
	case "read":
		return solo(func(n int) (time.Duration, error) { return s.readFull(c.batch, n) }), nil
	case "eq":
		return solo(s.writeRead), nil
	case "cntr-add":
		return solo(s.counterAdd), nil
	case "cntr-read":
		return solo(s.counterRead), nil
	case "post-read":
		return solo(s.postRead), nil
	case "rate":
		return func() (uint64, bool, error) { return 0, p.role == 1, s.rate(p.role, c) }, nil
	case "trip":
		return func() (uint64, bool, error) { return 0, p.role == 0, s.trip(p.role, c) }, nil
	case "sread":
		return func() (uint64, bool, error) { return 0, p.role == 0, s.blocked(p.role, n) }, nil
	}
	return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
}
