package cq

import (
	"errors"
	"slices"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
)

// ErrNoEQ: an asynchronous operation of an object that no event queue is bound to (ENOEQ).
var ErrNoEQ error = kind.NewSentinel("no event queue is bound that could tell how it ends",
	ENoEQ, nil)

// asyncInsert is an insertion whose end is an event.
type asyncInsert struct {
	addrs   [][]byte
	context uint64
}

// BindEvents binds an event queue. The owner's, which must be one of this process, gets what
// insertions with Async report (fi_av_bind); it cannot be closed before the vector is, and ErrBusy
// says that one is bound already.
//
// In a process that only looks things up it gets the deaths of owners: an EventPeerDeath with the
// vector's FID for each that is proved dead, after which the vector stays as it is until it has a
// successor, and an EventPeerNew for the one that is found to have taken it over: those who came
// and went before anybody looked have none. The payload is a [PeerEntry]. When and how often is as
// with [Writer.BindEvents]: also how a sink is replaced, and nil. One that closes or detaches is
// not dead. An owner is not told of those who look things up: they leave no trace.
//
// Other errors are ErrClosed.
func (v *AddressVector) BindEvents(events EventSink) error {
	const op = "bind"
	if !v.owner {
		if !v.guard.enterAny() {
			return bindError(v.name, ErrClosed)
		}
		defer v.guard.leaveAny()
		return v.bindOwner(events)
	}
	if err := v.enterOwner(op); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	eq, ok := events.(*EventQueue)
	if !ok && events != nil {
		return kind.Refuse(op, v.name, "event queue", "a writer's", "one of this process", ErrInvalid)
	}
	if eq == nil {
		return kind.Refuse(op, v.name, "event queue", nil, "one", ErrInvalid)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.events != nil {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrBusy,
			Hint: "an event queue is bound already"}
	}
	if err := eq.bind(); err != nil {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: err}
	}
	v.events = eq
	return nil
}

// insertLater begins an insertion whose end is an event.
func (v *AddressVector) insertLater(addrs [][]byte, context uint64) error {
	const op = "insert"
	if err := v.enterOwner(op); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.events == nil:
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrNoEQ, Hint: "call BindEvents first"}
	case v.aborting.Load():
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrClosed}
	case len(addrs) >= v.events.opt.Size:
		return kind.Refuse(op, v.name, "len(addrs)", len(addrs), "less than the size of the event queue",
			ErrInvalid)
	}
	if err := v.events.own.credit(len(addrs) + 1); err != nil {
		return err
	}
	job := asyncInsert{addrs: make([][]byte, len(addrs)), context: context}
	for i, raw := range addrs {
		job.addrs[i] = slices.Clone(raw)
	}
	v.jobs = append(v.jobs, job)
	if !v.working {
		v.working = true
		v.worker.Go(v.work)
	}
	return nil
}

// work runs until there is nothing more to insert.
func (v *AddressVector) work() {
	for {
		v.mu.Lock()
		if len(v.jobs) == 0 {
			v.working = false
			v.mu.Unlock()
			return
		}
		job := v.jobs[0]
		v.jobs = v.jobs[1:]
		v.mu.Unlock()
		v.insertJob(job)
	}
}

// insertJob reports with room that was reserved: a post fails only if the event queue was overrun
// by others, and then its reader is told that events were lost.
func (v *AddressVector) insertJob(job asyncInsert) {
	good := 0
	for i, raw := range job.addrs {
		var err error = Errno(syscall.ECANCELED)
		if !v.aborting.Load() {
			_, err = v.insertOne(raw, nil)
		}
		if err == nil {
			good++
			continue
		}
		_ = v.events.postErr(&EventError{FID: v.fid, Context: job.context, Data: uint64(i),
			Err: errnoOf(err)}, true)
	}
	_ = v.events.post(&Event{Event: EventAVComplete, FID: v.fid, Context: job.context,
		Data: uint64(good)}, true)
	v.events.own.returnCredits(good) // kept for errors that did not happen
}

// abort ends the insertions that are under way and waits for the last of them to be reported.
func (v *AddressVector) abort() {
	v.mu.Lock()
	v.aborting.Store(true) // under the lock: no insertion begins after it
	v.mu.Unlock()
	v.worker.Wait()
}

// errnoOf returns the number of an error, EOther if it has none.
func errnoOf(err error) Errno {
	var s *kind.Sentinel
	var fabric Errno
	var system syscall.Errno
	if errors.As(err, &s) {
		err = s.Num
	}
	switch {
	case errors.As(err, &fabric):
		return fabric
	case errors.As(err, &system):
		return Errno(system)
	}
	return EOther
}
