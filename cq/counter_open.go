package cq

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// CreateCounter makes a counter and opens it (fi_cntr_open). One of that name that exists is
// fs.ErrExist (EEXIST), unless it is ephemeral and no living process has it open: then it is
// removed first. One that is [Unnamed] goes with its last process. Other errors are ErrInvalid and
// those of creating shared memory. It may be called from anywhere.
func CreateCounter(p Place, o CounterOptions) (*Counter, error) {
	const op = "create counter"
	if err := errors.Join(p.only(op, placeNamed|placeUnnamed), o.check(op, p.name)); err != nil {
		return nil, err
	}
	if p.form == placeNamed && strings.HasPrefix(p.name, shm.BellPrefix) {
		return nil, kind.Refuse(op, p.name, "name", p.name, "one that is not a bell's", shm.ErrName)
	}
	for range openTries {
		c, err := createCounter(p, o)
		if !errors.Is(err, errCounterGone) {
			return c, failedOr(op, p.name, err)
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
		if !errors.Is(err, errCounterGone) {
			return c, failedOr(op, name, err)
		}
	}
	return nil, failed(op, p.name, ErrBusy)
}

// failedOr is failed for a call that may have succeeded.
func failedOr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return failed(op, name, err)
}

// openTries bounds how often a counter that goes away while it is opened is looked for again.
const openTries = 16

// errCounterGone: the last process closed it between our finding and our opening it.
var errCounterGone = fmt.Errorf("cq: counter is just removed: %w", fs.ErrNotExist)

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
	if !c.obj.Owned() {
		switch err := c.obj.Hold(); {
		case errors.As(err, &busy), errors.Is(err, shm.ErrStale):
			return nil
		case err != nil:
			return err
		}
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
	if err = c.sit(); err != nil {
		return err
	}
	if c.dir != nil {
		// Whoever had the whole object before us may have removed it; now nobody can.
		linked, err := c.obj.Linked()
		if err == nil && !linked {
			err = errCounterGone
		}
		if err != nil {
			return err
		}
	}
	if c.window, err = c.obj.Window(kind.SectCounter, 0); err != nil {
		return err
	}
	c.words = kind.Overlay[kind.CounterWords](c.window.Bytes())
	c.edge.init(c.fid.ID)
	if c.opt.Wait == WaitFD {
		if c.face, err = doorbell.NewFace(-1); err != nil {
			return err
		}
		c.keeper.init(c, c.face.Set)
	}
	c.register()
	return nil
}

// sit takes a seat, which says whose death the others must watch, before anything is added. Whoever
// creates or removes the counter has all of them for a moment.
func (c *Counter) sit() (err error) {
	const tries = 2000
	for range tries {
		c.seat, err = c.seats.Take()
		var busy *shm.BusyError
		if !errors.As(err, &busy) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
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
			Hint: "take it out of its sets and close what feeds it first"}
	}
	first, err := c.guard.close(c.turnOut)
	if err != nil || !first {
		return err
	}
	c.closing.Do(func() { close(c.gone) })
	c.deaths.unbind()
	c.keeper.stop()
	c.peers.stop()
	err = c.drop()
	if c.dir != nil && c.opt.Lifetime == Ephemeral {
		err = errors.Join(err, c.removeUnused())
	}
	return failedOr("close", c.name, errors.Join(err, c.dir.Close()))
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
