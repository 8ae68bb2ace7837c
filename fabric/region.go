package fabric

import (
	"io"
	"slices"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
)

// remote is the endpoint's memory that peers reach by themselves, in pieces as those of the pool.
type remote struct {
	kind.Reach
	pool    pool
	regions []*Region // by place in the table; of those revoked a peer may not have ended
	keys    uint64    // generations of keys so far
	untold  []reached // that the queue had no room for
}

func (m *remote) open(r kind.Reach) {
	m.Reach, m.regions = r, make([]*Region, len(r.Table))
	if n := len(r.Mem); n > 0 {
		m.pool = pool{FabricPool: r.Mem, pieces: []*piece{{n: n}}}
	}
}

// load has the memory be what Options.RemoteFile holds.
func (e *Endpoint) load() error {
	if e.opt.RemoteFile == nil {
		return nil
	}
	_, err := e.opt.RemoteFile.ReadAt(e.remote.Mem, 0)
	if err == io.EOF { // it is shorter
		return nil
	}
	return err
}

// commit returns when what lies there is in that file, and on its device.
func (e *Endpoint) commit(at int, mem []byte) error {
	_, err := e.opt.RemoteFile.WriteAt(mem, int64(at))
	if err == nil {
		err = e.opt.RemoteFile.Sync()
	}
	return err
}

// Region is memory that peers read and write by themselves (fid_mr). All methods may be called from
// anywhere.
type Region struct {
	e     *Endpoint
	piece *piece
	mem   []byte
	key   uint64
	place int
}

// regionAccess are what a region can be registered for, and how the table says it.
var regionAccess = [...]struct {
	flag cq.Flags
	bit  uint64
}{
	{cq.FlagRemoteRead, kind.FabricRead},
	{cq.FlagRemoteWrite, kind.FabricWrite},
	{cq.FlagAtomic, kind.FabricAtomic},
	{cq.FlagRMAEvent, kind.FabricEvents},
}

// Register makes n bytes of Options.Remote a region (fi_mr_reg), which whoever has its key may
// reach: with FlagRemoteRead by Read, with FlagRemoteWrite by Write, with FlagAtomic by Atomic.
// With FlagRMAEvent the endpoint's counters count each of these, and not only those with data. What
// the memory holds is not cleared.
//
// Peers write at any time, and any process of the user can. So what lies there is to be loaded
// once, and is sure only when a message or an entry says so.
//
// Errors: cq.ErrFull, which is EAGAIN: there is no piece as long as that now, or it waits for a
// peer that uses a key which was revoked; [ErrTooLong]: there never is; [ErrFlags]; os.ErrClosed.
func (e *Endpoint) Register(n int, access cq.Flags) (*Region, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.usable(); err != nil {
		return nil, err
	}
	bits := uint64(0)
	for _, a := range regionAccess {
		if access&a.flag != 0 {
			bits |= a.bit
			access &^= a.flag
		}
	}
	m := &e.remote
	switch {
	case access != 0, bits&^kind.FabricEvents == 0:
		return nil, ErrFlags
	case n < 1, n > len(m.Mem):
		return nil, e.outOf("register", "Options.Remote", len(m.Mem), n)
	}
	e.poll() // it learns who died
	e.reclaim()
	place := slices.Index(m.regions, nil)
	if place < 0 {
		return nil, cq.ErrFull
	}
	x := m.pool.alloc(n)
	if x == nil {
		return nil, cq.ErrFull
	}
	m.keys++
	r := &Region{e: e, piece: x, place: place, key: kind.FabricKey(m.keys, place)}
	r.mem, _ = m.Mem.At(uint64(x.at), n)
	m.regions[place] = r
	t := &m.Table[place]
	if e.opt.RemoteFile != nil {
		bits |= kind.FabricLasts
	}
	t.Access.Store(bits)
	t.Offset.Store(uint64(x.at))
	t.Length.Store(uint64(n))
	crash.At(crash.RegionFilled)
	t.Key.Store(r.key) // last: who finds it loads the others
	return r, nil
}

// Bytes returns the memory. It is not to be touched after Close.
func (r *Region) Bytes() []byte { return r.mem }

// Key returns what peers reach the region by (fi_mr_key). It fits a word, is never used again, and
// means something to those alone who send to this endpoint.
func (r *Region) Key() uint64 { return r.key }

// Close revokes the key (fi_close): what peers begin from now on fails with [ErrKey]. What one has
// begun may go on, so the memory is used again only when it has ended, or its process has. Closing
// twice is harmless.
func (r *Region) Close() error {
	e := r.e
	e.bell.Lock()
	defer e.bell.Unlock()
	m := &e.remote
	if e.closed || m.regions[r.place] != r || !r.piece.held {
		return nil
	}
	m.Table[r.place].Key.Store(0) // a full fence: the words of peers are loaded after it
	crash.At(crash.RegionRevoked)
	r.piece.held, r.piece.refs = false, 1
	e.reclaim()
	return nil
}

// forget clears the word of a sender that has gone, for the next one of its row.
func (m *remote) forget(row int) {
	if len(m.Uses) > 0 {
		m.Uses[row].Key.Store(0)
	}
}

// reclaim takes the memory of revoked regions back that nobody uses any more. Who uses a key has
// stored it in its word before it looked whether it holds; the key was revoked before this look.
func (e *Endpoint) reclaim() {
	m := &e.remote
next:
	for _, r := range m.regions {
		if r == nil || r.piece.held {
			continue
		}
		for row := range m.Uses {
			if m.Uses[row].Key.Load() == r.key && e.maySend(row) {
				continue next
			}
		}
		crash.At(crash.RegionFreed)
		r.piece.refs--
		m.pool.settle(r.piece)
		m.regions[r.place] = nil
	}
}

// maySend reports whether whoever has a row is not proved gone.
func (e *Endpoint) maySend(row int) bool {
	id := e.claims[row].Load()
	if id == 0 {
		return false
	}
	if l := e.in[row]; l != nil && l.id == id && l.p.dead.Load() {
		return false
	}
	box, _ := kind.FabricLaneOf(id)
	return e.lives(box)
}
