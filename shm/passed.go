package shm

import "syscall"

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
	fd, err := sysReopen(o.fd, false)
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
		return &Error{Field: "size", Got: size, Want: maxBytes,
			Err: &NoSpaceError{Needed: size, Available: maxBytes, Where: "what the caller allows a peer"}}
	}
	if err := sysUnsparse(o.fd, size); err != nil {
		return err
	}
	return o.mapChecked(info)
}
