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

// claimed are the objects that handles of this program have owned and still have mapped.
var claimed = struct {
	sync.Mutex
	handles map[inode]int
}{handles: map[inode]int{}}

type inode struct{ dev, ino uint64 }

// noteClaim comes before the claim can be seen, and forgetClaim when the memory is gone.
func (o *Object) noteClaim() {
	if o.claimed {
		return
	}
	o.claimed = true
	claimed.Lock()
	defer claimed.Unlock()
	claimed.handles[inode{o.dev, o.ino}]++
}

func (o *Object) forgetClaim() {
	if !o.claimed {
		return
	}
	o.claimed = false
	claimed.Lock()
	defer claimed.Unlock()
	id := inode{o.dev, o.ino}
	if claimed.handles[id]--; claimed.handles[id] == 0 {
		delete(claimed.handles, id)
	}
}

// ofFormerProgram reports that the owner of an object whose lock is free, a process that lives, is
// proved to have none of its memory any more. A process that cannot be looked at proves nothing.
func (o *Object) ofFormerProgram(owner Owner) bool {
	if owner.isSelf() { // which may have it mapped as one that looks, or is about to claim it
		claimed.Lock()
		defer claimed.Unlock()
		return claimed.handles[inode{o.dev, o.ino}] == 0
	}
	if is := programOf(strconv.Itoa(owner.PID)); owner.Program != 0 && is != 0 && is != owner.Program {
		return true // it may have mapped the memory anew
	}
	mapped, known := sysMaps(owner.PID, fileInfo{dev: o.dev, ino: o.ino})
	return known && !mapped
}
