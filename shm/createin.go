package shm

import (
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
)

// A directory may vanish between our making it and our using it, which takes some microseconds.
const (
	// plainTries is how often it is made in its place. Others who tidy up in a row, whom the kernel
	// lets in one after the other, can win each time.
	plainTries = 16
	// moveTries bounds how often it may be there when we want to move ours, and gone when we want
	// to use it, and how often ours may be gone before there is anything in it. Each time means
	// that somebody else did something meanwhile.
	moveTries = 1000
)

// linkIn gives a new object its name in a directory that may come and go, and hands the object over
// to that.
func (d *Dir) linkIn(o *Object, sub, name string) (in *Dir, err error) {
	for range plainTries {
		in, err = d.linkInPlace(o, sub, name)
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		in, err = d.linkAndMove(o, sub, name)
	}
	if err == nil {
		return in, o.handOver(in)
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

// moveInPlace is linkInPlace of an object that has a name in another directory, which it loses.
func (d *Dir) moveInPlace(aside *Dir, sub, name string) (in *Dir, err error) {
	in, err = d.Sub(sub, true)
	if err != nil {
		return nil, err
	}
	if err := sysMoveNew(aside.ref.fd, in.ref.fd, name); err != nil {
		_ = in.Close()
		return nil, err
	}
	return in, nil
}

// linkAndMove makes the directory under a name that nobody else knows and moves it, object and all,
// to its own: it is never seen empty. Where there is one already that is not empty, the object is
// moved into that: nobody removes it then, while there is something in it. It never has two names:
// whoever finds the one aside tells by it what becomes of the object.
func (d *Dir) linkAndMove(o *Object, sub, name string) (in *Dir, err error) {
	ref, err := d.use()
	if err != nil {
		return nil, err
	}
	defer ref.drop()
	var aside *Dir
	var odd string
	for range moveTries {
		odd = asidePrefix + NewUUID().String()
		if aside, err = d.linkInPlace(o, odd, name); !errors.Is(err, fs.ErrNotExist) {
			break // else one who lists the directory tidied this up too, while it was empty
		}
	}
	if err != nil {
		_ = sysRmdir(ref.fd, odd)
		return nil, err
	}
	crash.At(crash.CreateAside)
	for range moveTries {
		if err = sysRename(ref.fd, odd, sub); err == nil {
			aside.path = filepath.Join(d.path, sub)
			return aside, nil
		}
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			break // the page allows either
		}
		if in, err = d.moveInPlace(aside, sub, name); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	_ = sysUnlink(aside.ref.fd, name)
	_ = aside.Close()
	_ = sysRmdir(ref.fd, odd)
	return in, err
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
