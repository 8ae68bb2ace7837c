package cq

import (
	"sync"

	"github.com/shmring/shmring/doorbell"
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
	words *bellWords // of the queue
	home  string     // directory to look in, empty if there is none
	owner func() shm.Owner
	bell  *peerBell
	// ringer is what the producer rings, for the generation that it was made for.
	ringer doorbell.DomainRinger
}

// ring returns the reader's bell with the queue's bit, or nil if it has none or cannot be reached
// now: then it is asked for again at the next publish that wants it.
func (h *bellHold) ring(generation uint16) *doorbell.DomainRinger {
	g := h.words.generation.Load()
	if g == 0 || uint16(g) != generation {
		return nil
	}
	uuid := uuidOf(h.words.high.Load(), h.words.low.Load())
	bit, fd := h.words.bit.Load(), h.words.fd.Load()
	if h.words.generation.Load() != g || bit >= domainBits {
		return nil
	}
	if h.bell == nil || h.bell.uuid != uuid {
		h.drop()
		bell, err := holdBell(uuid, h.home, h.owner(), fd)
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

func holdBell(uuid shm.UUID, home string, owner shm.Owner, fd uint64) (*peerBell, error) {
	peerBells.mu.Lock()
	defer peerBells.mu.Unlock()
	if b := peerBells.open[uuid]; b != nil {
		b.users++
		return b, nil
	}
	obj, err := openBell(uuid, home, owner, fd)
	if err != nil {
		return nil, err
	}
	b := &peerBell{uuid: uuid, obj: obj, users: 1}
	if b.arm, b.hints, err = bellMemory(obj, true); err != nil {
		_ = obj.Close()
		return nil, err
	}
	peerBells.open[uuid] = b
	return b, nil
}

// openBell finds the bell by its name beside the queue, or takes its descriptor from the reader.
func openBell(uuid shm.UUID, home string, owner shm.Owner, fd uint64) (*shm.Object, error) {
	obj, err := openBellFile(uuid, home)
	if err != nil && fd > 0 && fd < 1<<31 {
		if n, e := shm.PidfdGetfd(owner, int(fd-1)); e == nil {
			obj, err = shm.OpenFD(n, bellName(uuid), shm.ReadOnly)
			doorbell.CloseFD(n)
		}
	}
	if err != nil {
		return nil, err
	}
	if err = checkBell(obj, uuid); err != nil {
		_ = obj.Close()
		return nil, err
	}
	return obj, nil
}

func openBellFile(uuid shm.UUID, home string) (*shm.Object, error) {
	if home == "" {
		return nil, ErrNoWait
	}
	d, err := shm.OpenDir(home)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Open(bellName(uuid), shm.ReadOnly)
}

// checkBell refuses an object that is not the bell that the reader means.
func checkBell(obj *shm.Object, uuid shm.UUID) error {
	h := obj.Header()
	if h.Kind != shm.KindBell || h.UUID != uuid {
		return refuse("open bell", obj.Name(), "kind and uuid", [2]any{h.Kind, h.UUID},
			[2]any{shm.KindBell, uuid}, shm.ErrKind)
	}
	if h.Attrs[attrBellBits] != domainBits {
		return refuse("open bell", obj.Name(), "bits", h.Attrs[attrBellBits], domainBits, ErrCorrupt)
	}
	return hasSections("open bell", obj.Name(), h, bellSpec())
}

func uuidOf(high, low uint64) (u shm.UUID) {
	for i := range 8 {
		u[i] = byte(high >> (56 - 8*i))
		u[8+i] = byte(low >> (56 - 8*i))
	}
	return u
}
