// Package scratch makes the directories that tools and tests have for a run, and removes those of
// runs that were killed.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/shmring/shmring/internal/oserror"
)

// prefix begins the names of all of them: whatever is called so, and locked by nobody, is removed.
const prefix = "shmring-run-"

// Make makes a directory that only this user may enter, and removes those of runs of the same tool
// that were killed. A run holds a lock on its directory, so that a free one is proved dead.
func Make(base, tool string) (dir string, remove func(), err error) {
	sweep(base, tool)
	const tries = 100
	for range tries {
		if dir, err = os.MkdirTemp(base, prefix+tool+"-"); err != nil { // 0700
			return "", nil, err
		}
		lock, err := lockDir(dir, 0)
		if err == nil {
			return dir, func() {
				os.RemoveAll(dir)
				lock.Close()
			}, nil
		}
		if !errors.Is(err, os.ErrNotExist) { // else somebody swept it before it was locked
			return "", nil, err
		}
	}
	return "", nil, errors.New("the new directory vanishes again and again")
}

// lockDir locks a directory that exists when it has the lock. Others may put what they like under
// its name where everybody may: a FIFO would be waited for.
func lockDir(dir string, flags int) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|flags); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// sweep removes the directories that nobody holds. What it may not touch it leaves.
func sweep(base, tool string) {
	dirs, err := filepath.Glob(filepath.Join(base, prefix+tool+"-*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if lock, err := lockDir(dir, syscall.LOCK_NB); err == nil {
			os.RemoveAll(dir)
			lock.Close()
		}
	}
}

var errNotRoot = oserror.New("only root can start processes of other users", syscall.EPERM)

// Others returns an error unless this process can start those of other users, and they can enter
// what is made in a directory.
func Others(base string) error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	at, err := filepath.EvalSymlinks(base)
	for ; err == nil; at = filepath.Dir(at) {
		var info os.FileInfo
		switch info, err = os.Stat(at); {
		case err == nil && info.Mode()&1 == 0:
			err = fmt.Errorf("other users cannot enter %s: let TMPDIR name another directory", at)
		case err == nil && at == filepath.Dir(at):
			return nil
		}
	}
	return err
}
