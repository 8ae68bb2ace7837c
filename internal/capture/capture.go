// Package capture copies packets of an endpoint to a tool, without disturbing the endpoint: a copy
// that finds no room is left out and counted, nothing waits.
//
// The tool makes an object in the directory of queues, capture- and the UUID of the endpoint, so
// that one tool has it, and holds the lock on it:
//
//	+--------+--------------------+---------------------+---------+--------+
//	| page 0 | head               | tail, counts, state | records | bytes  |
//	+--------+--------------------+---------------------+---------+--------+
//	         the tool writes       the endpoint writes
//
// Then it puts the UUID into the object of the endpoint (package status). The endpoint finds it
// there in its next round, maps the object and fills it as the one producer of a ring: a record of
// 64 bytes for each packet and, at the same index, its first bytes. The tool is proved dead when
// its lock is free; the endpoint looks ten times a second and removes what it left.
package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
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
	bytes   []byte // of packet: the memory is the endpoint's to write, and any process's to truncate
	dropped uint64
	counts  Counts
	fault   error // the file was truncated: nothing of it is touched any more
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
	s := &Session{dir: d, target: target}
	name := Prefix + now.UUID.String()
	s.obj, err = collect.Create(d, name, spec(shm.NewUUID(), slots, snap), nil)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%s: %w", name, ErrBusy)
	}
	if err != nil {
		return nil, err
	}
	if s.m, err = lay(s.obj); err == nil {
		s.guard(func() { s.in = ring.NewConsumer(s.m.tail, s.m.head, s.m.records, 0) })
		err = s.fault
	}
	if err == nil {
		err = status.SetWish(d, target, now.UUID)
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// guard runs f, which touches the capture, unless that was found truncated.
func (s *Session) guard(f func()) {
	if s.fault == nil {
		s.fault = shm.Guard(f)
	}
}

// state is that of a capture that is over, if it was truncated.
func (s *Session) state() uint64 {
	state := uint64(stateLeft)
	s.guard(func() { state = s.m.state.Load() })
	return state
}

// Attached reports whether the endpoint has come. One that is not driven does not come.
func (s *Session) Attached() bool { return s.state() != stateNew }

// Left reports whether the endpoint writes no more: it was closed, or was told to stop; or whether
// what it writes cannot be read, as Read says.
func (s *Session) Left() bool { return s.state() == stateLeft }

// TargetLives reports whether the endpoint is still there. It costs some system calls.
func (s *Session) TargetLives() bool {
	now, err := status.Look(s.dir, s.target)
	return err == nil && now.Life == shm.Alive
}

// Read calls f with packets that wait, at most n, and returns how many. Packet and bytes are valid
// during the call only. Errors are those of f, which end it, of package ring if the endpoint wrote
// impossible indices, and [shm.ErrTruncated] if somebody truncated the file, from then on.
func (s *Session) Read(n int, f func(*Packet) error) (int, error) {
	waiting, k := 0, 0
	s.guard(func() {
		a, b := s.in.Peek(n)
		waiting = len(a) + len(b)
	})
	var err error // of f, which is not guarded: what it does is no affair of the capture's
	for k < waiting && err == nil {
		if s.guard(func() { s.take(s.in.Head() + uint64(k)) }); s.fault != nil {
			break
		}
		k++
		err = f(&s.packet)
	}
	if k > 0 {
		s.guard(func() { s.in.Release(k) })
	}
	switch {
	case err != nil:
		return k, err
	case s.fault != nil:
		return k, s.fault
	}
	return k, s.in.Err()
}

// take copies the packet with an index.
func (s *Session) take(index uint64) {
	r := s.m.records[index&uint64(len(s.m.records)-1)] // another process writes it: once is enough
	s.bytes = append(s.bytes[:0], s.m.at(index)[:min(uint64(r.Kept), s.m.snap)]...)
	s.packet = Packet{MonoNs: r.Ns, Sent: r.Flags&flagSent != 0, Queue: r.Queue,
		Len: max(r.Len, uint32(len(s.bytes))), Bytes: s.bytes}
	if r.Dropped > s.dropped {
		s.packet.Dropped = r.Dropped - s.dropped
	}
	s.dropped = r.Dropped
}

// Counts returns the totals so far; those before, if the file was truncated since.
func (s *Session) Counts() Counts {
	s.guard(func() { s.counts = Counts{Seen: s.m.seen.Load(), Dropped: s.m.dropped.Load()} })
	return s.counts
}

// Stop tells the endpoint to end it. Packets that it copied before can still be read; it says Left
// when there will be no more.
func (s *Session) Stop() error {
	if s.done {
		return nil
	}
	s.done = true
	return status.SetWish(s.dir, s.target, shm.UUID{})
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
	cut   bool    // the file was truncated by somebody: nothing of it is touched any more
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

// Alive reports whether the tool still has the capture open, and nobody truncated it. It costs a
// system call.
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

// Follower is what tools see of a socket: its object (package status), and the capture that one of
// them wants. One goroutine uses it, the one that drives the socket.
type Follower struct {
	obj      *status.Object // nil if tools see nothing
	dir      *shm.Dir
	ours     bool // the directory was opened here
	socket   *xdp.Socket
	counters status.Counters
	tap      *Tap // nil most of the time
	starved  bool // there was no descriptor or memory for one that is wanted
	askAt    int64
	kernelAt int64 // when the kernel's counters are to be asked for
}

const (
	// askEveryNs is how often a follower looks whether the tool that captures still lives.
	askEveryNs = 100e6
	// kernelEveryNs is how often the kernel's counters are asked for: that is a system call.
	kernelEveryNs = 100e6
)

// Observe makes the object of a socket in a directory, the default one if dir is nil. Of info it
// fills in what the socket knows. Where there is no directory, or no room in it, or where tools are
// to see nothing, the follower has no object, and works all the same.
func Observe(none bool, dir *shm.Dir, s *xdp.Socket, info status.Info) *Follower {
	f := &Follower{dir: dir, socket: s}
	if none {
		return f
	}
	var err error
	if dir == nil {
		if f.dir, err = shm.OpenDir(""); err != nil {
			return f
		}
		f.ours = true
	}
	i := s.Info()
	info.Interface, info.Index, info.Queue, info.NetNS = i.Interface, i.Index, i.Queue, i.NetNS
	info.Bind, info.NeedWakeup, info.MultiBuffer = i.Mode, i.NeedWakeup, i.MultiBuffer
	info.Geometry = s.UMEM().Geometry()
	info.Rings = status.RingSizes{Rx: i.RxEntries, Tx: i.TxEntries, Fill: i.FillEntries,
		Comp: i.CompEntries}
	if !info.Local.Addr().IsValid() {
		info.Local = netip.AddrPortFrom(i.Address, info.Local.Port())
	}
	info.UMEM = s.UMEM().Region().Object().Header().UUID
	if f.obj, err = status.Create(f.dir, info); err != nil {
		f.obj = nil
		f.leave()
	}
	return f
}

func (f *Follower) leave() {
	if f.ours {
		_ = f.dir.Close()
	}
}

// Name returns the name of the object.
func (f *Follower) Name() string { return f.obj.Name() }

// Close ends a capture and removes the object. It is done once, while the socket is still open.
func (f *Follower) Close() {
	f.untap()
	if f.obj != nil {
		_ = f.obj.Close()
		f.leave()
		f.obj = nil
	}
}

// Kernel returns the kernel's counters of the socket, up to a tenth of a second old.
func (f *Follower) Kernel(now int64) xdp.KernelStats {
	if now >= f.kernelAt {
		f.kernelAt = now + kernelEveryNs
		f.AskKernel()
	}
	return f.counters.Kernel
}

// AskKernel asks for them at once, as long as the socket is open.
func (f *Follower) AskKernel() {
	if k, err := f.socket.KernelStats(); err == nil {
		f.counters.Kernel = k
	}
}

// Update publishes counters.
func (f *Follower) Update(now int64, traffic *status.Traffic) {
	if f.obj == nil {
		return
	}
	c, s := &f.counters, f.socket
	c.UpdatedNs = uint64(now)
	c.Program, c.Attach = 0, 0
	if p := s.Info().Program; p != nil {
		i := p.Info()
		c.Program, c.Attach = uint64(i.ID), uint64(i.Mode)
	}
	c.Traffic = *traffic
	c.Frames, c.Rings, c.Syscalls = s.FrameStats(), s.RingStats(), s.SyscallStats()
	f.obj.Update(c)
}

// Turn does what tools want. It costs a load and no system call as long as none wants something
// else than before, and it is not time to see that the one that captures lives.
func (f *Follower) Turn(now int64) {
	if f.obj != nil && (f.obj.Wanted() || (f.tap != nil || f.starved) && now >= f.askAt) {
		f.obey(now)
	}
}

func (f *Follower) obey(now int64) {
	f.askAt = now + askEveryNs
	if !f.obj.Wanted() && !f.starved {
		if !f.tap.Alive() {
			f.untap()
		}
		return
	}
	f.untap()
	id := f.obj.Wish()
	if f.starved = false; id == (shm.UUID{}) {
		return
	}
	tap, err := Attach(f.dir, id, f.socket.Info().Queue)
	if f.starved = kind.Starved(err); err != nil {
		return // if not for want of that, the tool is gone by now, or is of another version
	}
	f.tap = tap
	f.socket.SetTap(tap)
}

func (f *Follower) untap() {
	if f.tap != nil {
		f.socket.SetTap(nil)
		f.tap.Close()
		f.tap = nil
	}
}
