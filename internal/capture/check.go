package capture

import (
	"fmt"

	"github.com/shmring/shmring/shm"
)

// Invariants returns what holds of a capture, beyond what holds of every object.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "capture.layout", Exact: true, What: "slots and sections are those of a capture"},
		{Name: "capture.tail", Exact: true, What: "no more is in it than it holds"},
		{Name: "capture.state", Exact: true, What: "the endpoint has not come, is there, or has left"},
	}
}

// Check returns what of that does not hold. It is called while the object is mapped for reading,
// inside [shm.Guard]; packets may come and be read meanwhile.
func Check(obj *shm.Object) (out []shm.Violation) {
	bad := func(name, section string, base, within uint64, got, want any) {
		out = append(out, shm.Violation{Invariant: name, Section: section, Offset: base + within,
			Within: within, Got: fmt.Sprint(got), Want: fmt.Sprint(want)})
	}
	m, err := lay(obj)
	if err != nil {
		bad("capture.layout", "header", 0, 0x100, err, "what a capture has")
		return out
	}
	_, writer, err := obj.Section(sectWriter, 0)
	if err != nil {
		return out
	}
	const tries = 64
	slots := uint64(len(m.records))
	for range tries {
		head := m.head.Load()
		tail := m.tail.Load()
		if m.head.Load() != head {
			continue
		}
		if tail-head > slots {
			bad("capture.tail", "writer", writer.Offset, offTail, tail,
				fmt.Sprintf("%d to %d", head, head+slots))
		}
		break
	}
	if s := m.state.Load(); s > stateLeft {
		bad("capture.state", "writer", writer.Offset, offState, s, "0 to 2")
	}
	return out
}
