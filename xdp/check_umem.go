package xdp

import "github.com/shmring/shmring/shm"

// Invariants returns what holds of the object of a UMEM, beyond what holds of every object. What is
// in its frames is the device's and its peers'; which frame is where is not in it, see
// [FrameStats].
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "umem.geometry", Exact: true, What: "the frames are as many and as large as it says"},
	}
}

// Check returns which [Invariants] do not hold of the object of a UMEM. The caller has it mapped
// for reading and calls Check inside [shm.Guard].
func Check(obj *shm.Object) []shm.Violation {
	const attributes = 0x100
	if _, err := geometryOf(obj); err != nil {
		return []shm.Violation{{Invariant: "umem.geometry", Section: "header", Offset: attributes,
			Within: attributes, Got: err.Error(), Want: "what NewUMEM writes"}}
	}
	return nil
}
