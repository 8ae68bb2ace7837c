package shm

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

func init() { forkRoles["commit"] = childCommit }

// childCommit maps a file of 256 MiB while it may have only 128 MiB more of private memory that can
// be written to. That is what the kernel adds up as promised, with vm.overcommit_memory=2 for the
// whole machine.
func childCommit() {
	const length = 256 << 20
	fd, err := sysMemfd("commit", 0)
	must(err)
	must(unix.Ftruncate(fd, length))
	limit := privateBytes() + length/2
	must(unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}))
	all, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		_ = unix.Munmap(all)
	}
	say("private %v", errors.Is(err, unix.ENOMEM))
	mem, err := sysMap(fd, 0, length, true)
	say("mapped %v", err)
	if err == nil {
		mem[length-1] = 1
		must(sysUnmap(mem))
	}
	sysClose(fd)
}

// privateBytes is what RLIMIT_DATA counts of this process.
func privateBytes() uint64 {
	text, err := os.ReadFile("/proc/self/status")
	must(err)
	_, rest, _ := strings.Cut(string(text), "VmData:")
	kb, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	must(err)
	return kb << 10
}

// TestMappingCommitsNothing: the pages around a mapping are promised to nobody, not even while it
// is made.
func TestMappingCommitsNothing(t *testing.T) {
	c := start(t, shmtest.Child(t, "commit"), "children")
	if got := c.line(t); got != "private true" {
		shmtest.Require(t, "children", errors.New("RLIMIT_DATA is not kept here: "+got))
	}
	if got := c.line(t); got != "mapped <nil>" {
		t.Error(got)
	}
}
