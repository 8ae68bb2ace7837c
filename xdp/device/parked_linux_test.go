package device

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestRetryBounded: however many sends wait for addresses, one turn tries no more of them than it
// takes commands, all are tried in their turn, and what waits for one address keeps its order.
func TestRetryBounded(t *testing.T) {
	t.Parallel()
	const batch, sends = 32, 4000
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	all := newHolders(table)
	all.forgets = nil // every try is a lookup
	en := &engine{s: &Server{c: Config{TxBatch: batch}}, now: 1e9}
	a := &app{account: &account{ways: newWays(all, 1)}, owns: map[uint16]bool{5000: true},
		slot: 64, page: &statusPage{done: make([]atomic.Uint64, 8)}, routes: map[target]*route{}}
	for i := range sends {
		to := netip.AddrPortFrom(numbered(i%1000), 9)
		e := sendCommand(uint64(i), sendFlags, 0, 0, 5000, to)
		a.parked.add(&e, 1e15)
	}
	for round := range 40 {
		before := table.calls
		a.retry(en)
		if n := table.calls - before; n > batch {
			t.Fatalf("round %d: %d tries", round, n)
		}
	}
	if n := len(table.asked); n != 1000 || a.parked.count != sends {
		t.Errorf("%d of 1000 destinations were tried, %d sends wait", n, a.parked.count)
	}
	before := table.calls
	a.retry(en)
	if table.calls != before {
		t.Error("tried again at once")
	}
	last := map[netip.Addr]uint64{}
	for a.parked.count > 0 {
		w := a.parked.turn[int(a.parked.count)%len(a.parked.turn)]
		if c := w.sends[0].e.Context; last[w.to] != 0 && c <= last[w.to] {
			t.Fatalf("%d after %d", c, last[w.to])
		} else if c > 0 {
			last[w.to] = c
		}
		a.parked.pop(w)
	}
	if len(a.parked.ways) != 0 || len(a.parked.turn) != 0 || a.parked.holds(numbered(1)) {
		t.Errorf("%+v", a.parked)
	}
	a.retry(en)
	e := cq.Entry{}
	a.parked.add(&e, 1)
	if a.parked.count != 1 {
		t.Error("not parked")
	}
}

// TestParkedWithoutPort: a send that fails while it waits for an address, as its port is not its
// application's any more, leaves no question that nobody waits for.
func TestParkedWithoutPort(t *testing.T) {
	t.Parallel()
	const sends = 40
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	q, err := cq.Create(cq.Unnamed("parked"), cq.Options{Size: 64})
	must(t, err)
	tx, err := q.Writer()
	must(t, err)
	must(t, tx.Credits().Add(sends))
	en := &engine{s: &Server{c: Config{TxBatch: sends}}, now: 1e9}
	a := &app{account: &account{ways: newWays(newHolders(table), sends)}, tx: tx,
		owns: map[uint16]bool{5000: true}, slot: 64,
		page: &statusPage{done: make([]atomic.Uint64, 8)}, routes: map[target]*route{}}
	for i := range sends {
		to := netip.AddrPortFrom(numbered(i), 9)
		e := sendCommand(uint64(i), sendFlags, 0, 0, 5000, to)
		if _, state := a.send(en, &e); state != sendParked {
			t.Fatalf("state %d", state)
		}
		a.parked.add(&e, 1e15)
	}
	if n := a.account.ways.asking; n != sends {
		t.Fatalf("%d questions", n)
	}
	delete(a.owns, 5000)
	a.retry(en)
	if n := a.account.ways.asking; n != 0 || a.parked.count != 0 {
		t.Errorf("%d questions for %d sends", n, a.parked.count)
	}
	must(t, errors.Join(tx.Close(), q.Close()))
}
