package shm

import (
	"strconv"
	"sync"
)

// A process can become another program (execve). It lives on under its number and start time, and
// its locks and all that it had mapped are gone; so an object that the former program owned is one
// whose lock is free while the process lives. That is a lost lock too, of an owner that may still
// write. What tells them apart is whether it is the same program, and, where that cannot be told,
// whether the memory is still mapped.

// claimed are the objects that handles of this program have owned and still have mapped, and the
// seats that they have.
var claimed = struct {
	sync.Mutex
	handles map[inode]int
}{handles: map[inode]int{}}

type inode struct {
	dev, ino uint64
	seat     int // or whole
}

// claimNote is what one handle, or seat, has added to claimed.
type claimNote struct {
	of inode
	on bool
}

// set comes before the claim can be seen, and drop when the memory is gone.
func (n *claimNote) set(o *Object, seat int) {
	if n.on {
		return
	}
	*n = claimNote{inode{o.dev, o.ino, seat}, true}
	claimed.Lock()
	defer claimed.Unlock()
	claimed.handles[n.of]++
}

func (n *claimNote) drop() {
	if !n.on {
		return
	}
	n.on = false
	claimed.Lock()
	defer claimed.Unlock()
	if claimed.handles[n.of]--; claimed.handles[n.of] == 0 {
		delete(claimed.handles, n.of)
	}
}

// ofFormerProgram reports that the owner of an object, or of a seat at it, whose lock is free, a
// process that lives, is proved to have none of its memory any more. A process that cannot be
// looked at proves nothing.
func (o *Object) ofFormerProgram(owner Owner, seat int) bool {
	if owner.isSelf() { // which may have it mapped as one that looks, or is about to claim it
		claimed.Lock()
		defer claimed.Unlock()
		return claimed.handles[inode{o.dev, o.ino, seat}] == 0
	}
	if is := programOf(strconv.Itoa(owner.PID)); owner.Program != 0 && is != 0 && is != owner.Program {
		return true // it may have mapped the memory anew
	}
	mapped, known := sysMaps(owner.PID, fileInfo{dev: o.dev, ino: o.ino})
	return known && !mapped
}
