package shm

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
)

// Ref says where bytes are: 16 bits name the region, 48 bits the offset in it. It fits the word of
// a completion and means the same in every process.
type Ref uint64

const refOffsetBits = 48

// MakeRef builds a Ref; bits of off above 48 are lost.
func MakeRef(region uint16, off uint64) Ref {
	return Ref(region)<<refOffsetBits | Ref(off&(1<<refOffsetBits-1))
}

// Region returns the number of the region.
func (r Ref) Region() uint16 { return uint16(r >> refOffsetBits) }

// Offset returns the offset in bytes.
func (r Ref) Offset() uint64 { return uint64(r) & (1<<refOffsetBits - 1) }

// String prints region and offset.
func (r Ref) String() string { return fmt.Sprintf("%d+%#x", r.Region(), r.Offset()) }

// Region is one section of an object that other processes read in place. It owns the object.
// ID, Bytes, Ref and View are safe from any goroutine, and so is Close.
type Region struct {
	object  *Object
	mem     []byte
	id      uint16
	loans   atomic.Int64 // number of loans, plus regionClosed
	drained chan struct{}
}

// regionClosed is the bit that refuses new loans.
const regionClosed = 1 << 62

// NewRegion lends out the section of this kind with id 0. The number of the region comes from the
// object's generation, so that a reference into a former incarnation is recognised as stale.
func NewRegion(o *Object, k SectionKind) (*Region, error) {
	mem, _, err := o.Section(k, 0)
	if err != nil {
		return nil, err
	}
	r := &Region{object: o, mem: mem, id: regionID(o.Generation()), drained: make(chan struct{}, 1)}
	return r, nil
}

// regionID is never 0, which no reference then means; the replacement is far from the numbers of
// neighbouring generations.
func regionID(generation uint64) uint16 {
	if id := uint16(generation); id != 0 {
		return id
	}
	return 1 << 15
}

// ID returns the number that references into this region carry.
func (r *Region) ID() uint16 { return r.id }

// Object returns the object behind the region.
func (r *Region) Object() *Object { return r.object }

// Bytes returns the memory for the one who writes it. It is gone after Close.
func (r *Region) Bytes() []byte { return r.mem }

// Ref returns the reference to offset off, which the caller keeps below the region's length.
func (r *Region) Ref(off uint64) Ref { return MakeRef(r.id, off) }

// View lends n bytes at ref without copying them. The reference may come from a peer: it is
// checked. The bytes stay readable until the loan is released; what they hold is the peer's affair,
// so look at each byte once. Errors: [ErrStale] for another region or generation, [ErrCorrupt] for
// a range outside, os.ErrClosed.
func (r *Region) View(ref Ref, n int) (Loan, error) {
	if ref.Region() != r.id {
		return Loan{}, r.badRef("region", ref.Region(), r.id, ErrStale)
	}
	off, size := ref.Offset(), uint64(len(r.mem))
	if n < 0 || off > size || uint64(n) > size-off {
		return Loan{}, r.badRef("range", [2]uint64{off, uint64(n)}, size, ErrCorrupt)
	}
	if r.loans.Add(1)&regionClosed != 0 {
		r.give()
		return Loan{}, &Error{Op: "view", Name: r.object.name, Err: os.ErrClosed}
	}
	end := off + uint64(n)
	return Loan{mem: r.mem[off:end:end], region: r}, nil
}

func (r *Region) badRef(field string, got, want any, err error) error {
	return &Error{Op: "view", Name: r.object.name, Field: field, Got: got, Want: want, Err: err}
}

// give returns one loan.
func (r *Region) give() {
	if r.loans.Add(-1) == regionClosed {
		r.wakeCloser()
	}
}

func (r *Region) wakeCloser() {
	select {
	case r.drained <- struct{}{}:
	default: // a wake-up is waiting already
	}
}

// Close refuses new loans, waits until all are released, and closes the object. If ctx ends
// first, its error is returned, no new loans are given, and Close can be called again.
func (r *Region) Close(ctx context.Context) error {
	for {
		n := r.loans.Load()
		if n&regionClosed != 0 || r.loans.CompareAndSwap(n, n|regionClosed) {
			break
		}
	}
	for r.loans.Load() != regionClosed {
		select {
		case <-r.drained:
		case <-ctx.Done():
			return &Error{Op: "close", Name: r.object.name, Field: "loans",
				Got: r.loans.Load() &^ regionClosed, Want: 0, Err: context.Cause(ctx)}
		}
	}
	r.wakeCloser() // another goroutine may be closing as well
	return r.object.Close()
}

// Loan is a view into a region. It belongs to one goroutine, and copies of it are one loan: release
// only one of them.
type Loan struct {
	mem    []byte
	region *Region
}

// Bytes returns the memory, or nil after Release. It must not be used after Release.
func (l *Loan) Bytes() []byte { return l.mem }

// Release ends the loan. Calling it again on the same variable does nothing.
func (l *Loan) Release() {
	r := l.region
	if r == nil {
		return
	}
	l.mem, l.region = nil, nil
	r.give()
}
