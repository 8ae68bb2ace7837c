package inspect

import (
	"fmt"
	"path/filepath"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// endpoint checks what an endpoint says of its senders, by itself and beside their lanes.
func (c *checker) endpoint() {
	f, err := kind.StoredFabric(c.obj.Name(), c.obj.Header())
	if !c.attributes(kind.FabricAttributes) || !c.sections(f.Spec("")) || err != nil {
		return
	}
	page, err := kind.WordsOf[kind.FabricPage](c.obj, kind.SectFabricPage, 0)
	if err != nil {
		return
	}
	mem, _, err := c.obj.Section(kind.SectFabricRows, 0)
	if err != nil {
		return
	}
	if s := page.State.Load(); s > kind.FabricClosed {
		wrong(c, &page.State, "endpoint.state", s, "0 or 1")
	}
	if t := page.Type.Load(); t > kind.FabricDatagrams {
		wrong(c, &page.Type, "endpoint.type", t, "0 or 1")
	}
	if a := page.Arm.Word.Load(); a&^wake.ArmKnown != 0 {
		wrong(c, &page.Arm.Word, "endpoint.armed", fmt.Sprintf("%#x", a), "known bits")
	}
	c.regions(f)
	for i := range kind.Overlays[kind.FabricRow](mem)[:f.Rows] {
		row := &kind.Overlays[kind.FabricRow](mem)[i]
		if g := row.Granted.Load(); g != 0 && g < f.Window {
			wrong(c, &row.Granted, "endpoint.granted", g, fmt.Sprintf("0, or at least %d", f.Window))
		}
		if w := row.Owed.Load(); w > 1 {
			wrong(c, &row.Owed, "endpoint.owed", w, "0 or 1")
		}
		for k := range row.Clear {
			w := row.Clear[k].Load()
			if op, _, n := kind.FabricCleared(w); op >= kind.FabricMostOps ||
				n > kind.FabricMostBytes {
				wrong(c, &row.Clear[k], "endpoint.record", fmt.Sprintf("%#x", w),
					"an operation of a lane, and bytes of a message")
			}
		}
		id := row.Owner.Load()
		if id != 0 && !laneNumber(id&^kind.FabricRefused) {
			wrong(c, &row.Owner, "endpoint.owner", fmt.Sprintf("%#x", id), "number of a lane")
		} else if id&kind.FabricRefused == 0 && id != 0 && page.State.Load() != kind.FabricClosed {
			c.beside(id, row)
		}
	}
}

// regions checks which memory keys reach. The words of one change while it has no key.
func (c *checker) regions(f kind.Fabric) {
	mem, _, err := c.obj.Section(kind.SectFabricRegions, 0)
	if err != nil {
		return // it has none
	}
	for i := range kind.Overlays[kind.FabricRegion](mem) {
		r := &kind.Overlays[kind.FabricRegion](mem)[i]
		key := r.Key.Load()
		place, ok := kind.FabricKeyPlace(key)
		access, at, n := r.Access.Load(), r.Offset.Load(), r.Length.Load()
		ok = ok && place == i && access < 2*kind.FabricLasts && access&(kind.FabricEvents-1) != 0 &&
			n != 0 && at <= uint64(f.Remote) && n <= uint64(f.Remote)-at
		if key != 0 && !ok && r.Key.Load() == key {
			wrong(c, &r.Key, "endpoint.region",
				fmt.Sprintf("key %#x, access %d, %d bytes from %d", key, access, n, at),
				fmt.Sprintf("a key of the place, and some of %d bytes", f.Remote))
		}
	}
}

// laneNumber tells whether a lane can have a number.
func laneNumber(id uint64) bool {
	box, place := kind.FabricLaneOf(id)
	use := id >> 1 & kind.FabricMostUses
	return box != 0 && use != 0 && id == kind.FabricLaneID(box, place, int(use))
}

// beside compares a row with its lane, which its sender fills. What is loaded first here cannot be
// ahead of what is loaded later; both stay true only as long as row and lane have each other.
func (c *checker) beside(id uint64, row *kind.FabricRow) {
	box, place := kind.FabricLaneOf(id)
	path := filepath.Join(c.dir, kind.FabricOutboxName(box))
	if c.dir == "" {
		return
	}
	_, _ = checkPath(path, func(other *checker) { // what is wrong with it is said of it
		o, err := kind.StoredOutbox(path, other.obj.Header())
		lanes, _, e2 := kind.OutboxLanes(other.obj, o)
		if err != nil || e2 != nil || place >= o.Lanes {
			return
		}
		l := &lanes[place]
		head, tail := row.Head.Load(), row.Control.Load()
		back := l.Control.Load()
		slots, ok := kind.LaneSlots(other.obj, o, l)
		sent := uint64(0)
		for i := range slots {
			sent = max(sent, slots[i].Seq.Load())
		}
		number := l.ID.Load()
		if !ok || row.Owner.Load() != id {
			return
		}
		if life, err := c.obj.Life(); number != id {
			alive, known := shm.ProcessAlive(c.obj.Owner())
			// Else the sender may know it: who removes what is of the dead holds it as if it lived.
			if err == nil && life != shm.Dead && (alive || !known) {
				wrong(c, &row.Owner, "endpoint.lane", fmt.Sprintf("%#x", id),
					fmt.Sprintf("%#x, as the lane says", number))
			}
			return
		}
		if head > sent {
			wrong(c, &row.Head, "endpoint.head", head, fmt.Sprintf("at most %d, which were sent", sent))
		}
		if int64(tail-back) > kind.FabricControls {
			wrong(c, &row.Control, "endpoint.control", tail,
				fmt.Sprintf("at most %d more than %d", kind.FabricControls, back))
		}
	})
}

// outbox checks what an endpoint sends.
func (c *checker) outbox() {
	o, err := kind.StoredOutbox(c.obj.Name(), c.obj.Header())
	if !c.attributes(kind.OutboxAttributes) || !c.sections(o.Spec("")) || err != nil {
		return
	}
	lanes, done, err := kind.OutboxLanes(c.obj, o)
	if err != nil {
		return
	}
	ours := func(id uint64, place int) bool {
		box, at := kind.FabricLaneOf(id)
		return id == 0 || laneNumber(id) && box == o.ID && at == place
	}
	for i := range lanes {
		l := &lanes[i]
		if id := done[i].Load(); !ours(id, i) {
			wrong(c, &done[i], "outbox.done", fmt.Sprintf("%#x", id), "0, or a number of the place")
		}
		id := l.ID.Load()
		if !ours(id, i) {
			wrong(c, &l.ID, "outbox.lane", fmt.Sprintf("%#x", id), "0, or a number of the place")
			continue
		}
		if id == 0 {
			continue // it may be filled
		}
		if p := l.Pays.Load(); p > 1 {
			wrong(c, &l.Pays, "outbox.order", p, "0 or 1")
		}
		if t := l.Type.Load(); t > kind.FabricDatagrams {
			wrong(c, &l.Type, "outbox.type", t, "0 or 1")
		}
		slots, ok := kind.LaneSlots(c.obj, o, l)
		if !ok {
			wrong(c, &l.Slab, "outbox.slots", fmt.Sprintf("%d from %d", l.Slots.Load(), l.Slab.Load()),
				"a power of two of those there are")
			continue
		}
		for k := range slots {
			c.fabricSlot(o, &slots[k], uint64(k), uint64(len(slots)))
		}
	}
}

// fabricSlot checks one. It may be filled for the next message while its sequence is that of the
// last one, but holds what can be at all times.
func (c *checker) fabricSlot(o kind.Outbox, s *kind.FabricSlot, k, n uint64) {
	seq := s.Seq.Load()
	if seq == 0 {
		return
	}
	if (seq-1)%n != k {
		wrong(c, &s.Seq, "outbox.sequence", seq, fmt.Sprintf("%d and whole rounds", k+1))
	}
	head := s.Head.Load()
	most, ops := uint64(kind.FabricInline), uint64(kind.FabricMostOps)
	pool := uint64(o.Chunks) * uint64(o.ChunkBytes)
	known := uint64(kind.FabricTagged | kind.FabricWithData | kind.FabricSolicits |
		kind.FabricInPool | kind.FabricToGroup)
	what, reached := head&0xff, uint64(0)
	switch what {
	case kind.FabricMessage:
		known |= kind.FabricAsks
		ops = kind.FabricMostAsks
	case kind.FabricFin:
		known, most = 0, 0
	case kind.FabricRTS:
		most = kind.FabricMostBytes
	case kind.FabricData:
		known = kind.FabricInPool
	case kind.FabricReached:
		known, most = kind.FabricWithData|kind.FabricSolicits|kind.FabricAsks, kind.FabricMostRemote
		if reached = head >> 16 & 0xffff; head&kind.FabricAsks != 0 {
			ops, reached = kind.FabricMostAsks<<8, reached&0xff
		}
	}
	if head&kind.FabricInPool != 0 {
		most = pool
	}
	if head>>32 > most || head&kind.FabricFlags&^known != 0 || head>>16&0xffff >= ops ||
		what == 0 || what == kind.FabricGrow || what > kind.FabricReached ||
		what == kind.FabricReached && !kind.FabricReachedBy(reached, head&kind.FabricWithData) {
		wrong(c, &s.Head, "outbox.slot", fmt.Sprintf("%#x", head),
			"a message, header, segment, end, or what was read or written")
	}
	if at := s.More[1].Load(); head&kind.FabricInPool != 0 && at > pool {
		wrong(c, &s.More[1], "outbox.pool", at, fmt.Sprintf("at most %d", pool))
	}
}

// group checks who is in a group.
func (c *checker) group() {
	g, err := kind.StoredGroup(c.obj.Name(), c.obj.Header())
	if !c.attributes(kind.GroupAttributes) || !c.sections(g.Spec("")) || err != nil {
		return
	}
	mem, _, err := c.obj.Section(kind.SectGroup, 0)
	if err != nil {
		return
	}
	w := g.WordsIn(mem)
	seats := c.obj.Seats(w.Seats)
	for i := range w.Rows {
		use, box := w.Rows[i].Use.Load(), w.Rows[i].Outbox.Load()
		if use != 0 && (box == 0 || box != kind.FabricOutboxID(box)) && w.Rows[i].Use.Load() == use {
			wrong(c, &w.Rows[i].Outbox, "group.member", fmt.Sprintf("%#x", box), "number of an outbox")
		}
		if o := seats.At(i).Owner(); o.State == shm.StateOwned && o.PID == 0 {
			wrong(c, &w.Seats[shm.SeatBytes*i+8], "group.seat", "no process", "1 to 4194304")
		}
	}
}
