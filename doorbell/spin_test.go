package doorbell

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
		{2, 0, DefaultSpin}, {2, -1, 0}, {2, time.Millisecond, time.Millisecond},
		{1, 0, 0}, {1, -1, 0}, {1, time.Millisecond, 0},
	} {
		runtime.GOMAXPROCS(c.procs)
		want := c.want
		if !several {
			want = 0
		}
		if got := SpinBudget(c.option); got != want {
			t.Errorf("%v with %d threads: %v, want %v", c.option, c.procs, got, want)
		}
	}
}

// Without a budget the reader looks once; with one it looks until the time is over, and lets
// others run before it gives up.
func TestSpin(t *testing.T) {
	for _, budget := range []time.Duration{0, -1} {
		looks := 0
		if Spin(budget, func() bool { looks++; return false }) || looks != 1 {
			t.Errorf("budget %v: %d looks", budget, looks)
		}
	}
	looks, start := 0, Now()
	if Spin(time.Millisecond, func() bool { looks++; return false }) {
		t.Error("ready without being ready")
	}
	if took := Now() - start; took < 1e6 || looks < 2 {
		t.Errorf("%d looks in %d ns", looks, took)
	}
	looks = 0
	if !Spin(time.Hour, func() bool { looks++; return looks == 100 }) || looks != 100 {
		t.Errorf("%d looks", looks)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ran := make(chan struct{})
	go close(ran)
	if !Spin(time.Millisecond, func() bool {
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

func TestNoAllocationsWhileAwake(t *testing.T) {
	for _, o := range orders {
		d := newDomain(t, 1, 70, readerOptions{order: o})
		q, r := d.q[0], d.r[0]
		w := q.writer(69, o, d.ringer(0))
		r.read(1)
		if _, err := r.Park(); err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func(){
			"publish to a reader that is awake": func() { w.put(1); r.read(laneSlots) },
			"publish to a parked lane": func() {
				r.drain(69, laneSlots)
				if _, err := r.Park(); err != nil {
					t.Fatal(err)
				}
				w.put(1)
			},
			"take, heat, next, drained": func() {
				q.hints.ready[1].Store(1 << 5)
				r.Take()
				r.Heat()
				for bit := r.Next(0); bit >= 0; bit = r.Next(bit + 1) {
					r.Drained(bit)
				}
			},
			"look": func() { _, _, _ = r.Pending(), r.TakeSignal(), w.Flags() },
			"ring the queue": func() {
				r.seq++
				r.store(armDirect)
				r.Park()
				w.Published(w.prod.Tail(), 0)
				r.store(0)
			},
			"ring the domain": func() {
				d.seq++
				d.arm.Word.Store(d.seq)
				r.seq++
				r.store(armDom)
				r.Park()
				w.Published(w.prod.Tail(), 0)
				r.store(0)
			},
			"signal": func() { r.Signal(); Signal(q.arm, q.hints, nil, nil); r.TakeSignal() },
			"wait":   func() { r.Sleep(expired) },
		} {
			r.drain(69, laneSlots)
			if n := testing.AllocsPerRun(200, f); n != 0 {
				t.Errorf("%v, %s: %v allocations", o, name, n)
			}
		}
	}
}
