package shm

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// sysMaps reports whether a process has a file mapped. known is false if it cannot be looked at.
// What is mapped all the time that the list is read is in it (proc(5)), and mappings of this
// package never move.
func sysMaps(pid int, file fileInfo) (mapped, known bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return false, gone(pid)
	}
	if err != nil {
		return false, false
	}
	want := fmt.Sprintf(" %02x:%02x %d ", unix.Major(file.dev), unix.Minor(file.dev), file.ino)
	for line := range strings.Lines(string(text)) {
		// address perms offset dev inode path
		if strings.Contains(strings.TrimRight(line, "\n")+" ", want) {
			return true, true
		}
	}
	return false, true
}

// sysProcesses lists the processes that are seen from here.
func sysProcesses() (pids []int, err error) {
	entries, err := os.ReadDir("/proc/")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, noProc()
	}
	return pids, nil
}
