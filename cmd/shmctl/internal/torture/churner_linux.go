package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

const (
	churners     = 4
	scratchNames = 3
	meetEntries  = 20
	// crowdedQueues of them are about one that is made aside.
	crowdedQueues = 64
)

func churnerRole() *role {
	return &role{name: "churner", places: churners, run: (*child).churn, leftovers: scratchLeft,
		steps: at("create- claim- attach- writer- overran read- adopt- detach-silenced close- " +
			"collect- meet-sending meet-sent meet-received accept-told others-parked " +
			"others-counted others-again others-woken others-heard")}
}

func scratchName(i int) string { return fmt.Sprintf("scratch-%d", i) }

// churner is a process that comes and goes in many queues.
type churner struct {
	*child
	// noLane is since when there was no lane over a socket, 0 if there was.
	noLane time.Duration
}

// churn makes, uses, destroys and collects queues until it is told to stop.
func (child *child) churn() error {
	c := &churner{child: child}
	stop, err := c.serve()
	if err != nil {
		return err
	}
	for c.ledger.phase() == phaseRun && err == nil {
		err = c.next()(c)
	}
	return errors.Join(err, stop())
}

// next chooses what to do: mostly what leads to the step at which it is to die.
func (c *churner) next() func(*churner) error {
	leads := (*churner).scratch
	switch {
	case c.toward("collect"):
		leads = (*churner).makeOwn
	case c.toward("meet"), c.toward("others"), c.toward("accept-told"):
		leads = (*churner).meet
	case c.toward("create-aside"):
		leads = (*churner).crowded
	}
	if c.rnd.IntN(2) == 0 {
		return leads
	}
	all := []func(*churner) error{(*churner).scratch, (*churner).collect, (*churner).makeOwn,
		(*churner).meet, (*churner).crowded}
	return all[c.rnd.IntN(len(all))]
}

// contended tells errors that others who are at work on the same name may cause.
func contended(err error) bool {
	return isAny(err, fs.ErrExist, fs.ErrNotExist, syscall.EBUSY, syscall.ENOTEMPTY, cq.ErrClosed,
		cq.ErrLanes, shm.ErrStale)
}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(is error) bool { return errors.Is(err, is) })
}

// scratch has a queue for a moment: its own, or a lane of somebody else's.
func (c *churner) scratch() (err error) {
	name := scratchName(c.rnd.IntN(scratchNames))
	var q *cq.Queue
	switch c.rnd.IntN(3) {
	case 0:
		o := c.small()
		if c.rnd.IntN(2) == 0 {
			o.Overrun = cq.OverrunQueue
		}
		q, err = cq.Create(cq.Named(c.dir, name), o)
	case 1:
		q, err = cq.Open(cq.Named(c.dir, name), cq.Options{Existing: true})
	}
	if err != nil {
		return uncontended(err)
	}
	w, err := c.attach(cq.Named(c.dir, name), cq.WriterOptions{})
	if err = uncontended(err); err != nil {
		err = fmt.Errorf("attach: %w", err)
	}
	if w != nil {
		for i := range uint64(1 + c.rnd.IntN(24)) {
			if err := w.Post(&cq.Entry{Context: i}); err != nil {
				break // full, overrun, or closed
			}
		}
	}
	if q != nil {
		err = errors.Join(err, c.useScratch(q))
	}
	if w != nil {
		err = errors.Join(err, w.Close())
	}
	return err
}

// attach becomes a writer of a queue.
func (c *churner) attach(at cq.Place, o cq.WriterOptions) (*cq.Writer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return cq.Attach(ctx, at, o)
}

// small is how a queue is made that may outlive who made it.
func (c *churner) small() cq.Options {
	o := cq.Options{Size: 16, MaxLanes: 4}
	if c.rnd.IntN(2) == 0 {
		o.Lifetime = cq.Persistent
	}
	return o
}

// useScratch reads a little and leaves the queue in one way or the other.
func (c *churner) useScratch(q *cq.Queue) error {
	buf := make([]cq.Entry, 8)
	if _, err := cq.ReadContext(context.Background(), q, buf,
		cq.ReadOptions{Timeout: time.Millisecond}); err != nil &&
		!errors.Is(err, syscall.EAGAIN) && !errors.Is(err, cq.ErrOverrun) {
		return errors.Join(fmt.Errorf("read: %w", err), q.Close())
	}
	if c.rnd.IntN(3) == 0 {
		return q.Detach()
	}
	return q.Close()
}

// metTrust is what the queue of a churner that others meet is made with: one of either kind.
func metTrust(index int) cq.Trust { return []cq.Trust{cq.SameUser, cq.CrossUser}[index%2] }

func (c *churner) socket(i int) string { return fmt.Sprintf("%s/meet-%d", c.Base, i) }

// serve has a queue without a name to which whoever connects attaches. stop ends it.
func (c *churner) serve() (stop func() error, err error) {
	l, err := wire.Listen("unix", c.socket(c.Index))
	if err != nil {
		return nil, err
	}
	q, err := cq.Create(cq.Unnamed("meet"),
		cq.Options{Size: 32, MaxLanes: 8, Trust: metTrust(c.Index)})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	leave, ended := serves(q, l), make(chan error)
	go func() { ended <- c.readMet(q) }()
	return func() error {
		err := errors.Join(q.Close(), leave())
		if e := <-ended; !errors.Is(e, cq.ErrClosed) {
			err = errors.Join(err, e)
		}
		return err
	}, nil
}

// readMet reads what comes over sockets: of each writer 1, 2, 3 and so on.
func (c *churner) readMet(q *cq.Queue) error {
	next := map[uint64]uint64{}
	buf := make([]cq.Entry, 16)
	for {
		n, err := cq.ReadContext(context.Background(), q, buf, cq.ReadOptions{})
		if err != nil {
			return err
		}
		for _, e := range buf[:n] {
			if e.Tag != mix(e.Data, e.Context) {
				c.tell(kindUnpublished, "nobody posts %+v to a socket", e)
			} else if e.Context != next[e.Data]+1 {
				c.tell(kindLost, "over a socket number %d came after %d", e.Context,
					next[e.Data])
			}
			if next[e.Data] = e.Context; e.Context == meetEntries {
				delete(next, e.Data)
			}
		}
	}
}

// meet attaches to the queue of another churner, which may be dead, or die meanwhile.
func (c *churner) meet() error {
	peer := (c.Index + 1) % churners
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.socket(peer), Net: "unix"})
	if err != nil {
		return nil // it is being started
	}
	defer raw.Close()
	w, err := c.attach(cq.Over(raw), cq.WriterOptions{Trust: metTrust(peer)})
	if errors.Is(err, context.DeadlineExceeded) {
		c.tell(kindHung, "no answer over a socket for %v", patience)
		return nil
	}
	if errors.Is(err, cq.ErrLanes) { // those of the dead have to come back
		if c.noLane = cmp.Or(c.noLane, stage.Lifetime()); stage.Lifetime()-c.noLane > patience {
			c.tell(kindHung, "no lane over a socket for %v", patience)
			c.noLane = 0
		}
		return nil
	}
	c.noLane = 0
	if err != nil {
		if dropped(err) || c.ledger.phase() != phaseRun { // it refuses while it ends
			return nil
		}
		return fmt.Errorf("attach over a socket: %w", err)
	}
	name := c.rnd.Uint64()
	for number := uint64(1); number <= meetEntries; number++ {
		if w.Post(&cq.Entry{Context: number, Data: name, Tag: mix(name, number)}) != nil {
			break // full with nobody who reads, or closed
		}
	}
	return w.Close()
}

// dropped tells errors of a peer that is gone or going.
func dropped(err error) bool {
	return isAny(err, cq.ErrPeerGone, cq.ErrClosed, io.EOF, syscall.ECONNRESET, syscall.EPIPE,
		shm.ErrStale)
}

// collect removes a queue that nobody has, or everything that is garbage.
func (c *churner) collect() error {
	if c.rnd.IntN(2) == 0 {
		return uncontended(cq.Remove(cq.Named(c.dir, scratchName(c.rnd.IntN(scratchNames)))))
	}
	all, err := ctl.Collect(c.dir, ctl.CollectOptions{Remove: true})
	for _, r := range all {
		if r.Fate == ctl.FateDamaged || r.Fate == ctl.FateFailed {
			c.tell("", "collect %s: %s: %s", r.Name, r.Fate, r.Error.Message)
		}
	}
	return err
}

// ownNames are of the queue and the counter that one churner makes for itself to collect. Its
// predecessor may have left them.
func ownNames(i int) (queue, counter string) {
	return fmt.Sprintf("own-%d", i), fmt.Sprintf("own-%d-count", i)
}

// removeOwn removes what the dead left under those names.
func removeOwn(d *shm.Dir, i int) (left []string) {
	queue, counter := ownNames(i)
	left = collect(d, queue)
	if err := cq.Remove(cq.Named(d, counter)); err != nil && !contended(err) {
		left = append(left, fmt.Sprintf("%s cannot be removed: %v", counter, err))
	}
	return left
}

// makeOwn makes a queue and a counter that wait for a successor, and collects them: past every step
// of a collector, without anybody's death before.
func (c *churner) makeOwn() error {
	queue, counter := ownNames(c.Index)
	left := removeOwn(c.dir, c.Index)
	for since := stage.Lifetime(); len(left) > 0 && stage.Lifetime()-since < patience; {
		nap(time.Millisecond) // others may be at it
		left = removeOwn(c.dir, c.Index)
	}
	for _, problem := range left {
		c.tell("", "%s", problem)
	}
	if err := errors.Join(c.leaveQueue(queue), c.leaveCounter(counter)); err != nil {
		return err
	}
	return errors.Join(uncontended(cq.Remove(cq.Named(c.dir, queue))),
		uncontended(cq.Remove(cq.Named(c.dir, counter))))
}

// uncontended is an error that other collectors, who lock what they look at, cannot cause.
func uncontended(err error) error {
	if contended(err) {
		return nil
	}
	return err
}

// leaveQueue makes a queue that was read to the end, and whose writer and reader have left.
func (c *churner) leaveQueue(name string) error {
	q, err := cq.Create(cq.Named(c.dir, name), c.small())
	if err != nil {
		return uncontended(err)
	}
	w, err := c.attach(cq.Named(c.dir, name), cq.WriterOptions{})
	if errors.Is(err, cq.ErrLanes) || errors.Is(err, cq.ErrBusy) {
		return q.Close()
	}
	if err != nil {
		return errors.Join(err, q.Close())
	}
	err = errors.Join(w.Post(&cq.Entry{Context: 1}), w.Close())
	_, readErr := cq.ReadContext(context.Background(), q, make([]cq.Context, 1),
		cq.ReadOptions{Timeout: patience})
	err = errors.Join(err, readErr)
	return errors.Join(err, q.Detach())
}

// crowdedName is of the queue that one churner makes where somebody removes empty directories.
func crowdedName(i int) string { return fmt.Sprintf("crowded-%d", i) }

// crowded makes queues beside one who tidies up in their place without end: some of them can be
// made only aside, and moved there.
func (c *churner) crowded() (err error) {
	name := crowdedName(c.Index)
	tidied := make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(tidied)
		for !over.Load() {
			_ = c.dir.RemoveSub(name) // unless there is something in it
		}
	}()
	for range crowdedQueues {
		var q *cq.Queue
		q, err = cq.Create(cq.Named(c.dir, name), cq.Options{Size: 16, MaxLanes: 4})
		if err == nil {
			err = q.Close()
		}
		if err != nil {
			break
		}
	}
	over.Store(true)
	<-tidied
	if err = uncontended(err); err != nil { // collectors are, over what a predecessor left there
		err = fmt.Errorf("a queue beside one who tidies up: %w", err)
	}
	return err
}

func (c *churner) leaveCounter(name string) error {
	count, err := cq.CreateCounter(cq.Named(c.dir, name), cq.CounterOptions{Lifetime: cq.Persistent})
	if err != nil {
		return uncontended(err)
	}
	return count.Close()
}

// scratchLeft collects what churners made.
func scratchLeft(s *supervisor) (left []string) {
	for i := range scratchNames {
		left = append(left, collect(s.dir, scratchName(i))...)
	}
	for i := range churners {
		left = append(left, removeOwn(s.dir, i)...)
		left = append(left, collect(s.dir, crowdedName(i))...)
	}
	return left
}

// collect removes a queue that the dead left. One that was persistent, or left to a successor, has
// to be adopted and destroyed.
func collect(d *shm.Dir, name string) []string {
	if cq.Remove(cq.Named(d, name)) == nil {
		return nil
	}
	q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
	if err == nil {
		err = q.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cq.ErrClosed) {
		err = nil
	}
	if err = errors.Join(err, cq.Remove(cq.Named(d, name))); err != nil {
		return []string{fmt.Sprintf("%s cannot be collected: %v", name, err)}
	}
	return nil
}
