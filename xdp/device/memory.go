package device

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// sectionPayload is the section of the payload memory, which the application writes.
const sectionPayload shm.SectionKind = 0x58440003

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

func newPage(frames, sends int, generation uint64) (*statusPage, error) {
	obj, err := shm.CreateMemfd(kind.PageSpec(frames, sends, generation), nil)
	if err != nil {
		return nil, err
	}
	p, err := mapPage(obj, sends)
	if err == nil {
		err = obj.Seal(shm.SealOthers)
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return p, nil
}

// openPage maps the page that a server sent. It does not own fd.
func openPage(fd, sends int) (*statusPage, error) {
	most, err := shm.Plan(kind.PageSpec(0, sends, 0))
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
	if err := kind.CheckKind(obj.Header(), shm.KindRegion); err != nil {
		return nil, err
	}
	done, _, err := obj.Section(kind.SectDone, 0)
	if err != nil {
		return nil, err
	}
	counts, err := kind.PageCounts(obj)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	p := &statusPage{obj: obj, done: kind.Overlays[atomic.Uint64](done), counts: counts}
	if len(p.done) != sends {
		return nil, &shm.Error{Pkg: pkg, Op: "map status page", Field: "words", Got: len(p.done),
			Want: sends, Err: ErrProtocol}
	}
	return p, nil
}

func (p *statusPage) close() error { return p.obj.Close() }

func countsOf(p *statusPage) EndpointStats {
	c := p.counts
	return EndpointStats{Received: c[kind.CountReceived].Load(), NoFrame: c[kind.CountNoFrame].Load(),
		NoRoom: c[kind.CountNoRoom].Load(), Returned: c[kind.CountReturned].Load(),
		Stale: c[kind.CountStale].Load(), Sent: c[kind.CountSent].Load(),
		SendFailed: c[kind.CountFailed].Load(), BadChecksum: c[kind.CountBadChecksum].Load()}
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
	err = obj.Seal(shm.SealOthers) // what is mapped already stays writable
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
	err = kind.CheckKind(obj.Header(), shm.KindRegion)
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
