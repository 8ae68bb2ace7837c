package cq

import "github.com/shmring/shmring/internal/kind"

// TryWaiter is what [TryWait] takes: a queue, event queue, counter or wait set with a wait object
// that the caller can sleep on with system calls of its own.
type TryWaiter interface {
	FID() FID
	TryWait() error
	waitObject() WaitObject
}

// TryWait arms the wait objects of everything that the caller is about to sleep on (fi_trywait).
// nil says that nothing is queued anywhere and that a sleep on the descriptors will end when
// something comes; ErrWouldBlock that something is there, or may be: read everything and try again.
// All must have the same kind of wait object, else ErrInvalid; ErrNoWait if that is none to sleep
// on. Of a set only the set itself is passed, not its members. Every sleep needs a TryWait of its
// own.
//
// Each object must be one that the calling goroutine may use.
func TryWait(objects ...TryWaiter) error {
	for _, o := range objects {
		if absent(o) {
			return errAbsent("trywait")
		}
		if o.waitObject() != objects[0].waitObject() {
			return kind.Refuse("trywait", o.FID().String(), "wait object", o.waitObject(),
				objects[0].waitObject(), ErrInvalid)
		}
	}
	for _, o := range objects {
		if err := o.TryWait(); err != nil {
			return err
		}
	}
	return nil
}
