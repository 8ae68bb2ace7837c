package cq

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"

	"github.com/shmring/shmring/shm"
)

// CloseAll closes what a program has open, in whatever order it is given: what is bound goes before
// what it is bound to. Members leave the sets and channels that are among the objects, also with
// events that nobody acknowledged, and counters the memory regions; event queues report no more.
// One call in place of a deferred Close for each object cannot get the order wrong:
//
//	var q *cq.Queue
//	var events *cq.EventQueue
//	defer func() { err = errors.Join(err, cq.CloseAll(d, q, events)) }()
//
// Objects of other packages, endpoints for one, are closed first, the last one of them first;
// a [shm.Object] and a [shm.Dir] are closed last. Absent objects, nil, are left out, and so are
// those that are closed already: calling it again is harmless.
//
// It goes on after an error and returns all of them joined. An object that is bound to one that was
// not given, or of which entries are handed out, is ErrBusy, and so is what that is bound to: give
// that back and call CloseAll again. Queues are closed, not left to a successor: call
// [Queue.Detach] before for those. It may be called from anywhere.
func CloseAll(objects ...io.Closer) error {
	objects = closingOrder(objects)
	for _, o := range objects {
		switch o := o.(type) {
		case interface{ dismiss() }: // a set, a channel, or a region with its counters
			o.dismiss()
		case *EventQueue: // two event queues may report to each other
			_ = o.BindEvents(nil)
		case *EventWriter:
			_ = o.BindEvents(nil)
		}
	}
	var all error
	for _, o := range objects {
		if err := o.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// closingOrder returns the objects that there are, each before what it can be bound to.
func closingOrder(objects []io.Closer) (out []io.Closer) {
	for _, o := range slices.Backward(objects) {
		if v := reflect.ValueOf(o); o != nil && (v.Kind() != reflect.Pointer || !v.IsNil()) {
			out = append(out, o)
		}
	}
	slices.SortStableFunc(out, func(a, b io.Closer) int { return closingRank(a) - closingRank(b) })
	return out
}

// closingRank is higher for what others can be bound to. Sets and channels have let their members
// go, but for those that were opened in a set, which close before it.
func closingRank(o io.Closer) int {
	switch o.(type) {
	case *Binding: // to writers, counters and vectors
		return 1
	case *Writer: // report to event queues
		return 2
	case *MemoryRegion: // to counters, in an object
		return 3
	case *Queue: // report to event queues
		return 4
	case *Counter:
		return 5
	case *AddressVector:
		return 6
	case *EventWriter:
		return 7
	case *EventQueue:
		return 8
	case *Channel:
		return 9
	case *PollSet:
		return 10
	case *WaitSet:
		return 11
	case *shm.Object:
		return 12
	case *shm.Dir:
		return 13
	}
	return 0 // of somebody who uses what is here
}

func (s *WaitSet) dismiss() {
	for _, m := range s.list.guests() {
		_ = s.Remove(m)
	}
}

func (s *PollSet) dismiss() {
	s.mu.Lock()
	counters := s.counters // replaced, never changed in place, but for the order
	s.mu.Unlock()
	for _, p := range counters {
		_ = s.Remove(p.c)
	}
	for _, m := range s.list.guests() {
		_ = s.Remove(m)
	}
}

func (r *MemoryRegion) dismiss() {
	r.mu.Lock()
	all := slices.Clone(r.counters)
	r.mu.Unlock()
	for _, b := range all {
		_ = r.UnbindCounter(b.Counter)
	}
}

// guests returns the members that do not go with the set.
func (l *memberList) guests() (out []Waitable) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.byBit {
		if f, is := e.face.(*queueFace); !is || !f.own {
			out = append(out, e.m)
		}
	}
	return out
}

// dismiss detaches all queues, and acknowledges for whoever got events of them.
func (c *Channel) dismiss() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	c.mu.Lock()
	all := make([]*attached, 0, len(c.byFID))
	for _, a := range c.byFID {
		all = append(all, a)
	}
	c.mu.Unlock()
	for _, a := range all {
		if c.Detach(over, a.q) == nil {
			continue
		}
		c.mu.Lock() // no event comes any more
		open := a.got - a.acks
		c.mu.Unlock()
		_ = c.Ack(a.q, int(open))
		_ = c.Detach(over, a.q)
	}
}
