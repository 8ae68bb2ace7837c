package cq

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// SignalQueue is [Queue.Signal] from outside (fi_cq_signal): any process of the queue's user ends
// one wait of its reader, without a lane. Nothing is done to a queue whose reader died or left it:
// a signal would stay and end the first wait of a successor, to whom nobody meant it. Then it is
// ErrPeerGone. Other errors are fs.ErrNotExist, ErrClosed, ErrNoWait for a queue without a wait
// object, and those of opening shared memory. It may be called from anywhere.
func SignalQueue(p Place) error {
	if err := p.only("signal", placeNamed); err != nil {
		return err
	}
	name := p.name
	dir, err := p.dir.Sub(name, false)
	if err != nil {
		return failed("signal", name, err)
	}
	door := homeIn(p.dir, name, dir)
	defer door.close()
	obj, err := door.openReader()
	if err != nil {
		return failed("signal", name, err)
	}
	defer obj.Close()
	o, err := stored("signal", name, obj.Header())
	if err == nil && o.Wait == WaitNone {
		err = &Error{Pkg: kind.Pkg, Op: "signal", Name: name, Err: ErrNoWait,
			Hint: "create it with another wait object: its reader never blocks"}
	}
	if err == nil {
		// Whoever owns the file may truncate it meanwhile, and we are perhaps only a tool.
		fault := shm.Guard(func() {
			if err = hasReader(obj, name); err == nil {
				err = signalFrom(door, obj, o)
			}
		})
		err = errors.Join(fault, err)
	}
	if err != nil {
		return failed("signal", name, err)
	}
	return nil
}

// hasReader is nil if there is somebody whom a signal can reach. A reader that is stopped lives.
func hasReader(obj *shm.Object, name string) error {
	_, died, err := obj.OwnerDied()
	if err != nil || !died && obj.Owner().State != shm.StateReleased {
		return err
	}
	got := "gone: it left the queue to a successor"
	if died {
		got = "dead"
	}
	return &Error{Pkg: kind.Pkg, Op: "signal", Name: name, Field: "reader", Got: got, Err: ErrPeerGone,
		Hint: "nobody waits; signal the reader that takes the queue over, once it has"}
}

// signalFrom does to the reader what Bell.Signal does inside its process. Of the reader's object
// only the hints are mapped for writing, as for a writer.
func signalFrom(door door, obj *shm.Object, o shape) error {
	words, err := kind.WordsOf[kind.QueueWords](obj, kind.SectQueue, 0)
	if err != nil {
		return err
	}
	if words.State.Load() == kind.StateClosed {
		return ErrClosed
	}
	mem, err := obj.MapWritable(kind.SectHints, 0)
	if err != nil {
		return err
	}
	hints, err := doorbell.MapHints(mem, o.rows())
	if err != nil {
		return err
	}
	hold := bellHold{words: &words.Bell, home: door.beside(), owner: obj.Owner, fd: -1}
	defer hold.drop()
	fd := -1
	doorbell.Signal(&words.Arm, hints, func(generation uint16) int {
		fd = door.openFace(obj, words, generation)
		return fd
	}, hold.ring)
	eventfd.Close(fd)
	return nil
}

// Signal ends one GetEvent, or one wait on the descriptor, see TryGetEvent: one that is waiting
// now, or else the next that finds no event. After Close it is ErrClosed.
func (c *Channel) Signal() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.signal.Store(true)
	c.ch.Alert()
	return nil
}

// SignalAll ends every Get that is waiting now, and leaves nothing for later ones. After Close it
// is ErrClosed.
func (c *Channel) SignalAll() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.broadcast.Add(1)
	c.bell.Kick()
	return nil
}
