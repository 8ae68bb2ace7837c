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

// made makes memory for the other side to read, and lays something over it.
func made[T any](spec shm.Spec, lay func(*shm.Object) (T, error)) (what T, err error) {
	obj, err := shm.CreateMemfd(spec, nil)
	if err != nil {
		return what, err
	}
	laid, err := lay(obj)
	if err == nil {
		err = obj.Seal(shm.SealOthers) // what is mapped already stays writable
	}
	if err != nil {
		_ = obj.Close()
		return what, err
	}
	return laid, nil
}

// passed lays something over memory that the other side sent. It does not own fd.
func passed[T any](fd int, name string, spec shm.Spec, lay func(*shm.Object) (T, error)) (what T,
	err error) {
	most, err := shm.Plan(spec)
	if err != nil {
		return what, err
	}
	obj, err := shm.OpenPassed(fd, name, most)
	if err != nil {
		return what, err
	}
	laid, err := lay(obj)
	if err != nil {
		_ = obj.Close()
		return what, err
	}
	return laid, nil
}

func newPage(frames, sends int, generation uint64) (*statusPage, error) {
	return made(kind.PageSpec(frames, sends, generation), func(obj *shm.Object) (*statusPage, error) {
		return mapPage(obj, sends)
	})
}

func openPage(fd, sends int) (*statusPage, error) {
	return passed(fd, "device-status", kind.PageSpec(0, sends, 0),
		func(obj *shm.Object) (*statusPage, error) { return mapPage(obj, sends) })
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
	return made(payloadSpec(slots, slotBytes), func(obj *shm.Object) (*shm.Region, error) {
		return shm.NewRegion(obj, sectionPayload)
	})
}

func openPayload(fd, slots, slotBytes int) (*shm.Region, error) {
	return passed(fd, "device-payload", payloadSpec(slots, slotBytes),
		func(obj *shm.Object) (*shm.Region, error) {
			if err := kind.CheckKind(obj.Header(), shm.KindRegion); err != nil {
				return nil, err
			}
			r, err := shm.NewRegion(obj, sectionPayload)
			if err == nil && len(r.Bytes()) != slots*slotBytes {
				err = fmt.Errorf("%w: payload memory of %d bytes, agreed are %d", ErrProtocol,
					len(r.Bytes()), slots*slotBytes)
			}
			return r, err
		})
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
