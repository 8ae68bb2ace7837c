package inspect

import (
	"fmt"
	"path/filepath"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Where words stand that are checked, in their row, lane or slot.
const (
	offState    = 128 // of a page
	offType     = 144
	offOwner    = 128 // of a row
	offHead     = 136
	offGranted  = 144
	offOwed     = 168
	offTail     = 176
	offClear    = 192
	offNumber   = 128 // of a lane
	offSlab     = 136
	offPays     = 160
	offLaneType = 192
	offSlotHead = 8
	offPool     = 232
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
		c.bad("endpoint.state", kind.SectFabricPage, offState, s, "0 or 1")
	}
	if t := page.Type.Load(); t > kind.FabricDatagrams {
		c.bad("endpoint.type", kind.SectFabricPage, offType, t, "0 or 1")
	}
	if a := page.Arm.Word.Load(); a&^wake.ArmKnown != 0 {
		c.bad("endpoint.armed", kind.SectFabricPage, 0, fmt.Sprintf("%#x", a), "known bits")
	}
	c.regions(f)
	for i := range kind.Overlays[kind.FabricRow](mem)[:f.Rows] {
		row := &kind.Overlays[kind.FabricRow](mem)[i]
		base := uint64(i) * kind.FabricRowBytes
		if g := row.Granted.Load(); g != 0 && g < f.Window {
			c.bad("endpoint.granted", kind.SectFabricRows, base+offGranted, g,
				fmt.Sprintf("0, or at least %d", f.Window))
		}
		if w := row.Owed.Load(); w > 1 {
			c.bad("endpoint.owed", kind.SectFabricRows, base+offOwed, w, "0 or 1")
		}
		for k := range row.Clear {
			w := row.Clear[k].Load()
			if op, _, n := kind.FabricCleared(w); op >= kind.FabricMostOps ||
				n > kind.FabricMostBytes {
				c.bad("endpoint.record", kind.SectFabricRows, base+offClear+8*uint64(k),
					fmt.Sprintf("%#x", w), "an operation of a lane, and bytes of a message")
			}
		}
		id := row.Owner.Load()
		if id != 0 && !laneNumber(id&^kind.FabricRefused) {
			c.bad("endpoint.owner", kind.SectFabricRows, base+offOwner, fmt.Sprintf("%#x", id),
				"number of a lane")
		} else if id&kind.FabricRefused == 0 && id != 0 && page.State.Load() != kind.FabricClosed {
			c.beside(id, row, base)
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
			c.bad("endpoint.region", kind.SectFabricRegions, uint64(i)*kind.FabricRegionBytes,
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
func (c *checker) beside(id uint64, row *kind.FabricRow, base uint64) {
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
				c.bad("endpoint.lane", kind.SectFabricRows, base+offOwner, fmt.Sprintf("%#x", id),
					fmt.Sprintf("%#x, as the lane says", number))
			}
			return
		}
		if head > sent {
			c.bad("endpoint.head", kind.SectFabricRows, base+offHead, head,
				fmt.Sprintf("at most %d, which were sent", sent))
		}
		if int64(tail-back) > kind.FabricControls {
			c.bad("endpoint.control", kind.SectFabricRows, base+offTail, tail,
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
		l, base := &lanes[i], uint64(i)*kind.FabricLaneBytes
		if id := done[i].Load(); !ours(id, i) {
			c.bad("outbox.done", kind.SectFabricDone, 8*uint64(i), fmt.Sprintf("%#x", id),
				"0, or a number of the place")
		}
		id := l.ID.Load()
		if !ours(id, i) {
			c.bad("outbox.lane", kind.SectFabricLanes, base+offNumber, fmt.Sprintf("%#x", id),
				"0, or a number of the place")
			continue
		}
		if id == 0 {
			continue // it may be filled
		}
		if p := l.Pays.Load(); p > 1 {
			c.bad("outbox.order", kind.SectFabricLanes, base+offPays, p, "0 or 1")
		}
		if t := l.Type.Load(); t > kind.FabricDatagrams {
			c.bad("outbox.type", kind.SectFabricLanes, base+offLaneType, t, "0 or 1")
		}
		slots, ok := kind.LaneSlots(c.obj, o, l)
		if !ok {
			c.bad("outbox.slots", kind.SectFabricLanes, base+offSlab,
				fmt.Sprintf("%d from %d", l.Slots.Load(), l.Slab.Load()), "a power of two of those there are")
			continue
		}
		for k := range slots {
			c.fabricSlot(o, &slots[k], uint64(k), uint64(len(slots)), l.Slab.Load())
		}
	}
}

// fabricSlot checks one. It may be filled for the next message while its sequence is that of the
// last one, but holds what can be at all times.
func (c *checker) fabricSlot(o kind.Outbox, s *kind.FabricSlot, k, n, slab uint64) {
	base := (slab + k) * kind.FabricSlotBytes
	seq := s.Seq.Load()
	if seq == 0 {
		return
	}
	if (seq-1)%n != k {
		c.bad("outbox.sequence", kind.SectFabricSlots, base, seq, fmt.Sprintf("%d and whole rounds", k+1))
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
		c.bad("outbox.slot", kind.SectFabricSlots, base+offSlotHead, fmt.Sprintf("%#x", head),
			"a message, header, segment, end, or what was read or written")
	}
	if at := s.More[1].Load(); head&kind.FabricInPool != 0 && at > pool {
		c.bad("outbox.pool", kind.SectFabricSlots, base+offPool, at, fmt.Sprintf("at most %d", pool))
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
	rows := uint64(len(mem) - g.Members*kind.GroupRowBytes)
	for i := range w.Rows {
		use, box := w.Rows[i].Use.Load(), w.Rows[i].Outbox.Load()
		if use != 0 && (box == 0 || box != kind.FabricOutboxID(box)) && w.Rows[i].Use.Load() == use {
			c.bad("group.member", kind.SectGroup, rows+uint64(i)*kind.GroupRowBytes+8,
				fmt.Sprintf("%#x", box), "number of an outbox")
		}
		if o := seats.At(i).Owner(); o.State == shm.StateOwned && o.PID == 0 {
			c.bad("group.seat", kind.SectGroup, rows-uint64(g.Members-i)*shm.SeatBytes+8,
				"no process", "1 to 4194304")
		}
	}
}
