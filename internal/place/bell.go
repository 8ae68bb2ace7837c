package place

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// processBell is this process's bell, and who uses it. It exists while there is a set, a channel,
// or a queue that was a member of one: producers may still have such a queue's bit in their hands.
type processBell struct {
	mu    sync.Mutex
	users int
	obj   *shm.Object
	bell  *wake.Domain
	dirs  []*shm.Dir // directories in which the bell has a name
	taken [kind.DomainBits / 64]uint64
}

// ProcessBell is the bell of this process.
var ProcessBell processBell

// Acquire returns the process's bell for a set or channel, and makes it if there is none, with a
// name in d. d may be nil, for sets of queues without names: then the bell is in the default
// directory, so that it can have more names later, and without a name only where there is none.
func (p *processBell) Acquire(d *shm.Dir) (*wake.Domain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err := p.create(d); err != nil {
			return nil, err
		}
	}
	p.users++
	return p.bell, nil
}

func (p *processBell) create(d *shm.Dir) (err error) {
	spec := kind.BellSpec()
	spec.UUID = shm.NewUUID()
	if d == nil {
		switch d, err = shm.OpenDir(""); {
		case err == nil:
			defer d.Close()
		case !noDirectory(err):
			return err
		}
	}
	if d == nil {
		p.obj, err = Sealed(spec, kind.LaneSeals, nil)
	} else {
		removeDeadBells(d)
		p.obj, err = d.Create(kind.BellName(spec.UUID), spec, nil)
	}
	if err != nil {
		return err
	}
	if d != nil {
		p.dirs = append(p.dirs, d.Dup())
	}
	arm, hints, err := kind.BellMemory(p.obj, false)
	if err != nil {
		return errors.Join(err, p.destroy())
	}
	p.bell = wake.NewDomain(arm, hints, kind.DomainBits)
	return nil
}

// noDirectory tells errors of opening the default directory that say that there is none to be had.
// After any other one there may be one in a moment, and queues in it.
func noDirectory(err error) bool {
	for _, is := range []error{fs.ErrNotExist, fs.ErrPermission, errors.ErrUnsupported,
		syscall.ENOTDIR, syscall.EROFS} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// Release gives up what Acquire took.
func (p *processBell) Release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users--
	if p.users > 0 {
		return nil
	}
	return p.destroy()
}

func (p *processBell) destroy() error {
	var err error
	for _, d := range p.dirs { // this takes no descriptor, which there may not be
		e := p.obj.UnlinkFrom(d, kind.BellName(p.obj.Header().UUID))
		if !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		_ = d.Close()
	}
	err = errors.Join(err, p.obj.Close())
	p.obj, p.bell, p.dirs = nil, nil, nil
	return err
}

// FD returns the descriptor of the bell's object, for whoever has a bit.
func (p *processBell) FD() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.obj.FD()
}

// Enroll gives a queue its bit, and tells its producers in words. dir is the directory where they
// look for the bell, nil for a queue without a name.
func (p *processBell) Enroll(dir *shm.Dir, words *kind.BellWords, generation uint64) (bit int,
	bell *wake.Domain, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err = p.create(nil); err != nil {
			return -1, nil, err
		}
		defer func() {
			if err != nil {
				_ = p.destroy()
			}
		}()
	}
	if err := p.nameIn(dir); err != nil {
		return -1, nil, err
	}
	if bit = p.takeBit(); bit < 0 {
		return -1, nil, errNoBit()
	}
	p.users++
	high, low := kind.UuidWords(p.obj.Header().UUID)
	words.Generation.Store(0)
	words.High.Store(high)
	words.Low.Store(low)
	words.Bit.Store(uint64(bit))
	words.Fd.Store(uint64(p.obj.FD()) + 1)
	words.Generation.Store(generation)
	return bit, p.bell, nil
}

// Lend gives a bit to a member that this process rings itself. There is a set, and with it a bell.
func (p *processBell) Lend() (int, *wake.Domain, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bit := p.takeBit()
	if bit < 0 {
		return -1, nil, errNoBit()
	}
	return bit, p.bell, nil
}

// GiveBack takes it back.
func (p *processBell) GiveBack(bit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[bit/64] &^= 1 << (bit % 64)
}

func errNoBit() error {
	return &shm.Error{Pkg: kind.Pkg, Op: "add", Field: "members", Got: kind.DomainBits,
		Want: "fewer", Err: syscall.ENOSPC, Hint: "close queues that are no longer needed"}
}

// nameIn gives the bell a name beside the queue, where its producers look for it.
func (p *processBell) nameIn(dir *shm.Dir) error {
	if dir == nil || slices.ContainsFunc(p.dirs, dir.Is) {
		return nil
	}
	removeDeadBells(dir)
	if err := p.obj.LinkTo(dir, kind.BellName(p.obj.Header().UUID)); err != nil {
		if errors.Is(err, syscall.EXDEV) {
			err = &shm.Error{Pkg: kind.Pkg, Op: "add", Field: "directory", Got: dir.Path(), Err: err,
				Want: "one in the file system of the process's other queues",
				Hint: "open its first set with it"}
		}
		return err
	}
	p.dirs = append(p.dirs, dir.Dup())
	return nil
}

func (p *processBell) takeBit() int {
	for i, w := range p.taken {
		if w == ^uint64(0) {
			continue
		}
		for b := range 64 {
			if w>>b&1 == 0 {
				p.taken[i] |= 1 << b
				return i*64 + b
			}
		}
	}
	return -1
}

// Leave gives a bit back when its queue closes.
func (p *processBell) Leave(bit int, words *kind.BellWords) error {
	words.Generation.Store(0)
	p.GiveBack(bit)
	return p.Release()
}

// removeDeadBells removes the bells of processes that died.
func removeDeadBells(d *shm.Dir) {
	names, err := d.List()
	if err != nil {
		return
	}
	for _, n := range names {
		if n.IsDir() || !strings.HasPrefix(n.Name(), shm.BellPrefix) {
			continue
		}
		_ = collect.Remove(d, n.Name(), collect.Options{Kinds: []shm.Kind{shm.KindBell}})
	}
}

// peerBell is the bell of a reading process as its producers in this process hold it: mapped once,
// however many queues of that process they post to.
type peerBell struct {
	uuid  shm.UUID
	obj   *shm.Object
	arm   *wake.Arm
	hints *wake.Hints
	users int // under peerBells.mu
}

var peerBells = struct {
	mu   sync.Mutex
	open map[shm.UUID]*peerBell
}{open: map[shm.UUID]*peerBell{}}

// BellHold is what one producer holds of its reader's bell.
type BellHold struct {
	Words *kind.BellWords // of the queue
	Dir   *shm.Dir        // directory to look in, which stays the caller's, or nil
	FD    int             // descriptor of the bell that came by rendezvous, or -1
	Owner func() shm.Owner
	Err   error // why the last Ring returned nil, if the bell could not be opened
	bell  *peerBell
	// ringer is what the producer rings, for the generation that it was made for.
	ringer wake.DomainRinger
}

// Ring returns the reader's bell with the queue's bit, or nil if it has none or cannot be reached
// now: then it is asked for again at the next publish that wants it.
func (h *BellHold) Ring(generation uint16) *wake.DomainRinger {
	h.Err = nil
	g := h.Words.Generation.Load()
	if g == 0 || uint16(g) != generation {
		return nil
	}
	uuid := kind.UuidOf(h.Words.High.Load(), h.Words.Low.Load())
	bit, fd := h.Words.Bit.Load(), h.Words.Fd.Load()
	if h.Words.Generation.Load() != g || bit >= kind.DomainBits {
		return nil
	}
	if h.bell == nil || h.bell.uuid != uuid {
		h.Drop()
		if h.bell, h.Err = h.hold(uuid, fd); h.Err != nil {
			return nil
		}
	}
	h.ringer = wake.DomainRinger{Arm: h.bell.arm, Hints: h.bell.hints, Bit: int(bit)}
	return &h.ringer
}

// Drop gives the bell back. The producer must not ring any more.
func (h *BellHold) Drop() {
	if h.bell == nil {
		return
	}
	peerBells.mu.Lock()
	defer peerBells.mu.Unlock()
	h.bell.users--
	if h.bell.users == 0 {
		delete(peerBells.open, h.bell.uuid)
		_ = h.bell.obj.Close()
	}
	h.bell = nil
}

func (h *BellHold) hold(uuid shm.UUID, fd uint64) (*peerBell, error) {
	peerBells.mu.Lock()
	defer peerBells.mu.Unlock()
	if b := peerBells.open[uuid]; b != nil {
		b.users++
		return b, nil
	}
	obj, err := h.open(uuid, fd)
	if err != nil {
		return nil, err
	}
	b := &peerBell{uuid: uuid, obj: obj, users: 1}
	if b.arm, b.hints, err = kind.BellMemory(obj, true); err != nil {
		_ = obj.Close()
		return nil, err
	}
	peerBells.open[uuid] = b
	return b, nil
}

// open finds the bell by its name beside the queue, by the descriptor that came with it, or takes
// its descriptor from the reader.
func (h *BellHold) open(uuid shm.UUID, fd uint64) (*shm.Object, error) {
	obj, err := openBellFile(uuid, h.Dir)
	if err != nil && h.FD >= 0 {
		obj, err = openBellFD(uuid, h.FD)
	}
	if err != nil && fd > 0 && fd < 1<<31 {
		n, e := descriptorOf(h.Owner(), int(fd-1))
		if e != nil {
			return nil, errors.Join(err, e)
		}
		obj, err = openBellFD(uuid, n)
		eventfd.Close(n)
	}
	return obj, err
}

func openBellFD(uuid shm.UUID, fd int) (*shm.Object, error) {
	obj, err := shm.OpenFD(fd, kind.BellName(uuid), shm.ReadOnly)
	if err != nil {
		return nil, err
	}
	return checkBell(obj, uuid)
}

func openBellFile(uuid shm.UUID, dir *shm.Dir) (*shm.Object, error) {
	if dir == nil {
		return nil, kind.ErrClosed
	}
	obj, err := dir.Open(kind.BellName(uuid), shm.ReadOnly)
	if err != nil {
		return nil, err
	}
	return checkBell(obj, uuid)
}

// checkBell closes an object that is not the bell that the reader means.
func checkBell(obj *shm.Object, uuid shm.UUID) (_ *shm.Object, err error) {
	h := obj.Header()
	switch {
	case h.Kind != shm.KindBell || h.UUID != uuid:
		err = kind.Refuse("open bell", obj.Name(), "kind and uuid", [2]any{h.Kind, h.UUID},
			[2]any{shm.KindBell, uuid}, shm.ErrKind)
	case h.Attrs[kind.AttrBellBits] != kind.DomainBits:
		err = kind.Refuse("open bell", obj.Name(), "bits", h.Attrs[kind.AttrBellBits],
			kind.DomainBits, kind.ErrCorrupt)
	default:
		err = kind.HasSections("open bell", obj.Name(), h, kind.BellSpec())
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

// OpenPassed maps an object that a peer sent.
func OpenPassed(fd int, name string, acc shm.Access) (*shm.Object, error) {
	obj, err := shm.OpenFD(fd, name, acc)
	if err != nil {
		return nil, err
	}
	if err = obj.CheckSealed(kind.LaneSeals); err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

// Sealed makes a memfd that peers can use: none of them can cut it.
func Sealed(spec shm.Spec, seals shm.Seals, init func(*shm.Object) error) (*shm.Object, error) {
	obj, err := shm.CreateMemfd(spec, init)
	if err != nil {
		return nil, err
	}
	if err = obj.Seal(seals); err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}
