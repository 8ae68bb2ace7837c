package inspect

import (
	"fmt"
	"sync/atomic"

	"github.com/shmring/shmring/internal/kind"
)

// umem checks that a UMEM is as large as it says. What is in its frames is the device's and its
// peers'; which frame is where stands in the memory of the process that has the sockets.
func (c *checker) umem() {
	if !c.attributes(kind.UMEMAttributes) {
		return
	}
	if _, err := kind.StoredUMEM(c.obj); err != nil {
		c.badHeader("umem.geometry", headerAttrs, err.Error(), "what NewUMEM writes")
	}
}

// statusPage checks the page that the server of a device writes for an application. The server may
// count meanwhile.
//
// Of the application's frames it knows their numbers. Which ones it has, and under which
// generation, is in the server's own memory, where no application can make two owners of one; so
// from outside a frame that is handed out twice is seen only when more are out than there are.
func (c *checker) statusPage() {
	if !c.attributes(kind.PageAttributes) {
		return
	}
	counts, err := kind.PageCounts(c.obj)
	if err != nil {
		c.badHeader("device.layout", headerSections, err.Error(), "what a server writes")
		return
	}
	bad := func(name string, word int, got uint64, want string) {
		c.bad(name, kind.SectCounts, uint64(8*word), got, want)
	}
	begun, ended, received, returned := moment(counts)
	frames := c.obj.Header().Attrs[kind.AttrPageFrames]
	switch {
	case ended > begun:
		bad("device.update", kind.CountEnded, ended, fmt.Sprintf("at most %d", begun))
	case ended < begun, frames == 0:
		// An update is under way, or the server died in one; or it is one of before there was the number.
	case returned > received:
		bad("device.returned", kind.CountReturned, returned, fmt.Sprintf("at most %d", received))
	case received-returned > frames:
		bad("device.frames", kind.CountReceived, received,
			fmt.Sprintf("at most %d, as %d of %d came back", returned+frames, returned, frames))
	}
}

// momentTries bounds how often counts are loaded that change meanwhile.
const momentTries = 64

// moment loads the counts as they are between two updates, if there is such a moment.
func moment(c []atomic.Uint64) (begun, ended, received, returned uint64) {
	for range momentTries {
		ended = c[kind.CountEnded].Load()
		received, returned = c[kind.CountReceived].Load(), c[kind.CountReturned].Load()
		if begun = c[kind.CountBegun].Load(); begun == ended {
			break
		}
	}
	return begun, ended, received, returned
}
