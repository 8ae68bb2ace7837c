package fabric

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/posted"
	"github.com/shmring/shmring/internal/retry"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Endpoint sends messages to other endpoints and receives theirs (fid_ep of type FI_EP_RDM;
// FI_EP_DGRAM with Options.Datagram, FI_EP_MSG with Options.Events). Any number of goroutines may
// use it at once.
type Endpoint struct {
	// The entry at hand, the message that a lane has now, and entries that are staged begin lines:
	// across two an entry costs a tenth of a message's time.
	entry   cq.Entry
	arrival arrival
	posted  posted.Receives

	name string
	opt  Options
	dir  *shm.Dir
	link *link // nil: of type RDM
	addr Address
	tx   *feed.Binding // nil if sends report nowhere
	rx   *feed.Binding

	obj    *shm.Object // ours: what senders read
	page   *kind.FabricPage
	rows   []kind.FabricRow
	claims []kind.Word
	box    *shm.Object // our outbox
	lanes  []kind.FabricLane
	slots  []kind.FabricSlot
	done   []kind.Word
	pool   pool
	remote remote
	uses   []int // of each place of the outbox

	// bell is the lock of all that follows, and knows which lanes can have something. Its first bits
	// are rows, for those who send to us; the others lanes, for what their receivers tell.
	bell    *wake.Bell
	peers   map[Address]*peer
	ids     uint64     // of peers
	byAddr  []*peer    // by the number that Insert gave
	in      []*inLane  // by row
	out     []*outLane // by place in the outbox
	dirty   []*inLane  // whose receivers' words are to be told
	stored  [2]stored  // messages without a receive: without and with a tag
	claimed stored     // those that only their claim gets
	told    uint64     // of those, how many Options.Buffered had reported
	loans   map[shm.Ref]*loan
	lent    shm.Ref // the last one
	fail    cq.ErrorEntry
	groups  map[cq.Addr]*Group // that are joined, or just being joined
	toJoin  cq.Addr            // of the next one
	stop    func()             // what Options.Progress began
	stats   Stats
	closed  bool
	users   int        // who may touch the bell without the lock
	idle    *sync.Cond // users is 0

	multicasts     []multicast // under way, by the context of their parts
	freeMulticasts []int

	passed *shm.Object // outbox of a peer that was met over a socket, until its lane is mapped
	later  retry.Later // looks at lanes for which something was wanting
	// remains are what could not be removed: of peers that had been mapped, so there are few.
	remains []func()
	waits
}

// Stats is what an endpoint counts.
type Stats struct {
	Sent      uint64 // messages that were put into a lane
	Received  uint64 // messages that came into a receive, or of which a peek or Buffered told
	Truncated uint64 // messages that were longer than theirs
	Cancelled uint64 // receives that were cancelled, by Close too
	Stored    uint64 // messages that came before their receive
	Waiting   uint64 // of them have none now
	Refused   uint64 // lanes that were refused: their outbox could not be mapped
	Corrupt   uint64 // peers that were cut off for what they wrote
	Abandoned uint64 // completions that found no room, or a closed queue
	Died      uint64 // peers whose process ended
	// Dropped are messages that found no room, here or because their receiver had ended: datagrams,
	// and those of groups, each for each member. Of others' to groups this endpoint Missed some.
	Dropped, Missed uint64

	FreeChunks uint64 // of Options.Chunks
	UsedChunks uint64 // peers have not examined these
	LostChunks uint64 // peers that were cut off may read these until they end or close

	// Bytes of Options.Pool: HeldPool are allocated, and with nobody else; LentPool are of sends
	// under way, or peers that were cut off may read them until they end or close.
	FreePool, HeldPool, LentPool uint64
	Loans                        uint64 // messages that are lent here, and were not given back

	Reached uint64 // reads and writes of this endpoint in memory of peers, and atomics
	// Bytes of Options.Remote: HeldRemote are registered. Of RevokedRemote a peer that had begun
	// may not have ended.
	FreeRemote, HeldRemote, RevokedRemote uint64
}

// Open makes an endpoint and gives it a name in a directory (fi_endpoint, fi_ep_bind, fi_enable).
// One that a dead process had is replaced. Errors: fs.ErrExist if a living one has the name;
// cq.ErrInvalid; errors.ErrUnsupported without futex_waitv (Linux 5.16); those of making shared
// memory and of binding queues. After an error everything
// stays the caller's.
func Open(d *shm.Dir, name string, o Options) (*Endpoint, error) {
	if d == nil {
		return nil, refuse("open", name, "directory", nil, "one of shm.OpenDir")
	}
	return open(d, name, o)
}

// open makes an endpoint, in a directory or, with nil, for a peer that is met over a socket.
func open(d *shm.Dir, name string, o Options) (*Endpoint, error) {
	if err := o.resolve(); err != nil {
		return nil, err
	}
	e := &Endpoint{name: name, opt: o, dir: d.Dup(), peers: map[Address]*peer{},
		loans: map[shm.Ref]*loan{}, groups: map[cq.Addr]*Group{}, toJoin: firstGroup,
		uses: make([]int, o.Peers), in: make([]*inLane, o.Peers), out: make([]*outLane, o.Peers)}
	e.later.Try = e.markAgain
	hint, err := "", futex.HasWaitMany()
	if err == nil {
		err = e.create()
	}
	if errors.Is(err, fs.ErrExist) {
		hint, err = "close what has this name, or take another name", syscall.EEXIST
	}
	if err == nil && o.Events != nil {
		e.link = &link{news: news{e: e}}
		err = e.link.binds(o.Events, cq.FIDEndpoint, e.addr)
	}
	if err == nil {
		err = e.bind()
	}
	if err != nil {
		e.later.Close()
		e.unbind()
		e.remove()
		_ = e.dir.Close()
		return nil, hinted("open", name, hint, err)
	}
	return e, nil
}

// create makes the outbox before the object with the name: by that it is found.
func (e *Endpoint) create() (err error) {
	e.addr.UUID, e.addr.Generation = shm.NewUUID(), 1
	high, low := kind.UuidWords(e.addr.UUID)
	for {
		e.addr.Outbox = kind.FabricOutboxID(rand.Uint64())
		o := kind.Outbox{Lanes: e.opt.Peers, Slots: e.opt.Peers * e.opt.Slots, ID: e.addr.Outbox,
			High: high, Low: low, Generation: e.addr.Generation, ChunkBytes: chunkBytes,
			Chunks: e.opt.Chunks + (e.opt.Pool+chunkBytes-1)/chunkBytes}
		e.box, err = e.make(kind.FabricOutboxName(e.addr.Outbox), o.Spec(e.name), nil)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err = e.mapOutbox(o); err != nil {
			return err
		}
		break
	}
	f := kind.Fabric{Rows: e.opt.Peers, Window: uint64(e.opt.Window), Outbox: e.addr.Outbox,
		Remote: (e.opt.Remote + pieceBytes - 1) &^ (pieceBytes - 1)}
	s := f.Spec(e.name)
	s.UUID, s.Generation = e.addr.UUID, e.addr.Generation
	var former kind.Fabric
	if !e.met() {
		_, former, _ = e.ofName(e.name)
	}
	e.obj, err = e.make(e.name, s, func(o *shm.Object) error {
		w, err := mapEndpoint(o, f, true)
		if err != nil {
			return err
		}
		for i := range w.rows { // nobody looks at what has no lane: its first message rings
			w.rows[i].Bell.Parked.Store(wake.Parked)
		}
		w.page.Type.Store(e.typeWord())
		e.page, e.rows, e.claims = w.page, w.rows, w.claims
		e.remote.open(w.reach)
		if err = e.load(); err != nil {
			return err
		}
		e.bell = wake.NewBell(wake.Config{Arm: &w.page.Arm, Hints: w.hints,
			Lanes: 2 * f.Rows, Generation: 1, Open: e.adopt, Shared: true})
		return nil
	})
	e.idle = sync.NewCond(e.bell)
	if err == nil && former.Outbox != 0 { // of who had the name
		e.collect(former.Outbox)
	}
	return err
}

// make makes one of the endpoint's objects, with a name, or sealed and without one.
func (e *Endpoint) make(name string, s shm.Spec, fill func(*shm.Object) error) (*shm.Object,
	error) {
	if e.met() {
		return place.Sealed(s, shm.SealOthers, fill)
	}
	return collect.Create(e.dir, name, s, fill)
}

func (e *Endpoint) mapOutbox(o kind.Outbox) (err error) {
	if e.lanes, e.done, err = kind.OutboxLanes(e.box, o); err != nil {
		return err
	}
	mem, _, err := e.box.Section(kind.SectFabricSlots, 0)
	if err != nil {
		return err
	}
	e.slots = kind.Overlays[kind.FabricSlot](mem)
	return e.pool.open(e.box, o, e.opt.Chunks)
}

func (e *Endpoint) bind() (err error) {
	join := func(w *cq.Writer, side, kinds cq.Flags) (*feed.Binding, error) {
		o := feed.Options{Queue: w, Flags: side, Counters: map[*cq.Counter]cq.Flags{}}
		for c, f := range e.opt.Counters {
			if f&kinds != 0 {
				o.Counters[c] = f & kinds
			}
		}
		if w == nil && len(o.Counters) == 0 {
			return nil, nil
		}
		if e.opt.Selective&side != 0 {
			o.Flags |= cq.FlagSelectiveCompletion
		}
		return feed.Bind(o)
	}
	if e.tx, err = join(e.opt.Transmit, cq.FlagTransmit, transmitKinds); err != nil {
		return err
	}
	if e.rx, err = join(e.opt.Receive, cq.FlagRecv, receiveKinds); err != nil {
		return err
	}
	if e.rx != nil {
		s := &e.stats
		e.posted = posted.New(posted.Options{Binding: e.rx, Queue: e.opt.Receive,
			MinMulti: e.opt.MinMultiRecv, Alone: e.opt.ReleaseAlone,
			Count: posted.Counts{Received: &s.Received, Truncated: &s.Truncated,
				Cancelled: &s.Cancelled, Abandoned: &s.Abandoned}})
	}
	e.stop, err = feed.Drive(feeder{e}, e.opt.Progress, slices.Collect(maps.Keys(e.opt.Counters))...)
	return err
}

func (e *Endpoint) unbind() {
	feed.Close(e.stop, e.tx, e.rx)
	if e.link != nil {
		e.link.release()
	}
}

// FID returns the identifier by which events mean the endpoint.
func (e *Endpoint) FID() cq.FID {
	return cq.FID{Kind: cq.FIDEndpoint, ID: e.addr.Outbox, Generation: e.addr.Generation}
}

// Address returns the endpoint's own address (fi_getname).
func (e *Endpoint) Address() Address { return e.addr }

// Stats returns what was counted so far.
func (e *Endpoint) Stats() Stats {
	e.bell.Lock()
	defer e.bell.Unlock()
	s := e.stats
	s.Waiting = uint64(e.stored[0].Len() + e.stored[1].Len() + e.claimed.Len())
	s.FreeChunks = uint64(len(e.pool.free))
	s.Loans = uint64(len(e.loans))
	s.FreePool, s.HeldPool, s.LentPool = e.pool.count()
	s.FreeRemote, s.HeldRemote, s.RevokedRemote = e.remote.pool.count()
	for _, l := range e.out {
		switch {
		case l == nil:
		case l.err == nil:
			s.UsedChunks += uint64(l.chunks)
		default:
			s.LostChunks += uint64(l.chunks)
		}
	}
	return s
}

// Close ends the endpoint. Every operation that has not completed ends with ECANCELED; of sends
// among them some may still arrive, since what was sent stays for its receivers. Messages without a
// receive are lost. Peers learn of it: what they had sent and was examined here succeeds, the rest
// fails. Loans of messages end: their bytes stay until Release, but their senders may change them.
// Memory of Alloc goes. Close waits for calls in other goroutines, which it ends. Closing twice is
// harmless.
func (e *Endpoint) Close() error {
	e.disconnect()
	e.bell.Lock()
	if e.closed {
		e.bell.Unlock()
		return nil
	}
	for place, l := range e.out { // that a peer has died can be known before it is marked
		if l != nil && l.p.dead.Load() {
			e.bell.Consider(len(e.rows) + place)
		}
	}
	e.poll() // what is examined by now succeeds for its sender
	e.closed = true
	e.makeRoom()
	e.bell.End() // who held the bell before it was closed may be about to sleep
	for e.users > 0 {
		e.idle.Wait()
	}
	for _, g := range e.groups {
		if g.unlist() {
			g.unmap()
		}
	}
	e.returnLoans()
	e.leave()
	e.cancel()
	e.bell.Unlock()
	e.later.Close()
	e.unbind()
	boxes := e.boxes()
	for _, p := range e.peers {
		p.close()
	}
	e.remove()
	for _, b := range boxes {
		e.collect(b)
	}
	return e.dir.Close()
}

// leave tells all peers: final heads first, then that nothing is taken any more, then who sent, and
// did not know it.
func (e *Endpoint) leave() {
	e.flush()
	for _, l := range e.in {
		if l != nil {
			l.markDone() // who finds the state gives the lane's place to the next
		}
	}
	crash.At(crash.FabricHeads)
	e.page.State.Store(kind.FabricClosed)
	crash.At(crash.FabricShut)
	// Who claims from now on finds the state; who claimed before is found here.
	for row := range e.rows {
		if id := e.claims[row].Load(); id != 0 && e.in[row] == nil {
			_, _ = e.adopt(row)
		}
	}
	for _, l := range e.in {
		if l != nil {
			l.tell()
			l.announce()
		}
	}
	for _, l := range e.out {
		if l != nil && l.err == nil && !l.parted() {
			l.finish()
		}
	}
	e.bell.Disarm()
}

// cancel answers all operations that were promised an answer.
func (e *Endpoint) cancel() {
	for _, l := range e.out {
		if l != nil && l.err == nil {
			l.end(errClosed)
		}
	}
	for _, l := range e.in {
		if l != nil {
			l.orphan(errCanceled)
		}
	}
	e.posted.Quit()
}

// boxes returns the outboxes that can be garbage once this endpoint is gone, without a look.
func (e *Endpoint) boxes() (ids []uint64) {
	for row := range e.claims {
		if id := e.claims[row].Load(); id != 0 {
			box, _ := kind.FabricLaneOf(id)
			ids = append(ids, box)
		}
	}
	return append(ids, e.addr.Outbox)
}

// remove removes the endpoint's own objects: the one with the name at once, the outbox if nobody
// has anything to examine in it.
func (e *Endpoint) remove() {
	if e.obj != nil {
		_ = e.obj.Unlink()
		crash.At(crash.FabricNameless)
		_ = e.obj.Close()
	}
	if e.passed != nil {
		_ = e.passed.Close()
	}
	if e.box != nil {
		_ = e.box.Release()
		crash.At(crash.FabricReleased)
		_ = e.box.Close()
		e.collect(e.addr.Outbox)
	}
}

// collect removes the outbox of an endpoint that is gone if nobody has to examine what is in it.
// Others do so too, and the last of them removes it.
func (e *Endpoint) collect(box uint64) {
	if e.met() {
		return
	}
	name := kind.FabricOutboxName(box)
	if owned, err := e.dir.Owned(name); owned || err != nil && !kind.Starved(err) {
		return
	}
	e.discard(name, collect.Options{Kinds: []shm.Kind{shm.KindOutbox}})
}

// discard removes an object if it is garbage. If something was wanting for that, it tries again
// later, until the endpoint is closed.
func (e *Endpoint) discard(name string, o collect.Options) {
	if kind.Starved(collect.Remove(e.dir, name, o)) {
		e.remains = append(e.remains, func() { e.discard(name, o) })
		e.later.Want()
	}
}

// usable says why nothing can be done any more.
func (e *Endpoint) usable() error {
	if e.closed {
		return errClosed
	}
	return nil
}
