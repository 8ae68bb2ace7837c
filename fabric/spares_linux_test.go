package fabric_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
)

// TestGroupSpares: the lane to a member that has left, or to all when who sends leaves, ends when
// what was sent has been examined: its place and its row are others'. A member that joins again has
// another one, and misses nothing.
func TestGroupSpares(t *testing.T) {
	for _, who := range []string{"member", "sender"} {
		for _, state := range []string{"idle", "full", "asked", "new"} {
			t.Run(who+"/"+state, func(t *testing.T) {
				one := fabric.Options{Peers: 1}
				ends := members(t, one, fabric.GroupOptions{}, "a", "b")
				a, b := ends[0], ends[1]
				want := []uint64(nil)
				for i := range uint64(map[string]int{"idle": 1, "full": 7, "asked": 1}[state]) {
					m := fabric.Msg{Buf: number(i), Addr: a.g.Addr(), Flags: cq.FlagInjectCall}
					if state == "asked" {
						m.Flags |= cq.FlagMatchComplete
					}
					must(t, a.SendMsg(&m))
					want = append(want, i)
				}
				if state == "new" { // the lane is there, and carried nothing
					must(t, a.Send(make([]byte, 1), a.g.Addr(), 1))
					want = nil
				}
				if state == "idle" {
					moves(t, b.end, a.end)
				}
				leaver := b.g
				if who == "sender" {
					leaver = a.g
				}
				must(t, leaver.Close())
				if state == "new" {
					must(t, b.Recv(make([]byte, 1), 5))
					moves(t, b.end, a.end)
					_ = b.completions(t)
				} else if got := b.got(t); !slices.Equal(got, want) {
					t.Errorf("%v came, want %v", got, want)
				}
				moves(t, a.end, b.end)
				other := opened(t, "other", one)
				to := a.knows(t, "other")
				must(t, a.Inject(number(9), to))
				to = other.knows(t, "b")
				must(t, other.Inject(number(8), to))
				if got := b.got(t); !slices.Equal(got, []uint64{8}) {
					t.Errorf("%v came from another one", got)
				}
			})
		}
	}
	t.Run("sender again", func(t *testing.T) { // both lanes are there when the member looks
		ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
		a, b := ends[0], ends[1]
		for i := range uint64(5) {
			if i > 0 {
				must(t, a.g.Close())
				a.g = joins(t, a.end, fabric.GroupOptions{})
			}
			must(t, a.Inject(number(i), a.g.Addr()))
			if got := b.got(t); !slices.Equal(got, []uint64{i}) {
				t.Fatalf("%v came in round %d", got, i)
			}
			moves(t, a.end)
		}
	})
	t.Run("again", func(t *testing.T) {
		ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
		a, b := ends[0], ends[1]
		for i := range uint64(50) {
			must(t, a.SendMsg(&fabric.Msg{Buf: number(i), Addr: a.g.Addr(), Flags: cq.FlagInjectCall}))
			must(t, b.g.Close())
			if i%3 == 0 {
				moves(t, a.end)
			}
			if i%2 == 0 {
				moves(t, a.end, b.end)
			}
			b.g = joins(t, b.end, fabric.GroupOptions{})
			m := fabric.Msg{Buf: number(100 + i), Addr: a.g.Addr(), Flags: cq.FlagInjectCall}
			for {
				err := a.SendMsg(&m)
				if err == nil {
					break
				}
				if !errors.Is(err, cq.ErrFull) {
					t.Fatal(err)
				}
				moves(t, b.end)
			}
			if got := b.got(t); !slices.Equal(got, []uint64{i, 100 + i}) {
				t.Fatalf("%v came in round %d", got, i)
			}
		}
		if s := b.Stats(); s.Corrupt+s.Refused > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestGroupLeavesTwice: who has left twice when the sender looks gives up both lanes, in whatever
// order these are looked at.
func TestGroupLeavesTwice(t *testing.T) {
	ends := members(t, fabric.Options{Peers: 2}, fabric.GroupOptions{}, "a", "c", "b")
	a, c, b := ends[0], ends[1], ends[2]
	must(t, a.Inject(number(1), a.g.Addr()))
	moves(t, b.end, c.end, a.end)
	must(t, c.g.Close()) // it has the first place, and gives that up
	moves(t, a.end, c.end, a.end)
	must(t, b.g.Close())
	a.steps(t)
	b.g = joins(t, b.end, fabric.GroupOptions{})
	must(t, a.Inject(number(2), a.g.Addr()))
	must(t, b.g.Close())
	moves(t, a.end, b.end)
	for _, name := range []string{"x", "y"} {
		opened(t, name, fabric.Options{})
		must(t, a.Inject(nil, a.knows(t, name)))
	}
}

// TestGroupUnused: a lane that ends before it was used does not keep its receiver from the next
// one, though that is found first.
func TestGroupUnused(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b", "c")
	a, b, c := ends[0], ends[1], ends[2]
	x := opened(t, "x", fabric.Options{})
	for _, name := range []string{"x", "c"} { // which have the first places of a, and c has no room
		to, err := a.Resolve(name)
		must(t, err)
		for err == nil {
			err = a.Inject(number(1), to)
		}
	}
	_, w := groupWords(t, a.end)
	use := w.Rows[1].Use.Load()
	full := func(listed uint64) {
		t.Helper()
		w.Rows[1].Use.Store(listed)
		w.Changes.Add(1)
		if err := a.Inject(number(2), a.g.Addr()); err != cq.ErrFull {
			t.Fatal(err)
		}
	}
	full(use)
	full(0)
	must(t, x.Endpoint.Close())
	moves(t, a.end)
	full(use)
	moves(t, c.end)
	must(t, a.Inject(number(3), a.g.Addr()))
	if got := b.got(t); !slices.Equal(got, []uint64{3}) || b.Stats().Refused > 0 {
		t.Errorf("%v came; %+v", got, b.Stats())
	}
	moves(t, a.end)
	if s, of := scribble(t, b.end, "b"), scribble(t, a.end, "a"); s.claims[0].Load() == 0 ||
		s.claims[2].Load() != 0 || of.lanes[2].ID.Load() != 0 {
		t.Error("the row or the place of the first is not free")
	}
}
