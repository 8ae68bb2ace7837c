package doorbell

import "testing"

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
