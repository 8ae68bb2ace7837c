package shmtest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// dirPrefix begins the names of private directories.
const dirPrefix = "shmring-test-"

// privateDir makes a directory, in memory where there is such a file system, and removes those of
// runs that were killed. A run holds a lock on its directory, so that a free one is proved dead.
func privateDir() (dir string, remove func(), err error) {
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = os.TempDir()
	}
	sweep(base)
	const tries = 100
	for range tries {
		if dir, err = os.MkdirTemp(base, dirPrefix); err != nil { // 0700
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

// lockDir locks a directory that exists when it has the lock.
func lockDir(dir string, flags int) (*os.File, error) {
	f, err := os.Open(dir)
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
func sweep(base string) {
	dirs, err := filepath.Glob(filepath.Join(base, dirPrefix+"*"))
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
