package shm

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
)

// A directory may vanish between our making it and our using it, which takes some microseconds.
const (
	// plainTries is how often it is made in its place. Others who tidy up in a row, whom the kernel
	// lets in one after the other, can win each time.
	plainTries = 16
	// linkTries bounds all tries. Each that fails means that somebody else did something meanwhile.
	linkTries = 1000
)

// linkIn gives a new object its name in a directory that may come and go, and hands the object over
// to that.
func (d *Dir) linkIn(o *Object, sub, name string) (in *Dir, err error) {
	for try := range linkTries {
		// A directory that is not empty nobody removes: then the plain way succeeds.
		if try < plainTries || try%2 == 0 {
			in, err = d.linkInPlace(o, sub, name)
		} else {
			in, err = d.linkAndMove(o, sub, name)
		}
		if err == nil {
			return in, o.handOver(in)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	if !errors.Is(err, fs.ErrExist) {
		_ = d.RemoveSub(sub) // unless others use it
	}
	return nil, err
}

// linkInPlace makes the directory if it is not there, and links the object into it.
func (d *Dir) linkInPlace(o *Object, sub, name string) (in *Dir, err error) {
	in, err = d.Sub(sub, true)
	if err != nil {
		return nil, err
	}
	if err := sysLink(o.lockFD, in.ref.fd, name); err != nil {
		_ = in.Close()
		return nil, err
	}
	return in, nil
}

// linkAndMove makes the directory under a name that nobody else knows and moves it, object and all,
// to its own: it is never seen empty. What is there must be an empty directory or nothing, else
// errors.Is finds ENOTEMPTY. Who dies in between leaves a queue of an odd name whose owner is dead,
// which is collected as any other.
func (d *Dir) linkAndMove(o *Object, sub, name string) (*Dir, error) {
	ref, err := d.use()
	if err != nil {
		return nil, err
	}
	defer ref.drop()
	odd := "new-" + NewUUID().String()
	in, err := d.linkInPlace(o, odd, name)
	if err != nil {
		_ = sysRmdir(ref.fd, odd)
		return nil, err
	}
	if err := sysRename(ref.fd, odd, sub); err != nil {
		_ = sysUnlink(in.ref.fd, name)
		_ = in.Close()
		_ = sysRmdir(ref.fd, odd)
		if errors.Is(err, syscall.EEXIST) { // the page allows either
			err = syscall.ENOTEMPTY
		}
		return nil, err
	}
	in.path = filepath.Join(d.path, sub)
	return in, nil
}

// handOver makes the directory the one that has the object's name.
func (o *Object) handOver(in *Dir) error {
	ref, err := in.use()
	if err != nil {
		return err
	}
	o.dir.drop()
	o.dir = ref
	return nil
}
