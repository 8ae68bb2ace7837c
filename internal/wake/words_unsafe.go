package wake

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Layout of the words that processes share: an index other than 0 does not compile.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(Arm{})-128]
	_ = [1]struct{}{}[unsafe.Sizeof(Row{})-128]
	_ = [1]struct{}{}[unsafe.Sizeof(hintsFixed{})-HintsFixedBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(hintsFixed{}.rung)-128]
	_ = [1]struct{}{}[unsafe.Offsetof(hintsFixed{}.latch)-256]
)

// hintsFixed is the part of the hints that has a fixed size, as it lies in memory.
type hintsFixed struct {
	epoch atomic.Uint32
	_     [124]byte
	rung  atomic.Uint64
	_     [120]byte
	latch atomic.Uint32
	_     [124]byte
}

func at[T any](mem []byte, off uint64) (*T, error) {
	var zero T
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if n := uint64(len(mem)); n < uint64(unsafe.Sizeof(zero)) ||
		off > n-uint64(unsafe.Sizeof(zero)) || (uintptr(p)+uintptr(off))%8 != 0 {
		return nil, fmt.Errorf("wake: no room for %T at offset %d of %d bytes", zero, off, len(mem))
	}
	return (*T)(unsafe.Add(p, off)), nil
}

// ArmAt returns the armed word at byte offset off of mem.
func ArmAt(mem []byte, off uint64) (*Arm, error) { return at[Arm](mem, off) }

// RowAt returns the row of one lane at byte offset off of mem.
func RowAt(mem []byte, off uint64) (*Row, error) { return at[Row](mem, off) }

func words(mem []byte, off uint64, n int) ([]atomic.Uint64, error) {
	if n == 0 || off+uint64(n)*8 > uint64(len(mem)) {
		return nil, fmt.Errorf("wake: no room for %d words at offset %d of %d bytes",
			n, off, len(mem))
	}
	p, err := at[atomic.Uint64](mem, off)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(p, n), nil
}
