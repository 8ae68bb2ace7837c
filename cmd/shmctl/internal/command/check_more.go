package command

import (
	"slices"

	"github.com/shmring/shmring/internal/capture"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// checkMore checks objects of the device path, of which package ctl knows nothing.
func checkMore(obj *shm.Object) []shm.Violation {
	switch obj.Header().Kind {
	case shm.KindEndpoint:
		return xstatus.Check(obj)
	case shm.KindCapture:
		return capture.Check(obj)
	case shm.KindUMEM:
		return xdp.Check(obj)
	case shm.KindRegion:
		if device.IsStatusPage(obj) {
			return device.Check(obj)
		}
	}
	return nil
}

func moreInvariants() []shm.Invariant {
	return slices.Concat(xstatus.Invariants(), capture.Invariants(), xdp.Invariants(),
		device.Invariants())
}
