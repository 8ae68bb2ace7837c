package spin

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

// TestYield: two goroutines whose threads share a processor take turns. Who looks for its turn lets
// the other one run. Otherwise it looks until the kernel takes the processor away. There are many
// rounds, since in some both goroutines have the same thread.
func TestYield(t *testing.T) {
	const rounds, turns, most = 20, 400, 4
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	defer share(t)()
	for range rounds {
		var word, looks atomic.Int64
		play := func(me int64) {
			for turn := me; turn < turns; turn += 2 {
				n := uint(0)
				for word.Load() != turn {
					n++
					Yield(n)
				}
				looks.Add(int64(n))
				word.Store(turn + 1)
			}
		}
		var both sync.WaitGroup
		both.Go(func() { play(0) })
		both.Go(func() { play(1) })
		both.Wait()
		if n := looks.Load(); n > most*turns {
			t.Fatalf("%d looks in %d turns", n, turns)
		}
	}
}

// share has all threads of this process run on one processor, until its result is called.
func share(t *testing.T) (undo func()) {
	t.Helper()
	var all, one unix.CPUSet
	shmtest.Must(t, unix.SchedGetaffinity(0, &all))
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	set := func(cpus *unix.CPUSet) {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			id, _ := strconv.Atoi(thread.Name())
			_ = unix.SchedSetaffinity(id, cpus) // of a thread that has ended there is nothing to set
		}
	}
	set(&one)
	return func() { set(&all) }
}
