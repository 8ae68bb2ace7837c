package cq

import (
	"errors"

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
