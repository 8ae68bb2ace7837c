package fabric

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// peer is an endpoint of another process, or another one of this, that we send to or that sends to
// us. All of it is under the bell's lock but for dead and the bits, which a notice uses.
type peer struct {
	e        *Endpoint
	addr     Address
	id       uint64  // no other peer of this endpoint has it, or had it
	stored   int     // messages from it without a receive
	name     string  // of its object; "" is not known yet
	index    cq.Addr // which Insert gave, or AddrNotAvail
	obj      *shm.Object
	words    words
	window   uint64
	in       *inLane
	out      *outLane
	unfollow func()
	burying  bool     // its claims are looked at
	buried   bool     // its objects are removed, if nobody needs them
	leaving  *outLane // another one, whose end it has not examined
	missed   uint64   // by it, when that ended
	line              // connections with it

	dead          atomic.Bool  // it was proved; stays
	inBit, outBit atomic.Int32 // of its lanes, + 1
}

// words are the memory of an endpoint.
type words struct {
	page   *kind.FabricPage
	rows   []kind.FabricRow
	hints  *wake.Hints
	claims []kind.Word
	reach  kind.Reach
}

// mapEndpoint lays words over an endpoint, ours or another's, and also over those that its senders
// write, unless it came over a socket. Sections are as long as its attributes say, which was
// checked.
func mapEndpoint(o *shm.Object, f kind.Fabric, shared bool) (w words, err error) {
	rows := f.Rows
	if w.page, err = kind.WordsOf[kind.FabricPage](o, kind.SectFabricPage, 0); err != nil {
		return w, err
	}
	mem, _, err := o.Section(kind.SectFabricRows, 0)
	if err != nil {
		return w, err
	}
	w.rows = kind.Overlays[kind.FabricRow](mem)[:rows]
	if !shared {
		return w, nil
	}
	mail, err := o.MapWritable(kind.SectFabricMail, 0)
	if err != nil {
		return w, err
	}
	w.claims = kind.Overlays[kind.Word](mail[kind.FabricClaims(rows):])[:rows]
	if w.hints, err = wake.MapHints(mail, 2*rows); err != nil {
		return w, err
	}
	w.reach, err = kind.FabricReach(o, f)
	return w, err
}

// Insert makes an address one that can be sent to (fi_av_insert), and gives it a number; again, the
// same. Nothing is asked of the peer before the first message. Errors: os.ErrClosed;
// [ErrNotSupported] of an endpoint of type MSG, and of one of [Meet].
func (e *Endpoint) Insert(a Address) (cq.Addr, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.addressable(); err != nil {
		return cq.AddrNotAvail, err
	}
	return e.insert(e.peerOf(a)), nil
}

func (e *Endpoint) addressable() error {
	if e.link != nil || e.met() {
		return ErrNotSupported
	}
	return e.usable()
}

func (e *Endpoint) insert(p *peer) cq.Addr {
	if p.index == cq.AddrNotAvail {
		p.index = cq.Addr(len(e.byAddr))
		e.byAddr = append(e.byAddr, p)
	}
	return p.index
}

// Resolve is Insert of the endpoint that has a name in the directory now. Errors: [ErrNoPeer];
// os.ErrClosed; those of opening shared memory.
func (e *Endpoint) Resolve(name string) (cq.Addr, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if err := e.addressable(); err != nil {
		return cq.AddrNotAvail, err
	}
	p, err := e.resolve(name)
	if err == ErrNoPeer {
		return cq.AddrNotAvail, hinted("resolve", name, hintName, err)
	}
	if err != nil {
		return cq.AddrNotAvail, fault("resolve", name, err)
	}
	return e.insert(p), nil
}

func (e *Endpoint) resolve(name string) (*peer, error) {
	h, f, err := e.ofName(name)
	if err != nil {
		return nil, gone(err)
	}
	p := e.peerOf(Address{Outbox: f.Outbox, UUID: h.UUID, Generation: h.Generation})
	p.setName(name)
	return p, nil
}

// ofName returns what the endpoint that has a name now says of itself.
func (e *Endpoint) ofName(name string) (h shm.Header, f kind.Fabric, err error) {
	obj, err := e.dir.Open(name, shm.ReadOnly)
	if err != nil {
		return h, f, err
	}
	defer obj.Close()
	h = obj.Header()
	f, err = kind.StoredFabric(name, h)
	return h, f, err
}

// Lookup returns the address that has a number (fi_av_lookup). [ErrAddress]: there is none.
func (e *Endpoint) Lookup(a cq.Addr) (Address, error) {
	e.bell.Lock()
	defer e.bell.Unlock()
	if uint64(a) >= uint64(len(e.byAddr)) {
		return Address{}, ErrAddress
	}
	return e.byAddr[a].addr, nil
}

// gone says of an object without a name what that means of a peer.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoPeer
	}
	return err
}

func (e *Endpoint) peerOf(a Address) *peer {
	p := e.peers[a]
	if p == nil {
		e.ids++
		p = &peer{e: e, addr: a, id: e.ids, index: cq.AddrNotAvail}
		e.peers[a] = p
	}
	return p
}

// setName gives a peer a name. Connections read the one that it has without a lock, so that is not
// written again.
func (p *peer) setName(name string) {
	if p.name != name {
		p.name = name
	}
}

// open maps the peer's endpoint and follows its process. Errors: [ErrNoPeer], and those of opening
// shared memory and of following.
func (p *peer) open() (err error) {
	switch {
	case p.obj != nil:
		return nil
	case p.e.met(): // it had been passed over a socket
		return ErrNoPeer
	}
	if p.name == "" {
		box, _, name, err := p.e.openBox(p.addr.Outbox)
		if err != nil {
			return gone(err)
		}
		_ = box.Close()
		p.name = name
	}
	obj, err := p.e.dir.Open(p.name, shm.ReadOnly)
	if err != nil {
		return gone(err)
	}
	if err = p.adopt(obj); err != nil {
		_ = obj.Close()
	}
	return err
}

func (p *peer) adopt(obj *shm.Object) error {
	h := obj.Header()
	if h.Kind != shm.KindFabric || h.UUID != p.addr.UUID || h.Generation != p.addr.Generation {
		return ErrNoPeer // another one has the name
	}
	f, err := kind.StoredFabric(p.name, h)
	if err != nil {
		return err
	}
	if f.Outbox != p.addr.Outbox { // somebody calls himself by the number of another endpoint
		return ErrCorrupt
	}
	if p.words, err = mapEndpoint(obj, f, true); err != nil {
		return err
	}
	owner := obj.Owner()
	if p.words.page.State.Load() == kind.FabricClosed || owner.State != shm.StateOwned {
		return ErrNoPeer
	}
	if p.unfollow, err = shm.FollowOwner(owner, p.died); err != nil {
		return err
	}
	p.obj, p.window = obj, f.Window
	obj.SpareFD()
	if !p.e.lives(f.Outbox) { // no notice comes of one that has become another program
		p.dead.Store(true)
	}
	return nil
}

// openBox maps an outbox, and returns the name of its endpoint.
func (e *Endpoint) openBox(id uint64) (*shm.Object, kind.Outbox, string, error) {
	name := kind.FabricOutboxName(id)
	var obj *shm.Object
	err := fs.ErrNotExist
	if !e.met() {
		obj, err = e.dir.Open(name, shm.ReadOnly)
	} else if obj = e.passed; obj != nil {
		e.passed, err = nil, nil
	}
	if err != nil {
		return nil, kind.Outbox{}, "", err
	}
	o, err := kind.StoredOutbox(name, obj.Header())
	if err == nil && o.ID != id {
		err = fault("open", name, ErrCorrupt)
	}
	if err != nil {
		_ = obj.Close()
		return nil, o, "", err
	}
	return obj, o, obj.Header().Name, nil
}

// died is the notice that the peer's process has ended. It takes no lock: who holds that may wait
// for this. What it does is done by whoever looks at the peer's lanes next.
func (p *peer) died() {
	p.dead.Store(true) // before the marks: a lane that is added later is looked at anyway
	for _, bit := range []int32{p.inBit.Load(), p.outBit.Load()} {
		if bit > 0 {
			p.e.bell.Mark(int(bit - 1))
		}
	}
}

// cut ends all traffic with a peer that wrote what cannot be. Its process may go on as it likes.
func (p *peer) cut() {
	p.e.stats.Corrupt++
	if p.in != nil {
		p.in.refuse()
	}
	if p.leaving != nil {
		p.leaving.end(ErrCorrupt)
	}
	if p.out != nil && p.out.err == nil {
		p.out.end(ErrCorrupt)
	} else if p.out == nil {
		p.out = &outLane{p: p, err: ErrCorrupt}
	}
}

// hasClosed reports that it has closed its endpoint.
func (p *peer) hasClosed() bool {
	return p.obj != nil && p.words.page.State.Load() == kind.FabricClosed
}

// stays reports that it goes on, though the lane from it may have ended.
func (p *peer) stays() bool { return p.obj != nil && !p.dead.Load() && !p.hasClosed() }

// bury removes the objects of a peer that is proved dead, once there is nothing in them for us. It
// may have claimed a row, and died before it rang: then its lane is adopted now, and looked at. It
// reports whether a row is claimed still: then the peer is to stay known.
func (p *peer) bury() (claimed bool) {
	if p.burying {
		return true // to adopt its lane failed, and would again: that is tried later
	}
	p.burying = true
	defer func() { p.burying = false }()
	e := p.e
	for row := range e.claims {
		if box, _ := kind.FabricLaneOf(e.claims[row].Load()); box == p.addr.Outbox {
			claimed = true
			e.bell.Consider(row)
		}
	}
	if p.in != nil || p.buried {
		return claimed
	}
	p.buried = true
	if !p.hasClosed() { // else it died over that, or later
		e.stats.Died++
	}
	crash.At(crash.FabricBurying)
	if !e.met() {
		e.discard(p.name, collect.Options{Kinds: []shm.Kind{shm.KindFabric}, Object: p.addr.UUID})
	}
	crash.At(crash.FabricBuried)
	e.collect(p.addr.Outbox)
	return claimed
}

// vacate takes back what a peer had when it was cut off, if that has died since, or has closed its
// endpoint: its row, places of our outbox, and what it may have read.
func (p *peer) vacate() {
	if !p.dead.Load() && !p.hasClosed() {
		return
	}
	if p.in != nil && p.in.refused {
		p.in.free()
	}
	for _, l := range p.e.out {
		if l != nil && l.p == p && l.err != nil {
			l.reclaim()
		}
	}
	if p.out == nil || p.out.err != nil {
		p.outBit.Store(0)
	}
	p.forget()
}

// forget gives up what is mapped of a peer that has gone, and buries one that died. One that Insert
// numbered stays known, as one that has gone, and so does one that has claimed a row.
func (p *peer) forget() {
	if p.in != nil || p.out != nil && p.out.err == nil || p.leaving != nil || p.outBit.Load() != 0 {
		return // its end is waited for, if it was cut off
	}
	claimed := p.dead.Load() && p.bury()
	if p.in != nil { // that adopted a lane, whose end is waited for
		return
	}
	p.close()
	if p.index == cq.AddrNotAvail && p.stored == 0 && !claimed {
		delete(p.e.peers, p.addr)
	}
}

// close ends the notices, which take no lock, and then what they mark.
func (p *peer) close() {
	if p.unfollow != nil {
		p.unfollow()
		p.unfollow = nil
	}
	if p.in != nil {
		p.in.unmap()
	}
	if p.obj != nil {
		_ = p.obj.Close()
		p.obj = nil
	}
}

// Address names one endpoint, from Open to Close: who opens the name again has another one. It may
// be sent to other processes by [Address.Append] and [ParseAddress].
type Address struct {
	Outbox     uint64 // number of its outbox, by which it is found
	UUID       shm.UUID
	Generation uint64
}

// AddressBytes is the length of an address in bytes: version u32, zero u32, outbox u64, uuid 16,
// generation u64, little-endian.
const AddressBytes = 40

const addressVersion = 1

// Append appends the bytes of an address.
func (a Address) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, addressVersion)
	b = binary.LittleEndian.AppendUint64(b, a.Outbox)
	b = append(b, a.UUID[:]...)
	return binary.LittleEndian.AppendUint64(b, a.Generation)
}

// ParseAddress is the reverse of Append. What is no address of this version is [ErrAddress].
func ParseAddress(b []byte) (a Address, err error) {
	if len(b) != AddressBytes || binary.LittleEndian.Uint64(b) != addressVersion {
		return a, fault("parse", "address", ErrAddress)
	}
	a.Outbox = binary.LittleEndian.Uint64(b[8:])
	a.UUID = shm.UUID(b[16:32])
	a.Generation = binary.LittleEndian.Uint64(b[32:])
	if a.Outbox == 0 || a.Outbox != kind.FabricOutboxID(a.Outbox) {
		return Address{}, fault("parse", "address", ErrAddress)
	}
	return a, nil
}

// String returns the number of the outbox and the uuid.
func (a Address) String() string {
	return fmt.Sprintf("%s/%v", kind.FabricOutboxName(a.Outbox), a.UUID)
}
