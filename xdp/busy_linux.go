package xdp

import (
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
)

// busyWait is the patience of one bind. The zero value of BusyTimeout waits for the kernel, and not
// for a process that lives; another one waits for whatever has the queue.
type busyWait struct {
	s        *Socket
	told     bool // how long to wait, by the caller
	deadline time.Time
	pause    time.Duration
	holder   func(ifindex int, queue uint32) (pid int, err error)
	blind    bool // the kernel does not tell who has a queue
}

func (s *Socket) newBusyWait(o Options) *busyWait {
	bound := o.BusyTimeout
	if bound == 0 {
		bound = busyBound
	}
	return &busyWait{s: s, told: o.BusyTimeout != 0, deadline: time.Now().Add(bound),
		pause: firstBusyPause, holder: queueHolder}
}

// again waits until it is time for one more try after err, an [ErrQueueBusy], or returns what the
// bind is to end with.
func (w *busyWait) again(ctx context.Context, err error) error {
	over := !time.Now().Before(w.deadline)
	if over || !w.told {
		if pid := w.living(); pid != 0 {
			return w.s.busyError(pid)
		}
	}
	if over {
		return err
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
