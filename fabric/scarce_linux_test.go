package fabric_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// onePlace is for an endpoint that sends to one peer at once.
var onePlace = fabric.Options{Peers: 1}

// boxWords maps lanes of an endpoint, and what their receivers say of them.
func boxWords(t *testing.T, e *end) (lanes []kind.FabricLane, done []kind.Word) {
	t.Helper()
	obj, err := e.d.Open(kind.FabricOutboxName(e.Address().Outbox), shm.ReadOnly)
	must(t, err)
	t.Cleanup(func() { must(t, obj.Close()) })
	o := shmtest.Got(kind.StoredOutbox("", obj.Header())).Or(t)
	lanes, _, err = kind.OutboxLanes(obj, o)
	must(t, err)
	mem, err := obj.MapWritable(kind.SectFabricDone, 0)
	must(t, err)
	return lanes, kind.Overlays[kind.Word](mem)[:o.Lanes]
}

// TestPlaceNumbers: a place of an outbox has any number of users after each other, though there are
// numbers for 2,047: a peer may restart as often as it likes.
func TestPlaceNumbers(t *testing.T) {
	t.Run("all", func(t *testing.T) {
		a := opened(t, "a", onePlace)
		lanes, _ := boxWords(t, a)
		a.SetUses(kind.FabricMostUses - 2)
		for i, use := range []int{kind.FabricMostUses - 1, kind.FabricMostUses, 1, 2} {
			b := opened(t, "b", onePlace)
			must(t, a.Send(number(uint64(i)), a.knows(t, "b"), 1))
			if id := lanes[0].ID.Load(); id != kind.FabricLaneID(a.Address().Outbox, 0, use) {
				t.Fatalf("the number is %#x of user %d", id, use)
			}
			must(t, b.Recv(make([]byte, 8), 2))
			completes(t, b)
			completes(t, a)
			must(t, b.close())
		}
	})
	t.Run("late", func(t *testing.T) { // a former receiver that is late says nothing of the next user
		a := opened(t, "a", onePlace)
		lanes, done := boxWords(t, a)
		b := opened(t, "b", onePlace)
		must(t, a.Inject(number(1), a.knows(t, "b")))
		b.steps(t)
		id := lanes[0].ID.Load()
		next := id + kind.FabricLaneID(0, 0, 1)
		done[0].Store(next)
		must(t, b.close())
		if got := done[0].Load(); got != next {
			t.Errorf("%#x is done, want %#x", got, next)
		}
		done[0].Store(id)
	})
	t.Run("late at the turn", func(t *testing.T) { // the last number comes before the first
		a := opened(t, "a", onePlace)
		a.SetUses(kind.FabricMostUses)
		lanes, done := boxWords(t, a)
		b := opened(t, "b", onePlace)
		must(t, a.Inject(number(1), a.knows(t, "b")))
		b.steps(t)
		id := lanes[0].ID.Load()
		done[0].Store(id + kind.FabricLaneID(0, 0, kind.FabricMostUses-1))
		must(t, b.close())
		if got := done[0].Load(); got != id {
			t.Errorf("%#x is done, want %#x", got, id)
		}
	})
	t.Run("done", func(t *testing.T) { // what a former user with the number said is not believed
		a := opened(t, "a", onePlace)
		_, done := boxWords(t, a)
		a.SetUses(kind.FabricMostUses)
		b := opened(t, "b", onePlace)
		must(t, a.Inject(number(1), a.knows(t, "b")))
		b.steps(t)
		must(t, b.close())
		if done[0].Load() == 0 {
			t.Error("nobody is done")
		}
		a.SetUses(kind.FabricMostUses)
		b = opened(t, "b", onePlace)
		must(t, a.Inject(number(2), a.knows(t, "b")))
		must(t, a.close())
		b.steps(t)
		if s := b.Stats(); s.Stored != 1 {
			t.Errorf("a message was lost: %+v", s)
		}
	})
}

// TestDoneBeforeClosed: who closes says that it is done with a lane before its sender can find it
// closed, and give the place to the next.
func TestDoneBeforeClosed(t *testing.T) {
	a := opened(t, "a", fabric.Options{})
	lanes, done := boxWords(t, a)
	for range 8 { // a look may come late
		b := opened(t, "b", fabric.Options{Peers: 1024, Slots: 2, Chunks: -1})
		must(t, a.Inject(number(1), a.knows(t, "b")))
		b.steps(t)
		of, id := scribble(t, b, "b"), lanes[0].ID.Load()
		for row := range of.claims[1:] { // who is not there costs a look when the state is said
			of.claims[1+row].Store(kind.FabricLaneID(kind.FabricOutboxID(1<<40), row, 1))
		}
		looks, said := make(chan struct{}), make(chan uint64)
		go func() {
			close(looks)
			for of.page.State.Load() == 0 {
			}
			said <- done[0].Load()
		}()
		<-looks
		must(t, b.Endpoint.Close())
		if said := <-said; said != id {
			t.Fatalf("closed, and %#x is done: want %#x", said, id)
		}
		a.steps(t)
	}
}

// TestPlaceSought: who has no place for one more peer looks who has gone before it says so.
func TestPlaceSought(t *testing.T) {
	a := opened(t, "a", onePlace)
	for range 3 {
		c := started(t, "idle")
		must(t, a.Inject(nil, a.knows(t, "idle")))
		c.Kill()
		b := opened(t, "b", fabric.Options{})
		must(t, a.Inject(nil, a.knows(t, "b")))
		must(t, b.close())
	}
}

// TestCutOffDies: who was cut off, or has refused us, keeps its place of our outbox and what it may
// read until its process has ended, or it has closed its endpoint, and no longer.
func TestCutOffDies(t *testing.T) {
	refuses := func(of scribbled) { of.rows[0].Owner.Store(of.claims[0].Load() | kind.FabricRefused) }
	lies := func(of scribbled) {
		of.rows[0].Owner.Store(of.claims[0].Load())
		of.rows[0].Head.Store(1 << 40)
	}
	for name, c := range map[string]struct {
		writes      func(of scribbled)
		closes      string // and says how much is stored
		dead, lives bool
	}{
		"refuses and dies":   {writes: refuses},
		"lies and dies":      {writes: lies},
		"refuses and closes": {writes: refuses, closes: "0"},
		"refuses and lives":  {writes: refuses, closes: "0", lives: true},
		"lies and lives":     {writes: lies, closes: "1", lives: true},
		"is dead":            {writes: lies, dead: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := opened(t, "main", onePlace), started(t, "idle")
			to := e.knows(t, "idle")
			if c.closes != "" {
				p.obeys(t, "send", "0")
				e.steps(t)
			}
			must(t, e.Send(pattern(680), to, 1))
			of := scribble(t, e, "idle")
			if c.dead {
				p.Kill()
				for !noted(e.Bell()) {
					time.Sleep(time.Millisecond)
				}
			}
			c.writes(of)
			of.rows[0].Rev.Add(1)
			e.steps(t)
			if _, failed, err := e.next(); err != nil || failed.Err == 0 {
				t.Errorf("%+v, %v", failed, err)
			}
			if c.dead {
				e.steps(t) // before anybody wants its place
				account(t, e, 8, 0, 0)
			} else {
				account(t, e, 8, 0, 1)
				opened(t, "b", fabric.Options{})
				if err := e.Inject(nil, e.knows(t, "b")); !errors.Is(err, fabric.ErrPeers) {
					t.Errorf("the place of one that lives: %v", err)
				}
			}
			switch {
			case c.closes != "":
				p.obeys(t, "close", c.closes)
				e.steps(t)
				if !c.lives {
					p.Stop(t)
				}
			case !c.dead:
				p.Kill()
			}
			next, soon := opened(t, "c", fabric.Options{}), func(inject func() error) {
				t.Helper()
				err := fabric.ErrPeers
				for i := 0; errors.Is(err, fabric.ErrPeers) && i < 1000; i++ {
					time.Sleep(time.Millisecond)
					err = inject()
					e.steps(t)
				}
				must(t, err)
			}
			soon(func() error { return e.Inject(nil, e.knows(t, "c")) })
			soon(func() error { return next.Inject(nil, next.knows(t, "main")) })
			account(t, e, 8, 0, 0)
		})
	}
}

// TestCutOffLate: of who has ended, or closed its endpoint, when it is cut off for what it had sent
// nothing is kept.
func TestCutOffLate(t *testing.T) {
	for _, how := range []string{"close", "kill"} {
		t.Run(how, func(t *testing.T) {
			e, p := opened(t, "main", fabric.Options{}), started(t, "idle")
			p.obeys(t, "send", "0")
			e.steps(t)
			a := shmtest.Got(e.Lookup(e.knows(t, "idle"))).Or(t)
			of := scribbleOn(t, e, "idle", a)
			if how == "close" {
				p.obeys(t, "close", "0")
			} else {
				p.Kill()
				shmtest.Eventually(t, "the notice", func() bool { return noted(e.Bell()) })
			}
			of.slots[1].Head.Store(99)
			of.slots[1].Seq.Store(2)
			moves(t, e)
			left := shmtest.Got(e.d.List()).Or(t)
			if s := e.Stats(); s.Corrupt != 1 || len(left) != 2 {
				t.Errorf("%+v, left are %v", s, left)
			}
			if how == "close" {
				p.Stop(t)
			}
		})
	}
}

// noted reports whether a bell has marks.
func noted(b *wake.Bell) bool {
	b.Lock()
	defer b.Unlock()
	return b.Pending()
}

// TestChunksLeft: two peers that stand do not keep all chunks: what needs one to a third goes as it
// does to one alone, and no datagram to it is dropped.
func TestChunksLeft(t *testing.T) {
	for name, o := range map[string]fabric.Options{"messages": {Slots: 32},
		"datagrams": {Slots: 32, Datagram: true}} {
		t.Run(name, func(t *testing.T) {
			a := opened(t, "a", o)
			for i, used := range []uint64{4, 6} {
				name := []string{"b", "c"}[i]
				opened(t, name, o)
				to := a.knows(t, name)
				for range 10 {
					must(t, a.Send(pattern(1000), to, 1))
				}
				account(t, a, 8, used, 0)
			}
			d := opened(t, "d", o)
			to := a.knows(t, "d")
			dropped := a.Stats().Dropped
			for range 10 {
				got := make([]byte, 1000)
				must(t, errors.Join(d.Recv(got, 2), a.Send(pattern(1000), to, 1)))
				account(t, a, 8, 7, 0)
				d.steps(t)
				if done := d.completions(t); len(done) != 1 || !bytes.Equal(got, pattern(1000)) {
					t.Errorf("%+v, or other bytes", done)
				}
				a.steps(t)
			}
			if s := a.Stats(); s.Dropped != dropped || s.UsedChunks != 6 {
				t.Errorf("%+v", s)
			}
		})
	}
}
