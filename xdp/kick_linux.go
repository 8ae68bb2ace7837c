package xdp

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Kick makes the kernel send what was flushed, if it needs to be told, and returns how many packets
// it has not begun with. That is not zero while the completion ring or the socket's buffer is full:
// Reap and kick again.
//
// Errors: [ErrLinkDown], after which the packets wait for the link; [ErrDeviceGone].
func (s *Socket) Kick() (unsent int, err error) {
	if s.closed {
		return 0, s.error("kick", os.ErrClosed, "")
	}
	left := s.tx.pending()
	if left == 0 {
		return 0, nil
	}
	if s.granted.NeedWakeup && !s.tx.wantsWakeup() {
		s.sys.Suppressed++ // the driver is at it
		return int(left), nil
	}
	// Every round sends or drops at least one packet, or is the last one. The number of rounds is
	// bounded all the same, in case a kernel says otherwise for ever.
	for rounds := left; left > 0 && rounds > 0; rounds-- {
		e := s.sendto(left)
		now := s.tx.pending()
		progress := now < left
		left = now
		switch e {
		case 0:
			if s.granted.Mode == BindZeroCopy {
				return int(left), nil // the driver was woken and goes on by itself
			}
		case unix.EAGAIN:
			s.sys.Again++
		case unix.EBUSY:
			// One packet was dropped by the device and completes all the same; the kernel stopped
			// there. It counts as progress even if the index is not published yet.
			s.sys.SendDropped++
			progress = true
		case unix.EINTR:
			progress = true
		case unix.ENOBUFS:
			return int(left), nil // no memory just now
		default:
			return int(left), s.deviceError(e)
		}
		if !progress {
			break
		}
	}
	return int(left), nil
}

// rawKick is up to how many packets a kick is not announced to the Go scheduler, which takes a
// tenth of the time of sending one packet in copy mode, some microsecond. Nothing else of this
// thread can run meanwhile, a garbage collection that is to stop it included, so it must not last:
// with MSG_DONTWAIT the kernel waits for nothing there but the socket's mutex, which a poll of the
// same socket holds for as long as it sends. Larger kicks do not gain: 64 measured as 8.
const rawKick = 8

func (s *Socket) sendto(unsent uint32) unix.Errno {
	s.sys.Send++
	if s.sim != nil {
		return s.sim.SendTo()
	}
	if unsent <= rawKick {
		_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		return e
	}
	_, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// WakeFill wakes the driver if it sleeps for want of frames to receive into. Call it after Fill. In
// copy mode the kernel never asks for it.
func (s *Socket) WakeFill() error {
	if s.closed || !s.granted.NeedWakeup || !s.fill.wantsWakeup() {
		return nil
	}
	return s.Check()
}

// Check asks the kernel whether the link is up and the device still there, which poll never tells:
// a socket whose interface is removed just stays silent. The cost is a system call.
//
// Errors: [ErrLinkDown], [ErrDeviceGone].
func (s *Socket) Check() error {
	if s.closed {
		return s.error("check", os.ErrClosed, "")
	}
	s.sys.Receive++
	switch e := s.recvfrom(); e {
	case 0, unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOBUFS:
		return nil
	default:
		return s.deviceError(e)
	}
}

func (s *Socket) recvfrom() unix.Errno {
	if s.sim != nil {
		return s.sim.State()
	}
	_, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

func (s *Socket) deviceError(e error) error {
	switch {
	case errors.Is(e, unix.ENETDOWN):
		return s.error("use socket on", refine(ErrLinkDown, e), "packets wait until it is up again")
	case errors.Is(e, unix.ENXIO):
		return s.error("use socket on", refine(ErrDeviceGone, e), "close the socket")
	}
	return s.error("use socket on", e, "")
}
