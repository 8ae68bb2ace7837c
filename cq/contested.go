package cq

import (
	"syscall"
	"time"

	"github.com/shmring/shmring/shm"
)

// contestedMost bounds how long Attach waits for somebody who removes the queue. It is variable for
// tests of who does not wait in vain: how long that takes is not theirs to say.
var contestedMost = time.Second

// claimedOnly reports that there is a lane whose owner has not begun to write: somebody who
// attaches just now, or who has it to remove the queue and may give it back.
func (h *dirHome) claimedOnly(opt shape) (is bool) {
	for bit := 1; bit < opt.rows() && !is; bit++ {
		obj, err := h.openLane(bit)
		if err != nil {
			continue
		}
		words, err := wordsOf[laneWords](obj, sectLane, uint32(bit))
		if o := obj.Owner(); err == nil && o.State == shm.StateOwned {
			is = words.epochs[o.Generation%laneEpochs].generation.Load() != o.Generation
		}
		_ = obj.Close()
	}
	return is
}

// errContested: who attaches met somebody who removes the queue.
var errContested error = &sentinel{"somebody removes the queue, or died over it",
	Errno(syscall.EBUSY), ErrBusy}

const hintContested = "try again; if who removes it has died, adopt the queue or collect it"

func noLane(op, name string, opt shape) error {
	return &Error{Pkg: pkg, Op: op, Name: name, Field: "lanes", Got: opt.MaxLanes,
		Err:  ErrLanes,
		Hint: "detach a writer, or create the queue with a larger MaxLanes"}
}
