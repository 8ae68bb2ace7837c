package ctl

import (
	"errors"
	"io/fs"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Fabric is an endpoint of package fabric, and who sends to it.
type Fabric struct {
	Outbox      string       `json:"outbox"`       // object that it sends from
	Datagrams   bool         `json:"datagrams"`    // its messages can be dropped
	Closed      bool         `json:"closed"`       // it takes nothing any more
	Accepts     bool         `json:"accepts"`      // it takes connections
	Sleeping    bool         `json:"sleeping"`     // somebody waits for a peer
	Ready       int          `json:"ready"`        // rows and lanes that were marked and not looked at
	MaxPeers    uint64       `json:"max_peers"`    // that can send to it, and that it can send to
	WindowBytes uint64       `json:"window_bytes"` // that each may have unmatched here
	Lanes       []FabricLane `json:"lanes"`        // of those who send
}

// Outbox is what an endpoint sends.
type Outbox struct {
	Endpoint   string `json:"endpoint"`    // its name
	MaxPeers   uint64 `json:"max_peers"`   // lanes that there can be
	Slots      uint64 `json:"slots"`       // of all of them
	Chunks     uint64 `json:"chunks"`      // of the pool; 0: there is none
	ChunkBytes uint64 `json:"chunk_bytes"` // of each of them
	// ChunksOut is how many chunks messages lie in that their receivers have not examined. What was
	// examined and is lent is not among them: only the two processes know of it.
	ChunksOut uint64       `json:"chunks_out"`
	Lanes     []FabricLane `json:"lanes"`
}

// Group is a group of endpoints.
type Group struct {
	MaxMembers uint64        `json:"max_members"`
	Datagrams  bool          `json:"datagrams"` // its endpoints are of that type
	Misses     bool          `json:"misses"`    // who has no room misses a message; else all wait
	Changes    uint64        `json:"changes"`   // of who receives
	Members    []GroupMember `json:"members"`
}

// GroupMember is one that a living process has.
type GroupMember struct {
	Seat    int     `json:"seat"`
	PID     *int    `json:"pid"`
	Command *string `json:"command"`
	Outbox  *string `json:"outbox"` // of the endpoint; nil: it does not receive
}

// Stages of a lane.
const (
	LaneClaimed = "claimed" // its sender has a row, of which the receiver took no notice yet
	LaneAdopted = "adopted" // its receiver examines it
	LaneRefused = "refused" // its receiver found there what cannot be, or could not map it
	LaneDone    = "done"    // its receiver wants nothing of it any more
)

// FabricLane is what one endpoint sends to another. What only the other end can tell, and what that
// does not, is nil.
type FabricLane struct {
	Row        *int    `json:"row"`         // of the receiver
	Place      int     `json:"place"`       // in the sender's outbox
	Peer       *string `json:"peer"`        // endpoint at the other end
	PeerOutbox string  `json:"peer_outbox"` // its outbox
	PID        *int    `json:"pid"`         // of the peer
	Command    *string `json:"command"`
	State      string  `json:"state"` // of the peer, a word of [States]; closed: its outbox is gone
	Stage      *string `json:"stage"` // claimed, adopted, refused or done
	Sent       *uint64 `json:"sent"`  // messages
	Examined   *uint64 `json:"examined"`
	Unexamined *uint64 `json:"unexamined"` // no more than there are slots
	// GrantedBytes may have been sent in all, without a header alone for each message.
	GrantedBytes *uint64 `json:"granted_bytes"`
	Controls     *uint64 `json:"controls"` // records in the control ring, 8 at most
	Owed         *bool   `json:"owed"`     // others wait for room there
	Parked       bool    `json:"parked"`   // this end looks when it is rung for
}

// laneRow is what a receiver says of a lane.
type laneRow struct {
	row                    int
	id                     uint64
	stage                  string
	head, granted, control uint64
	owed, parked           bool
}

// laneHead is what a sender says of it.
type laneHead struct {
	place                 int
	id, target            uint64
	sent, slots, control  uint64
	counted, done, parked bool
}

// fabricEnd is one of the two objects of an endpoint, and what it says of lanes by their numbers.
type fabricEnd struct {
	name    string // of the endpoint
	outbox  uint64
	process Process
	state   string
	rows    map[uint64]laneRow
	heads   map[uint64]laneHead
	err     error
}

// end looks at an object once.
func (n *neighbours) end(name string) *fabricEnd {
	e := n.ends[name]
	if e == nil {
		e = &fabricEnd{rows: map[uint64]laneRow{}, heads: map[uint64]laneHead{}}
		n.ends[name] = e
		obj, err := n.dir.Open(name, shm.Inspect)
		if err == nil {
			defer obj.Close()
			if fault := shm.Guard(func() { err = e.look(obj) }); fault != nil {
				err = fault
			}
		}
		if e.err = err; errors.Is(err, fs.ErrNotExist) {
			e.state = StateClosed
		} else if err != nil {
			e.state = stateOfError(err)
		}
	}
	return e
}

func (e *fabricEnd) look(obj *shm.Object) error {
	life, err := obj.Life()
	if err != nil {
		return err
	}
	e.process = DescribeProcess(obj.Owner(), life)
	e.state = e.process.state()
	if h := obj.Header(); h.Kind == shm.KindFabric {
		f, err := kind.StoredFabric(obj.Name(), h)
		if err != nil {
			return err
		}
		e.outbox = f.Outbox
		rows, err := laneRows(obj, f)
		for _, r := range rows {
			e.rows[r.id] = r
		}
		return err
	}
	o, err := kind.StoredOutbox(obj.Name(), obj.Header())
	if err != nil {
		return err
	}
	e.name, e.outbox = obj.Header().Name, o.ID
	heads, err := laneHeads(obj, o)
	for _, h := range heads {
		e.heads[h.id] = h
	}
	return err
}

// laneRows are the rows of an endpoint that are in use.
func laneRows(obj *shm.Object, f kind.Fabric) (rows []laneRow, err error) {
	mem, _, err := obj.Section(kind.SectFabricRows, 0)
	if err != nil {
		return nil, err
	}
	mail, _, err := obj.Section(kind.SectFabricMail, 0)
	if err != nil {
		return nil, err
	}
	claims := kind.Overlays[kind.Word](mail[kind.FabricClaims(f.Rows):])[:f.Rows]
	all := kind.Overlays[kind.FabricRow](mem)[:f.Rows]
	for i := range all {
		row := &all[i]
		r := laneRow{row: i, stage: LaneAdopted, parked: row.Bell.Parked.Load() != 0}
		switch owner := row.Owner.Load(); {
		case owner == 0:
			// The other words are those of the last one. Its receiver begins with these.
			r.id, r.stage, r.granted = claims[i].Load(), LaneClaimed, f.Window
			if r.id != 0 {
				rows = append(rows, r)
			}
			continue
		case owner&kind.FabricRefused != 0:
			r.id, r.stage = owner&^kind.FabricRefused, LaneRefused
		default:
			r.id = owner
		}
		r.head, r.granted = row.Head.Load(), row.Granted.Load()
		r.control, r.owed = row.Control.Load(), row.Owed.Load() != 0
		rows = append(rows, r)
	}
	return rows, nil
}

// laneHeads are the lanes of an outbox that are in use.
func laneHeads(obj *shm.Object, o kind.Outbox) (heads []laneHead, err error) {
	lanes, done, err := kind.OutboxLanes(obj, o)
	if err != nil {
		return nil, err
	}
	for i := range lanes {
		l := &lanes[i]
		h := laneHead{place: i, id: l.ID.Load(), target: l.Target.Load(), control: l.Control.Load(),
			parked: l.Bell.Parked.Load() != 0}
		if h.id == 0 {
			continue
		}
		h.done = done[i].Load() == h.id
		slots, ok := kind.LaneSlots(obj, o, l)
		h.slots, h.counted = uint64(len(slots)), ok
		for k := range slots {
			h.sent = max(h.sent, slots[k].Seq.Load())
		}
		heads = append(heads, h)
	}
	return heads, nil
}

// lane puts together what both ends say; either may be nil. Looks at both are moments apart.
func lane(row *laneRow, head *laneHead, peer *fabricEnd, name string) (l FabricLane) {
	l = FabricLane{PID: peer.process.PID, Command: peer.process.Command, State: peer.state}
	if name != "" {
		l.Peer = &name
	}
	if row != nil {
		l.Row, l.Stage = &row.row, &row.stage
		l.Examined, l.GrantedBytes, l.Owed = &row.head, &row.granted, &row.owed
	}
	if head == nil {
		return l
	}
	l.Place = head.place
	if head.done {
		l.Stage = new(LaneDone)
	}
	if head.counted {
		l.Sent = &head.sent
	}
	if row != nil {
		l.Controls = new(between(head.control, row.control, kind.FabricControls))
		if head.counted {
			l.Unexamined = new(between(row.head, head.sent, head.slots))
		}
	}
	return l
}

// between is how far an index is ahead of another one, and no more than can be.
func between(from, to, most uint64) uint64 {
	if to < from {
		return 0
	}
	return min(to-from, most)
}

// fabric says what an endpoint is.
func (n *neighbours) fabric(obj *shm.Object) (*Fabric, error) {
	f, err := kind.StoredFabric(obj.Name(), obj.Header())
	if err != nil {
		return nil, err
	}
	page, err := kind.WordsOf[kind.FabricPage](obj, kind.SectFabricPage, 0)
	if err != nil {
		return nil, err
	}
	mail, _, err := obj.Section(kind.SectFabricMail, 0)
	if err != nil {
		return nil, err
	}
	hints, err := wake.MapHints(mail, 2*f.Rows)
	if err != nil {
		return nil, err
	}
	bell := wake.Inspect(page.Arm.Word.Load(), hints)
	out := &Fabric{Outbox: kind.FabricOutboxName(f.Outbox), Sleeping: bell.Armed,
		Datagrams: page.Type.Load() == kind.FabricDatagrams,
		Closed:    page.State.Load() == kind.FabricClosed,
		Accepts:   page.Accepts.Load() != 0,
		Ready:     bell.Ready,
		MaxPeers:  uint64(f.Rows), WindowBytes: f.Window, Lanes: []FabricLane{}}
	rows, err := laneRows(obj, f)
	for i := range rows {
		r := &rows[i]
		box, place := kind.FabricLaneOf(r.id)
		sender := n.end(kind.FabricOutboxName(box))
		var head *laneHead
		if h, ok := sender.heads[r.id]; ok {
			head = &h
		}
		l := lane(r, head, sender, sender.name)
		l.Place, l.PeerOutbox, l.Parked = place, kind.FabricOutboxName(box), r.parked
		out.Lanes = append(out.Lanes, l)
	}
	return out, err
}

// outbox says what an endpoint sends.
func (n *neighbours) outbox(obj *shm.Object) (*Outbox, error) {
	o, err := kind.StoredOutbox(obj.Name(), obj.Header())
	if err != nil {
		return nil, err
	}
	out := &Outbox{Endpoint: obj.Header().Name, MaxPeers: uint64(o.Lanes), Slots: uint64(o.Slots),
		Chunks: uint64(o.Chunks), ChunkBytes: uint64(o.ChunkBytes), Lanes: []FabricLane{}}
	heads, err := laneHeads(obj, o)
	if err != nil {
		return nil, err
	}
	lanes, _, err := kind.OutboxLanes(obj, o)
	if err != nil {
		return nil, err
	}
	chunks := make([]bool, o.Chunks)
	for i := range heads {
		h := &heads[i]
		box := n.end(kind.FabricOutboxName(h.target)) // it has the name of the endpoint
		var row *laneRow
		if box.name != "" {
			if to := n.end(box.name); to.outbox == h.target {
				if r, ok := to.rows[h.id]; ok {
					row = &r
				}
			}
		}
		l := lane(row, h, box, box.name)
		l.PeerOutbox, l.Parked = kind.FabricOutboxName(h.target), h.parked
		if l.Unexamined != nil {
			slots, _ := kind.LaneSlots(obj, o, &lanes[h.place])
			for k := range slots {
				if s := &slots[k]; s.Seq.Load() > *l.Examined {
					markChunks(chunks, o, s)
				}
			}
		}
		out.Lanes = append(out.Lanes, l)
	}
	for _, used := range chunks {
		if used {
			out.ChunksOut++
		}
	}
	return out, nil
}

// markChunks marks those that a message lies in.
func markChunks(chunks []bool, o kind.Outbox, s *kind.FabricSlot) {
	head, at := s.Head.Load(), s.More[1].Load()
	n, size := head>>32, uint64(o.ChunkBytes)
	if head&kind.FabricInPool == 0 || n == 0 || size == 0 {
		return
	}
	for c := at / size; c <= (at+n-1)/size && c < uint64(len(chunks)); c++ {
		chunks[c] = true
	}
}

func group(obj *shm.Object) (*Group, error) {
	g, err := kind.StoredGroup(obj.Name(), obj.Header())
	if err != nil {
		return nil, err
	}
	mem, _, err := obj.Section(kind.SectGroup, 0)
	if err != nil {
		return nil, err
	}
	w := g.WordsIn(mem)
	out := &Group{MaxMembers: uint64(g.Members), Datagrams: g.Type == kind.FabricDatagrams,
		Misses: g.Misses == 1, Changes: w.Changes.Load(), Members: []GroupMember{}}
	seats := obj.Seats(w.Seats)
	for i := range w.Rows {
		seat := seats.At(i)
		life, err := seat.Life()
		if err != nil {
			return nil, err
		}
		if life != shm.Alive && life != shm.LockLost {
			continue
		}
		m := GroupMember{Seat: i}
		m.PID, m.Command = sitter(seat)
		if w.Rows[i].Use.Load() != 0 {
			m.Outbox = new(kind.FabricOutboxName(w.Rows[i].Outbox.Load()))
		}
		out.Members = append(out.Members, m)
	}
	return out, nil
}
