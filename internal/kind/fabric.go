package kind

import (
	"fmt"

	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Sections of the two objects of a fabric endpoint. docs/fabric.md draws them.
const (
	SectFabricPage  shm.SectionKind = 0x600 + iota // endpoint, its owner writes
	SectFabricRows                                 // endpoint, its owner writes: a row a sender
	SectFabricMail                                 // endpoint, its senders write: hints, claims
	SectFabricLanes                                // outbox, its owner writes: a header a lane
	SectFabricSlots                                // outbox, its owner writes
	SectFabricDone                                 // outbox, its receivers write: a word a lane
	SectFabricPool                                 // outbox, its owner writes: payload, if it has any

	// An endpoint has the next three if it has memory for regions.
	SectFabricRegions // endpoint, its owner writes: which keys reach what
	SectFabricUses    // endpoint, its senders write: the key that they use now
	SectFabricRemote  // endpoint, its owner and its senders write: the memory
)

// Bounds of what an endpoint has.
const (
	FabricMostPeers      = 1 << 12
	FabricMostSlots      = 1 << 10 // of a lane
	FabricMinWindow      = 1 << 12 // bytes
	FabricMaxWindow      = 1 << 30
	FabricInline         = 192     // bytes of payload in a slot
	FabricMostBytes      = 1 << 30 // of a message
	FabricMostOps        = 1 << 12 // open operations of a lane
	FabricControls       = 8       // records in a control ring
	FabricMostAsks       = 64      // messages of a lane at once whose senders wait for a match
	FabricMostChunks     = 1<<15 + 1<<12
	FabricMostChunkBytes = 1 << 20
	FabricCharge         = 64 // bytes that a message counts at least against a grant
	FabricClosed         = 1  // state of an endpoint that takes nothing any more
	FabricDatagrams      = 1  // type of an endpoint whose messages can be dropped
	FabricPageBytes      = 4096
	FabricRowBytes       = 256
	FabricLaneBytes      = 256
	FabricSlotBytes      = 256
)

// What a slot holds: the lowest byte of its second word. The next byte are flags; then 16 bits for
// the number of the operation; then 32 bits of length.
const (
	FabricMessage = 1 // a message, payload inline
	FabricFin     = 2 // the lane ends here
	FabricGrow    = 3 // the layout has room for it
	FabricRTS     = 4 // the header of a message alone: its sender waits to be asked for the bytes
	FabricData    = 5 // a segment of a message that the receiver has asked for
	FabricReached = 6 // the sender has read or written memory of the receiver: see FabricRead
)

// What stands for the bytes of a record.
const (
	FabricUnwritten = 1<<32 - 2 // the file did not take what asks by this bit
)

// FabricClear makes a record of a control ring: the receiver asks for bytes of an operation.
func FabricClear(op, generation uint16, bytes int) uint64 {
	return uint64(op) | uint64(generation)<<16 | uint64(bytes)<<32
}

// FabricCleared takes a record of a control ring apart.
func FabricCleared(w uint64) (op, generation uint16, bytes int) {
	return uint16(w), uint16(w >> 16), int(w >> 32)
}

// Flags of a slot with a message or its header.
const (
	FabricFlags    = 0xff << 8
	FabricTagged   = 1 << 8  // the message has a tag
	FabricWithData = 1 << 9  // it has remote CQ data
	FabricInPool   = 1 << 10 // the payload lies in the pool of the outbox; a header alone lends it
	FabricAsks     = 1 << 11 // its sender waits for a match, or a file: a bit of the row says so
	FabricSolicits = 1 << 12 // the entry that it makes is a solicited one
	FabricToGroup  = 1 << 14 // it is for a group
)

// The number of a lane names its outbox, its place there, and which user of that place it is. No
// two lanes have the same at once. Bit 0 of it is set in a row whose lane was refused.
//
//	bits 24..63  outbox, random and not 0    bits 1..11  user of the place, from 1
//	bits 12..23  place in the outbox         bit 0       0
const (
	FabricRefused = 1
	fabricBox     = 24
	fabricPlace   = 12
	// FabricMostUses is how many lanes one place of an outbox has before numbers come again.
	FabricMostUses = 1<<11 - 1
)

// FabricLaneID makes the number of a lane. The outbox is one of [FabricOutboxID].
func FabricLaneID(outbox uint64, place, use int) uint64 {
	return outbox | uint64(place)<<fabricPlace | uint64(use)<<1
}

// FabricBefore reports whether a lane of a place came before another one of it, whose numbers come
// again, or there was none.
func FabricBefore(was, id uint64) bool {
	ahead := (id - was) >> 1 & FabricMostUses
	return was == 0 || was != id && ahead <= FabricMostUses/2
}

// FabricOutboxID makes the number of an outbox of random bits.
func FabricOutboxID(random uint64) uint64 { return (random>>fabricBox | 1) << fabricBox }

// FabricLaneOf takes the number of a lane apart.
func FabricLaneOf(id uint64) (outbox uint64, place int) {
	return id >> fabricBox << fabricBox, int(id >> fabricPlace & (1<<fabricPlace - 1))
}

const outboxPrefix = "outbox-"

// FabricOutboxName is the name of an outbox, beside the endpoints.
func FabricOutboxName(id uint64) string {
	return fmt.Sprintf("%s%010x", outboxPrefix, id>>fabricBox)
}

// Fabric is what is fixed when a fabric endpoint is made.
type Fabric struct {
	Rows   int    // senders that it can have at once, and the lanes of its outbox
	Window uint64 // bytes that each of them may have examined and not matched
	Outbox uint64
	Remote int // bytes of memory for regions
}

var fabricCodec = codec[Fabric]{
	{Attribute{"rows", Bound{Least: 1, Most: FabricMostPeers}, "senders that it can have at once"},
		func(f *Fabric) any { return &f.Rows }},
	{Attribute{"window", Bound{Least: FabricMinWindow, Most: FabricMaxWindow},
		"bytes that a sender may have unmatched here; its first grant"},
		func(f *Fabric) any { return &f.Window }},
	{Attribute{"outbox", Bound{Most: anyWord}, "number of the endpoint's own outbox"},
		func(f *Fabric) any { return &f.Outbox }},
	{Attribute{"remote", Bound{Most: FabricMostRemote},
		"bytes of memory that senders may reach; 0: it has none"},
		func(f *Fabric) any { return &f.Remote }},
}

// FabricAttributes and OutboxAttributes describe the attributes of both objects.
var FabricAttributes, OutboxAttributes = fabricCodec.attributes(), outboxCodec.attributes()

// FabricMailBytes returns the size of what senders write: the hints of a bell with a bit for each
// row and then one for each lane, and, from [FabricClaims] on, a claim for each row.
func FabricMailBytes(rows int) uint64 { return FabricClaims(rows) + uint64(rows)*8 }

// FabricClaims returns where the claims begin.
func FabricClaims(rows int) uint64 { return (wake.HintsBytes(2*rows) + 127) &^ 127 }

// Spec is the layout of an endpoint.
func (f Fabric) Spec(name string) shm.Spec {
	s := shm.Spec{Kind: shm.KindFabric, Name: name, Sections: []shm.Section{
		section(SectFabricPage, 1, FabricPageBytes), section(SectFabricRows, f.Rows, FabricRowBytes),
		section(SectFabricMail, 1, FabricMailBytes(f.Rows))}}
	if f.Remote > 0 {
		s.Sections = append(s.Sections, f.remoteSections()...)
	}
	fabricCodec.put(&s, f)
	return s
}

// StoredFabric returns what an endpoint was made with.
func StoredFabric(name string, h shm.Header) (f Fabric, err error) {
	if err = CheckKind(h, shm.KindFabric); err != nil {
		return f, err
	}
	if f, err = fabricCodec.take(h); err != nil {
		return f, Refuse("open", name, "attributes", err, "what an endpoint writes", ErrCorrupt)
	}
	return f, HasSections("open", name, h, f.Spec(name))
}

// Outbox is what is fixed when an outbox is made. Its header has the name of its endpoint.
type Outbox struct {
	Lanes      int
	Slots      int // of all lanes together
	ID         uint64
	High, Low  uint64 // uuid of its endpoint
	Generation uint64
	Chunks     int // of its pool
	ChunkBytes int
}

var outboxCodec = codec[Outbox]{
	{Attribute{"lanes", Bound{Least: 1, Most: FabricMostPeers}, "peers that it can send to at once"},
		func(o *Outbox) any { return &o.Lanes }},
	{Attribute{"slots", Bound{Least: 2, Most: FabricMostPeers * FabricMostSlots},
		"of all lanes together"}, func(o *Outbox) any { return &o.Slots }},
	{Attribute{"number", Bound{Most: anyWord}, "as in its name, times 2^24"},
		func(o *Outbox) any { return &o.ID }},
	{Attribute{"endpoint, high half", Bound{Most: anyWord}, "uuid of its endpoint"},
		func(o *Outbox) any { return &o.High }},
	{Attribute{"endpoint, low half", Bound{Most: anyWord}, "the rest of it"},
		func(o *Outbox) any { return &o.Low }},
	{Attribute{"generation", Bound{Most: anyWord}, "of its endpoint"},
		func(o *Outbox) any { return &o.Generation }},
	{Attribute{"chunks", Bound{Most: FabricMostChunks}, "of its pool; 0: it has none"},
		func(o *Outbox) any { return &o.Chunks }},
	{Attribute{"chunk bytes", Bound{Most: FabricMostChunkBytes}, "of each of them"},
		func(o *Outbox) any { return &o.ChunkBytes }},
}

// Spec is the layout of an outbox of the endpoint of that name.
func (o Outbox) Spec(endpoint string) shm.Spec {
	s := shm.Spec{Kind: shm.KindOutbox, Name: endpoint, Sections: []shm.Section{
		section(SectFabricLanes, o.Lanes, FabricLaneBytes),
		section(SectFabricSlots, o.Slots, FabricSlotBytes),
		section(SectFabricDone, o.Lanes, 8)}}
	if o.Chunks > 0 {
		s.Sections = append(s.Sections, section(SectFabricPool, o.Chunks, o.ChunkBytes))
	}
	outboxCodec.put(&s, o)
	return s
}

// StoredOutbox returns what an outbox was made with.
func StoredOutbox(name string, h shm.Header) (o Outbox, err error) {
	if err = CheckKind(h, shm.KindOutbox); err != nil {
		return o, err
	}
	if o, err = outboxCodec.take(h); err != nil {
		return o, Refuse("open", name, "attributes", err, "what an endpoint writes", ErrCorrupt)
	}
	return o, HasSections("open", name, h, o.Spec(name))
}

// OutboxLanes lays the headers of all lanes, and the words of their receivers, over an outbox.
func OutboxLanes(obj *shm.Object, o Outbox) ([]FabricLane, []Word, error) {
	heads, _, err := obj.Section(SectFabricLanes, 0)
	if err != nil {
		return nil, nil, err
	}
	done, _, err := obj.Section(SectFabricDone, 0)
	if err != nil {
		return nil, nil, err
	}
	return Overlays[FabricLane](heads)[:o.Lanes], Overlays[Word](done)[:o.Lanes], nil
}

// LaneSlots returns the slots that a lane says it has. It is false if there are none such.
func LaneSlots(obj *shm.Object, o Outbox, l *FabricLane) ([]FabricSlot, bool) {
	slab, n := l.Slab.Load(), l.Slots.Load()
	mem, _, err := obj.Section(SectFabricSlots, 0)
	if err != nil || n < 2 || n > FabricMostSlots || n&(n-1) != 0 ||
		n > uint64(o.Slots) || slab > uint64(o.Slots)-n {
		return nil, false
	}
	return Overlays[FabricSlot](mem)[slab : slab+n], true
}

// OutboxPool returns the memory of an outbox for payload, if it has any.
func OutboxPool(obj *shm.Object, o Outbox) (FabricPool, error) {
	if o.Chunks == 0 {
		return nil, nil
	}
	mem, _, err := obj.Section(SectFabricPool, 0)
	return mem, err
}

// FabricPool is memory of a sender for payload that does not fit a slot.
type FabricPool []byte

// At returns n bytes of it. It is false if there are none such.
func (p FabricPool) At(offset uint64, n int) (mem []byte, ok bool) {
	if size := uint64(len(p)); offset > size || uint64(n) > size-offset {
		return nil, false
	}
	return p[offset : offset+uint64(n) : offset+uint64(n)], true
}

// OutboxOpen returns the lanes of an outbox whose receivers have not said that they are done.
func OutboxOpen(lanes []FabricLane, done []Word) (open []int) {
	for i := range lanes {
		if id := lanes[i].ID.Load(); id != 0 && done[i].Load() != id {
			open = append(open, i)
		}
	}
	return open
}
