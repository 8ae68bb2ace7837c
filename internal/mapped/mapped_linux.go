// Package mapped asks /proc which processes have a file mapped.
package mapped

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// By reports whether a process has a file mapped, which has this device and inode. known is false
// if it cannot be looked at. What is mapped all the time that the list is read is in it (proc(5)),
// and mappings of objects never move.
func By(pid int, dev, ino uint64) (is, known bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return false, unix.Kill(pid, 0) == unix.ESRCH
	}
	if err != nil {
		return false, false
	}
	want := fmt.Sprintf(" %02x:%02x %d ", unix.Major(dev), unix.Minor(dev), ino)
	for line := range strings.Lines(string(text)) {
		// address perms offset dev inode path
		if strings.Contains(strings.TrimRight(line, "\n")+" ", want) {
			return true, true
		}
	}
	return false, true
}

// Processes lists the processes that are seen from here. Where /proc is not mounted there are none.
func Processes() (pids []int, err error) {
	entries, err := os.ReadDir("/proc/")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
