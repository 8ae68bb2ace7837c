// Package status lets tools look at endpoints: each one keeps an object in shared memory that says
// what it is and counts what it does.
//
//	+--------+----------------------+-----------------+--------------------------+
//	| page 0 | what does not change | counters        | which capture is wanted  |
//	+--------+----------------------+-----------------+--------------------------+
//	         written when it is made  its driver writes  tools of this user write
//
// The object is called endpoint-UUID and stands in the directory of queues. Its process holds the
// lock on it, so an object whose process died is known for one, and removed by whoever comes by.
//
// The counters are 64-bit words that the driver of the endpoint stores at most once a millisecond.
// Each is true at some moment, not all at the same one. The last page is the one thing that others
// write: a tool puts the number of a capture there (see package capture) and counts the generation
// up, which the driver looks at once a round.
package status

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
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
		_ = sweep(d)
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
	if s.Length != infoBytes || s.LayoutHash != kind.LayoutHash(infoLayout) {
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
	binary.LittleEndian.PutUint64(id[:], w[wishID/8].Load())
	binary.LittleEndian.PutUint64(id[8:], w[wishID/8+1].Load())
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

// sweep removes the objects of endpoints whose process is proved dead.
func sweep(d *shm.Dir) error {
	names, err := names(d)
	for _, name := range names {
		_ = collect.Remove(d, name, collect.Options{Kinds: []shm.Kind{shm.KindEndpoint}})
	}
	return err
}

func names(d *shm.Dir) ([]string, error) {
	entries, err := d.List()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasPrefix(e.Name(), Prefix) {
			out = append(out, e.Name())
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

// Snapshot is what an outsider sees of an endpoint.
type Snapshot struct {
	Name, Path  string
	UUID        shm.UUID
	Owner       shm.Owner
	Life        shm.Life
	CreatedMono int64 // ns of CLOCK_MONOTONIC
	BootID      shm.UUID
	Info        Info
	Counters    Counters
	Words       []uint64 // the counters in the order of CounterNames
	Capture     shm.UUID // that a tool wants, zero for none
}

// Look looks at the object of an endpoint, from a read-only mapping. Errors are fs.ErrNotExist and
// those of opening shared memory.
func Look(d *shm.Dir, name string) (Snapshot, error) {
	obj, err := d.Open(name, shm.Inspect)
	if err != nil {
		return Snapshot{}, err
	}
	defer obj.Close()
	h := obj.Header()
	if err := kind.CheckKind(h, shm.KindEndpoint); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Name: name, Path: filepath.Join(d.Path(), name), UUID: h.UUID, BootID: h.BootID,
		CreatedMono: h.CreatedMonoNs}
	if s.Life, err = obj.Life(); err != nil {
		return s, err
	}
	// Whoever made the file may truncate it at any moment.
	if fault := shm.Guard(func() { err = s.read(obj) }); fault != nil {
		err = fault
	}
	return s, err
}

func (s *Snapshot) read(obj *shm.Object) error {
	s.Owner = obj.Owner()
	w, err := infoOf(obj)
	if err != nil {
		return err
	}
	private := *w
	if s.Info, err = private.info(); err != nil {
		return err
	}
	_, sect, err := obj.Section(sectCounters, 0)
	if err != nil {
		return err
	}
	if want := spec(s.UUID).Sections[1]; sect.LayoutHash != want.LayoutHash ||
		sect.Length != want.Length {
		return corrupt(obj, "layout of the counters", sect.LayoutHash)
	}
	counters, err := wordsOf(obj, sectCounters, len(counterNames))
	if err != nil {
		return err
	}
	for _, c := range counters {
		s.Words = append(s.Words, c.Load())
	}
	for i, w := range s.Counters.words() {
		*w = s.Words[i]
	}
	wish, err := wordsOf(obj, sectWish, wishBytes/8)
	if err != nil {
		return err
	}
	s.Capture = wishOf(wish)
	return nil
}

// List looks at all endpoints of a directory, having removed those whose process died.
func List(d *shm.Dir) ([]Snapshot, error) {
	if err := sweep(d); err != nil {
		return nil, err
	}
	names, err := names(d)
	if err != nil {
		return nil, err
	}
	var out []Snapshot
	var first error
	for _, name := range names {
		s, err := Look(d, name)
		switch {
		case err == nil:
			out = append(out, s)
		case !errors.Is(err, fs.ErrNotExist) && first == nil:
			first = err
		}
	}
	return out, first
}

// SetWish asks the endpoint of an object to copy its packets to a capture; the zero id asks it to
// end that. The owner of the object sees it in its next round. One tool at a time may ask: the one
// that has the capture of this endpoint. Errors are those of opening shared memory.
func SetWish(d *shm.Dir, name string, id shm.UUID) error {
	obj, err := d.Open(name, shm.ReadOnly)
	if err != nil {
		return err
	}
	defer obj.Close()
	if err := kind.CheckKind(obj.Header(), shm.KindEndpoint); err != nil {
		return err
	}
	mem, err := obj.MapWritable(sectWish, 0)
	if err != nil {
		return err
	}
	w, err := words(mem, wishBytes/8)
	if err != nil {
		return err
	}
	return shm.Guard(func() {
		le := binary.LittleEndian
		w[wishID/8].Store(le.Uint64(id[:]))
		w[wishID/8+1].Store(le.Uint64(id[8:]))
		w[wishGeneration/8].Add(1) // after the id: whoever sees it sees the id
	})
}

// Invariants returns what holds of an endpoint's object, beyond what holds of every object.
//
// Of frames that is their numbers: each is in one state, so the numbers add up. Which frame is in
// which state only the process that owns the socket knows, in memory of its own where no peer could
// make two owners of one; and the rings of the socket are mapped there and in the kernel. So from
// outside a frame that is in two places is seen only by a sum that is wrong.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "endpoint.layout", Exact: true, What: "the sections are those of an endpoint"},
		{Name: "endpoint.info", Exact: true, What: "what it says of itself is possible"},
		{Name: "endpoint.update", Exact: true, What: "no update of counters ended that did not begin"},
		{Name: "endpoint.frames", Exact: true, What: "every frame of the socket is in one state"},
	}
}

// Where the counters have the number of frames, and how many states follow it.
const (
	firstFrameWord = 9
	frameStates    = 7
)

// Check returns what of that does not hold. It is called while the object is mapped for reading,
// inside [shm.Guard]; the endpoint may count meanwhile.
func Check(obj *shm.Object) []shm.Violation {
	bad := func(name, section string, base, within uint64, got, want any) []shm.Violation {
		return []shm.Violation{{Invariant: name, Section: section, Offset: base + within,
			Within: within, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}}
	}
	const written = "what an endpoint writes"
	// What was made before there were updates does not say whether its counters are of one moment.
	sections := spec(obj.Header().UUID).Sections
	isUpdate := func(s shm.Section) bool { return s.Kind == sectUpdate }
	updates := slices.ContainsFunc(obj.Header().Sections, isUpdate)
	if !updates {
		sections = slices.DeleteFunc(sections, isUpdate)
	}
	for i, want := range sections {
		_, got, err := obj.Section(want.Kind, want.ID)
		if err == nil && (got.Length != want.Length || got.LayoutHash != want.LayoutHash) {
			err = corrupt(obj, "section", got.LayoutHash)
		}
		if err != nil {
			return bad("endpoint.layout", "header", 0, 0x180+64*uint64(i), err, written)
		}
	}
	w, err := infoOf(obj)
	if err != nil {
		return bad("endpoint.layout", "header", 0, 0x180, err, written)
	}
	private := *w
	info, err := private.info()
	if err != nil {
		_, s, _ := obj.Section(sectInfo, 0)
		return bad("endpoint.info", "info", s.Offset, 0, err, written)
	}
	if !updates {
		return nil
	}
	number, e1 := wordsOf(obj, sectUpdate, updateWords)
	words, e2 := wordsOf(obj, sectCounters, len(counterNames))
	if err := errors.Join(e1, e2); err != nil {
		return bad("endpoint.layout", "header", 0, 0x180, err, written)
	}
	counters := make([]uint64, len(words))
	begun, ended := kind.Moment(number[updateBegun], number[updateEnded], func() {
		for i, w := range words {
			counters[i] = w.Load()
		}
	})
	_, update, _ := obj.Section(sectUpdate, 0)
	_, s, _ := obj.Section(sectCounters, 0)
	at := uint64(8 * firstFrameWord)
	switch {
	case ended > begun:
		return bad("endpoint.update", "update", update.Offset, 8*updateEnded, ended,
			fmt.Sprintf("at most %d", begun))
	case ended < begun: // it updates all the time, or its process died in an update
		return nil
	}
	if want := frameFault(counters, &at, uint64(info.Geometry.Frames)); want != "" {
		return bad("endpoint.frames", "counters", s.Offset, at, counters[at/8], want)
	}
	return nil
}

// frameFault returns what the counter of frames at an offset should be, or nothing. No state has
// more frames than there are: numbers that add up only because one is below zero would do so too.
func frameFault(counters []uint64, at *uint64, umem uint64) string {
	frames, sum := counters[firstFrameWord], uint64(0)
	for i, n := range counters[firstFrameWord+1:][:frameStates] {
		if n > frames {
			*at = uint64(8 * (firstFrameWord + 1 + i))
			return fmt.Sprintf("at most %d, as many as there are", frames)
		}
		sum += n
	}
	switch {
	case sum != frames:
		return fmt.Sprintf("%d, which the states add up to", sum)
	case frames > umem:
		return fmt.Sprintf("at most %d, as many as the UMEM has", umem)
	}
	return ""
}
