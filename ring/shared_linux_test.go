package ring_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/ring"
	"golang.org/x/sys/unix"
)

const (
	offTail  = 0
	offHead  = 256
	offSlots = 4096
)

// shared is a ring over a memfd, mapped by this process.
type shared struct {
	file       *os.File
	mem        []byte
	tail, head *ring.Index
	slots      []slot
}

// newShared makes the memory of a ring with that many slots.
func newShared(t testing.TB, capacity int) *shared {
	t.Helper()
	fd, err := unix.MemfdCreate("shmring:ring-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "ring")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(int64(offSlots + capacity*64)); err != nil {
		t.Fatal(err)
	}
	s, err := mapShared(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(s.mem); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mapShared(file *os.File) (*shared, error) {
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	s := &shared{file: file, mem: mem}
	if s.tail, err = ring.IndexAt(mem, offTail); err != nil {
		return nil, err
	}
	if s.head, err = ring.IndexAt(mem, offHead); err != nil {
		return nil, err
	}
	s.slots, err = ring.Slots[slot](mem[offSlots:])
	return s, err
}

func (s *shared) String() string {
	return fmt.Sprintf("tail %d head %d of %d slots", s.tail.Load(), s.head.Load(), len(s.slots))
}

// watchdog ends the process, with what dump says, if the test does not end in time. The bound is
// for a hang, not for a slow machine.
func watchdog(t testing.TB, dump func() string) {
	t.Helper()
	const bound = 2 * time.Minute
	name := t.Name()
	w := time.AfterFunc(bound, func() {
		fmt.Fprintf(os.Stderr, "%s hangs: %s\n", name, dump())
		os.Exit(3)
	})
	t.Cleanup(func() { w.Stop() })
}

// envInt reads what the parent told a child.
func envInt(name string) uint64 {
	v, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil {
		exit(err)
	}
	return v
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, "child:", err)
	os.Exit(1)
}

func orderOf(name string) ring.Order {
	if strings.EqualFold(name, ring.Release.String()) {
		return ring.Release
	}
	return ring.SeqCst
}
