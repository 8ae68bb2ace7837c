package kind

import "github.com/shmring/shmring/shm"

// SectGroup is the one section of a group's object, which all its members write.
//
//	0                 changes: it moves after a member has come or gone
//	128               a record for each seat (shm.Seats): members sit there, with their processes
//	128 + n * 128     a row for each seat (GroupRow): who in it receives
const SectGroup shm.SectionKind = 0x620

const (
	offGroupSeats = 128
	// GroupRowBytes is the size of a row.
	GroupRowBytes = 64
	// MostGroup is how many members a group can have.
	MostGroup = 1 << 10
)

// Group is what is fixed when a group is made.
type Group struct {
	Members int
	Misses  uint64 // 1: whoever has no room for a message misses it
	Type    uint64 // of the endpoints: FabricDatagrams or 0
}

var groupCodec = codec[Group]{
	{Attribute{"members", Bound{Least: 1, Most: MostGroup}, "that it can have at once"},
		func(g *Group) any { return &g.Members }},
	{Attribute{"misses", Bound{Most: 1}, "1: who has no room misses a message; 0: all wait for it"},
		func(g *Group) any { return &g.Misses }},
	{Attribute{"type", Bound{Most: FabricDatagrams}, "of its endpoints, as their pages say it"},
		func(g *Group) any { return &g.Type }},
}

// GroupAttributes describes the attributes of a group.
var GroupAttributes = groupCodec.attributes()

// Spec is the layout of a group.
func (g Group) Spec(name string) shm.Spec {
	n := offGroupSeats + uint64(g.Members)*(shm.SeatBytes+GroupRowBytes)
	s := shm.Spec{Kind: shm.KindGroup, Name: name, Sections: []shm.Section{section(SectGroup, 1, n)}}
	groupCodec.put(&s, g)
	return s
}

// StoredGroup returns what a group was made with.
func StoredGroup(name string, h shm.Header) (g Group, err error) {
	if err = CheckKind(h, shm.KindGroup); err != nil {
		return g, err
	}
	if g, err = groupCodec.take(h); err != nil {
		return g, Refuse("open", name, "attributes", err, "what an endpoint writes", ErrCorrupt)
	}
	return g, HasSections("open", name, h, g.Spec(name))
}

// GroupWords are the memory of a group.
type GroupWords struct {
	Changes *Word
	Seats   []byte // records, see shm.Seats
	Rows    []GroupRow
}

// WordsIn lays words over the section of a group, which is as long as the group says.
func (g Group) WordsIn(mem []byte) (w GroupWords) {
	rows := offGroupSeats + g.Members*shm.SeatBytes
	return GroupWords{Changes: &Overlays[Word](mem[:8])[0], Seats: mem[offGroupSeats:rows],
		Rows: Overlays[GroupRow](mem[rows:])[:g.Members]}
}

// GroupSeats returns the seats of a group, to look at.
func GroupSeats(obj *shm.Object) (shm.Seats, int, error) {
	g, err := StoredGroup(obj.Name(), obj.Header())
	if err != nil {
		return shm.Seats{}, 0, err
	}
	mem, _, err := obj.Section(SectGroup, 0)
	if err != nil {
		return shm.Seats{}, 0, err
	}
	return obj.Seats(g.WordsIn(mem).Seats), g.Members, nil
}
