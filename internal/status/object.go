package status

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Info is what does not change in the life of an endpoint.
type Info struct {
	Interface string
	Index     int
	NetNS     uint64 // cookie of the network namespace, 0 if not known
	Queue     uint32
	Bind      xdp.BindMode // granted
	// NeedWakeup and MultiBuffer were granted by the kernel; Posted and Shared are options of the
	// endpoint.
	NeedWakeup, MultiBuffer, Posted, Shared bool

	Geometry xdp.Geometry
	UMEM     shm.UUID
	Rings    RingSizes
	// Local is whom datagrams come from. Where that is left to the route it is an address that the
	// interface had at first, and the port is 0 where several have ports.
	Local netip.AddrPort

	// Receive and Transmit name the queues that get the completions; empty: none.
	Receive, Transmit     string
	ReceiveID, TransmitID shm.UUID
}

// RingSizes is how many entries the rings of a socket have. Those of the fill and the completion
// ring are of all sockets on its queue.
type RingSizes struct{ Rx, Tx, Fill, Comp uint32 }

// Object is the object of one endpoint, held by its process. One goroutine uses it.
type Object struct {
	obj      *shm.Object
	counters []*ring.Index
	last     []uint64 // as stored
	update   []*ring.Index
	updates  uint64
	wish     []*ring.Index
	seen     uint64 // generation of the wish that Wish returned
}

// sweepEvery keeps a process that opens a thousand endpoints from looking at all of them each time.
const sweepEvery = time.Second

var swept atomic.Int64 // when this process removed dead objects last

// Create makes the object of an endpoint in a directory, and removes those of endpoints that died.
// Errors are those of [shm.Dir.Create].
func Create(d *shm.Dir, info Info) (*Object, error) {
	if now := time.Now().UnixNano(); now-swept.Swap(now) >= int64(sweepEvery) {
		_, _ = Sweep(d)
	}
	id := shm.NewUUID()
	o := &Object{last: make([]uint64, len(counterNames))}
	obj, err := d.Create(Prefix+id.String(), spec(id), func(obj *shm.Object) error {
		w, err := infoOf(obj)
		if err != nil {
			return err
		}
		*w = info.words()
		return nil
	})
	if err != nil {
		return nil, err
	}
	o.obj = obj
	if o.counters, err = wordsOf(obj, sectCounters, len(counterNames)); err == nil {
		o.update, err = wordsOf(obj, sectUpdate, updateWords)
	}
	if err == nil {
		o.wish, err = wordsOf(obj, sectWish, wishBytes/8)
	}
	if err != nil {
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

func wordsOf(obj *shm.Object, k shm.SectionKind, n int) ([]*ring.Index, error) {
	mem, _, err := obj.Section(k, 0)
	if err != nil {
		return nil, err
	}
	return words(mem, n)
}

func infoOf(obj *shm.Object) (*infoWords, error) {
	mem, s, err := obj.Section(sectInfo, 0)
	if err != nil {
		return nil, err
	}
	if s.Length != infoBytes || s.LayoutHash != shm.LayoutHash(infoLayout) {
		return nil, corrupt(obj, "layout of what it is", s.LayoutHash)
	}
	slots, err := ring.Slots[infoWords](mem)
	if err != nil {
		return nil, err
	}
	return &slots[0], nil
}

func corrupt(obj *shm.Object, field string, got any) error {
	return &shm.Error{Pkg: "status", Op: "open", Name: obj.Name(), Field: field, Got: got,
		Want: "that of this version", Err: shm.ErrVersion}
}

// Name returns the name of the object.
func (o *Object) Name() string { return o.obj.Name() }

// Update publishes counters. Words that did not change are not written.
func (o *Object) Update(c *Counters) {
	o.updates++
	o.update[updateBegun].Store(o.updates)
	for i, w := range c.words() {
		if o.last[i] != *w {
			o.last[i] = *w
			o.counters[i].Store(*w)
		}
	}
	o.update[updateEnded].Store(o.updates)
}

// Wanted reports whether tools have changed their mind about the capture since [Object.Wish]. It is
// one load of a word that hardly ever changes.
func (o *Object) Wanted() bool { return o.wish[wishGeneration/8].Load() != o.seen }

// Wish returns the capture that is wanted, zero for none.
func (o *Object) Wish() shm.UUID {
	o.seen = o.wish[wishGeneration/8].Load() // pairs with the store that ends SetWish
	return wishOf(o.wish)
}

func wishOf(w []*ring.Index) (id shm.UUID) {
	for i := range id {
		id[i] = byte(w[wishID/8+i/8].Load() >> (8 * (i % 8)))
	}
	return id
}

// Close removes the object.
func (o *Object) Close() error {
	err := o.obj.Unlink()
	if e := o.obj.Close(); err == nil {
		err = e
	}
	return err
}

// Sweep removes the objects of endpoints whose process is proved dead, and returns how many.
func Sweep(d *shm.Dir) (n int, err error) {
	names, err := names(d)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if remove(d, name) {
			n++
		}
	}
	return n, nil
}

// remove removes an object that nobody owns any more.
func remove(d *shm.Dir, name string) bool {
	obj, err := d.Open(name, shm.ReadWrite)
	if err != nil {
		return false
	}
	defer obj.Close()
	if obj.Header().Kind != shm.KindEndpoint {
		return false
	}
	life, err := obj.Life()
	if err != nil || life != shm.Dead && life != shm.Released {
		return false
	}
	return obj.Claim(nil) == nil && obj.Unlink() == nil
}

func names(d *shm.Dir) ([]string, error) {
	entries, err := d.List()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir && strings.HasPrefix(e.Name, Prefix) {
			out = append(out, e.Name)
		}
	}
	return out, nil
}

func (i *Info) words() (w infoWords) {
	w = infoWords{NetNS: i.NetNS, Index: uint64(i.Index), Queue: uint64(i.Queue),
		Bind: uint64(i.Bind), Frames: uint64(i.Geometry.Frames),
		ChunkBytes: uint64(i.Geometry.ChunkBytes), HeadroomBytes: uint64(i.Geometry.HeadroomBytes),
		Rx: uint64(i.Rings.Rx), Tx: uint64(i.Rings.Tx), Fill: uint64(i.Rings.Fill),
		Comp: uint64(i.Rings.Comp), Port: uint64(i.Local.Port()),
		UMEM: i.UMEM, ReceiveID: i.ReceiveID, TransmitID: i.TransmitID}
	for bit, on := range map[uint64]bool{flagNeedWakeup: i.NeedWakeup,
		flagMultiBuffer: i.MultiBuffer, flagPosted: i.Posted, flagShared: i.Shared} {
		if on {
			w.Flags |= bit
		}
	}
	if a := i.Local.Addr(); a.IsValid() {
		w.HasAddr, w.Addr = 1, a.As16()
	}
	copy(w.Interface[:len(w.Interface)-1], i.Interface)
	copy(w.Receive[:len(w.Receive)-1], i.Receive)
	copy(w.Transmit[:len(w.Transmit)-1], i.Transmit)
	return w
}

// info is what another process wrote; texts are cut and numbers bounded, and nothing is believed.
func (w *infoWords) info() (Info, error) {
	for _, n := range []uint64{w.Index, w.Queue, w.Frames, w.ChunkBytes, w.HeadroomBytes, w.Rx, w.Tx,
		w.Fill, w.Comp} {
		if n > 1<<31-1 {
			return Info{}, fmt.Errorf("status: number %d is too large: %w", n, shm.ErrCorrupt)
		}
	}
	i := Info{Interface: text(w.Interface[:]), Index: int(w.Index), NetNS: w.NetNS,
		Queue: uint32(w.Queue), Bind: xdp.BindMode(min(w.Bind, 0xff)),
		NeedWakeup:  w.Flags&flagNeedWakeup != 0,
		MultiBuffer: w.Flags&flagMultiBuffer != 0, Posted: w.Flags&flagPosted != 0,
		Shared: w.Flags&flagShared != 0,
		Geometry: xdp.Geometry{Frames: uint32(w.Frames), ChunkBytes: uint32(w.ChunkBytes),
			HeadroomBytes: uint32(w.HeadroomBytes)},
		UMEM: w.UMEM, ReceiveID: w.ReceiveID, TransmitID: w.TransmitID,
		Rings: RingSizes{Rx: uint32(w.Rx), Tx: uint32(w.Tx), Fill: uint32(w.Fill),
			Comp: uint32(w.Comp)},
		Receive: text(w.Receive[:]), Transmit: text(w.Transmit[:])}
	if w.HasAddr != 0 {
		i.Local = netip.AddrPortFrom(netip.AddrFrom16(w.Addr).Unmap(), uint16(w.Port))
	} else if w.Port != 0 {
		i.Local = netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(w.Port))
	}
	return i, nil
}
