package spin

import (
	"runtime"
	"testing"
	"time"
)

func TestSpinBudget(t *testing.T) {
	several := runtime.NumCPU() > 1
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	for _, c := range []struct {
		procs        int
		option, want time.Duration
	}{
		{2, 0, Default}, {2, -1, 0}, {2, time.Millisecond, time.Millisecond},
		{1, 0, 0}, {1, -1, 0}, {1, time.Millisecond, 0},
	} {
		runtime.GOMAXPROCS(c.procs)
		want := c.want
		if !several {
			want = 0
		}
		if got := Budget(c.option); got != want {
			t.Errorf("%v with %d threads: %v, want %v", c.option, c.procs, got, want)
		}
	}
}

// Without a budget the reader looks once; with one it looks until the time is over, and lets
// others run before it gives up.
func TestSpin(t *testing.T) {
	for _, budget := range []time.Duration{0, -1} {
		looks := 0
		if Until(budget, func() bool { looks++; return false }) || looks != 1 {
			t.Errorf("budget %v: %d looks", budget, looks)
		}
	}
	looks, start := 0, Now()
	if Until(time.Millisecond, func() bool { looks++; return false }) {
		t.Error("ready without being ready")
	}
	if took := Now() - start; took < 1e6 || looks < 2 {
		t.Errorf("%d looks in %d ns", looks, took)
	}
	looks = 0
	if !Until(time.Hour, func() bool { looks++; return looks == 100 }) || looks != 100 {
		t.Errorf("%d looks", looks)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ran := make(chan struct{})
	go close(ran)
	if !Until(time.Millisecond, func() bool {
		select {
		case <-ran:
			return true
		default:
			return false
		}
	}) {
		t.Error("with one thread the spinning reader keeps the producer from running")
	}
}

// Deadlines are measured by the clock that the kernel measures futex waits by.
func TestNowIsTheMonotonicClock(t *testing.T) {
	for range 1000 {
		a := kernelNow(t)
		b := Now()
		c := kernelNow(t)
		const slack = 10_000 // ns
		if b < a-slack || b > c+slack {
			t.Fatalf("Now is %d between %d and %d", b, a, c)
		}
	}
}

// TestPatience: looks that find nothing become rare, those that find something frequent, and one
// that finds nothing among many that do changes nothing.
func TestPatience(t *testing.T) {
	var p Patience
	for i, c := range []struct {
		looks              int
		found, interrupted bool
		waits              int // without a look, after the last of these looks
	}{{9, true, false, 0}, {4, false, false, 0}, {1, false, false, 16}, {1, false, false, 0},
		{1, false, false, 32}, {2, false, false, 64}, {2, false, false, 128}, {2, false, false, 256},
		{2, false, false, 256}, {20, true, false, 0}, {7, false, false, 0}, {1, false, false, 16},
		{1, true, true, 32}, {1, true, false, 0}, {1, false, true, 64}} {
		n := 0
		for range c.looks {
			n = 0
			for p.Learn(c.found, c.interrupted); !p.Grant(); n++ {
			}
		}
		if n != c.waits {
			t.Errorf("%d: %d waits without a look, want %d", i, n, c.waits)
		}
	}
}
