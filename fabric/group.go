package fabric

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// GroupOptions say what a group is like, which all its members say alike, and what this one does.
type GroupOptions struct {
	// Misses has a member that has no room for a message miss it, as if the group were of
	// datagrams; it is told how many it missed. A send is cq.ErrFull only for want of a place of
	// Options.Peers, as long as one who left has it yet. By default all wait for it: a send is
	// cq.ErrFull, and nobody gets its message, until every member has room.
	Misses bool
	// Members is how many there can be at once, up to 1024, by default 64. Who makes the group says
	// it.
	Members int
	// Access is what the endpoint does there: FlagSend, FlagRecv, or both, which is the default.
	Access cq.Flags
	// Events gets an EventJoinComplete with the FID of the group, and Context, when the endpoint has
	// joined. It need not be there.
	Events  cq.EventSink
	Context uint64
}

func (o *GroupOptions) resolve(datagram bool) error {
	if o.Members == 0 {
		o.Members = defaultMembers
	}
	if o.Access == 0 {
		o.Access = cq.FlagSend | cq.FlagRecv
	}
	switch {
	case kind.NilPointer(o.Events):
		return refuse("join", "", "Events", "a nil pointer", "a queue, or nil")
	case o.Members < 1 || o.Members > kind.MostGroup:
		return refuse("join", "", "Members", o.Members, [2]int{1, kind.MostGroup})
	case o.Access&^(cq.FlagSend|cq.FlagRecv) != 0:
		return refuse("join", "", "Access", o.Access, "FlagSend, FlagRecv or both")
	case datagram && !o.Misses:
		return refuse("join", "", "Misses", false, "true: no datagram waits for room")
	}
	return nil
}

const defaultMembers = 64

// Group is a multicast group that an endpoint has joined (fid_mc). What is sent to its address goes
// to each member that receives, but for the endpoint that sends.
type Group struct {
	e    *Endpoint
	name string
	opt  GroupOptions
	fid  cq.FID
	addr cq.Addr
	obj  *shm.Object
	seat *shm.Seat
	kind.GroupWords

	// Under the endpoint's lock.
	seen    uint64  // the change count, when members was made
	members []*peer // to whom there is a lane
	joined  bool
}

// firstGroup is the lowest address of a group.
const firstGroup = cq.Addr(1) << 32

// Join makes the endpoint a member of the group that has a name in its directory (fi_join). The
// first to join makes the group, and the last to leave removes it. A member that dies, or closes
// its endpoint, leaves. All endpoints of a group are of one type. It is done when the call returns:
// every send to the group that begins later goes to the endpoint too. Its receives are those for
// all messages; completions have FlagMulticast, and the source that the sender is.
//
// Errors: [ErrType]: the group is of endpoints of another type; cq.ErrInvalid: it is made with
// another Misses, or there is no such option; [ErrPeers]: it has as many members as it takes;
// EALREADY: the endpoint has joined it; errors of Events, as cq.ErrFull; os.ErrClosed;
// [ErrNotSupported] of an endpoint of type MSG; those of shared memory.
func (e *Endpoint) Join(name string, o GroupOptions) (*Group, error) {
	g := &Group{e: e, name: name, opt: o, seen: ^uint64(0)}
	err := g.opt.resolve(e.opt.Datagram)
	if err == nil {
		err = g.join()
	}
	if err == nil && o.Events != nil {
		_, err = o.Events.Write(&cq.Event{Event: cq.EventJoinComplete, FID: g.FID(),
			Context: o.Context})
		if err != nil {
			_ = g.Close()
		}
	}
	if err != nil {
		return nil, fault("join", name, err)
	}
	return g, nil
}

func (g *Group) join() (err error) {
	e := g.e
	e.bell.Lock()
	defer e.bell.Unlock()
	if err = e.addressable(); err != nil {
		return err
	}
	for _, other := range e.groups {
		if other.name == g.name {
			return os.NewSyscallError("join", syscall.EALREADY)
		}
	}
	g.addr = e.toJoin
	e.toJoin++
	e.groups[g.addr] = g
	e.users++
	e.bell.Unlock()
	err = g.open()
	e.bell.Lock()
	e.dropUser() // a close of the endpoint goes on when this has returned
	if err != nil {
		delete(e.groups, g.addr)
		return err
	}
	g.joined = true
	if g.opt.Access&cq.FlagRecv != 0 {
		g.list()
	}
	return nil
}

// list has senders find the endpoint.
func (g *Group) list() {
	r, a := &g.Rows[g.seat.Index()], g.e.addr
	r.Use.Store(0) // who had the seat may have died
	high, low := kind.UuidWords(a.UUID)
	r.Outbox.Store(a.Outbox)
	r.High.Store(high)
	r.Low.Store(low)
	r.Generation.Store(a.Generation)
	crash.At(crash.GroupFilled)
	r.Use.Store(g.seat.Owner().Generation)
	crash.At(crash.GroupListed)
	g.Changes.Add(1)
}

// unlist has them find it no more. It reports false if that was done before.
func (g *Group) unlist() bool {
	if !g.joined {
		return false
	}
	e := g.e
	former := g.members
	g.joined, g.members = false, nil
	delete(e.groups, g.addr)
	g.Rows[g.seat.Index()].Use.Store(0)
	crash.At(crash.GroupUnlisted)
	g.Changes.Add(1)
	if e.closed {
		return true
	}
	e.spare(former)
	e.poll()     // whoever waits for room here has rung
	e.makeRoom() // and whoever waits to send there finds that it is over
	for _, l := range e.in {
		if l != nil {
			l.announce() // and looks again
		}
	}
	return true
}

// open finds the group or makes it, and takes a seat there. One that the last member is just
// removing is made anew.
func (g *Group) open() (err error) {
	const tries = 16
	for range tries {
		if err = g.sit(); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return cq.ErrBusy
}

func (g *Group) sit() (err error) {
	d := g.e.dir
	want := kind.Group{Members: g.opt.Members, Type: g.e.typeWord()}
	if g.opt.Misses {
		want.Misses = 1
	}
	g.obj, err = d.Open(g.name, shm.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		if g.obj, err = collect.Create(d, g.name, want.Spec(g.name), nil); err == nil {
			crash.At(crash.GroupMade)
			err = g.obj.Release() // it is nobody's: each member has a seat
		}
	}
	if g.obj == nil {
		return err
	}
	defer func() {
		if err != nil {
			g.unmap()
		}
	}()
	if err != nil {
		return err
	}
	_, low := kind.UuidWords(g.obj.Header().UUID)
	g.fid = cq.FID{Kind: cq.FIDGroup, ID: low, Generation: 1}
	is, err := kind.StoredGroup(g.name, g.obj.Header())
	switch {
	case err != nil:
		return err
	case is.Type != want.Type:
		return ErrType
	case is.Misses != want.Misses:
		return refuse("join", g.name, "Misses", g.opt.Misses, is.Misses == 1)
	}
	mem, _, err := g.obj.Section(kind.SectGroup, 0)
	if err != nil {
		return err
	}
	g.GroupWords = is.WordsIn(mem)
	g.seat, err = collect.Sit(g.obj, g.obj.Seats(g.Seats), true)
	if err == nil && g.seat.Index() < 0 {
		err = ErrPeers
	}
	return err
}

// unmap gives the seat and the object up, which goes with its last member.
func (g *Group) unmap() {
	if g.seat != nil {
		g.seat.Leave()
		g.seat = nil
	}
	is := g.obj.Header().UUID
	_ = g.obj.Close()
	_ = collect.Remove(g.e.dir, g.name, collect.Options{Kinds: []shm.Kind{shm.KindGroup}, Object: is})
}

// Addr returns the address that messages to the group go to (fi_mc_addr).
func (g *Group) Addr() cq.Addr { return g.addr }

// FID returns the identifier by which events mean the group.
func (g *Group) FID() cq.FID { return g.fid }

// Close leaves the group (fi_close). Messages that others sent before they take notice still come.
// Sends to its address are [ErrNoPeer] from now on; those under way end as they would have. Closing
// twice is harmless.
func (g *Group) Close() error {
	e := g.e
	e.bell.Lock()
	defer e.bell.Unlock()
	if g.unlist() {
		e.users++
		e.bell.Unlock()
		g.unmap()
		e.bell.Lock()
		e.dropUser()
	}
	return nil
}

// look takes notice of who has come and gone. Those to whom there is no way any more have gone.
func (g *Group) look() error {
	now := g.Changes.Load() // before the rows
	if now == g.seen {
		return nil
	}
	former := g.members
	g.members = nil
	var come []Address
	for i := range g.Rows {
		a, ok := memberOf(&g.Rows[i])
		if !ok || a == g.e.addr {
			continue
		}
		switch p := g.e.peers[a]; {
		case p == nil || p.out == nil:
			come = append(come, a)
		case !slices.Contains(g.members, p):
			g.members = append(g.members, p)
		}
	}
	g.e.spare(former) // before those who come: they may need the places
	for _, a := range come {
		p := g.e.peerOf(a)
		if p.out != nil { // it is there twice
			continue
		}
		switch _, err := g.e.attach(p); {
		case err == nil:
			g.members = append(g.members, p)
		case !isAny(err, ErrNoPeer, ErrPeerDied, ErrType, ErrCorrupt):
			return err
		}
	}
	g.seen = now
	return nil
}

// leftGroups looks who has left groups that this endpoint sends to.
func (e *Endpoint) leftGroups() {
	for _, g := range e.groups {
		if g.members != nil && g.Changes.Load() != g.seen {
			_ = g.look() // an error is one of the next send
			e.makeRoom()
		}
	}
}

// spare ends the lanes to former members, or peers of connections, that have no other use.
func (e *Endpoint) spare(former []*peer) {
	for _, p := range former {
		if p.out != nil && p.out.err == nil && !p.used() {
			p.out.unused = true
			p.out.part()
		}
	}
}

// used reports whether messages may be sent to a peer: it has a number, a connection, or is in a
// group.
func (p *peer) used() bool {
	used := p.index != cq.AddrNotAvail || len(p.conns)+len(p.owed) > 0
	for _, g := range p.e.groups {
		used = used || slices.Contains(g.members, p)
	}
	return used
}

// part publishes the end of a lane that is unused, when nothing is under way there. Its place and
// its row are others' when the peer has examined that. If it is used again before, it has a lane
// more, and examines all of this one first.
func (l *outLane) part() {
	fence := sendOp{flags: cq.FlagFence}
	if len(l.later) > 0 || !l.behind(&fence) {
		return
	}
	if p := l.p; !p.used() && p.leaving == nil {
		p.leaving, p.out, p.missed = l, nil, l.missed
		l.finish()
	}
}

// parted reports that the end of the lane is published, though this endpoint goes on, and that the
// peer has not examined it.
func (l *outLane) parted() bool { return l.p.leaving == l }

// memberOf returns who is in a row, unless that is nobody or changes at this moment: then the count
// will.
func memberOf(r *kind.GroupRow) (a Address, ok bool) {
	use := r.Use.Load()
	a = Address{Outbox: r.Outbox.Load(), UUID: kind.UuidOf(r.High.Load(), r.Low.Load()),
		Generation: r.Generation.Load()}
	return a, use != 0 && r.Use.Load() == use
}
