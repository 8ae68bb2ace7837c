package cq_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// statusField returns a number of /proc/self/status.
func statusField(t testing.TB, name string) int {
	t.Helper()
	return statusOf(t, []int{os.Getpid()}, name)[0]
}

// TestThousandWriters: 1,000 writers in 20 processes post to one queue, and a quarter of them is
// killed meanwhile. Of each writer everything comes in order, of those that live all. The reader
// needs no thread more for them.
func TestThousandWriters(t *testing.T) {
	shmtest.Long(t)
	const processes, lanes, each, doomed = 20, 50, 60, 5
	_, q := create(t, cq.Options{Size: each, MaxLanes: 1024, Format: cq.FormatTagged})
	threads := statusField(t, "Threads")
	var cs []*child
	for range processes {
		cs = append(cs, startChild(t, "writer", envQueue+"="+q.Name(),
			fmt.Sprint(envLanes, "=", lanes), fmt.Sprint(envCount, "=", each)))
	}
	var owner [1025]int
	for i, c := range cs {
		for range lanes {
			var lane int
			_, err := fmt.Sscanf(c.line(t), "lane %d", &lane)
			must(t, err)
			owner[lane] = i
		}
	}
	var next [1025]uint64
	kept, living := 0, 0 // entries of writers that live, and how many those have to become
	take := func() {
		buf := make([]cq.Tagged, 64)
		n, err := sread(q, buf, time.Minute)
		must(t, err)
		for _, e := range buf[:n] {
			lane := e.Context
			if lane >= uint64(len(next)) || e.Tag != next[lane] || e.Data != ^e.Tag {
				t.Fatalf("lane %d: %d where %d should be", lane, e.Tag, next[lane])
			}
			next[lane]++
			if owner[lane] >= doomed {
				kept++
			}
		}
	}
	for living = (processes - doomed) * lanes * each; kept < living/3; {
		take()
	}
	for _, c := range cs[:doomed] {
		c.kill()
	}
	for kept < living {
		take()
	}
	threadsNow := statusField(t, "Threads")
	if threadsNow > threads+threadSlack {
		t.Errorf("%d threads, before %d", threadsNow, threads)
	}
	for _, c := range cs[doomed:] {
		_ = c.stop(t)
	}
	reportLimits(t, "%d writers in %d processes, of which %d were killed; %d entries of the living"+
		" posted and read, 0 lost, each lane in order; threads of the reader %d, before %d; its"+
		" memory %d", processes*lanes, processes, doomed, kept, threadsNow, threads,
		statusField(t, "VmHWM"))
}

// TestTenThousandBlocked: goroutines that wait for completions take no thread each, and each gets
// its own.
func TestTenThousandBlocked(t *testing.T) {
	shmtest.Long(t)
	const queues, waiters = 50, 200
	d := openDir(t)
	before := statusField(t, "Threads")
	var all, begun sync.WaitGroup
	begun.Add(queues * waiters)
	var qs []*cq.Queue
	var ws []*cq.Writer
	var got [queues][waiters]int
	var mu sync.Mutex
	for i := range queues {
		q, err := cq.Create(d, fmt.Sprintf("crowd-%d", i), cq.Options{Size: 256, Shared: true})
		must(t, err)
		w, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
		must(t, err)
		qs, ws = append(qs, q), append(ws, w)
		for range waiters {
			all.Go(func() {
				one := make([]cq.Context, 1)
				begun.Done()
				n, err := cq.ReadContext(context.Background(), q, one, cq.ReadOptions{})
				if n != 1 || err != nil {
					t.Errorf("read %d, %v", n, err)
					return
				}
				mu.Lock()
				got[i][one[0].Context]++
				mu.Unlock()
			})
		}
	}
	// A thread for each of the first 32, then one for 127.
	const most = 32 + queues*waiters/127 + 1 + threadSlack
	begun.Wait()
	time.Sleep(300 * time.Millisecond) // with a thread each there were thousands by now
	threads := statusField(t, "Threads")
	if threads > before+most {
		t.Errorf("%d threads, before %d", threads, before)
	}
	for _, w := range ws {
		post(t, w, 0, waiters)
	}
	all.Wait()
	for i, w := range ws {
		must(t, w.Close())
		must(t, qs[i].Close())
		for j, n := range got[i] {
			if n != 1 {
				t.Errorf("queue %d: completion %d came %d times", i, j, n)
			}
		}
	}
	reportLimits(t, "%d goroutines blocked on %d queues: %d threads, before %d; memory %d; each was"+
		" given one completion, none lost, none twice", queues*waiters, queues, threads, before,
		statusField(t, "VmHWM"))
}

// threadSlack is how many threads the runtime may start for reasons of its own: one for each that
// is in the middle of a system call when the machine takes its processor away.
const threadSlack = 100
