package xdp

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/shmring/shmring/internal/oserror"
)

// What can go wrong with a device. Errors of this package that have one of these meanings wrap it;
// errors.Is finds the OS error number in brackets too.
var (
	// ErrNoDevice: no interface of this name in the network namespace of the caller (ENODEV).
	ErrNoDevice = oserror.New("no such interface", syscall.ENODEV)
	// ErrNoQueue: the interface has no receive or send queue of this number (EINVAL).
	ErrNoQueue = oserror.New("no such queue", syscall.EINVAL)
	// ErrQueueBusy: another AF_XDP socket is bound to the queue (EBUSY). The error is a
	// *[BusyError] if the process is known that has it.
	ErrQueueBusy = oserror.New("queue already bound", syscall.EBUSY)
	// ErrDeviceGone: the interface was removed, or moved to another namespace (ENXIO). The socket
	// is of no more use than to be closed.
	ErrDeviceGone = oserror.New("interface is gone", syscall.ENXIO)
	// ErrLinkDown: the interface is down (ENETDOWN). The socket works again once it is up.
	ErrLinkDown = oserror.New("interface is down", syscall.ENETDOWN)
	// ErrMemlock: the UMEM does not fit what this user may lock in memory (ENOBUFS).
	ErrMemlock = oserror.New("over the locked memory limit", syscall.ENOBUFS)
	// ErrNoCapability: the process lacks a privilege (EPERM).
	ErrNoCapability = oserror.New("missing privilege", syscall.EPERM)
	// ErrNoZeroCopy: the driver cannot do without copying, and that was demanded (EOPNOTSUPP).
	ErrNoZeroCopy = oserror.New("no zero-copy here", syscall.EOPNOTSUPP)
	// ErrFrame: the frame is not in the state that the call needs, or does not exist (EINVAL).
	ErrFrame = oserror.New("frame in the wrong state", syscall.EINVAL)
	// ErrTooBig: the packet does not fit the MTU or the chunk (EMSGSIZE).
	ErrTooBig = oserror.New("packet too big", syscall.EMSGSIZE)
	// ErrOptions: options that contradict each other or the UMEM (EINVAL).
	ErrOptions = oserror.New("bad options", syscall.EINVAL)
	// ErrUMEMUsed: sockets have had the frames of the UMEM. The kernel may write to them for a while
	// after a socket is closed, so a frame serves one socket only (EBUSY).
	ErrUMEMUsed = oserror.New("UMEM already used by a socket", syscall.EBUSY)
	// ErrRingFull: the transmit ring has no room beside the frames that are acquired (EAGAIN).
	ErrRingFull = oserror.New("transmit ring is full", syscall.EAGAIN)
	// ErrProgramAttached: the interface has an XDP program that is not ours (EBUSY). The error is a
	// *[BusyError].
	ErrProgramAttached = oserror.New("interface has an XDP program", syscall.EBUSY)
	// ErrRule: no frame can match the rule, or it matches what must not be taken (EINVAL).
	ErrRule = oserror.New("bad rule", syscall.EINVAL)
	// ErrRuleExists: another rule matches exactly the same frames (EEXIST).
	ErrRuleExists = oserror.New("rule exists", syscall.EEXIST)
	// ErrNoRule: no rule has this number (ENOENT).
	ErrNoRule = oserror.New("no such rule", syscall.ENOENT)
	// ErrRulesFull: the program has no room for the rule (E2BIG).
	ErrRulesFull = oserror.New("too many rules", syscall.E2BIG)
)

const pkg = "xdp" // of errors

// BusyError says who has what was asked for, and was left alone. errors.Is finds Err and EBUSY.
type BusyError struct {
	Err     error // [ErrQueueBusy] or [ErrProgramAttached]
	Ifname  string
	Queue   uint32      // that is busy
	PID     int         // of the process that has it, as this process's PID namespace numbers it
	Command string      // name of that process
	Program ProgramInfo // that the interface has
}

// Error names the process; or the program, and how to look at it.
func (e *BusyError) Error() string {
	if e.Err == ErrQueueBusy {
		return fmt.Sprintf("%v by process %d (%q)", e.Err, e.PID, e.Command)
	}
	return fmt.Sprintf("xdp: attach program %q: interface already has XDP program %s; "+
		"see \"bpftool prog show id %d\", stop what owns it or use another interface",
		e.Ifname, e.Program.text(), e.Program.ID)
}

// Unwrap returns Err.
func (e *BusyError) Unwrap() error { return e.Err }

// refine wraps both a sentinel and the error that the kernel gave, so that either is found and the
// number that the kernel used is printed.
func refine(sentinel, cause error) error {
	if errors.Is(cause, sentinel) {
		return cause
	}
	return fmt.Errorf("%w: %w", sentinel, cause)
}
