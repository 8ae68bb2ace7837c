package device

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// fullTable is a resolver with few places, which knows an address the second time it is asked.
type fullTable struct {
	places int
	asked  map[netip.Addr]int
	never  bool // knows nothing
	calls  int
}

func (f *fullTable) Lookup(dst netip.Addr) (xdp.Hop, error) {
	f.calls++
	if f.asked[dst] == 0 && len(f.asked) >= f.places {
		return xdp.Hop{}, syscall.ENOBUFS
	}
	if f.asked[dst]++; f.asked[dst] == 1 || f.never {
		return xdp.Hop{}, packet.ErrResolving
	}
	return xdp.Hop{Source: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Generation: 1}, nil
}

func (f *fullTable) Forget(dst netip.Addr) { delete(f.asked, dst) }

func numbered(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})
}

// TestWays: a line of the allow-list that sends everywhere forgets its own destinations and no
// others', also such as another line uses too.
func TestWays(t *testing.T) {
	t.Parallel()
	table := &fullTable{places: 32, asked: map[netip.Addr]int{}}
	all := newHolders(table)
	greedy, modest := newWays(all, 16), newWays(all, 16)
	both := numbered(3)
	find := func(w *ways, to netip.Addr) {
		t.Helper()
		for try := range 3 {
			if _, err := w.lookup(to); err == nil {
				return
			} else if !errors.Is(err, packet.ErrResolving) || try == 2 {
				t.Fatalf("%v: %v", to, err)
			}
		}
	}
	find(modest, both)
	for i := range 4096 {
		find(greedy, numbered(i))
		if i%64 == 0 { // as if nothing were
			find(modest, numbered(5000+i/64%12))
		}
	}
	before := table.calls
	find(modest, both)
	if table.calls != before+1 {
		t.Error("a destination of the one was forgotten for the other's sake")
	}
	if n := len(table.asked); n > 32 || len(all.uses) != n || len(greedy.held) != 16 {
		t.Errorf("%d places, %d in use, %d of the greedy one", n, len(all.uses), len(greedy.held))
	}
	// The one used last is not the one to go.
	find(greedy, numbered(4095-15))
	find(greedy, numbered(4096))
	before = table.calls
	find(greedy, numbered(4095-15))
	if table.calls != before+1 {
		t.Error("the destination used last was forgotten")
	}
}

// TestWaysAsking: questions without an answer are bounded too, and come back when nobody waits.
func TestWaysAsking(t *testing.T) {
	t.Parallel()
	table := &fullTable{places: 1 << 20, asked: map[netip.Addr]int{}, never: true}
	w := newWays(newHolders(table), 4096)
	for i := range 2 * maxAsking {
		if _, err := w.lookup(numbered(i)); !errors.Is(err, packet.ErrResolving) {
			t.Fatal(err)
		}
	}
	if len(table.asked) != maxAsking || w.asking != maxAsking {
		t.Errorf("%d questions, %d counted", len(table.asked), w.asking)
	}
	for i := range 2 * maxAsking {
		w.giveUp(numbered(i))
	}
	if len(table.asked) != 0 || w.asking != 0 || len(w.held) != 0 {
		t.Errorf("%d questions, %d counted, %d held", len(table.asked), w.asking, len(w.held))
	}
}
