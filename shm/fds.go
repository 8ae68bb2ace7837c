package shm

import (
	"fmt"
	"net"
	"syscall"
)

// maxSentFDs is the kernel's limit for one message (SCM_MAX_FD).
const maxSentFDs = 253

// SendFDs sends msg, which must not be empty, together with descriptors. The peer gets duplicates;
// the caller keeps its own. Never send the descriptor that holds a lock: [Object.FD] is for this.
func SendFDs(c *net.UnixConn, msg []byte, fds ...int) error {
	const op = "send descriptors"
	if len(msg) == 0 {
		return &Error{Op: op, Field: "message length", Got: 0, Want: "at least 1",
			Err: syscall.EINVAL}
	}
	if len(fds) > maxSentFDs {
		return &Error{Op: op, Field: "number of descriptors", Got: len(fds), Want: "at most 253",
			Err: syscall.EINVAL}
	}
	n, _, err := c.WriteMsgUnix(msg, syscall.UnixRights(fds...), nil)
	if err == nil && n < len(msg) {
		err = fmt.Errorf("sent %d of %d bytes", n, len(msg))
	}
	return named(op, "", err)
}

// RecvFDs receives one message into buf, with at most max descriptors, all close-on-exec. When
// the message or its descriptors do not fit, every received descriptor is closed and an error
// returned: [ErrTruncated], or EMFILE if there was room for them and they did not come: this
// process can have no more, or a security module refuses them. At the end of the stream n is 0 and
// the error is io.EOF or nil.
func RecvFDs(c *net.UnixConn, buf []byte, max int) (n int, fds []int, err error) {
	const op = "receive descriptors"
	if max < 0 || max > maxSentFDs {
		return 0, nil, &Error{Op: op, Field: "number of descriptors", Got: max,
			Want: "from 0 to 253", Err: syscall.EINVAL}
	}
	oob := make([]byte, syscall.CmsgSpace(4*max))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob) // sets MSG_CMSG_CLOEXEC
	fds = rights(oob[:oobn])
	if err == nil && flags&syscall.MSG_CTRUNC != 0 && len(fds) < max {
		// There was room for more, so it was not the peer who sent too many.
		err = &Error{Op: op, Field: "descriptors", Got: len(fds), Want: "all that were sent",
			Err: syscall.EMFILE, Hint: "raise the limit of open files (\"ulimit -n\", LimitNOFILE); " +
				"if it is not reached, see whether a security module refuses the descriptors"}
	}
	if err == nil && (flags&(syscall.MSG_CTRUNC|syscall.MSG_TRUNC) != 0 || len(fds) > max) {
		err = &Error{Op: op, Field: "message flags", Got: flags, Want: "all of it",
			Err: ErrTruncated, Hint: "close the connection: the peer sent too much"}
	}
	if err != nil {
		CloseFDs(fds)
		return 0, nil, named(op, "", err)
	}
	return n, fds, nil
}

// CloseFDs closes descriptors that RecvFDs returned.
func CloseFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
}

// rights collects the descriptors of all control messages, also of a list that was cut.
func rights(oob []byte) []int {
	msgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range msgs {
		if got, err := syscall.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// AllowList says which users may be at the other end of a connection: those of UIDs, and whoever
// was in one of GIDs, as main or supplementary group, when it connected. A nil list, and an empty
// one, allow the effective user of this process only. It must not change while it is in use.
type AllowList struct {
	UIDs, GIDs []int
}
