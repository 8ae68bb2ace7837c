package capture

import (
	"fmt"
	"math/bits"
	"syscall"

	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/status"
)

// Options of a capture. Zero values stand for the defaults.
type Options struct {
	// SnapBytes of each packet are kept; 2048 by default, at most MaxSnapBytes.
	SnapBytes int
	// Slots is for how many packets there is room that the tool has not read; as many as take 8 MiB
	// by default. It is rounded up to a power of two.
	Slots int
}

// Packet is a copy of a packet.
type Packet struct {
	MonoNs  uint64 // CLOCK_MONOTONIC, when the endpoint took it from its ring or gave it to the kernel
	Sent    bool
	Queue   uint32
	Len     uint32 // of the packet; Bytes may be shorter
	Dropped uint64 // packets left out just before this one
	Bytes   []byte // valid until the next Read
}

// Counts are the totals of a capture.
type Counts struct {
	Seen    uint64 // packets that came by
	Dropped uint64 // of them, those for which there was no room
}

// Session is the tool's side of a capture of one endpoint. One goroutine uses it.
type Session struct {
	dir     *shm.Dir
	target  string
	obj     *shm.Object
	m       memory
	in      *ring.Consumer[record]
	packet  Packet // of the Read that is going on
	dropped uint64
	done    bool
}

// Start asks the endpoint whose object has this name for copies of its packets. Errors: [ErrBusy]
// if it is captured by a tool that lives; those of package status and of making shared memory.
func Start(d *shm.Dir, target string, o Options) (*Session, error) {
	snap := uint64(o.SnapBytes)
	if o.SnapBytes == 0 {
		snap = 2048
	}
	if o.SnapBytes < 0 || snap > MaxSnapBytes {
		return nil, fmt.Errorf("capture: %d bytes of each packet, possible are 1 to %d: %w",
			o.SnapBytes, MaxSnapBytes, syscall.EINVAL)
	}
	slots := uint64(o.Slots)
	if o.Slots <= 0 {
		slots = (8 << 20) / stride(snap)
	}
	slots = min(max(minSlots, uint64(1)<<bits.Len64(slots-1)), maxSlots)
	now, err := status.Look(d, target)
	if err != nil {
		return nil, err
	}
	if !now.Capture.IsZero() && lives(d, now.Capture) {
		return nil, fmt.Errorf("capture of %s: %w", target, ErrBusy)
	}
	s := &Session{dir: d, target: target}
	id := shm.NewUUID()
	if s.obj, err = d.Create(Prefix+id.String(), spec(id, slots, snap), nil); err != nil {
		return nil, err
	}
	if s.m, err = lay(s.obj); err == nil {
		s.in = ring.NewConsumer(s.m.tail, s.m.head, s.m.records, 0)
		var done bool
		if done, err = status.SetWish(d, target, now.Capture, id); err == nil && !done {
			err = fmt.Errorf("capture of %s: %w", target, ErrBusy)
		}
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

func lives(d *shm.Dir, id shm.UUID) bool {
	obj, err := d.Open(Prefix+id.String(), shm.Inspect)
	if err != nil {
		return false
	}
	defer obj.Close()
	life, err := obj.Life()
	return err == nil && life == shm.Alive
}

// Attached reports whether the endpoint has come. One that is not driven does not come.
func (s *Session) Attached() bool { return s.m.state.Load() != stateNew }

// Left reports whether the endpoint writes no more: it was closed, or was told to stop.
func (s *Session) Left() bool { return s.m.state.Load() == stateLeft }

// TargetLives reports whether the endpoint is still there. It costs some system calls.
func (s *Session) TargetLives() bool {
	now, err := status.Look(s.dir, s.target)
	return err == nil && now.Life == shm.Alive
}

// Read calls f with packets that wait, at most n, and returns how many. Packet and bytes are valid
// during the call only. Errors are those of f, which end it, and of package ring if the endpoint
// wrote impossible indices.
func (s *Session) Read(n int, f func(*Packet) error) (int, error) {
	a, b := s.in.Peek(n)
	first, k := s.in.Head(), 0
	for i := range len(a) + len(b) {
		slot := &s.m.records[(first+uint64(i))&uint64(len(s.m.records)-1)]
		r := *slot // another process writes it: once is enough
		p := &s.packet
		*p = Packet{MonoNs: r.Ns, Sent: r.Flags&flagSent != 0, Queue: r.Queue,
			Dropped: r.Dropped - s.dropped}
		p.Bytes = s.m.at(first + uint64(i))[:min(uint64(r.Kept), s.m.snap)]
		p.Len = max(r.Len, uint32(len(p.Bytes)))
		if r.Dropped < s.dropped {
			p.Dropped = 0
		}
		s.dropped = r.Dropped
		k++
		if err := f(p); err != nil {
			s.in.Release(k)
			return k, err
		}
	}
	if k > 0 {
		s.in.Release(k)
	}
	return k, s.in.Err()
}

// Counts returns the totals so far.
func (s *Session) Counts() Counts {
	return Counts{Seen: s.m.seen.Load(), Dropped: s.m.dropped.Load()}
}

// Stop tells the endpoint to end it. Packets that it copied before can still be read; it says Left
// when there will be no more.
func (s *Session) Stop() error {
	if s.done {
		return nil
	}
	s.done = true
	_, err := status.SetWish(s.dir, s.target, s.obj.Header().UUID, shm.UUID{})
	return err
}

// Close ends the capture. The endpoint notices by itself.
func (s *Session) Close() error {
	err := s.Stop()
	s.remove()
	return err
}

func (s *Session) remove() {
	_ = s.obj.Unlink()
	_ = s.obj.Close()
}
