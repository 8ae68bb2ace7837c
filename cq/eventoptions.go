package cq

import (
	"fmt"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// WaitQueue is the kernel wait queue of kfi_eq(3) (KFI_WAIT_QUEUE): here blocking reads sleep on a
// futex, which is what WaitUnspec does too.
const WaitQueue = WaitUnspec

// EventOptions of an event queue (struct fi_eq_attr). The zero value holds 1024 events a writer, of
// up to 232 bytes of payload, of up to 63 writers, and can block. Size, DataMaxBytes, MaxLanes,
// Overrun, Lifetime, Wait, Trust and WritersPay are fixed at creation; [EventQueue.Options] returns
// what they were resolved to. The others are each reader's own: a successor gives them again.
type EventOptions struct {
	// Size is how many events each writer, and the queue's owner, can write without a read; it is
	// rounded up to a power of two. 0 is 1024, the most is 1<<24.
	Size int
	// DataMaxBytes is the longest payload of an event and error data of an error event. It is
	// rounded up. 0 is 232, the most is 65512; every slot takes that much memory.
	DataMaxBytes int
	// MaxLanes bounds how many other writers can be attached at once. 0 is 63, the most 1024.
	MaxLanes int
	Overrun  Overrun
	Lifetime Lifetime
	Wait     WaitObject
	// Existing is as in [Options].
	Existing bool
	// Trust, Allow and UserLanes are as in [Options].
	Trust     Trust
	Allow     *shm.AllowList
	UserLanes int
	// WaitSet is the set of a queue with WaitInSet; otherwise it is ignored.
	WaitSet *WaitSet
	// Spin is as in [Options].
	Spin time.Duration
	// Shared allows several goroutines to read, wait and write at once, at the price of a lock a
	// call. Without it one may read and one write, and what the library reports comes as it will.
	Shared bool
	// Write allows Write and WriteErr on this handle (FI_WRITE). What the library itself reports,
	// and what writers of other processes do, needs no permission.
	Write bool
	// Affinity is as in [Options].
	Affinity Affinity
	// Handler gets every event in place of a reader: see [CreateEvents].
	Handler func(*Event, error)
	// WritersPay is as in [Options].
	WritersPay bool
	// UserContext is the queue's own context (of fi_eq_open), returned by EventQueue.UserContext.
	UserContext any
}

const (
	defaultEventLanes  = 63 // with the owner's lane one word of marks, which a read looks at
	defaultDetailBytes = 256
)

// shape checks o and says what queue that is. Of what a successor leaves open, creating says so.
func (o EventOptions) shape(op, name string, creating bool) (shape, error) {
	var s shape
	if o.DataMaxBytes < 0 || o.DataMaxBytes > kind.MaxDetailBytes-kind.DetailHeaderBytes {
		return s, kind.Refuse(op, name, "DataMaxBytes", o.DataMaxBytes,
			fmt.Sprintf("0 to %d", kind.MaxDetailBytes-kind.DetailHeaderBytes), ErrInvalid)
	}
	if o.Handler != nil && (o.Wait.hasFD() || o.Wait == WaitInSet) {
		return s, kind.Refuse(op, name, "Wait", o.Wait, "another wait object, or no Handler", ErrInvalid)
	}
	s = shape{events: true, Options: Options{Size: o.Size, MaxLanes: o.MaxLanes,
		Overrun: o.Overrun, Lifetime: o.Lifetime, Wait: o.Wait, Spin: o.Spin, Shared: o.Shared,
		Trust: o.Trust, Allow: o.Allow, UserLanes: o.UserLanes, Affinity: o.Affinity,
		WaitSet: o.WaitSet, WritersPay: o.WritersPay, UserContext: o.UserContext}}
	if o.DataMaxBytes > 0 {
		s.detailBytes = (o.DataMaxBytes + kind.DetailHeaderBytes + kind.MinDetailBytes - 1) &^
			(kind.MinDetailBytes - 1)
	}
	if !creating {
		return s, nil
	}
	if s.detailBytes == 0 {
		s.detailBytes = defaultDetailBytes
	}
	if s.MaxLanes == 0 {
		s.MaxLanes = defaultEventLanes
	}
	var err error
	s.Options, err = s.Options.resolve(op, name)
	return s, err
}

// resolved returns o as the queue is.
func (o EventOptions) resolved(s shape) EventOptions {
	o.Size, o.MaxLanes, o.Overrun, o.Lifetime = s.Size, s.MaxLanes, s.Overrun, s.Lifetime
	o.Trust, o.Existing = s.Trust, false
	o.Wait, o.WritersPay, o.DataMaxBytes = s.Wait, s.WritersPay, s.detailBytes-kind.DetailHeaderBytes
	return o
}
