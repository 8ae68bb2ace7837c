package ctl

import (
	"errors"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// kindSocket is what a socket is called among kinds of objects.
const kindSocket = "socket"

// socket judges what is no object, and notes whether it is a socket.
func (c *collection) socket() (cq.Fate, error) {
	bound, err := c.dir.Bound(c.name)
	c.isSocket = !errors.Is(err, shm.ErrKind)
	switch {
	case err != nil:
		return 0, err
	case bound:
		return cq.FateLiving, nil
	}
	return cq.FateGarbage, nil
}
