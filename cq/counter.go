package cq

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// CounterEvents says what a counter counts (enum fi_cntr_events).
type CounterEvents uint32

const (
	// CompletionsCounter grows by one for each completed operation (FI_CNTR_EVENTS_COMP).
	CompletionsCounter CounterEvents = iota
	// BytesCounter grows by the operation's user bytes, without remote CQ data
	// (FI_CNTR_EVENTS_BYTES). A failed operation adds 1 to the error value whatever its size.
	BytesCounter
)

// String returns what is counted, "completions" or "bytes".
func (e CounterEvents) String() string {
	if e == BytesCounter {
		return "bytes"
	}
	return "completions"
}

// The largest values of a counter (domain attributes max_cntr_value, max_err_cntr_value). One more
// makes it 0 again, and a wait for a value beyond that may then be missed.
const (
	MaxCounterValue    uint64 = math.MaxUint64
	MaxCounterErrValue uint64 = math.MaxUint64
)

// CounterOptions of a counter (struct fi_cntr_attr). Events and Lifetime are fixed at creation; the
// rest is each handle's own. The zero value counts completions, can block, and goes away with its
// last process.
type CounterOptions struct {
	Events   CounterEvents
	Lifetime Lifetime // an Ephemeral counter goes with the last that closes it
	// Wait is what Wait waits on. WaitFD adds a descriptor, see [Counter.GetWait].
	Wait WaitObject
	// Spin is how long Wait looks before it sleeps, as Options.Spin.
	Spin time.Duration
	// UserContext is the counter's own context (of fi_cntr_open), returned by
	// Counter.UserContext.
	UserContext any
}

// Counter is a pair of numbers, a value and an error value, that several processes of a user add to
// and wait for (fid_cntr). Nobody owns it: it has a value as long as a process has it open, or for
// ever if it is Persistent.
//
// All methods are safe from anywhere, with any number of goroutines in them, but for TryWait. Add,
// Read and their like make no system call unless somebody sleeps for what they bring, and do not
// allocate. What a process stored before it added is visible to whoever saw the sum.
type Counter struct {
	words  *kind.CounterWords // in the window, whose zero pages stand there after Close
	guard  guard
	seen   counterSeen
	edge   counterEdge
	name   string
	dir    *shm.Dir // nil without a name
	fid    FID
	opt    CounterOptions
	spin   time.Duration
	obj    *shm.Object
	window *shm.Window
	last   *shm.Window // the same for what is said at the end
	seats  shm.Seats
	seat   *shm.Seat // ours

	holders holders // sets and feeders
	face    *doorbell.Face
	gone    chan struct{} // closed when Close begins
	closing sync.Once

	waiters counterWaiters
	peers   counterPeers
	deaths  deathBinding // of other handles' processes
	keeper  counterKeeper
	rings   atomic.Uint64
	sleeps  atomic.Uint64
}

// counterSeen is what Read and ReadErr returned last, where there is a descriptor.
type counterSeen struct{ value, errs atomic.Uint64 }

// Read returns the value (fi_cntr_read), or ErrClosed.
//
// The words are looked at without a lock against Close. They lie in a [shm.Window], whose memory
// stays while c can be reached, so the look is always at memory; and whether c was closed is asked
// afterwards, so what is returned was the value and not the zeros that follow it.
func (c *Counter) Read() (uint64, error) {
	v := c.words.Value.Load()
	c.edge.acquire()
	if c.face != nil {
		countStore(&c.seen.value, v)
	}
	if c.guard.isClosed() {
		return 0, ErrClosed
	}
	return v, nil
}

// ReadErr returns the error value (fi_cntr_readerr), or ErrClosed.
func (c *Counter) ReadErr() (uint64, error) {
	v := c.words.Errs.Load()
	c.edge.acquire()
	if c.face != nil {
		countStore(&c.seen.errs, v)
	}
	if c.guard.isClosed() {
		return 0, ErrClosed
	}
	return v, nil
}

// Add adds to the value (fi_cntr_add). ErrClosed means that it may not have counted, because
// another goroutine closed the counter.
func (c *Counter) Add(n uint64) error {
	c.edge.release()
	v := c.words.Value.Add(n)
	if crash.On {
		crash.At(crash.CountAdded)
	}
	if c.quiet() {
		return nil
	}
	return c.ring(v)
}

// AddErr adds to the error value (fi_cntr_adderr), as Add.
func (c *Counter) AddErr(n uint64) error {
	c.edge.release()
	c.words.Errs.Add(n)
	if crash.On {
		crash.At(crash.CountAdded)
	}
	if c.quiet() {
		return nil
	}
	return c.ring(counterbell.Any)
}

// Set sets the value (fi_cntr_set). Additions that come at the same time may be lost, and a wait
// for a value that it takes back may be missed.
func (c *Counter) Set(v uint64) error {
	c.edge.release()
	c.words.Value.Store(v)
	c.words.Sets.Add(1)
	return c.ring(v)
}

// SetErr sets the error value (fi_cntr_seterr), as Set.
func (c *Counter) SetErr(v uint64) error {
	c.edge.release()
	c.words.Errs.Store(v)
	c.words.Sets.Add(1)
	return c.ring(counterbell.Any)
}

// quiet reports that after an add there is nothing else to do.
func (c *Counter) quiet() bool { return c.words.Bell.Quiet() && !c.guard.isClosed() }

// ring wakes whom v concerns.
func (c *Counter) ring(v uint64) error {
	if c.words.Bell.Ring(v) {
		c.rings.Add(1)
	}
	return c.open()
}

// AddCompletion counts an operation of so many bytes that completed: them or one, as the counter
// was created (fi_peer: inc of struct fi_ops_cntr_owner). Errors are those of Add.
func (c *Counter) AddCompletion(lenBytes uint64) error {
	if c.opt.Events == BytesCounter {
		return c.Add(lenBytes)
	}
	return c.Add(1)
}

// AddError counts an operation that failed (fi_peer: incerr). Errors are those of Add.
func (c *Counter) AddError() error { return c.AddErr(1) }

func (c *Counter) open() error {
	if c.guard.isClosed() {
		return ErrClosed
	}
	return nil
}

// Name returns the counter's name.
func (c *Counter) Name() string { return c.name }

// Options returns how the counter was created, and what is this handle's own.
func (c *Counter) Options() CounterOptions { return c.opt }

// UserContext returns CounterOptions.UserContext.
func (c *Counter) UserContext() any { return c.opt.UserContext }

// FID returns the counter's identifier, by which events mean it, in every process.
func (c *Counter) FID() FID { return c.fid }

// ObjectFD returns the descriptor by which another process opens the counter, with [FromFD]:
// send it with [shm.SendFDs]. It stays the counter's.
func (c *Counter) ObjectFD() int { return c.obj.FD() }

// CounterStats are counts of one handle.
type CounterStats struct {
	Rings   uint64 // system calls to wake others
	Sleeps  uint64 // system calls to sleep
	Waiters int    // goroutines that wait now
}

// Stats returns counts. It may be called at any time.
func (c *Counter) Stats() CounterStats {
	c.waiters.mu.Lock()
	defer c.waiters.mu.Unlock()
	return CounterStats{Rings: c.rings.Load(), Sleeps: c.sleeps.Load(),
		Waiters: len(c.waiters.list)}
}

// check refuses options that mean nothing.
func (o CounterOptions) check(op, name string) error {
	switch {
	case o.Events > BytesCounter:
		return kind.Refuse(op, name, "Events", uint32(o.Events), "CompletionsCounter or BytesCounter",
			ErrInvalid)
	case o.Lifetime > Persistent:
		return kind.Refuse(op, name, "Lifetime", uint32(o.Lifetime), "Ephemeral or Persistent",
			ErrInvalid)
	case o.Wait == WaitCritSecCond:
		return errWindows(op, name)
	case o.Wait > WaitYield:
		return kind.Refuse(op, name, "Wait", uint32(o.Wait),
			"WaitUnspec, WaitNone, WaitFD or WaitYield", ErrInvalid)
	}
	return nil
}

// mark returns where the counter stands.
func (c *Counter) mark() (value, errs, sets uint64) {
	return c.words.Value.Load(), c.words.Errs.Load(), c.words.Sets.Load()
}

// counterCheckpoint is what a set last reported of a counter. The zero value is a counter of which
// nothing was reported: one that has ever been added to is news. Adding only ever moves away from
// a checkpoint; what was set to the same value again shows in sets.
type counterCheckpoint struct{ value, errs, sets uint64 }

// news returns where the counter stands, and whether that is news to a set. Whoever reports it
// stores it in its checkpoint; one whose array was too short does not, and is told again.
//
// fi_poll(3) has a set forget what the application adds or sets itself. It allows to report too
// much but never too little, and one handle may serve several goroutines, one of which adds what
// another waits for: so everything is news, whoever did it.
func (c *Counter) news(last counterCheckpoint) (now counterCheckpoint, changed bool, err error) {
	now.value, now.errs, now.sets = c.mark()
	if err := c.open(); err != nil {
		return last, true, err
	}
	c.edge.acquire()
	return now, now != last, nil
}
