package cq

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/internal/wake"
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
func (e CounterEvents) String() string { return text.Name(e, "events", "completions", "bytes") }

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
	value  *atomic.Uint64     // of words, as errs: so Read and ReadErr are inlined
	errs   *atomic.Uint64
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
	feeders feeders
	// careful is not 0 if reads have more to do: there is a descriptor, was a feeder or a Close, or
	// the race detector is to learn what they order. Atomic; as a plain word it costs the compiler
	// less, which then inlines Read.
	careful uint32
	face    *wake.Face
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
func (c *Counter) Read() (v uint64, err error) {
	// No lock keeps Close away. The words lie in a shm.Window, whose memory stays while c can be
	// reached; and whether c was closed is asked afterwards, so what is returned was the value and
	// not the zeros that follow it.
	v = c.value.Load()
	if atomic.LoadUint32(&c.careful) != 0 {
		v, err = c.readValue()
	}
	return
}

// ReadErr returns the error value (fi_cntr_readerr), or ErrClosed.
func (c *Counter) ReadErr() (v uint64, err error) {
	v = c.errs.Load()
	if atomic.LoadUint32(&c.careful) != 0 {
		v, err = c.readErrs()
	}
	return
}

//go:noinline
func (c *Counter) readValue() (uint64, error) { return c.readCarefully(c.value, &c.seen.value) }

//go:noinline
func (c *Counter) readErrs() (uint64, error) { return c.readCarefully(c.errs, &c.seen.errs) }

func (c *Counter) readCarefully(word, seen *atomic.Uint64) (uint64, error) {
	if c.feeders.driven() {
		c.feeders.drive()
	}
	v := word.Load()
	c.edge.acquire()
	if c.face != nil {
		countStore(seen, v)
	}
	if c.guard.isClosed() {
		return 0, ErrClosed
	}
	return v, nil
}

// Add adds to the value (fi_cntr_add). Whoever carries out operations adds 1 for each that went
// well, or its bytes to a BytesCounter (fi_peer: inc of struct fi_ops_cntr_owner). ErrClosed means
// that it may not have counted, because another goroutine closed the counter.
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

// AddErr adds to the error value (fi_cntr_adderr), as Add: 1 for each operation that failed
// (fi_peer: incerr).
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

func (c *Counter) open() error {
	if c.guard.isClosed() {
		return ErrClosed
	}
	return nil
}

// Options returns how the counter was created, and what is this handle's own.
func (c *Counter) Options() CounterOptions { return c.opt }

// UserContext returns CounterOptions.UserContext.
func (c *Counter) UserContext() any { return c.opt.UserContext }

// FID returns the counter's identifier, by which events mean it, in every process.
func (c *Counter) FID() FID { return c.fid }

// ObjectFD returns the descriptor by which another process opens the counter, with [FromFD]:
// send it with [shm.SendFDs]. It stays the counter's, and is -1 if this process can have no more.
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

// CreateCounter makes a counter and opens it (fi_cntr_open). One of that name that exists is
// fs.ErrExist (EEXIST), unless it is ephemeral and no living process has it open: then it is
// removed first. One that is [Unnamed] goes with its last process. Other errors are ErrInvalid and
// those of creating shared memory. It may be called from anywhere.
func CreateCounter(p Place, o CounterOptions) (*Counter, error) {
	const op = "create counter"
	if err := errors.Join(p.only(op, placeNamed|placeUnnamed), o.check(op, p.name)); err != nil {
		return nil, err
	}
	for range openTries {
		c, err := createCounter(p, o)
		if !errors.Is(err, collect.ErrGone) {
			return c, failed(op, p.name, err)
		}
	}
	return nil, failed(op, p.name, ErrBusy)
}

func createCounter(p Place, o CounterOptions) (*Counter, error) {
	obj, err := p.make(o.spec(p.name), nil)
	if err != nil {
		return nil, err
	}
	return newCounter(obj, p.name, p.dir, o, true)
}

// AttachCounter opens a counter that exists, [Named] or [FromFD] (fi_cntr_open of one that others
// have). Events and Lifetime of o, if not zero, must agree with how it was created. Errors are
// fs.ErrNotExist, ErrInvalid and those of opening shared memory. It may be called from anywhere.
func AttachCounter(p Place, o CounterOptions) (*Counter, error) {
	const op = "open counter"
	if err := p.only(op, placeNamed|placeFromFD); err != nil {
		return nil, err
	}
	for range openTries {
		obj, name, err := p.find(op)
		if err != nil {
			return nil, err
		}
		c, err := openCounter(op, obj, name, p.dir, o)
		if !errors.Is(err, collect.ErrGone) {
			return c, failed(op, name, err)
		}
	}
	return nil, failed(op, p.name, ErrBusy)
}

// openTries bounds how often a counter that goes away while it is opened is looked for again.
const openTries = 16

// openCounter takes over the object.
func openCounter(op string, obj *shm.Object, name string, d *shm.Dir,
	want CounterOptions) (*Counter, error) {
	o, err := storedCounter(op, name, obj.Header())
	if err == nil {
		err = want.agrees(op, name, o)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	want.Events, want.Lifetime = o.Events, o.Lifetime
	return newCounter(obj, name, d, want, false)
}

// newCounter takes over the object. If it fails one that was just made goes again.
func newCounter(obj *shm.Object, name string, d *shm.Dir, o CounterOptions, made bool) (*Counter,
	error) {
	c := &Counter{name: name, dir: d.Dup(), opt: o, obj: obj, fid: objectFID(FIDCounter, obj),
		spin: spin.Budget(o.Spin), gone: make(chan struct{})}
	c.waiters.low = counterbell.Idle
	if !made {
		err := c.start()
		if err == nil {
			return c, nil
		}
		return nil, errors.Join(err, c.drop(), c.dir.Close())
	}
	// To remove it again takes a descriptor, and that there is none may be why.
	spare := eventfd.Dup(obj.FD())
	err := error(syscall.EMFILE)
	if spare >= 0 {
		err = obj.Release() // it is nobody's: whoever has it open has a seat
	}
	if err == nil {
		err = c.start()
	}
	eventfd.Close(spare)
	if err == nil {
		return c, nil
	}
	return nil, errors.Join(err, c.letGo(), c.unmake(), obj.Close(), c.dir.Close())
}

// unmake removes the name of a counter that was just made, unless somebody has it open already.
func (c *Counter) unmake() error {
	if c.dir == nil {
		return nil
	}
	var busy *shm.BusyError
	switch err := c.obj.Hold(nil); {
	case errors.As(err, &busy), errors.Is(err, shm.ErrStale):
		return nil
	case err != nil:
		return err
	}
	return c.obj.Unlink()
}

func (c *Counter) start() (err error) {
	// This window is for the end, and had first: a handle that cannot say that it is closed is taken
	// for dead.
	if c.last, err = c.obj.Window(kind.SectCounter, 0); err != nil {
		return err
	}
	end := kind.Overlay[kind.CounterWords](c.last.Bytes())
	if end == nil {
		return kind.Refuse("map", c.name, "section length", len(c.last.Bytes()), kind.CounterBytes,
			ErrCorrupt)
	}
	c.seats = c.obj.Seats(end.Seats[:])
	if c.seat, err = collect.Sit(c.obj, c.seats, c.dir != nil); err != nil {
		return err
	}
	if c.window, err = c.obj.Window(kind.SectCounter, 0); err != nil {
		return err
	}
	c.words = kind.Overlay[kind.CounterWords](c.window.Bytes())
	c.value, c.errs = &c.words.Value, &c.words.Errs
	c.careful = c.edge.init(c.fid.ID)
	if c.opt.Wait == WaitFD {
		if c.face, err = wake.NewFace(-1); err != nil {
			return err
		}
		c.keeper.init(c, c.face.Set)
		atomic.StoreUint32(&c.careful, 1)
	}
	c.register()
	return nil
}

// register tells the others that somebody came.
func (c *Counter) register() {
	c.words.Bell.Sit(c.seat.Index())
	crash.At(crash.CountJoined)
	c.words.Bell.Announce()
}

// Close closes this handle (fi_close); those of other processes go on, and keep the value. The last
// one to close an ephemeral counter removes its name. Blocked waits of this handle return
// ErrClosed. It fails with ErrBusy while the counter is in a set or bound to something that feeds
// it. Closing twice is harmless.
func (c *Counter) Close() error {
	if err := c.holders.close(); err != nil {
		return &Error{Pkg: kind.Pkg, Op: "close", Name: c.name, Err: err,
			Hint: "take it out of its sets, and close the memory regions and endpoints that feed it" +
				hintCloseAll}
	}
	first, err := c.guard.close(c.turnOut)
	if err != nil || !first {
		return err
	}
	atomic.StoreUint32(&c.careful, 1) // before the words go
	c.closing.Do(func() { close(c.gone) })
	c.deaths.unbind()
	c.keeper.stop()
	c.peers.stop()
	err = c.drop()
	if c.dir != nil && c.opt.Lifetime == Ephemeral {
		err = errors.Join(err, c.removeUnused())
	}
	return failed("close", c.name, errors.Join(err, c.dir.Close()))
}

// turnOut wakes who waits in this handle, and with it others for nothing.
func (c *Counter) turnOut() {
	c.closing.Do(func() { close(c.gone) })
	c.words.Bell.Kick()
}

// drop gives back what the handle holds. An add by another goroutine may be under way.
func (c *Counter) drop() error { return errors.Join(c.letGo(), c.obj.Close()) }

// letGo gives back all but the object.
func (c *Counter) letGo() error {
	var err error
	if c.window != nil {
		err = c.window.Close()
	}
	if c.seat != nil {
		c.deregister()
	}
	if c.last != nil {
		err = errors.Join(err, c.last.Close())
	}
	c.face.Close()
	return err
}

// deregister runs when nothing can be added through the handle any more. An add that came before
// may have found its memory exchanged between its epoch and its wake: so who sleeps is woken once
// more, if anybody is not known to be awake. Then no death of this process matters to him.
func (c *Counter) deregister() {
	bell := &kind.Overlay[kind.CounterWords](c.last.Bytes()).Bell
	bell.Ring(counterbell.Any)
	if i := c.seat.Index(); i >= 0 {
		bell.Sit(i)
	}
	c.seat.Leave()
}

// removeUnused removes the counter's name unless somebody has it open.
func (c *Counter) removeUnused() error {
	err := collect.Remove(c.dir, c.name, collect.Options{Object: c.obj.Header().UUID})
	if errors.Is(err, ErrBusy) {
		return nil
	}
	return err
}

func (o CounterOptions) spec(name string) shm.Spec {
	return kind.Counter{Events: uint64(o.Events), Lifetime: uint64(o.Lifetime)}.Spec(name)
}

// storedCounter returns the options with which a counter was created.
func storedCounter(op, name string, h shm.Header) (CounterOptions, error) {
	a, err := kind.StoredCounter(op, name, h)
	return CounterOptions{Events: CounterEvents(a.Events), Lifetime: Lifetime(a.Lifetime)}, err
}
