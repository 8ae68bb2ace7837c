package xdp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xskernel"
)

// The kernel writes entries of exactly these sizes.
var (
	_ [16]struct{} = [unsafe.Sizeof(xskernel.Desc{})]struct{}{}
	_ [32]struct{} = [unsafe.Sizeof(unix.XDPUmemReg{})]struct{}{}
)

// ringOverlay lays words and slots over a mapped ring. The offsets come from the kernel and are
// bounded all the same: a kernel with another layout must give an error, not a wild access.
func ringOverlay[E uint64 | xskernel.Desc](mem []byte, off unix.XDPRingOffset, entries uint32) (
	ringWords, []E, error) {
	var e E
	size := uint64(len(mem))
	for _, o := range [...]uint64{off.Producer, off.Consumer, off.Flags} {
		if o%4 != 0 || size < 4 || o > size-4 {
			return ringWords{}, nil, fmt.Errorf("ring word at offset %d of %d", o, size)
		}
	}
	need := uint64(entries) * uint64(unsafe.Sizeof(e))
	if off.Desc%8 != 0 || off.Desc > size || size-off.Desc < need || entries == 0 {
		return ringWords{}, nil, fmt.Errorf("ring entries at offset %d of %d", off.Desc, size)
	}
	w := ringWords{
		prod:  (*atomic.Uint32)(unsafe.Pointer(&mem[off.Producer])),
		cons:  (*atomic.Uint32)(unsafe.Pointer(&mem[off.Consumer])),
		flags: (*atomic.Uint32)(unsafe.Pointer(&mem[off.Flags])),
	}
	return w, unsafe.Slice((*E)(unsafe.Pointer(&mem[off.Desc])), entries), nil
}

// entryBytes is what one slot of a ring takes.
func entryBytes[E uint64 | xskernel.Desc]() int {
	var e E
	return int(unsafe.Sizeof(e))
}

// registerUMEM hands mem to the socket. The whole 32 bytes are passed: the kernel takes anything
// shorter for an older structure and drops the flags without a word.
func registerUMEM(fd int, mem []byte, g Geometry) error {
	reg := unix.XDPUmemReg{
		Addr:     uint64(uintptr(unsafe.Pointer(&mem[0]))), // mapped memory, which Go never moves
		Len:      uint64(len(mem)),
		Size:     g.ChunkBytes,
		Headroom: g.HeadroomBytes,
	}
	if g.Unaligned {
		reg.Flags = unix.XDP_UMEM_UNALIGNED_CHUNK_FLAG
	}
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&reg)), unsafe.Sizeof(reg), 0)
	if e != 0 {
		return e
	}
	return nil
}

// getXDPOption fills v from a SOL_XDP option and returns how many bytes the kernel wrote.
func getXDPOption[T any](fd, option int, v *T) (int, error) {
	n := uint32(unsafe.Sizeof(*v))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}
