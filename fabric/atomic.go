package fabric

import (
	"encoding/binary"
	"math"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
)

// Datatype is that of the elements of an atomic (enum fi_datatype), with libfabric's numbers. Those
// of 16 bytes and complex ones are not here.
type Datatype uint8

// The types of elements.
const (
	Int8 Datatype = iota
	Uint8
	Int16
	Uint16
	Int32
	Uint32
	Int64
	Uint64
	Float32
	Float64
)

// size returns the bytes of an element, or 0 of a type that is not here.
func (t Datatype) size() int {
	switch {
	case t <= Uint64:
		return 1 << (t / 2)
	case t <= Float64:
		return 4 << (t - Float32)
	}
	return 0
}

// AtomicOp is what an atomic does to each element (enum fi_op), with libfabric's numbers.
type AtomicOp uint8

// The operations: x is the element, v that of Buf, c that of Compare. The bitwise ones and
// MaskedSwap are for integers. Logical ones make 0 or 1.
const (
	Min           AtomicOp = iota // the lesser
	Max                           // the greater
	Sum                           // x + v
	Prod                          // x * v
	LogicalOr                     // x != 0 || v != 0
	LogicalAnd                    // x != 0 && v != 0
	BitOr                         // x | v
	BitAnd                        // x & v
	LogicalXor                    // (x != 0) != (v != 0)
	BitXor                        // x ^ v
	AtomicRead                    // x
	AtomicWrite                   // v
	CompareSwap                   // v if c == x
	CompareSwapNE                 // v if c != x
	CompareSwapLE                 // v if c <= x
	CompareSwapLT                 // v if c < x
	CompareSwapGE                 // v if c >= x
	CompareSwapGT                 // v if c > x
	MaskedSwap                    // v&c | x&^c
)

// AtomicMsg is an atomic with all that one can have (struct fi_msg_atomic, and what fi_fetch_atomic
// and fi_compare_atomic have beside it).
type AtomicMsg struct {
	Op   AtomicOp
	Type Datatype
	Buf  []byte // elements, little-endian; none with AtomicRead
	// Compare has as many, of the operations that compare or mask.
	Compare []byte
	// Result gets what the elements were before, if it is not nil.
	Result  []byte
	Addr    cq.Addr
	At      Remote // aligned as the type
	Context uint64
	// Flags are those of WriteMsg, but for FlagRemoteCQData; with a Result those of ReadMsg, and
	// level commit.
	Flags cq.Flags
}

// Atomic changes elements in memory of a peer, each at once for all who do so by Atomic or, in the
// peer's process, by package sync/atomic: plain accesses of the peer are not in order with it. Like
// Write the call does it, and completes it with FlagAtomic, and FlagRead if there is a Result, else
// FlagWrite.
//
// Errors are those of Write; [ErrNotSupported] also of a type that is not here, and of an operation
// that is not for the type; [ErrFlags] also if lengths do not agree.
func (e *Endpoint) Atomic(m *AtomicMsg) error {
	op, err := atomicOf(m)
	if err != nil {
		return err
	}
	return e.reach(m.Addr, op)
}

func atomicOf(m *AtomicMsg) (*reaching, error) {
	size, n := m.Type.size(), len(m.Buf)
	what, known := uint64(kind.FabricAtomic|kind.FabricWrite), writeFlags&^cq.FlagRemoteCQData
	if m.Result != nil {
		what, known = kind.FabricAtomic|kind.FabricRead, readFlags|cq.FlagCommitComplete
	}
	reads, compares := m.Op == AtomicRead, m.Op >= CompareSwap
	if reads {
		n = len(m.Result)
	}
	bitwise := m.Op == BitOr || m.Op == BitAnd || m.Op == BitXor || m.Op == MaskedSwap
	switch {
	case size == 0, m.Op > MaskedSwap, bitwise && m.Type >= Float32,
		m.Flags&notForRemote != 0:
		return nil, ErrNotSupported
	case n == 0, n%size != 0, reads && len(m.Buf) > 0, m.Result != nil && len(m.Result) != n,
		compares && len(m.Compare) != n, !compares && len(m.Compare) > 0, m.Flags&^known != 0:
		return nil, ErrFlags
	}
	return &reaching{need: kind.FabricAtomic, at: m.At, atomic: m,
		sendOp: sendOp{context: m.Context, flags: m.Flags | cq.FlagRMA, tag: what, bytes: n}}, nil
}

// do changes the elements at a place of the memory.
func (m *AtomicMsg) do(mem kind.FabricPool, at, n int) {
	size := m.Type.size()
	for i := 0; i < n; i += size {
		v, c := element(m.Buf, i, size), element(m.Compare, i, size)
		was := mem.Update(at+i, size, func(x uint64) uint64 { return m.Type.apply(m.Op, x, v, c) })
		if m.Result != nil {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], was)
			copy(m.Result[i:i+size], b[:])
		}
	}
}

// element returns the bits of one, or 0 if there are none.
func element(b []byte, at, size int) uint64 {
	var whole [8]byte
	if len(b) > 0 {
		copy(whole[:], b[at:at+size])
	}
	return binary.LittleEndian.Uint64(whole[:])
}

// apply returns the bits of an element after an operation.
func (t Datatype) apply(op AtomicOp, x, v, c uint64) uint64 {
	switch op { // whatever the type
	case BitOr:
		return x | v
	case BitAnd:
		return x & v
	case BitXor:
		return x ^ v
	case MaskedSwap:
		return v&c | x&^c
	case AtomicRead:
		return x
	case AtomicWrite:
		return v
	}
	switch t {
	case Float32:
		f := func(w uint64) float32 { return math.Float32frombits(uint32(w)) }
		return uint64(math.Float32bits(apply(op, f(x), f(v), f(c))))
	case Float64:
		f := math.Float64frombits
		return math.Float64bits(apply(op, f(x), f(v), f(c)))
	case Int8, Int16, Int32, Int64: // with their sign in all 64 bits
		left := 64 - 8*t.size()
		f := func(w uint64) int64 { return int64(w<<left) >> left }
		return uint64(apply(op, f(x), f(v), f(c)))
	}
	return apply(op, x, v, c)
}

type numeric interface {
	int64 | uint64 | float32 | float64
}

func apply[T numeric](op AtomicOp, x, v, c T) T {
	one := func(is bool) T {
		if is {
			return 1
		}
		return 0
	}
	swap := false
	switch op {
	case Min:
		swap = v < x
	case Max:
		swap = v > x
	case Sum:
		return x + v
	case Prod:
		return x * v
	case LogicalOr:
		return one(x != 0 || v != 0)
	case LogicalAnd:
		return one(x != 0 && v != 0)
	case LogicalXor:
		return one((x != 0) != (v != 0))
	case CompareSwap:
		swap = c == x
	case CompareSwapNE:
		swap = c != x
	case CompareSwapLE:
		swap = c <= x
	case CompareSwapLT:
		swap = c < x
	case CompareSwapGE:
		swap = c >= x
	case CompareSwapGT:
		swap = c > x
	}
	if swap {
		return v
	}
	return x
}
