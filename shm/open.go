package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
)

// Open maps an object by name. Its size comes from the file, its header is copied and checked
// once, and geometry is never read from shared memory again.
//
// Errors: [ErrName], fs.ErrNotExist, [ErrKind] for a directory, a link and anything else that is no
// regular file, [ErrOwner], [ErrTruncated], [ErrCorrupt], [ErrVersion].
func (d *Dir) Open(name string, acc Access) (*Object, error) {
	const op = "open"
	if err := checkName(op, name); err != nil {
		return nil, err
	}
	ref, err := d.use()
	if err != nil {
		return nil, named(op, name, err)
	}
	dirfd, at := ref.at(name)
	fd, err := openFile(dirfd, at, acc == ReadWrite)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		// The system finds no descriptor before it looks for the name.
		if _, e := sysStatAt(dirfd, at); errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	if err != nil {
		ref.drop()
		return nil, named(op, name, err)
	}
	return finishOpen(fd, name, acc, ref)
}

// OpenFD maps the object behind a descriptor that a peer sent. It makes a description of its own
// and leaves fd to the caller. To [Inspect] it may be anybody's object, which is only looked at.
// Errors are those of Open; what is no regular file is [ErrCorrupt], as the peer's fault.
func OpenFD(fd int, name string, acc Access) (*Object, error) {
	info, err := sysStat(fd)
	if err == nil && !info.regular() { // opening a pipe or device again could block or do things
		err = notAnObject(ErrCorrupt)
	}
	if err != nil {
		return nil, named("open", name, err)
	}
	own, err := sysReopen(fd, acc == ReadWrite)
	if err != nil {
		return nil, named("open", name, err)
	}
	return finishOpen(own, name, acc, nil)
}

// finishOpen takes over fd and ref.
func finishOpen(fd int, name string, acc Access, ref *dirRef) (*Object, error) {
	o := &Object{name: name, acc: acc, fd: fd, lockFD: -1, dir: ref}
	if err := o.check(); err != nil {
		o.discard()
		return nil, named("open", name, err)
	}
	return o, nil
}

func (o *Object) check() error {
	info, err := sysStat(o.fd)
	if err != nil {
		return err
	}
	if !info.regular() {
		return notAnObject(ErrKind)
	}
	if o.dir != nil || o.acc != Inspect {
		if err := checkPrivate(info); err != nil {
			return err
		}
	}
	return o.mapChecked(info)
}

// mapChecked reads the header of a file that may be used, and maps it.
func (o *Object) mapChecked(info fileInfo) error {
	o.ino, o.dev = info.ino, info.dev
	var page [headerBytes]byte
	n, err := sysReadAt(o.fd, page[:]) // a read cannot fault, should the file shrink
	if err != nil {
		return err
	}
	if o.header, err = DecodeHeader(page[:n], uint64(max(info.size, 0))); err != nil {
		return err
	}
	err = o.header.checkFeatures(commonFeatures, knownROCompat, knownIncompat, o.acc)
	if err != nil {
		return err
	}
	// Objects are born with their memory, but for late sections. Looking at a file that has not would
	// give it some, as much as somebody wrote into a header.
	if err = sysDense(o.fd, o.header.EarlyBytes); err != nil {
		return err
	}
	write := o.acc == ReadWrite
	if o.mem, err = sysMap(o.fd, 0, o.header.TotalBytes, write); err != nil {
		o.mem = nil
		return err
	}
	return sysPrepare(o.mem, o.header.EarlyBytes, write)
}

// openFile opens what may be an object by its name. The error is ErrKind for what cannot be opened
// because it is no file.
func openFile(dirfd int, name string, write bool) (int, error) {
	fd, err := sysOpen(dirfd, name, write)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EISDIR) ||
		errors.Is(err, syscall.ENXIO) { // a link, a directory, a socket
		err = notAnObject(ErrKind)
	}
	return fd, err
}

func notAnObject(err error) error {
	return &Error{Field: "type", Got: "not a regular file", Want: "an object", Err: err,
		Hint: "remove it"}
}

// SealOthers are the seals of an object that goes to other users. A descriptor that was opened for
// reading forbids its holder nothing, since a memfd can be opened for writing through /proc. With
// these seals the kernel refuses everybody, for ever, to write to it or to truncate it. What its
// creator has mapped before stays writable.
const SealOthers = SealShrink | SealGrow | SealSeal | SealFutureWrite

// ShareFD returns a new descriptor of the object, for reading, that may be sent to a peer of
// another user. The caller closes it, with [CloseFDs].
func (o *Object) ShareFD() (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return -1, named("share", o.name, syscall.EBADF)
	}
	fd, err := sysReopen(o.anyFD(), false)
	return fd, named("share", o.name, err)
}

// OpenPassed maps, for reading, the object behind a descriptor that a peer of another user sent, of
// whom nothing is believed: it must be a memfd with just the seals [SealOthers], of no more than
// maxBytes, with all its memory there, so that looking at it allocates nothing on our account and
// cannot fault. That is checked before anything else is done with the descriptor, which stays the
// caller's.
//
// Errors: [ErrOwner] for another kind of file and other seals, [ErrNoSpace] for one too large,
// [ErrTruncated], [ErrCorrupt], [ErrVersion].
func OpenPassed(fd int, name string, maxBytes uint64) (*Object, error) {
	const op = "open"
	bits, exact, err := sysSealed(fd, SealOthers)
	if err == nil && !exact {
		err = &Error{Field: "seals", Got: bits, Want: sealBits(SealOthers), Err: ErrOwner,
			Hint: "the peer must create its objects for other users"}
	}
	if err != nil {
		return nil, named(op, name, err)
	}
	own, err := sysDup(fd) // another user's memfd cannot be opened again
	if err != nil {
		return nil, named(op, name, err)
	}
	o := &Object{name: name, acc: ReadOnly, fd: own, lockFD: -1}
	if err := o.checkPassed(maxBytes); err != nil {
		o.discard()
		return nil, named(op, name, err)
	}
	return o, nil
}

func (o *Object) checkPassed(maxBytes uint64) error {
	info, err := sysStat(o.fd)
	if err != nil {
		return err
	}
	size := uint64(max(info.size, 0))
	if !info.regular() {
		return notAnObject(ErrCorrupt)
	}
	if size > maxBytes {
		return &Error{Field: "bytes that the caller allows a peer", Got: maxBytes, Want: size,
			Err: ErrNoSpace}
	}
	if err := sysUnsparse(o.fd, size); err != nil {
		return err
	}
	return o.mapChecked(info)
}

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
