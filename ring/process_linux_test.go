package ring_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

func init() {
	roles["producer"] = func() {
		child(func(s *shared, o ring.Order, n uint64) error {
			p := ring.NewProducer(s.tail, s.head, s.slots, s.tail.Load(), o)
			return produce(p, n, func(uint64) {})
		})
	}
	roles["consumer"] = func() {
		child(func(s *shared, _ ring.Order, n uint64) error {
			c := ring.NewConsumer(s.tail, s.head, s.slots, s.head.Load())
			return consume(c, n, func(uint64) error { return nil })
		})
	}
}

// child runs one side of a ring that the parent passed as descriptor 3.
func child(side func(s *shared, o ring.Order, n uint64) error) {
	s, err := mapShared(os.NewFile(3, "ring"))
	if err == nil {
		err = side(s, orderOf(os.Getenv("RING_ORDER")), envInt("RING_N"))
	}
	shmtest.Need(err)
}

// start runs the other side in a process of its own; the result waits for it.
func start(t *testing.T, role string, s *shared, o ring.Order, n uint64) (wait func()) {
	t.Helper()
	cmd := shmtest.Child(t, role, "RING_ORDER="+orderName(o), fmt.Sprintf("RING_N=%d", n))
	cmd.ExtraFiles = []*os.File{s.file}
	shmtest.Must(t, cmd.Start())
	return func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestTwoProcesses(t *testing.T) {
	n := uint64(200_000)
	if testing.Short() || shmtest.Race {
		n /= 10
	}
	for _, o := range orders {
		for _, capacity := range []int{1, 8, 1024} {
			count := n
			if capacity == 1 {
				count /= 20 // each entry costs a turn of both processes
			}
			t.Run(fmt.Sprintf("%v/cap=%d", o, capacity), func(t *testing.T) {
				s := newShared(t, capacity)
				watchdog(t, s.String)
				wait := start(t, "producer", s, o, count)
				c := ring.NewConsumer(s.tail, s.head, s.slots, 0)
				shmtest.Must(t, consume(c, count, func(uint64) error { return nil }))
				wait()
				wait = start(t, "consumer", s, o, 2*count)
				p := ring.NewProducer(s.tail, s.head, s.slots, count, o)
				shmtest.Must(t, produce(p, 2*count, func(uint64) {}))
				wait()
				if s.head.Load() != 2*count {
					t.Fatal(s)
				}
			})
		}
	}
}

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
	fd := shmtest.Got(unix.MemfdCreate("shmring:ring-test", unix.MFD_CLOEXEC)).Or(t)
	file := os.NewFile(uintptr(fd), "ring")
	t.Cleanup(func() { file.Close() })
	shmtest.Must(t, file.Truncate(int64(offSlots+capacity*64)))
	s := shmtest.Got(mapShared(file)).Or(t)
	t.Cleanup(func() { shmtest.Must(t, unix.Munmap(s.mem)) })
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

var watchdog = shmtest.Watchdog

// envInt reads what the parent told a child.
func envInt(name string) uint64 {
	v, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	shmtest.Need(err)
	return v
}

func orderOf(name string) ring.Order {
	if strings.EqualFold(name, orderName(ring.Release)) {
		return ring.Release
	}
	return ring.SeqCst
}
