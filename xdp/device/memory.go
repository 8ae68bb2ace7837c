package device

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Sections of the status page, which the server writes, and of the payload memory, which the
// application writes.
const (
	sectionDone    shm.SectionKind = 0x58440001 // a word for each send slot
	sectionCounts  shm.SectionKind = 0x58440002
	sectionPayload shm.SectionKind = 0x58440003
)

// Words of the counts section.
const (
	countReceived = iota
	countNoFrame  // packets dropped because the application has all its frames
	countNoRoom   // packets dropped because its queue is full
	countReturned
	countStale
	countSent
	countFailed
	// Both are the number of an update: the first is stored before its first count, the second after
	// its last. So counts that were loaded between loads of the second and of the first, which are
	// equal, are of one moment.
	countBegun
	countEnded
	countBadChecksum
	countBytes = 4096
)

// attrPageFrames is how many frames the application may have at most.
const attrPageFrames = 0

// A done word is 0 before the first send from its slot ends, and then says how the last one ended:
// the index of its completion in the lane of sends plus one, or, where no completion is wanted, a
// number that was not there before with the top bit set. It is stored before the completion is
// published, so that who sees the completion finds the slot free.
const doneSilent = 1 << 63

// statusPage is what an application may know of what the server did for it.
type statusPage struct {
	obj    *shm.Object
	done   []atomic.Uint64 // server writes; pairs with the client's look for a free slot
	counts []atomic.Uint64
}

func pageSpec(frames, sends int, generation uint64) shm.Spec {
	s := shm.Spec{Kind: shm.KindRegion, Name: "device-status", Generation: generation,
		Sections: []shm.Section{
			{Kind: sectionDone, Length: uint64(sends) * 8, ElemSize: 8, Capacity: uint64(sends)},
			{Kind: sectionCounts, Length: countBytes, ElemSize: 8, Capacity: countBytes / 8}}}
	s.Attrs[attrPageFrames] = uint64(frames)
	return s
}

func newPage(frames, sends int, generation uint64) (*statusPage, error) {
	obj, err := shm.CreateMemfd(pageSpec(frames, sends, generation), nil)
	if err != nil {
		return nil, err
	}
	p, err := mapPage(obj, sends)
	if err == nil {
		err = obj.SealForOthers()
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return p, nil
}

// openPage maps the page that a server sent. It does not own fd.
func openPage(fd, sends int) (*statusPage, error) {
	most, err := shm.Plan(pageSpec(0, sends, 0))
	if err != nil {
		return nil, err
	}
	obj, err := shm.OpenPassed(fd, "device-status", most)
	if err != nil {
		return nil, err
	}
	p, err := mapPage(obj, sends)
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return p, nil
}

func mapPage(obj *shm.Object, sends int) (*statusPage, error) {
	if err := obj.Header().CheckKind(shm.KindRegion); err != nil {
		return nil, err
	}
	done, _, err := obj.Section(sectionDone, 0)
	if err != nil {
		return nil, err
	}
	counts, _, err := obj.Section(sectionCounts, 0)
	if err != nil {
		return nil, err
	}
	p := &statusPage{obj: obj, done: overlay(done), counts: overlay(counts)}
	if len(p.done) != sends || len(p.counts) != countBytes/8 {
		return nil, &shm.Error{Pkg: pkg, Op: "map status page", Field: "words",
			Got: [2]int{len(p.done), len(p.counts)}, Want: [2]int{sends, countBytes / 8},
			Err: ErrProtocol}
	}
	return p, nil
}

func (p *statusPage) close() error { return p.obj.Close() }

func countsOf(p *statusPage) EndpointStats {
	c := p.counts
	return EndpointStats{Received: c[countReceived].Load(), NoFrame: c[countNoFrame].Load(),
		NoRoom: c[countNoRoom].Load(), Returned: c[countReturned].Load(),
		Stale: c[countStale].Load(), Sent: c[countSent].Load(), SendFailed: c[countFailed].Load(),
		BadChecksum: c[countBadChecksum].Load()}
}

func payloadSpec(slots, slotBytes int) shm.Spec {
	n := uint64(slots) * uint64(slotBytes)
	return shm.Spec{Kind: shm.KindRegion, Name: "device-payload",
		Sections: []shm.Section{{Kind: sectionPayload, Length: n, ElemSize: uint64(slotBytes),
			Capacity: uint64(slots)}}}
}

func newPayload(slots, slotBytes int) (*shm.Region, error) {
	obj, err := shm.CreateMemfd(payloadSpec(slots, slotBytes), nil)
	if err != nil {
		return nil, err
	}
	err = obj.SealForOthers() // what is mapped already stays writable
	var r *shm.Region
	if err == nil {
		r, err = shm.NewRegion(obj, sectionPayload)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return r, nil
}

// openPayload maps the memory that an application sent. It does not own fd.
func openPayload(fd, slots, slotBytes int) (*shm.Region, error) {
	most, err := shm.Plan(payloadSpec(slots, slotBytes))
	if err != nil {
		return nil, err
	}
	obj, err := shm.OpenPassed(fd, "device-payload", most)
	if err != nil {
		return nil, err
	}
	err = obj.Header().CheckKind(shm.KindRegion)
	var r *shm.Region
	if err == nil {
		r, err = shm.NewRegion(obj, sectionPayload)
	}
	if err == nil && len(r.Bytes()) != slots*slotBytes {
		err = fmt.Errorf("%w: payload memory of %d bytes, agreed are %d", ErrProtocol,
			len(r.Bytes()), slots*slotBytes)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return r, nil
}

// closeRegion unmaps without waiting: whoever had loans has been told.
func closeRegion(r *shm.Region) error {
	if r == nil {
		return nil
	}
	return r.Close(context.Background())
}

// openFrames maps the UMEM that a server sent, of so many frames at most. It does not own fd.
func openFrames(fd int, count uint32) (f frames, err error) {
	const chunk = 4096
	most := (uint64(count) + 2) * chunk
	f.Region, f.geo, err = xdp.OpenUMEM(fd, "device-frames", most)
	return f, err
}
