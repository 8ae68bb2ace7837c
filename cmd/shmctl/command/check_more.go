package command

import "github.com/shmring/shmring/shm"

// checkMore checks objects of the device path.
func checkMore(obj *shm.Object) []shm.Violation {
	return nil
}

func moreInvariants() []shm.Invariant { return nil }
