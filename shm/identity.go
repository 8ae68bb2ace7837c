package shm

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
)

var self = sync.OnceValue(readSelf)

// Self returns the identity of this process; State, ClaimedNs and Generation are zero. It is read
// once and kept.
func Self() Owner { return self() }

// isSelf reports whether w is this very process. It is false where that cannot be told.
func (w Owner) isSelf() bool {
	me := Self()
	return w.PID == me.PID && w.PIDNS == me.PIDNS && w.PIDNS != 0 && w.StartTicks == me.StartTicks
}

// ProcessAlive reports whether the process of w can still run user code. known is false when
// nothing can be said, because it lives in another PID namespace or is hidden from us. A stopped
// process is alive; one that is exiting, or a zombie, is not.
func ProcessAlive(w Owner) (alive, known bool) { return processAlive(w) }

// PidfdGetfd duplicates descriptor fd of the process of w into this one, close-on-exec. It needs
// the right to trace that process. [ErrStale] if it has died.
func PidfdGetfd(w Owner, fd int) (int, error) {
	got, err := pidfdGetfd(w, fd)
	return got, named("take descriptor of", "process "+strconv.Itoa(w.PID), err)
}

// procStat is what we need of /proc/PID/stat.
type procStat struct {
	flags      uint64 // PF_* of the kernel
	startTicks uint64
}

// exiting is PF_EXITING: the thread will not run user code again. The kernel sets it before it
// drops the locks of a process, which become free a little earlier than the process is a zombie.
func (p procStat) exiting() bool { return p.flags&0x4 != 0 }

// parseStat reads the text of /proc/PID/stat, whose second field may hold anything.
func parseStat(b []byte) (p procStat, ok bool) {
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return procStat{}, false
	}
	f := strings.Fields(string(b[end+1:])) // f[0] is field 3, the state
	if len(f) < 20 {
		return procStat{}, false
	}
	flags, err1 := strconv.ParseUint(f[9-3], 10, 64)
	start, err2 := strconv.ParseUint(f[22-3], 10, 64)
	return procStat{flags: flags, startTicks: start}, err1 == nil && err2 == nil
}
