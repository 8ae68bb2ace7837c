package xdp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// busyBound is how long the queue of a socket that is gone is waited for. The kernel frees it
// when the last packet of the socket has left every queue on its way, and then from a work item
// that wants the lock that all changes of interfaces go through: tens of milliseconds where
// nothing else happens, seconds on a machine that is short of time.
var busyBound = 10 * time.Second

const (
	firstBusyPause = 2 * time.Millisecond
	lastBusyPause  = 50 * time.Millisecond
	// firstLook is how long after the first one the second look at who has a queue is. Who has it
	// by then too means to keep it; until then it may be a child that has not executed its program
	// yet, with a copy of a descriptor that this process has closed, or one that is about to leave.
	firstLook = 500 * time.Millisecond
)

// busyWait is the patience of one bind. The zero value of BusyTimeout waits for the kernel, and not
// for a process that lives; another one waits for whatever has the queue.
type busyWait struct {
	s        *Socket
	told     bool // how long to wait, by the caller
	deadline time.Time
	pause    time.Duration
	holder   func(ifindex int, queue uint32) (pid int, err error)
	born     func(pid int) string
	now      func() time.Time
	blind    bool // the kernel does not tell who has a queue

	look  time.Time     // when to look again at who has the queue
	gap   time.Duration // between the last look and that
	pid   int           // who had it at the last look
	since string        // when that process was started
}

func (s *Socket) newBusyWait(o Options) *busyWait {
	bound := o.BusyTimeout
	if bound == 0 {
		bound = busyBound
	}
	return &busyWait{s: s, told: o.BusyTimeout != 0, deadline: time.Now().Add(bound),
		pause: firstBusyPause, holder: queueHolder, born: startOf, now: time.Now}
}

// again waits until it is time for one more try after err, an [ErrQueueBusy], or returns what the
// bind is to end with.
func (w *busyWait) again(ctx context.Context, err error) error {
	over := !w.now().Before(w.deadline)
	if over {
		if pid := w.living(); pid != 0 {
			return w.s.busyError(pid)
		}
		return err
	}
	if !w.told && w.stays() {
		return w.s.busyError(w.pid)
	}
	pause := time.NewTimer(w.pause)
	defer pause.Stop()
	w.pause = min(2*w.pause, lastBusyPause)
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), err)
	}
}

// stays reports that the process which has the queue had it at the look before. Looks become rare:
// each goes through the descriptors of all processes.
func (w *busyWait) stays() bool {
	now := w.now()
	if now.Before(w.look) {
		return false
	}
	w.gap = max(2*w.gap, firstLook)
	w.look = now.Add(w.gap)
	pid, since := w.living(), ""
	if pid != 0 {
		since = w.born(pid)
	}
	same := pid != 0 && pid == w.pid && since == w.since
	w.pid, w.since = pid, since
	return same
}

// living returns the process that has the queue and is not about to end; 0 if none is known. A
// kernel that cannot tell is asked once: each question has it look for a module.
func (w *busyWait) living() int {
	if w.blind {
		return 0
	}
	pid, err := w.holder(w.s.ifindex, w.s.queue)
	w.blind = err != nil
	if err != nil || pid == 0 || dying(pid) {
		return 0
	}
	return pid
}

func (s *Socket) busyError(pid int) error {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return s.error(fmt.Sprintf("bind queue %d of", s.queue), &QueueBusyError{Ifname: s.ifname,
		Queue: s.queue, PID: pid, Command: strings.TrimSpace(string(name))},
		"stop that process, or use another queue; see \"ss --xdp -p\"")
}

// queueHolder finds the process that has a socket bound to a queue of an interface in the network
// namespace of the calling thread: 0 if there is no such socket, or its process cannot be seen.
func queueHolder(ifindex int, queue uint32) (pid int, err error) {
	sockets, err := netlink.SocketDiagXDP()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, err
	}
	for _, s := range sockets {
		if s.XDPInfo != nil && s.XDPDiagMsg != nil && s.XDPInfo.Ifindex == uint32(ifindex) &&
			s.XDPInfo.QueueID == queue {
			return socketOwner(s.XDPDiagMsg.Ino), nil
		}
	}
	return 0, nil
}

// socketOwner looks for a process with a descriptor of a socket, by the number of its inode.
func socketOwner(inode uint32) (pid int) {
	want := fmt.Sprintf("socket:[%d]", inode)
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir) // none of a process that has gone, or is another user's
		for _, fd := range fds {
			if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && to == want {
				return pid
			}
		}
	}
	return 0
}

// startOf tells a process from another one that had its number before: the two were not started in
// the same tick of the clock.
func startOf(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name of its program, in parentheses, may have blanks.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const start = 22 - 3 // as proc(5) counts; the third is the first after the name
	if len(fields) <= start {
		return ""
	}
	return fields[start]
}

// dying reports that a process is ended, or will be before it runs again: one that was killed keeps
// its descriptors until the kernel comes to it.
func dying(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "State":
			if strings.HasPrefix(value, "Z") || strings.HasPrefix(value, "X") {
				return true
			}
		case "SigPnd", "ShdPnd":
			pending, err := strconv.ParseUint(value, 16, 64)
			if err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
				return true
			}
		}
	}
	return false
}
