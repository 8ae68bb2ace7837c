package cq_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

var slowFor = flag.Duration("limits.slow", 700*time.Millisecond,
	"how long TestSlowReader is slow; 1m is what was asked for once")

// TestSlowReader: writers that could be a hundred times faster than the reader wait for it. Nothing
// is lost, and neither of the two grows.
func TestSlowReader(t *testing.T) {
	_, q := create(t, cq.Options{Size: 256, Format: cq.FormatTagged})
	var cs []*child
	for range 2 {
		c := startChild(t, "writer", envQueue+"="+q.Name(), envLanes+"=2")
		_, _ = c.line(t), c.line(t)
		cs = append(cs, c)
	}
	next := map[uint64]uint64{}
	buf := make([]cq.Tagged, 64)
	var fast, slow float64 // entries a second
	take := func(d, pause time.Duration) float64 {
		begin, all := time.Now(), 0
		for time.Since(begin) < d {
			n, err := cq.ReadTimeout(q, buf, time.Minute)
			must(t, err)
			for _, e := range buf[:n] {
				if e.Tag != next[e.Context] || e.Data != ^e.Tag {
					t.Fatalf("lane %d: %d where %d should be", e.Context, e.Tag, next[e.Context])
				}
				next[e.Context]++
			}
			all += n
			time.Sleep(pause)
		}
		return float64(all) / time.Since(begin).Seconds()
	}
	fast = take(300*time.Millisecond, 0)
	before := memoryOf(t, cs)
	// So long that the same number of entries takes a hundred times as long, unless the machine
	// stood still before.
	pause := min(100*float64(len(buf))/fast, slowFor.Seconds()/4)
	slow = take(*slowFor, time.Duration(pause*float64(time.Second)))
	after := memoryOf(t, cs)
	again := take(300*time.Millisecond, 0)
	for _, c := range cs {
		must(t, c.in.Close())
	}
	for _, c := range cs { // they end as soon as they see it, with what they have posted
		_ = c.stop(t)
	}
	for n := 1; n > 0; {
		n, _ = cq.Read(q, buf)
	}
	t.Logf("%.0f entries a second, then slowly %.0f, then %.0f; memory %v, then %v KiB", fast, slow,
		again, before, after)
	for i := range before {
		const slack = 8 << 10 // KiB
		if after[i] > before[i]+slack {
			t.Errorf("process %d has grown from %d to %d KiB", i, before[i], after[i])
		}
	}
}

// memoryOf returns the resident memory of this process and of children, in KiB.
func memoryOf(t *testing.T, cs []*child) (out []int) {
	t.Helper()
	pids := []int{os.Getpid()}
	for _, c := range cs {
		pids = append(pids, c.Process.Pid)
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
				n, err := strconv.Atoi(f[1])
				must(t, err)
				out = append(out, n)
			}
		}
	}
	return out
}
