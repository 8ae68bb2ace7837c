package shm

import (
	"os"
	"sync"
	"syscall"
)

// Seat is one of a number of places at an object that many processes write together. A seat is a
// lock on one byte of the file, through a private descriptor, so it is free again when its holder
// dies, in any PID namespace. A process that finds no free seat stands. While a process sits or
// stands the object cannot be claimed. The owner has all seats: whoever makes an object for many
// releases it first.
type Seat struct {
	index int

	mu sync.Mutex
	fd int // -1 after Leave; never sent, never an *os.File
}

// maxSeats bounds the bytes that are tried.
const maxSeats = 1 << 12

// TakeSeat takes the lowest free one of n seats. If all are taken the process stands: Index of the
// result is -1, and [Object.Standing] tells others. While a process owns the object, as its maker
// and its remover do for a moment, the error is a *[BusyError].
func (o *Object) TakeSeat(n int) (*Seat, error) {
	const op = "take a seat at"
	if n < 1 || n > maxSeats {
		return nil, named(op, o.name, invalid("seats", n, "from 1 to 4096"))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, named(op, o.name, os.ErrClosed)
	}
	if o.acc == Inspect {
		return nil, &Error{Op: op, Name: o.name, Err: syscall.EACCES,
			Hint: "open it ReadOnly instead of Inspect"}
	}
	fd, err := sysReopen(o.fd, true)
	if err != nil {
		return nil, named(op, o.name, err)
	}
	// Standing first: it succeeds unless somebody owns the whole object, and keeps it from being
	// claimed while the seats are tried.
	err = sysLockByte(fd, int64(n), false)
	index := -1
	for i := 0; err == nil && i < n; i++ {
		switch err = sysLockByte(fd, int64(i), true); {
		case err == nil:
			index = i
			sysUnlockByte(fd, int64(n))
			return &Seat{index: index, fd: fd}, nil
		case isBusy(err):
			err = nil
		}
	}
	switch {
	case err == nil:
		return &Seat{index: index, fd: fd}, nil
	case isBusy(err):
		err = o.busy()
	}
	giveUp(fd)
	return nil, named(op, o.name, err)
}

// Index returns the number of the seat, or -1 if its holder stands.
func (s *Seat) Index() int { return s.index }

// Leave gives the seat back. It may be called again.
func (s *Seat) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		giveUp(s.fd)
		s.fd = -1
	}
}

// Seated reports whether a living process, this one included, has the seat.
func (o *Object) Seated(seat int) (bool, error) { return o.byteLocked(int64(seat), false) }

// Standing reports whether a living process, this one included, found all n seats taken and stands.
func (o *Object) Standing(n int) (bool, error) { return o.byteLocked(int64(n), true) }

func (o *Object) byteLocked(at int64, shared bool) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false, named("probe", o.name, os.ErrClosed)
	}
	locked, err := sysByteLocked(o.fd, at, shared)
	return locked, named("probe", o.name, err)
}
