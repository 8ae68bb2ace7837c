package shm

import (
	"os"
	"runtime"
	"sync"
	"syscall"
)

// Window is writable memory of one section that may be read and written at any time, also while
// another goroutine closes it and afterwards. It is for words that are looked at every few
// nanoseconds, where a lock against Close would cost more than the look.
//
// Close puts zero pages of this process alone in the place of the section: the kernel exchanges
// the two in one step, so that an access meets one or the other and never a hole. The addresses
// are given back when the garbage collector finds that nobody can reach the Window. So whoever
// uses the memory must keep the Window reachable until the access is over, and look afterwards
// whether it was closed meanwhile: then what was read are zeros, or what was written is lost.
type Window struct {
	mem []byte

	mu     sync.Mutex
	closed bool
}

// Window maps one section of its own pages for writing. It does not depend on the object, which may
// be closed before it. Errors are those of [Object.MapWritable].
func (o *Object) Window(k SectionKind, id uint32) (*Window, error) {
	const op = "map section of"
	s, ok := o.header.find(k, id)
	if !ok {
		return nil, o.noSection(k, id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, named(op, o.name, os.ErrClosed)
	case o.acc == Inspect:
		return nil, &Error{Op: op, Name: o.name, Err: syscall.EACCES,
			Hint: "open it ReadOnly instead of Inspect"}
	}
	if err := o.ownPages(s); err != nil {
		return nil, err
	}
	mem, err := mapAgain(o.fd, s)
	if err != nil {
		return nil, named(op, o.name, err)
	}
	return &Window{mem: mem}, nil
}

// Bytes returns the memory.
func (w *Window) Bytes() []byte { return w.mem }

// Close lets go of the section. It may be called again, and from anywhere.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := sysBlank(w.mem); err != nil {
		return named("unmap", "window", err)
	}
	w.closed = true
	runtime.AddCleanup(w, func(mem []byte) { _ = sysUnmap(mem) }, w.mem)
	return nil
}
