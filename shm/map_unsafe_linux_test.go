package shm

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/shmring/shmring/internal/shmtest"
)

// touch reads one byte at a distance from the first of mem.
func touch(mem []byte, at int) error {
	return Guard(func() {
		runtime.KeepAlive(*(*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(mem)), at)))
	})
}

// TestMappingStandsAlone: what lies next to a mapping, whoever made it, is no memory; and it goes
// with the mapping.
func TestMappingStandsAlone(t *testing.T) {
	shmtest.Conforms(t)
	before := maps(t)
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	look := openObject(t, d, "a", ReadOnly)
	w := shmtest.Got(look.Window(secData, 0)).Or(t)
	mem := shmtest.Got(look.MapWritable(secData, 0)).Or(t)
	for name, mem := range map[string][]byte{"owner": o.Bytes(), "reader": look.Bytes(),
		"window": w.Bytes(), "section": mem} {
		end := int(alignUp(uint64(len(mem)), pageBytes()))
		for _, at := range []int{0, len(mem) - 1, end - 1} {
			if err := touch(mem, at); err != nil {
				t.Errorf("%s at %d of %d: %v", name, at, len(mem), err)
			}
		}
		for _, at := range []int{-1, -int(pageBytes()), end, end + int(pageBytes()) - 1} {
			if err := touch(mem, at); !errors.Is(err, ErrTruncated) {
				t.Errorf("%s at %d of %d: there is memory: %v", name, at, len(mem), err)
			}
		}
	}
	reserved := len(reservations)
	must(t, errors.Join(o.Unlink(), w.Close(), look.Close(), o.Close()))
	if got := reserved - len(reservations); got < 3 { // the window goes when it is collected
		t.Errorf("%d ranges were given back", got)
	}
	if after := maps(t); after > before+64 {
		t.Errorf("%d mappings, %d before", after, before)
	}
}

func maps(t *testing.T) int {
	t.Helper()
	text := shmtest.Got(os.ReadFile("/proc/self/maps")).Or(t)
	return strings.Count(string(text), "\n")
}
