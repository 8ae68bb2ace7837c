package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestAskedInWant: a listener that has no lane to who asks, for want of a place of its own or of a
// row there, answers when there is one, and refuses if that takes too long. Nobody is cut off.
func TestAskedInWant(t *testing.T) {
	for name, want := range map[string]func(t *testing.T) (l net.Listener, ends func()){
		"place": func(t *testing.T) (net.Listener, func()) { // of one that has given its row back
			defer fabric.SetConnPeers(1)()
			l := listens(t, directory(t), "server")
			e := holder(t, fabric.Options{})
			must(t, e.say(said{1, 1 << 32, connWindow4096}, 0))
			e.hears(t)
			s, server := scribble(t, e.end, "holder"), scribbleOn(t, e.end, "server",
				fabric.Below(l).Address())
			s.slots[1].Head.Store(kind.FabricFin)
			s.slots[1].Seq.Store(2)
			server.rings()
			shmtest.Eventually(t, "the row", func() bool { return server.claims[0].Load() == 0 })
			return l, func() { must(t, e.Endpoint.Close()) }
		},
		"row": func(t *testing.T) (net.Listener, func()) {
			d := directory(t)
			other, l := listens(t, d, "other"), listens(t, d, "server")
			from := dials(t, d, "other").LocalAddr().String()
			accepts(t, other)
			e := opened(t, "watcher", fabric.Options{})
			a := shmtest.Got(e.Lookup(e.knows(t, from))).Or(t)
			s := scribbleOn(t, e, from, a)
			for row := range s.claims { // their owners seem to live
				if id := kind.FabricLaneID(1<<40, row, 1); s.claims[row].CompareAndSwap(0, id) {
					s.rows[row].Owner.Store(id)
				}
			}
			return l, func() { s.claims[len(s.claims)-1].Store(0) }
		},
	} {
		t.Run(name+" passes", func(t *testing.T) {
			l, over := want(t)
			answer := dialing(t)
			select {
			case err := <-answer:
				t.Fatalf("it is not asked again: %v", err)
			case <-time.After(120 * time.Millisecond): // more than once
			}
			over()
			must(t, <-answer)
			reads(t, accepts(t, l), "at last")
			if s := fabric.Below(l).Stats(); s.Corrupt > 0 {
				t.Errorf("%+v", s)
			}
		})
		t.Run(name+" stays", func(t *testing.T) {
			defer fabric.SetClosePatience(20 * time.Millisecond)()
			l, over := want(t)
			failsWith(t, "dial", <-dialing(t), syscall.ECONNREFUSED)
			if s := fabric.Below(l).Stats(); s.Corrupt > 0 {
				t.Errorf("%+v", s)
			}
			over()
		})
	}
}

// dialing dials the server, and writes to it.
func dialing(t *testing.T) (answer chan error) {
	d := directory(t)
	answer = make(chan error, 1)
	go func() {
		c, err := fabric.Dial(context.Background(), d, "server")
		if err == nil {
			_, err = c.Write([]byte("at last"))
		}
		answer <- err
	}()
	return answer
}

// TestRefusedWakes: who sleeps learns that its lane is refused.
func TestRefusedWakes(t *testing.T) {
	server := opened(t, "server", fabric.Options{Events: events(t, 0)})
	stranger := opened(t, "stranger", fabric.Options{})
	must(t, stranger.Send(nil, stranger.knows(t, "server"), 1))
	b := stranger.Bell()
	b.Lock()
	more, err := b.Park()
	b.Unlock()
	must(t, err)
	before := mapped(t, stranger, "stranger")
	server.steps(t)
	b.Lock()
	defer b.Unlock()
	if more || server.Stats().Refused != 1 || !b.Pending() {
		t.Errorf("%v, and the sender is not rung", more)
	}
	if after := mapped(t, stranger, "stranger"); after != before {
		t.Errorf("%d mappings of who is refused, before %d", after, before)
	}
}

// mapped counts mappings of an endpoint.
func mapped(t *testing.T, e *end, name string) int {
	t.Helper()
	text := shmtest.Got(os.ReadFile("/proc/self/maps")).Or(t)
	return strings.Count(string(text), "/"+name) + strings.Count(string(text),
		kind.FabricOutboxName(e.Address().Outbox))
}

// TestDialFullOfDead: who dials a server that is full waits if one of its clients has gone, until
// the server notices that.
func TestDialFullOfDead(t *testing.T) {
	defer fabric.SetConnPeers(1)()
	d := directory(t)
	l, c := listens(t, d, "server"), started(t, "streamer")
	c.does(t, "dial")
	b := fabric.Below(l).Bell()
	b.Lock() // it notices nothing
	c.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := fabric.Dial(ctx, d, "server")
	b.Unlock()
	failsWith(t, "a dial", err, context.DeadlineExceeded)
	dials(t, d, "server")
}

// TestConnPlaces: the place of a peer with whom all connections have ended is another one's soon,
// though both go on; and a peer that has one again meanwhile notices nothing.
func TestConnPlaces(t *testing.T) {
	d := directory(t)
	back := fabric.SetConnPeers(1)
	one := listens(t, d, "server")
	back()
	defer fabric.SetConnPeers(3)()
	keep := listens(t, d, "keep") // so what dials share stays
	kept := dials(t, d, "keep")
	accepts(t, keep)
	visit := func(name string, l net.Listener) {
		t.Helper()
		c := dials(t, d, name)
		s := accepts(t, l)
		writes(t, c, "question")
		reads(t, s, "question")
		must(t, errors.Join(s.Close(), c.Close()))
	}
	visit("server", one)
	for i := range 4 {
		name := fmt.Sprint("other-", i)
		visit(name, listens(t, d, name))
	}
	c, of := started(t, "streamer"), scribble(t, &end{Endpoint: fabric.Below(one), d: d}, "server")
	shmtest.Eventually(t, "the row", func() bool { return of.claims[0].Load() == 0 })
	c.does(t, "dial")
	accepts(t, one)
	c.Kill()
	l := listens(t, d, "last")
	here, there := fabric.Below(kept), fabric.Below(l)
	of = scribble(t, &end{Endpoint: here, d: d}, kept.LocalAddr().String())
	for range 10 { // once a timer may have come before
		visit("last", l)
		shmtest.Eventually(t, "the end of the lane from there", func() bool {
			there.Tidy()
			return of.claims[1].Load()+of.claims[2].Load() == 0 // the first is kept
		})
		shmtest.Got(here.Progress()).Or(t)
		there.Bell().Lock() // it examines no end of a lane
		here.Tidy()
		done := make(chan error)
		go func() {
			c, err := fabric.Dial(t.Context(), d, "last")
			if err == nil {
				err = c.Close()
			}
			done <- err
		}()
		stackHas(t, "answered(")
		there.Bell().Unlock()
		must(t, <-done)
		accepts(t, l)
	}
	for i := range 200 { // and who asks at the same time
		shmtest.Got(there.Progress()).Or(t)
		shmtest.Got(here.Progress()).Or(t)
		if there.Tidy(); i%2 == 0 {
			here.Tidy()
		}
		visit("last", l)
	}
}

// TestNoLaneUnmaps: what was mapped of a peer to whom no lane leads is given up.
func TestNoLaneUnmaps(t *testing.T) {
	a := opened(t, "a", onePlace)
	opened(t, "full", fabric.Options{})
	must(t, a.Inject(nil, a.knows(t, "full")))
	other := opened(t, "other", fabric.Options{})
	before := mapped(t, other, "other")
	shmtest.WantErr(t, "one more", a.Inject(nil, a.knows(t, "other")), fabric.ErrPeers)
	if after := mapped(t, other, "other"); after != before {
		t.Errorf("%d mappings, before %d", after, before)
	}
}

// TestKilledUnmaps: what was mapped of a peer that is killed is given up, whichever of the two
// sent.
func TestKilledUnmaps(t *testing.T) {
	for name, ways := range map[string][2]bool{"to it": {true, false}, "from it": {false, true},
		"both ways": {true, true}} {
		t.Run(name, func(t *testing.T) {
			e, c := opened(t, "main", fabric.Options{}), started(t, "idle")
			to, before := e.knows(t, "idle"), mapped(t, e, "idle")
			if ways[1] {
				c.obeys(t, "send", "0")
				e.steps(t)
			}
			if ways[0] {
				must(t, e.Inject(nil, to))
			}
			if mapped(t, e, "idle") == before {
				t.Error("nothing was mapped")
			}
			c.Kill()
			shmtest.Eventually(t, "the death", func() bool {
				e.steps(t)
				return e.Stats().Died > 0
			})
			if after := mapped(t, e, "idle"); after != before {
				t.Errorf("%d mappings of the dead, before %d", after, before)
			}
		})
	}
}

// TestCutWakes: who waits for room learns that the peer is cut off, whoever finds that.
func TestCutWakes(t *testing.T) {
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
	to := a.knows(t, "b")
	r, err := b.Register(4096, allAccess)
	must(t, err)
	for err == nil {
		err = a.Inject(nil, to)
	}
	sent := make(chan error, 1)
	go func() { sent <- a.SendContext(t.Context(), &fabric.Msg{Addr: to}) }()
	sleeps(t, a.Bell())
	o := shmtest.Got(b.d.Open("b", shm.ReadOnly)).Or(t)
	defer o.Close()
	mem := shmtest.Got(o.MapWritable(kind.SectFabricRegions, 0)).Or(t)
	kind.Overlays[kind.FabricRegion](mem)[0].Offset.Store(4097)
	shmtest.WantErr(t, "a read", a.Read(make([]byte, 8), to, fabric.Remote{Key: r.Key()}, 1),
		fabric.ErrCorrupt)
	shmtest.WantErr(t, "who waits", <-sent, fabric.ErrCorrupt)
}

// TestGroupSwaps: a member that comes when another one has left has its place, though there is no
// more than one, and nobody looks in between.
func TestGroupSwaps(t *testing.T) {
	ends := members(t, onePlace, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	must(t, a.Inject(number(1), a.g.Addr()))
	if got := b.got(t); !slices.Equal(got, []uint64{1}) {
		t.Errorf("%v came", got)
	}
	moves(t, a.end)
	must(t, b.g.Close())
	c := members(t, onePlace, fabric.GroupOptions{}, "c")[0]
	shmtest.WantErr(t, "the place of who left", a.Inject(number(2), a.g.Addr()), cq.ErrFull)
	moves(t, b.end, a.end)
	must(t, a.Inject(number(2), a.g.Addr()))
	if got := c.got(t); !slices.Equal(got, []uint64{2}) {
		t.Errorf("%v came", got)
	}
}

// TestGroupMissesAgain: who leaves, and joins again before the lane to it has ended, is told what
// it missed there, though it has no row for another lane yet.
func TestGroupMissesAgain(t *testing.T) {
	a := members(t, fabric.Options{}, missing, "a")[0]
	b := members(t, onePlace, missing, "b")[0]
	for range 9 { // two find no slot
		must(t, a.Inject(number(1), a.g.Addr()))
	}
	moves(t, b.end, a.end)
	must(t, b.g.Close())
	a.steps(t)
	b.g = joins(t, b.end, missing)
	shmtest.WantErr(t, "the row of the former lane", a.Inject(number(2), a.g.Addr()), cq.ErrFull)
	b.steps(t)
	must(t, a.Inject(number(2), a.g.Addr()))
	b.steps(t)
	if s := b.Stats(); s.Stored != 8 || s.Missed != 2 {
		t.Errorf("%+v", s)
	}
}

// TestGroupLeaver: who joins and leaves again and again is not cut off for that, and keeps nothing
// of it.
func TestGroupLeaver(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	to := a.knows(t, "b")
	must(t, a.Inject(nil, to))
	for range 1100 {
		must(t, b.g.Close())
		a.steps(t)
		b.g = joins(t, b.end, fabric.GroupOptions{})
	}
	must(t, a.Inject(nil, to))
	if n := b.knows(t, "a"); n != 0 {
		t.Errorf("the first peer has number %d", n)
	}
}

// TestGroupLeaverCut: one that has left and is cut off before it has examined the end of the lane
// keeps its place. Nobody waits for that.
func TestGroupLeaverCut(t *testing.T) {
	ends := members(t, onePlace, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	must(t, a.Inject(number(1), a.g.Addr()))
	moves(t, b.end, a.end)
	must(t, b.g.Close())
	a.steps(t)
	opened(t, "other", onePlace)
	to := a.knows(t, "other")
	shmtest.WantErr(t, "the place of who left", a.Inject(nil, to), cq.ErrFull)
	row := &scribble(t, b.end, "b").rows[0]
	row.Head.Store(1 << 40)
	row.Rev.Add(1)
	a.steps(t)
	if a.Stats().Corrupt != 1 {
		t.Fatal("it is not cut off")
	}
	shmtest.WantErr(t, "the place of who is cut off", a.Inject(nil, to), fabric.ErrPeers)
}

// TestGroupLeftWakes: who waits for room at a member learns that the endpoint leaves the group.
func TestGroupLeftWakes(t *testing.T) {
	a := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")[0]
	err := error(nil)
	for err == nil {
		err = a.Inject(number(1), a.g.Addr())
	}
	sent := make(chan error, 1)
	go func() { sent <- a.SendContext(t.Context(), &fabric.Msg{Addr: a.g.Addr()}) }()
	sleeps(t, a.Bell())
	must(t, a.g.Close())
	shmtest.WantErr(t, "who waits", <-sent, fabric.ErrNoPeer)
}

// TestRMAHeirRefused: a word of one that was refused does not count as that of the next.
func TestRMAHeirRefused(t *testing.T) {
	e := opened(t, "main", fabric.Options{Remote: 4096, Peers: 1, Events: events(t, 0)})
	r := shmtest.Got(e.Register(4096, cq.FlagRemoteWrite)).Or(t)
	x, heir := opened(t, "x", fabric.Options{}), opened(t, "heir", fabric.Options{})
	must(t, x.Inject(nil, x.knows(t, "main")))
	o := shmtest.Got(e.d.Open("main", shm.ReadOnly)).Or(t)
	defer o.Close()
	mem := shmtest.Got(o.MapWritable(kind.SectFabricUses, 0)).Or(t)
	kind.Overlays[kind.Word](mem)[0].Store(r.Key())
	e.steps(t)
	must(t, x.close())
	to := heir.knows(t, "main")
	shmtest.WantErr(t, "no row", heir.Inject(nil, to), cq.ErrFull)
	e.steps(t)
	must(t, heir.Inject(nil, to))
	e.steps(t)
	must(t, r.Close())
	if s := e.Stats(); s.FreeRemote != 4096 || s.Refused != 2 {
		t.Errorf("%+v", s)
	}
}
