package device

import (
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Invariants returns what holds of the status page that a server makes for an application, beyond
// what holds of every object.
//
// Of the application's frames that is their numbers. Which ones it has, and under which generation,
// is in the server's own memory, where no application can make two owners of one; so from outside
// a frame that is handed out twice is seen only when more are out than there are.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "device.layout", Exact: true, What: "the sections are those of a status page"},
		{Name: "device.update", Exact: true, What: "no update of counts ended that did not begin"},
		{Name: "device.returned", Exact: true, What: "no frame came back that was not handed out"},
		{Name: "device.frames", Exact: true, What: "no more frames are out than there are"},
	}
}

// IsStatusPage reports whether an object is the status page of an application.
func IsStatusPage(obj *shm.Object) bool {
	_, _, err := obj.Section(sectionDone, 0)
	return err == nil && obj.Header().Kind == shm.KindRegion
}

// checkTries bounds how often counts are loaded that change meanwhile.
const checkTries = 64

// Check returns which [Invariants] do not hold of a status page. The caller has it mapped for
// reading and calls Check inside [shm.Guard]; the server may count meanwhile.
func Check(obj *shm.Object) []shm.Violation {
	mem, s, err := obj.Section(sectionCounts, 0)
	if err == nil && len(mem) != countBytes {
		err = fmt.Errorf("%w: counts of %d bytes", ErrProtocol, len(mem))
	}
	if err != nil {
		return []shm.Violation{{Invariant: "device.layout", Section: "header", Offset: 0x180,
			Within: 0x180, Got: err.Error(), Want: "what a server writes"}}
	}
	bad := func(name string, word int, got, want any) []shm.Violation {
		return []shm.Violation{{Invariant: name, Section: "counts", Offset: s.Offset + uint64(8*word),
			Within: uint64(8 * word), Got: fmt.Sprint(got), Want: fmt.Sprint(want)}}
	}
	begun, ended, received, returned := moment(overlay(mem))
	frames := obj.Header().Attrs[attrPageFrames]
	switch {
	case ended > begun:
		return bad("device.update", countEnded, ended, fmt.Sprintf("at most %d", begun))
	case ended < begun, frames == 0:
		// An update is under way, or the server died in one; or it is one of before there was the number.
		return nil
	case returned > received:
		return bad("device.returned", countReturned, returned, fmt.Sprintf("at most %d", received))
	case received-returned > frames:
		return bad("device.frames", countReceived, received,
			fmt.Sprintf("at most %d, as %d of %d came back", returned+frames, returned, frames))
	}
	return nil
}

// moment loads the counts as they are between two updates, if there is such a moment.
func moment(c []atomic.Uint64) (begun, ended, received, returned uint64) {
	for range checkTries {
		ended = c[countEnded].Load()
		received, returned = c[countReceived].Load(), c[countReturned].Load()
		if begun = c[countBegun].Load(); begun == ended {
			break
		}
	}
	return begun, ended, received, returned
}
