package cq

import (
	"sync"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// peerBell is the bell of a reading process as its producers in this process hold it: mapped once,
// however many queues of that process they post to.
type peerBell struct {
	uuid  shm.UUID
	obj   *shm.Object
	arm   *doorbell.Arm
	hints *doorbell.Hints
	users int // under peerBells.mu
}

var peerBells = struct {
	mu   sync.Mutex
	open map[shm.UUID]*peerBell
}{open: map[shm.UUID]*peerBell{}}

// bellHold is what one producer holds of its reader's bell.
type bellHold struct {
	words *kind.BellWords // of the queue
	home  *shm.Dir        // directory to look in, which is the door's, or nil
	fd    int             // descriptor of the bell that came by rendezvous, or -1
	owner func() shm.Owner
	own   bool // the reader is this process
	bell  *peerBell
	// ringer is what the producer rings, for the generation that it was made for.
	ringer doorbell.DomainRinger
}

// ring returns the reader's bell with the queue's bit, or nil if it has none or cannot be reached
// now: then it is asked for again at the next publish that wants it.
func (h *bellHold) ring(generation uint16) *doorbell.DomainRinger {
	g := h.words.Generation.Load()
	if g == 0 || uint16(g) != generation {
		return nil
	}
	uuid := kind.UuidOf(h.words.High.Load(), h.words.Low.Load())
	bit, fd := h.words.Bit.Load(), h.words.Fd.Load()
	if h.words.Generation.Load() != g || bit >= kind.DomainBits {
		return nil
	}
	if h.bell == nil || h.bell.uuid != uuid {
		h.drop()
		bell, err := h.hold(uuid, fd)
		if err != nil {
			return nil
		}
		h.bell = bell
	}
	h.ringer = doorbell.DomainRinger{Arm: h.bell.arm, Hints: h.bell.hints, Bit: int(bit)}
	return &h.ringer
}

// drop gives the bell back. The producer must not ring any more.
func (h *bellHold) drop() {
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

func (h *bellHold) hold(uuid shm.UUID, fd uint64) (*peerBell, error) {
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
// its descriptor from the reader. Nobody needs a permission for the bell of its own process.
func (h *bellHold) open(uuid shm.UUID, fd uint64) (*shm.Object, error) {
	if h.own {
		return processDomain.reopen(uuid)
	}
	obj, err := openBellFile(uuid, h.home)
	if err != nil && h.fd >= 0 {
		obj, err = openBellFD(uuid, h.fd)
	}
	if err != nil && fd > 0 && fd < 1<<31 {
		if n, e := shm.PidfdGetfd(h.owner(), int(fd-1)); e == nil {
			obj, err = openBellFD(uuid, n)
			eventfd.Close(n)
		}
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

func openBellFile(uuid shm.UUID, home *shm.Dir) (*shm.Object, error) {
	if home == nil {
		return nil, ErrNoWait
	}
	obj, err := home.Open(kind.BellName(uuid), shm.ReadOnly)
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
			kind.DomainBits, ErrCorrupt)
	default:
		err = kind.HasSections("open bell", obj.Name(), h, kind.BellSpec())
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}
