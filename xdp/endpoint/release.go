package endpoint

import (
	"math"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Release gives the frame of a receive completion back, which may be another process's copy of it:
// Buf and Meta are what counts. [ErrFrame] says that it is no frame of this
// endpoint, or was given back before; nothing happens then but that it is counted.
func (e *Endpoint) Release(c *cq.Entry) error { return e.endLoan(c.Buf, c.Meta.Seq()) }

// ReleaseBatch gives the frames of several completions back, and shows the kernel them with one
// store. Entries without FlagFrame are passed over. The error is that of the first that was wrong;
// all others were given back.
func (e *Endpoint) ReleaseBatch(cs []cq.Entry) (err error) {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	for i := range cs {
		if cs[i].Flags&cq.FlagFrame == 0 {
			continue
		}
		if !e.takeBack(cs[i].Buf, cs[i].Meta.Seq()) {
			err = ErrFrame
		}
	}
	e.refill(starved)
	return err
}

// ReleaseError gives the frame of an error entry back: one with FlagFrame, of a datagram from an
// unknown source.
func (e *Endpoint) ReleaseError(c *cq.ErrorEntry) error {
	r, err := e.Record(c.Buf)
	if err != nil {
		return err
	}
	return e.endLoan(c.Buf, uint32(r.Sequence))
}

func (e *Endpoint) endLoan(ref shm.Ref, generation uint32) error {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	ok := e.takeBack(ref, generation)
	e.refill(starved)
	if !ok {
		return ErrFrame
	}
	return nil
}

func (e *Endpoint) takeBack(ref shm.Ref, generation uint32) bool {
	off := ref.Offset()
	if ref.Region() != e.umem {
		off = math.MaxUint64 // a frame of a former UMEM: the frame table counts it
	}
	e.dirty = true // what is stale is counted too
	if !e.socket.Return(off, generation) {
		return false
	}
	e.stats.Returned++
	return true
}

// refill hands frames on as soon as there are any, if the kernel had run out of them: nobody else
// may look for a while.
func (e *Endpoint) refill(starved bool) {
	if e.over || !starved {
		return
	}
	if e.socket.Fill(2*len(e.packets)) > 0 {
		_ = e.socket.WakeFill()
	}
}

// Reclaim takes back all frames that were lent by completions before the one with this generation:
// what a dead reader held. It returns how many.
func (e *Endpoint) Reclaim(before uint32) int {
	e.lock()
	defer e.unlock()
	starved := e.fillLeft() == 0
	n := e.socket.Reclaim(before)
	e.stats.Reclaimed += uint64(n)
	e.refill(starved)
	return n
}

// Payload returns the bytes of a loaned frame in place, in this process: Buf and Len are what
// counts, so an error entry's do as well. They are not to be touched after Release, and are gone
// when the UMEM is closed. [ErrFrame] says that they are not of this endpoint's UMEM.
func (e *Endpoint) Payload(c *cq.Entry) ([]byte, error) {
	ref, n := c.Buf, c.Len
	mem := e.socket.UMEM().Region().Bytes()
	off := ref.Offset()
	if ref.Region() != e.umem || off > uint64(len(mem)) || n > uint64(len(mem))-off {
		return nil, ErrFrame
	}
	return mem[off : off+n : off+n], nil
}

// Record returns what is known about a loaned frame beside its payload: addresses, time, VLAN.
func (e *Endpoint) Record(ref shm.Ref) (xdp.Record, error) {
	u := e.socket.UMEM()
	if ref.Region() != e.umem {
		return xdp.Record{}, ErrFrame
	}
	return xdp.ReadFrame(u.Region(), u.Geometry(), ref)
}
