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

// LoseNotice has the notice of the death of a row's writer not come. It is false as long as there
// is none to lose.
func LoseNotice(q *Queue, bit int) bool {
	q.deaths.mu.Lock()
	r := q.deaths.report
	q.deaths.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.who.(*laneMourner).lanes[bit]
	if w == nil || w.stop == nil {
		return false
	}
	generation := w.watched
	w.rest()
	w.watched = generation
	return true
}
