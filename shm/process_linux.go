package shm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/pollable"
)

// readSelf also reports whether something is missing for want of a descriptor.
func readSelf() (o Owner, starved bool) {
	o.PID = os.Getpid()
	if id, ok := parseUUID(strings.TrimSpace(string(
		readOrNothing("/proc/sys/kernel/random/boot_id")))); ok {
		o.BootID = id
	}
	// A /proc of another PID namespace would show strangers under our numbers.
	if link, err := os.Readlink("/proc/self"); err != nil || link != strconv.Itoa(o.PID) {
		return o, false
	}
	st, ok := readStat("/proc/self/stat")
	info, err := sysStatFollow("/proc/self/ns/pid")
	if ok && err == nil && !ownTime() {
		o.StartTicks, o.PIDNS, o.Program = st.startTicks, info, programOf("self")
	}
	return o, !ok // everybody may read his own, and the link was there
}

// programOf returns a number of the program that a process is, which lasts until it becomes
// another: a sum of what the kernel told that about its memory, whose layout is drawn by lot. It is
// 0 if the process cannot be looked at. Where nothing is drawn by lot programs may have the same.
func programOf(pid string) uint64 {
	text := readOrNothing("/proc/" + pid + "/auxv")
	if len(text) == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(text)
	return max(h.Sum64(), 1)
}

// ownTime reports whether this process counts its time since boot otherwise than others may: the
// kernel shows every start time as the looker would, and then equal processes look different.
func ownTime() bool {
	for line := range strings.Lines(string(readOrNothing("/proc/self/timens_offsets"))) {
		f := strings.Fields(line)
		if len(f) == 3 && f[0] == "boottime" && (f[1] != "0" || f[2] != "0") {
			return true
		}
	}
	return false
}

func sysStatFollow(path string) (ino uint64, err error) {
	var st unix.Stat_t
	err = file.Again(func() error { return unix.Stat(path, &st) })
	return st.Ino, err
}

func readStat(path string) (procStat, bool) { return parseStat(readOrNothing(path)) }

func processAlive(w Owner) (alive, known bool) {
	if !w.comparable() {
		return false, false
	}
	if gone(w.PID) {
		return false, true
	}
	dir := "/proc/" + strconv.Itoa(w.PID)
	st, ok := readStat(dir + "/stat")
	if !ok { // it died just now, or /proc hides it
		return false, gone(w.PID)
	}
	if st.startTicks != w.StartTicks {
		return false, true
	}
	if !st.exiting() {
		return true, true
	}
	// The first thread is leaving; a process lives as long as any of its threads does.
	alive, known = threadsAlive(dir + "/task")
	return alive, known || gone(w.PID)
}

// threadsAlive reports whether one of the threads that a directory lists can still run user code.
// One that is there and cannot be looked at, for want of a descriptor say, may.
func threadsAlive(dir string) (alive, known bool) {
	tasks, err := os.ReadDir(dir)
	known = err == nil
	for _, t := range tasks {
		path := dir + "/" + t.Name() + "/stat"
		if st, ok := readStat(path); ok && !st.exiting() {
			return true, true
		} else if !ok {
			_, err := sysStatAt(noDir, path)
			known = known && errors.Is(err, fs.ErrNotExist)
		}
	}
	return false, known
}

func gone(pid int) bool { return unix.Kill(pid, 0) == unix.ESRCH }

func errGone() error {
	return &Error{Field: "process", Got: "gone", Want: "alive", Err: ErrStale}
}

// openPidfd opens the very process of w. The start time is read after the descriptor exists: from
// then on the PID cannot come to mean another process unnoticed.
func openPidfd(w Owner) (int, error) {
	if !w.comparable() {
		return -1, fmt.Errorf("%w: it is in another PID namespace", errors.ErrUnsupported)
	}
	fd, err := unix.PidfdOpen(w.PID, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return -1, errGone()
	}
	if err != nil {
		return -1, err
	}
	if alive, known := processAlive(w); known && !alive {
		sysClose(fd)
		return -1, errGone()
	} else if !known {
		sysClose(fd)
		return -1, fmt.Errorf("%w: /proc hides it", errors.ErrUnsupported)
	}
	return fd, nil
}

// watchDeath calls died once, with nothing open, from a goroutine when the process of w is gone.
func watchDeath(w Owner, died func()) (end func(), err error) {
	done := make(chan struct{})
	fd, err := openPidfd(w)
	if errors.Is(err, ErrStale) {
		go func() {
			defer close(done)
			died()
		}()
		return func() { <-done }, nil
	}
	if err != nil {
		return nil, err
	}
	f, raw, err := pollable.File(fd, "pidfd")
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(done)
		err := raw.Read(pollable.Readable)
		f.Close()
		if err == nil {
			died()
		}
	}()
	return func() {
		// A deadline ends the wait but, unlike Close, does not race with the goroutine's own.
		_ = f.SetReadDeadline(time.Unix(1, 0))
		<-done
	}, nil
}
