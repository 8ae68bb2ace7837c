package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
)

// Order says who pays for the order between publishing entries and looking at a doorbell.
type Order uint8

const (
	// SeqCst publishes with a sequentially consistent store (XCHG on amd64, STLR on arm64):
	// a load that the producer issues after Commit is ordered behind the publish.
	SeqCst Order = iota
	// Release publishes with a plain release store. It is for rings whose consumer never sleeps,
	// or whose consumer issues a membarrier(2) on the producer's behalf before it sleeps.
	Release
)

func (o Order) String() string {
	if o == Release {
		return "release"
	}
	return "seq-cst"
}

// ErrCorrupt is the sentinel behind every [*CorruptError].
var ErrCorrupt = errors.New("ring: peer wrote an impossible index")

// ErrMisuse is what Err returns when this side was used by two goroutines at once: its private
// indices contradict each other. That is not always found, and never a crash.
var ErrMisuse = errors.New("ring: one side is used by two goroutines at once")

// CorruptError says which index a peer forged. It is final for the handle that returned it.
type CorruptError struct {
	Field    string // "head" or "tail"
	Found    uint64
	Low      uint64 // the smallest index that was possible
	High     uint64 // the largest index that was possible
	Capacity uint64
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("ring: %s is %d, possible were %d to %d (capacity %d): "+
		"the peer is broken or hostile, drop this lane", e.Field, e.Found, e.Low, e.High, e.Capacity)
}

// Is reports a match with [ErrCorrupt] and with EBADMSG, the errno of the same meaning.
func (e *CorruptError) Is(target error) bool {
	return target == ErrCorrupt || target == syscall.EBADMSG
}

// Index is one of the two shared words of a ring, usually in memory that two processes map.
type Index = atomic.Uint64

// check panics on geometry that no mapping of ours can have: both are programming errors of the
// package that laid out the memory, never something that a peer can cause.
func check(capacity int) {
	if capacity == 0 || capacity&(capacity-1) != 0 {
		panic(fmt.Sprintf("ring: capacity %d is not a power of two", capacity))
	}
}

// spans returns the slots of the n indices from at, as one span or, around the end, two. No n leads
// outside the slots, whatever two goroutines made of the indices that it comes from.
func spans[T any](slots []T, at uint64, n int) (a, b []T) {
	i := int(at & uint64(len(slots)-1))
	n = int(min(uint64(n), uint64(len(slots))))
	if end := i + n; end > len(slots) {
		return slots[i:len(slots):len(slots)], slots[: end-len(slots) : end-len(slots)]
	}
	return slots[i : i+n : i+n], nil
}
