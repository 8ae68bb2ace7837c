package fabric_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// scribbled is the memory of an endpoint, as a process of its user can write it.
type scribbled struct {
	page   *kind.FabricPage
	rows   []kind.FabricRow
	claims []kind.Word
	lanes  []kind.FabricLane
	slots  []kind.FabricSlot
	ring   func(row int)
	rings  func() // for the first row
}

// scribble maps what an endpoint writes.
func scribble(t *testing.T, e *end, name string) (s scribbled) {
	t.Helper()
	return scribbleOn(t, e, name, e.Address())
}

// scribbleOn maps what one beside it writes.
func scribbleOn(t *testing.T, e *end, name string, a fabric.Address) (s scribbled) {
	t.Helper()
	open := func(name string) *shm.Object {
		o := shmtest.Got(e.d.Open(name, shm.ReadOnly)).Or(t)
		t.Cleanup(func() { must(t, o.Close()) })
		return o
	}
	section := func(o *shm.Object, k shm.SectionKind) []byte {
		mem := shmtest.Got(o.MapWritable(k, 0)).Or(t)
		return mem
	}
	o, box := open(name), open(kind.FabricOutboxName(a.Outbox))
	s.page = kind.Overlay[kind.FabricPage](section(o, kind.SectFabricPage))
	s.rows = kind.Overlays[kind.FabricRow](section(o, kind.SectFabricRows))
	mail := section(o, kind.SectFabricMail)
	s.claims = kind.Overlays[kind.Word](mail[kind.FabricClaims(len(s.rows)):])
	hints := shmtest.Got(wake.MapHints(mail, 2*len(s.rows))).Or(t)
	s.ring = func(row int) {
		wake.NewRinger(wake.RingerConfig{Row: &s.rows[row].Bell, Arm: &s.page.Arm, Hints: hints,
			Bit: row}).Announce()
	}
	s.rings = func() { s.ring(0) }
	s.lanes = kind.Overlays[kind.FabricLane](section(box, kind.SectFabricLanes))
	s.slots = kind.Overlays[kind.FabricSlot](section(box, kind.SectFabricSlots))
	return s
}

// in writes a slot whose payload lies in the pool.
func in(what, at uint64, n int) func(s scribbled) {
	return func(s scribbled) {
		s.slots[0].More[1].Store(at)
		s.slots[0].Head.Store(what | kind.FabricInPool | uint64(n)<<32)
	}
}

// TestHostileSender: a sender that writes what cannot be is cut off, in both directions and with an
// error each; others notice nothing.
func TestHostileSender(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(s scribbled)
	}{
		{"kind", func(s scribbled) { s.slots[0].Head.Store(99) }},
		{"flags", func(s scribbled) { s.slots[0].Head.Store(kind.FabricMessage | 1<<15) }},
		{"address of a payload", func(s scribbled) { s.slots[0].Head.Store(kind.FabricRTS | 1<<13) }},
		{"length", func(s scribbled) { s.slots[0].Head.Store(kind.FabricMessage | 193<<32) }},
		{"length of what others have missed", func(s scribbled) {
			s.slots[0].More[2].Store(1)
			s.slots[0].Head.Store(kind.FabricMessage | kind.FabricToGroup | 193<<32)
		}},
		{"longest", func(s scribbled) { s.slots[0].Head.Store(kind.FabricMessage | 0xffffffff<<32) }},
		{"long end", func(s scribbled) { s.slots[0].Head.Store(kind.FabricFin | 1<<32) }},
		{"no room", func(s scribbled) { s.slots[0].Head.Store(kind.FabricGrow) }},
		{"chunk beyond the pool", in(kind.FabricMessage, 8*chunk, 1)},
		{"chunk far beyond", in(kind.FabricMessage, 1<<63, 0)},
		{"chunk that ends beyond", in(kind.FabricMessage, 7*chunk, chunk+1)},
		{"reference beyond the pool", in(kind.FabricRTS, 8*chunk+1, 0)},
		{"reference that ends beyond", in(kind.FabricRTS, 7*chunk, chunk+1)},
		{"reference that is too long", in(kind.FabricRTS, 0, 8*chunk+1)},
		{"reference that wraps", in(kind.FabricRTS, 1<<64-1, 300)},
		{"reference of a long message", in(kind.FabricRTS, 0, 0xffffffff)},
		{"operation of a message", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricMessage | 1<<16)
		}},
		{"bit", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricMessage | kind.FabricAsks | 64<<16)
		}},
		{"operation", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricRTS | kind.FabricMostOps<<16)
		}},
		{"generation", func(s scribbled) {
			s.slots[0].More[0].Store(1 << 16)
			s.slots[0].Head.Store(kind.FabricRTS)
		}},
		{"too long", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricRTS | (kind.FabricMostBytes+1)<<32)
		}},
		{"file that is not there", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricReached | kind.FabricAsks | kind.FabricWrite<<16)
		}},
		{"told of nothing", func(s scribbled) { s.slots[0].Head.Store(kind.FabricReached) }},
		{"told of anything", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricReached | (kind.FabricRead|kind.FabricWrite)<<16)
		}},
		{"told of a tag", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricReached | kind.FabricTagged | kind.FabricWrite<<16)
		}},
		{"told of a read with data", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricReached | kind.FabricWithData | kind.FabricRead<<16)
		}},
		{"told of too much", func(s scribbled) {
			s.slots[0].Head.Store(kind.FabricReached | kind.FabricWrite<<16 |
				(kind.FabricMostRemote+1)<<32)
		}},
		{"segment of nothing", func(s scribbled) { s.slots[0].Head.Store(kind.FabricData) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, other := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{}),
				opened(t, "other", fabric.Options{})
			toA := b.knows(t, "a")
			toB := a.knows(t, "b")
			must(t, b.Send(nil, toA, 1))
			c.write(scribble(t, b, "b"))
			must(t, a.Recv(make([]byte, 8), 2))
			a.steps(t)
			if s := a.Stats(); s.Corrupt != 1 || s.Received != 0 {
				t.Errorf("%+v", s)
			}
			if err := a.Send(nil, toB, 3); !errors.Is(err, fabric.ErrCorrupt) {
				t.Errorf("a send to it: %v", err)
			}
			if _, failed, err := b.next(); err != nil || failed.Context != 1 ||
				failed.Err != cq.Errno(syscall.ECONNABORTED) {
				t.Errorf("its send: %+v, %v", failed, err)
			}
			if err := b.Send(nil, toA, 1); !errors.Is(err, fabric.ErrRefused) {
				t.Errorf("its next send: %v", err)
			}
			toA = other.knows(t, "a")
			must(t, other.Send(nil, toA, 4))
			completes(t, a)
			completes(t, other)
		})
	}
}

// TestHostileSegments: who sends what it was not asked for, or announces one operation twice, is
// cut off, and the receive fails with the bytes that are right.
func TestHostileSegments(t *testing.T) {
	const (
		of   = kind.FabricRTS | 5<<16 | 300<<32
		part = kind.FabricData | 5<<16
	)
	for _, c := range []struct {
		name  string
		heads []uint64 // behind the header
		right uint64
	}{
		{"twice", []uint64{of}, 0},
		{"twice, by reference", []uint64{of | kind.FabricInPool}, 0},
		{"too many bytes", []uint64{part | 100<<32, part | 101<<32}, 100},
		{"too many in a slot", []uint64{part | 193<<32}, 0},
		{"none", []uint64{part | 1<<32, part}, 1},
		{"too many in the pool", []uint64{part | kind.FabricInPool | (8*chunk+1)<<32}, 0},
		{"another operation", []uint64{kind.FabricData | 6<<16 | 1<<32}, 0},
		{"flags", []uint64{part | 1<<32, part | 1<<15 | 1<<32}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
			toA := b.knows(t, "a")
			must(t, b.Send(nil, toA, 1))
			s := scribble(t, b, "b")
			s.slots[0].Head.Store(of)
			must(t, a.Recv(make([]byte, 200), 2))
			for i, head := range c.heads {
				s.slots[1+i].Head.Store(head)
				s.slots[1+i].Seq.Store(uint64(i + 2))
			}
			if _, failed, err := a.next(); err != nil || failed.Context != 2 ||
				failed.Len != c.right || failed.Err != cq.Errno(syscall.EBADMSG) {
				t.Errorf("%+v, %v", failed, err)
			}
			if s := a.Stats(); s.Corrupt != 1 || s.Waiting != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestHostileGrant: a sender that sends more than was granted is cut off, and stores no more.
func TestHostileGrant(t *testing.T) {
	t.Run("messages", func(t *testing.T) {
		hostileGrant(t, 64, func(b *end, to cq.Addr, _ fabric.Remote) error { return b.Inject(nil, to) })
	})
	t.Run("writes", func(t *testing.T) { // whose entries have no room
		hostileGrant(t, 1, func(b *end, to cq.Addr, at fabric.Remote) error {
			m := fabric.Msg{Addr: to, Flags: cq.FlagRemoteCQData | cq.FlagInjectCall}
			return b.WriteMsg(&m, at)
		})
	})
}

func hostileGrant(t *testing.T, waiting uint64, do func(*end, cq.Addr, fabric.Remote) error) {
	a := openedSized(t, "a", 16, fabric.Options{Window: 4096, Remote: 4096})
	b := opened(t, "b", fabric.Options{})
	r := shmtest.Got(a.Register(1, cq.FlagRemoteWrite)).Or(t)
	to := b.knows(t, "a")
	must(t, b.Send(nil, to, 1))
	a.steps(t)
	a2 := scribble(t, a, "a")
	b.steps(t)
	for i := range 100 {
		a2.rows[0].Granted.Store(1 << 40) // as if b did not ask
		a2.rows[0].Rev.Add(1)
		if err := do(b, to, fabric.Remote{Key: r.Key()}); err != nil {
			break
		}
		a.steps(t)
		if i == 99 {
			t.Error("nobody noticed")
		}
	}
	if s := a.Stats(); s.Corrupt != 1 || s.Waiting != waiting {
		t.Errorf("%+v", s)
	}
}

// TestHostileReceiver: a receiver whose words cannot be is cut off, and what was sent to it fails.
func TestHostileReceiver(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(r *kind.FabricRow)
	}{
		{"head ahead", func(r *kind.FabricRow) { r.Head.Store(3) }},
		{"head far ahead", func(r *kind.FabricRow) { r.Head.Store(1 << 63) }},
		{"head behind", func(r *kind.FabricRow) { r.Head.Store(0) }},
		{"more records than fit", func(r *kind.FabricRow) { r.Control.Store(9) }},
		{"asks for too much", func(r *kind.FabricRow) { asks(r, kind.FabricClear(0, 1, chunk+301)) }},
		{"asks another", func(r *kind.FabricRow) { asks(r, kind.FabricClear(0, 2, 300)) }},
		{"asks nobody", func(r *kind.FabricRow) { asks(r, kind.FabricClear(1, 1, 0)) }},
		{"asks for all ones", func(r *kind.FabricRow) { asks(r, kind.FabricClear(0, 1, 1<<32-1)) }},
		{"file of nobody", func(r *kind.FabricRow) {
			asks(r, kind.FabricClear(0, 0, kind.FabricUnwritten))
		}},
		{"asks twice", func(r *kind.FabricRow) {
			asks(r, kind.FabricClear(0, 1, 8), kind.FabricClear(0, 1, 8))
		}},
		{"row given away", func(r *kind.FabricRow) { r.Owner.Store(12345678 << 24) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
			to := a.knows(t, "b")
			must(t, a.Send(nil, to, 1))
			b.steps(t)
			completes(t, a)
			must(t, a.Send(make([]byte, chunk+300), to, 2))
			row := &scribble(t, b, "b").rows[0]
			c.write(row)
			row.Rev.Add(1)
			if _, failed, err := a.next(); err != nil || failed.Context != 2 ||
				failed.Err != cq.Errno(syscall.EBADMSG) {
				t.Errorf("%+v, %v", failed, err)
			}
			if err := a.Send(nil, to, 1); !errors.Is(err, fabric.ErrCorrupt) {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestHostileMatch: a receiver that matches what nobody asked about is cut off.
func TestHostileMatch(t *testing.T) {
	a, b, to, _ := pair(t, fabric.Options{})
	must(t, a.SendMsg(&fabric.Msg{Addr: to, Context: 1, Flags: cq.FlagMatchComplete}))
	moves(t, a, b)
	row := &scribble(t, b, "b").rows[0]
	row.Matched.Store(1 << 1)
	row.Rev.Add(1)
	if e := fails(t, a); e.Context != 1 || !errors.Is(&e, fabric.ErrCorrupt) {
		t.Errorf("%+v", e)
	}
}

// asks puts records into a control ring.
func asks(r *kind.FabricRow, records ...uint64) {
	for i, w := range records {
		r.Clear[i].Store(w)
	}
	r.Control.Store(uint64(len(records)))
}

// TestHostileRings: a receiver that says again and again that there is news, and has none, is cut
// off, so that nobody is kept from sleeping.
func TestHostileRings(t *testing.T) {
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	must(t, a.Send(nil, to, 1))
	b.steps(t)
	completes(t, a)
	row := &scribble(t, b, "b").rows[0]
	for range 2000 {
		row.Rev.Add(1)
		a.steps(t)
	}
	if err := a.Send(nil, to, 1); !errors.Is(err, fabric.ErrCorrupt) {
		t.Errorf("afterwards: %v", err)
	}
}

// TestHostileClaims: claims of lanes that are not there, or lead elsewhere, cost a row at most.
func TestHostileClaims(t *testing.T) {
	a, b, evil := opened(t, "a", fabric.Options{Peers: 8}), opened(t, "b", fabric.Options{}),
		opened(t, "evil", fabric.Options{})
	s, of := scribble(t, a, "a"), scribble(t, evil, "evil")
	box := evil.Address().Outbox
	high, low := kind.UuidWords(a.Address().UUID)
	lane := func(place int, slab, high uint64) {
		of.lanes[place].TargetHigh.Store(high)
		of.lanes[place].TargetLow.Store(low)
		of.lanes[place].Slab.Store(slab)
		of.lanes[place].Slots.Store(8)
		of.lanes[place].ID.Store(kind.FabricLaneID(box, place, 1))
	}
	lane(0, 1<<62, high)
	lane(1, 0, high+1)
	for place := 2; place < 5; place++ {
		lane(place, uint64(8*place), high)
	}
	ids := []uint64{
		kind.FabricLaneID(kind.FabricOutboxID(1<<40), 3, 1), // no such outbox
		kind.FabricLaneID(box, 4000, 1),                     // no such place
		kind.FabricLaneID(box, 0, 1),                        // slots beyond the outbox
		kind.FabricLaneID(box, 1, 1),                        // to another
		kind.FabricLaneID(box, 2, 2),                        // of another number
		kind.FabricLaneID(box, 3, 1),                        // one that can be
		kind.FabricLaneID(box, 4, 1),                        // a second one
	}
	for row, id := range ids {
		s.claims[row].Store(id)
	}
	mail := shmtest.Got(a.d.Open("a", shm.ReadOnly)).Or(t)
	defer mail.Close()
	mem := shmtest.Got(mail.MapWritable(kind.SectFabricMail, 0)).Or(t)
	mem[384], mem[385] = 0xff, 0xff // every row rings, and lanes that nobody has
	to := b.knows(t, "a")
	must(t, b.Send(nil, to, 1))
	must(t, a.Recv(nil, 2))
	completes(t, a)
	completes(t, b)
	if n := a.Stats().Refused; n != 5 || s.claims[0].Load() != 0 {
		t.Errorf("%d were refused, and claims are %x", n, s.claims[0].Load())
	}
	for row, id := range ids[1:] {
		want := id | kind.FabricRefused
		if row+1 == 5 {
			want = id
		}
		if got := s.rows[row+1].Owner.Load(); got != want {
			t.Errorf("row %d is that of %#x, want %#x", row+1, got, want)
		}
	}
	last, late := opened(t, "last", fabric.Options{}), opened(t, "late", fabric.Options{})
	must(t, last.Send(nil, last.knows(t, "a"), 1))
	to = late.knows(t, "a")
	for range 3 { // all rows are taken, and evil lives
		shmtest.WantErr(t, "a send without a row", late.Send(nil, to, 1), fabric.ErrPeers)
		a.steps(t)
	}
	must(t, evil.close())
	shmtest.WantErr(t, "a send without a row", late.Send(nil, to, 1), cq.ErrFull)
	a.steps(t)
	for row := range ids {
		if s.claims[row].Load() == 0 && s.rows[row].Owner.Load() != 0 {
			t.Errorf("row %d is free and has an owner", row)
		}
	}
	must(t, late.Send(nil, to, 1))
}

// groupWords are those that the members of a group write.
func groupWords(t *testing.T, e *end) (is kind.Group, w kind.GroupWords) {
	t.Helper()
	o := shmtest.Got(e.d.Open("group", shm.ReadWrite)).Or(t)
	t.Cleanup(func() { must(t, o.Close()) })
	is = shmtest.Got(kind.StoredGroup("group", o.Header())).Or(t)
	mem, _, err := o.Section(kind.SectGroup, 0)
	must(t, err)
	return is, is.WordsIn(mem)
}

// TestHostileGroup: rows that say what cannot be cost senders a look each.
func TestHostileGroup(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	is, w := groupWords(t, a.end)
	b1 := &w.Rows[1] // b's
	for i, forge := range []func(r *kind.GroupRow){
		func(r *kind.GroupRow) { r.Outbox.Store(1) },
		func(r *kind.GroupRow) { r.Outbox.Store(0) },
		func(r *kind.GroupRow) { r.Outbox.Store(kind.FabricOutboxID(1 << 50)) },
		func(r *kind.GroupRow) { r.Low.Add(1) },
		func(r *kind.GroupRow) { r.Generation.Add(1) },
		func(r *kind.GroupRow) { r.Outbox.Store(a.Address().Outbox) },
		func(r *kind.GroupRow) {}, // b once more
		func(r *kind.GroupRow) { r.Use.Store(0) },
	} {
		for k := 2; k < is.Members; k++ {
			r := &w.Rows[k]
			r.Outbox.Store(b1.Outbox.Load())
			r.High.Store(b1.High.Load())
			r.Low.Store(b1.Low.Load())
			r.Generation.Store(b1.Generation.Load())
			r.Use.Store(9)
			forge(r)
		}
		w.Changes.Add(uint64(1) << (9 * i))
		must(t, a.Send(number(uint64(i)), a.g.Addr(), uint64(i)))
		if got := b.got(t); !slices.Equal(got, []uint64{uint64(i)}) {
			t.Errorf("forgery %d: %v", i, got)
		}
		if c := completes(t, a.end); c.Context != uint64(i) {
			t.Errorf("forgery %d: %+v", i, c)
		}
	}
	if s := a.Stats(); s.Corrupt+s.Refused > 0 {
		t.Errorf("%+v", s)
	}
	must(t, b.Send(bytes.Repeat([]byte{1}, 8), b.g.Addr(), 1))
}
