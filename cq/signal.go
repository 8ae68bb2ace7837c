package cq

import (
	"errors"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// SignalQueue is [Queue.Signal] from outside (fi_cq_signal): any process of the queue's user ends
// one blocking read of its reader, without a lane. A queue that nobody reads keeps the signal for
// the next reader. Errors are fs.ErrNotExist, ErrClosed, ErrNoWait for a queue without a wait
// object, and those of opening shared memory. It may be called from anywhere.
func SignalQueue(d *shm.Dir, name string) error {
	dir, err := d.Sub(name, false)
	if err != nil {
		return failed("signal", name, err)
	}
	door := &dirHome{path: d.Path(), name: name, dir: dir}
	defer door.close()
	obj, err := door.openReader()
	if err != nil {
		return failed("signal", name, err)
	}
	defer obj.Close()
	o, err := stored("signal", name, obj.Header())
	if err == nil && o.Wait == WaitNone {
		err = &Error{Pkg: pkg, Op: "signal", Name: name, Err: ErrNoWait,
			Hint: "its reader never blocks"}
	}
	if err == nil {
		// Whoever owns the file may cut it meanwhile, and we are perhaps only a tool.
		fault := shm.Guard(func() { err = signalFrom(door, obj, o) })
		err = errors.Join(fault, err)
	}
	if err != nil {
		return failed("signal", name, err)
	}
	return nil
}

// signalFrom does to the reader what Bell.Signal does inside its process. Of the reader's object
// only the hints are mapped for writing, as for a writer.
func signalFrom(door door, obj *shm.Object, o shape) error {
	words, err := wordsOf[queueWords](obj, sectQueue, 0)
	if err != nil {
		return err
	}
	if words.state.Load() == stateClosed {
		return ErrClosed
	}
	mem, err := obj.MapWritable(sectHints, 0)
	if err != nil {
		return err
	}
	hints, err := doorbell.MapHints(mem, o.rows())
	if err != nil {
		return err
	}
	hold := bellHold{words: &words.bell, home: door.beside(), owner: obj.Owner, fd: -1}
	defer hold.drop()
	fd := -1
	doorbell.Signal(&words.arm, hints, func(generation uint16) int {
		fd = door.openFace(obj, words, generation)
		return fd
	}, hold.ring)
	doorbell.CloseFD(fd)
	return nil
}

// Signal ends one Get: one that is waiting now, or else the next that finds no event. After Close
// it is ErrClosed.
func (c *Channel) Signal() error {
	if !c.gate.enter() {
		return ErrClosed
	}
	defer c.gate.leave()
	c.signal.Store(true)
	c.bell.Kick()
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
