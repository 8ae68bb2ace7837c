package capture

import (
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// Tap is the endpoint's side of a capture; it is an xdp.Tap. One goroutine uses it, the one that
// drives the socket.
type Tap struct {
	obj     *shm.Object
	m       memory
	out     *ring.Producer[record]
	queue   uint32
	seen    uint64
	dropped uint64

	slot  *record // of the packet whose parts come in
	room  []byte  // for its bytes
	open  bool    // parts are to come
	ready int     // records written and not published
	cut   bool    // the file was cut by somebody: nothing of it is touched any more
}

// Attach joins the capture with this UUID that a tool has made in a directory. queue is what stands
// in the records. Errors are fs.ErrNotExist and those of opening shared memory.
func Attach(d *shm.Dir, id shm.UUID, queue uint32) (*Tap, error) {
	obj, err := d.Open(Prefix+id.String(), shm.ReadWrite)
	if err != nil {
		return nil, err
	}
	t := &Tap{obj: obj, queue: queue}
	fault := shm.Guard(func() {
		if t.m, err = lay(obj); err == nil {
			t.m.state.Store(stateAttached)
			// Nobody sleeps on the ring, so a release store publishes.
			t.out = ring.NewProducer(t.m.tail, t.m.head, t.m.records, 0, ring.Release)
		}
	})
	if fault != nil {
		err = fault
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	return t, nil
}

// guard runs f, which touches the capture. The file is a tool's, and must not take the program down
// whose packets are copied.
func (t *Tap) guard(f func()) {
	if !t.cut {
		t.cut = shm.Guard(f) != nil
	}
}

// Packet copies a packet, or a part of one, if there is room.
func (t *Tap) Packet(sent bool, b []byte, more bool) {
	t.guard(func() { t.copy(sent, b, more) })
}

func (t *Tap) copy(sent bool, b []byte, more bool) {
	if !t.open {
		t.begin(sent)
	}
	t.open = more
	if t.slot == nil {
		return
	}
	n := copy(t.room, b)
	t.room = t.room[n:]
	t.slot.Len += uint32(len(b))
	t.slot.Kept += uint32(n)
}

func (t *Tap) begin(sent bool) {
	t.seen++
	t.slot, t.room = nil, nil
	a, b := t.out.Reserve(t.ready + 1)
	if len(a)+len(b) <= t.ready {
		t.dropped++
		return
	}
	if t.ready < len(a) {
		t.slot = &a[t.ready]
	} else {
		t.slot = &b[t.ready-len(a)]
	}
	t.room = t.m.at(t.out.Tail() + uint64(t.ready))
	t.ready++
	*t.slot = record{Ns: uint64(spin.Now()), Queue: t.queue, Dropped: t.dropped}
	if sent {
		t.slot.Flags = flagSent
	}
}

// Flush publishes what was copied, up to a packet whose parts are still to come.
func (t *Tap) Flush() { t.guard(t.publish) }

func (t *Tap) publish() {
	whole := t.ready
	if t.open && t.slot != nil {
		whole--
	}
	if whole > 0 {
		t.out.Commit(whole)
		t.ready -= whole
	}
	t.m.seen.Store(t.seen)
	t.m.dropped.Store(t.dropped)
}

// Alive reports whether the tool still has the capture open, and nobody cut it. It costs a system
// call.
func (t *Tap) Alive() bool {
	life, err := t.obj.Life()
	return err == nil && life == shm.Alive && !t.cut && t.out.Err() == nil
}

// Close publishes what is whole and leaves the capture. What a dead tool has left is removed.
func (t *Tap) Close() {
	t.guard(func() {
		t.open = false
		t.publish()
		t.m.state.Store(stateLeft)
	})
	if life, err := t.obj.Life(); err == nil && (life == shm.Dead || life == shm.Released) &&
		t.obj.Claim(nil) == nil {
		_ = t.obj.Unlink()
	}
	_ = t.obj.Close()
}
