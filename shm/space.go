package shm

import (
	"bufio"
	"bytes"
	"math"
	"strconv"
	"strings"
)

// room is one limit that a new object meets.
type room struct {
	where     string
	available uint64 // bytes
}

// checkRoom refuses, with numbers, what cannot fit. It must come before the allocation: in a memory
// cgroup the kernel would rather kill the process than say no.
func checkRoom(dirfd int, needed uint64) error {
	r := tightest(sysRoom(dirfd))
	if r.available >= needed {
		return nil
	}
	return roomError(r, needed)
}

func roomError(r room, needed uint64) error {
	return &Error{Err: &NoSpaceError{Needed: needed, Available: r.available, Where: r.where},
		Hint: "make it smaller, remove old objects, or raise the limit"}
}

func tightest(rooms []room) room {
	least := room{where: "the machine", available: math.MaxUint64}
	for _, r := range rooms {
		if r.available < least.available {
			least = r
		}
	}
	return least
}

// cgroupLimits returns what each memory cgroup from this process's own to the root still
// allows. read returns the content of a file, or nothing; it takes absolute paths.
func cgroupLimits(read func(path string) []byte) []room {
	var out []room
	lines := strings.Lines(string(read("/proc/self/cgroup")))
	for line := range lines {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "": // version 2
			out = append(out, walkCgroup(read, "/sys/fs/cgroup", parts[2], cgroupV2)...)
		case hasField(parts[1], "memory"):
			out = append(out, walkCgroup(read, "/sys/fs/cgroup/memory", parts[2], cgroupV1)...)
		}
	}
	return out
}

func hasField(list, want string) bool {
	for f := range strings.SplitSeq(list, ",") {
		if f == want {
			return true
		}
	}
	return false
}

// cgroupFiles are the names of one version's files.
type cgroupFiles struct{ limit, usage, reclaimable string }

var (
	cgroupV2 = cgroupFiles{"memory.max", "memory.current", "inactive_file"}
	cgroupV1 = cgroupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

const maxCgroupDepth = 64

// Of a memory cgroup a part is left for what a process needs beside its objects: page tables, and
// what it allocates when it is told that there is no room. Else the kernel kills it for the next
// page of its own.
const (
	cgroupReserveShare = 16
	cgroupReserveBytes = 1 << 20 // at most
)

func walkCgroup(read func(string) []byte, root, path string, names cgroupFiles) []room {
	var out []room
	for range maxCgroupDepth {
		dir := root + strings.TrimSuffix(path, "/")
		limit, ok1 := parseBytes(read(dir + "/" + names.limit))
		usage, ok2 := parseBytes(read(dir + "/" + names.usage))
		if ok1 && ok2 {
			// File pages that nobody uses count as usage, but go when memory is wanted.
			used := usage - min(usage, statField(read(dir+"/memory.stat"), names.reclaimable))
			used += min(limit/cgroupReserveShare, cgroupReserveBytes)
			out = append(out, room{"memory cgroup " + path, limit - min(limit, used)})
		}
		cut := strings.LastIndexByte(strings.TrimSuffix(path, "/"), '/')
		if cut < 0 {
			break
		}
		path = path[:max(cut, 1)]
		if cut == 0 && dir == root {
			break
		}
	}
	return out
}

func parseBytes(b []byte) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil // "max" is no limit
}

// statField finds "name value" or "name: value" on a line of its own, value in the file's unit.
func statField(b []byte, name string) uint64 {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			return n
		}
	}
	return 0
}
