package command

import (
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/capture"
	xstatus "github.com/shmring/shmring/xdp/status"
)

// checkMore checks objects of the device path, of which package ctl knows nothing.
func checkMore(obj *shm.Object) []shm.Violation {
	switch obj.Header().Kind {
	case shm.KindEndpoint:
		return xstatus.Check(obj)
	case shm.KindCapture:
		return capture.Check(obj)
	}
	return nil
}

func moreInvariants() []shm.Invariant {
	return append(xstatus.Invariants(), capture.Invariants()...)
}
