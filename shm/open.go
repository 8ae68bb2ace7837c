package shm

import (
	"errors"
	"io/fs"
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
	fd, err := openFile(ref.fd, name, acc == ReadWrite)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		// The system finds no descriptor before it looks for the name.
		if _, e := sysStatAt(ref.fd, name); errors.Is(e, fs.ErrNotExist) {
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
// and leaves fd to the caller. Errors are those of Open; what is no regular file is [ErrCorrupt],
// as the peer's fault.
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
	if err := checkPrivate(info); err != nil {
		return err
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
	// Objects are born with all their memory. Looking at a file that has not would give it some, as
	// much as somebody wrote into a header.
	if err = sysDense(o.fd, o.header.TotalBytes); err != nil {
		return err
	}
	write := o.acc == ReadWrite
	if o.mem, err = sysMap(o.fd, 0, o.header.TotalBytes, write); err != nil {
		o.mem = nil
		return err
	}
	return sysPrepare(o.mem, write)
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
