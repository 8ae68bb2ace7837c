package shm

import (
	"runtime/debug"
)

// fault is what the runtime panics with when a memory access fails at an address that is not nil.
type fault interface {
	error
	RuntimeError()
	Addr() uintptr
}

// Guard runs f and turns a memory fault in it into an error that is [ErrTruncated]. Tools read a
// file inside it if the owner may truncate that file meanwhile. f must hold no lock that a panic
// would leave locked. Other panics pass. It guards the calling goroutine only.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		switch r := recover().(type) {
		case nil:
		case fault:
			err = &Error{Op: "read", Field: "address", Got: r.Addr(), Want: "memory that exists",
				Err: ErrTruncated, Hint: "the file was truncated while it was mapped"}
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// guarded is Guard for an f that can fail by itself.
func guarded(f func() error) error {
	var inner error
	if err := Guard(func() { inner = f() }); err != nil {
		return err
	}
	return inner
}
