package xdp

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// condition is a sentinel that is also the OS error number of the same meaning.
type condition struct {
	text  string
	errno syscall.Errno
}

func (c *condition) Error() string { return c.text }

// Is lets errors.Is find the error number and what that stands for (fs.ErrPermission).
func (c *condition) Is(target error) bool {
	return target == error(c.errno) || c.errno.Is(target)
}

// What can go wrong with a device. Errors of this package that have one of these meanings wrap it;
// errors.Is finds the OS error number in brackets too.
var (
	// ErrNoDevice: no interface of this name in the network namespace of the caller (ENODEV).
	ErrNoDevice error = &condition{"no such interface", syscall.ENODEV}
	// ErrNoQueue: the interface has no receive or send queue of this number (EINVAL).
	ErrNoQueue error = &condition{"no such queue", syscall.EINVAL}
	// ErrQueueBusy: another AF_XDP socket is bound to the queue (EBUSY).
	ErrQueueBusy error = &condition{"queue already bound", syscall.EBUSY}
	// ErrDeviceGone: the interface was removed, or moved to another namespace (ENXIO). The socket
	// is of no more use than to be closed.
	ErrDeviceGone error = &condition{"interface is gone", syscall.ENXIO}
	// ErrLinkDown: the interface is down (ENETDOWN). The socket works again once it is up.
	ErrLinkDown error = &condition{"interface is down", syscall.ENETDOWN}
	// ErrMemlock: the UMEM does not fit what this user may lock in memory (ENOBUFS).
	ErrMemlock error = &condition{"over the locked memory limit", syscall.ENOBUFS}
	// ErrNoCapability: the process lacks a privilege (EPERM).
	ErrNoCapability error = &condition{"missing privilege", syscall.EPERM}
	// ErrNoZeroCopy: the driver cannot do without copying, and that was demanded (EOPNOTSUPP).
	ErrNoZeroCopy error = &condition{"no zero-copy here", syscall.EOPNOTSUPP}
	// ErrFrame: the frame is not in the state that the call needs, or does not exist (EINVAL).
	ErrFrame error = &condition{"frame in the wrong state", syscall.EINVAL}
	// ErrTooBig: the packet does not fit the MTU or the chunk (EMSGSIZE).
	ErrTooBig error = &condition{"packet too big", syscall.EMSGSIZE}
	// ErrOptions: options that contradict each other or the UMEM (EINVAL).
	ErrOptions error = &condition{"bad options", syscall.EINVAL}
	// ErrUMEMUsed: the UMEM has had a socket. The kernel may write to it for a while after that
	// socket is closed, so a UMEM serves one socket only (EBUSY).
	ErrUMEMUsed error = &condition{"UMEM already used by a socket", syscall.EBUSY}
)

// Error says which operation failed on what, and what to do about it.
type Error struct {
	Op   string // the operation: "open socket", "attach program"
	Name string // the interface, if there is one
	Err  error  // the sentinel or OS error
	Hint string // what to do about it; may be empty
}

// Error prints everything that is known on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("xdp: ")
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the sentinel or OS error.
func (e *Error) Unwrap() error { return e.Err }

// ProgramAttachedError: the interface has an XDP program that is not ours. It was left alone.
// errors.Is finds EBUSY.
type ProgramAttachedError struct {
	Ifname string
	ID     uint32 // of the program; 0 when unknown
	Mode   AttachMode
}

// Error names the program and how to look at it.
func (e *ProgramAttachedError) Error() string {
	return fmt.Sprintf("xdp: attach program %q: interface already has XDP program %d (%v); "+
		"see \"bpftool prog show id %d\", stop what owns it or use another interface",
		e.Ifname, e.ID, e.Mode, e.ID)
}

// Is reports EBUSY.
func (e *ProgramAttachedError) Is(target error) bool { return target == error(syscall.EBUSY) }

// refine wraps both a sentinel and the error that the kernel gave, so that either is found and the
// number that the kernel used is printed.
func refine(sentinel, cause error) error {
	if errors.Is(cause, sentinel) {
		return cause
	}
	return fmt.Errorf("%w: %w", sentinel, cause)
}
