package cq

import (
	"errors"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// HoldLanes does what who collects a queue begins with, until release gives up.
func HoldLanes(d *shm.Dir, name string) (release func(), err error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, err
	}
	lanes, err := openLanes(dir, shm.ReadWrite)
	err = errors.Join(err, holdAll(lanes))
	return func() {
		closeAll(lanes)
		_ = dir.Close()
	}, err
}

// HoldReader does what who collects a queue goes on with, until release gives up.
func HoldReader(d *shm.Dir, name string) (release func(), err error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, err
	}
	obj, err := dir.Open(kind.ReaderFile, shm.ReadWrite)
	if err == nil {
		err = obj.Hold()
	}
	return func() {
		_ = errors.Join(obj.Close(), dir.Close())
	}, err
}

// PatientContests has nobody give up on who removes a queue until restore.
func PatientContests() (restore func()) {
	was := contestedMost
	contestedMost = time.Hour
	return func() { contestedMost = was }
}
