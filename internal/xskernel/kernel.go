// Package xskernel is what an AF_XDP socket and its kernel have in common, and a kernel that a
// program plays: packages that live on sockets are tested with it, without an interface or
// privilege.
package xskernel

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// Device describes a simulated device.
type Device struct {
	Name  string // of the interface
	Queue uint32
	MTU   int
	// StartIndex is where the indices of all rings begin, which wrap at 2^32.
	StartIndex uint32
}

// Simulate makes a socket of package xdp, which sets it, on a simulated device; tests call it by
// package xdptest. It takes an *xdp.UMEM and xdp.Options, and returns an *xdp.Socket.
var Simulate func(umem, options any, d Device) (socket any, k *Kernel, err error)

// Desc is one entry of a receive or transmit ring, as the kernel defines it (struct xdp_desc).
type Desc struct {
	Addr    uint64 // offset of the first byte within the UMEM
	Len     uint32 // bytes
	Options uint32
}

// PacketContinues is a bit of Desc.Options (XDP_PKT_CONTD): the next descriptor is of the same
// packet.
const PacketContinues = 1 << 0

// NeedWakeup is bit 0 of the flags word of a ring: the kernel sleeps and wants a system call.
const NeedWakeup = 1

const (
	// HeadroomBytes are what the kernel leaves in front of a packet for programs to grow it into.
	HeadroomBytes = 256
	// MinPacketBytes is an Ethernet header. The kernel takes less and drops it without a trace.
	MinPacketBytes = 14
	// TagBytes is a VLAN tag, which the MTU does not count.
	TagBytes = 4
	// MaxChain is how many frames one packet may lie in: what the kernel's own buffers hold
	// (MAX_SKB_FRAGS + 1).
	MaxChain = 18
	// OffsetShift is where, in the address of a packet received in an unaligned chunk, the distance
	// from the beginning of the chunk stands.
	OffsetShift = 48
)

// Queue is what the kernel's sides of sockets on one queue have in common.
type Queue struct {
	rxMu     sync.Mutex // of the fill ring and the receive rings
	Fill     *Ring[uint64]
	txMu     sync.Mutex // of the completion ring, the transmit rings and all that is about sending
	Comp     *Ring[uint64]
	reserved int // places in the completion ring that packets under way need
}

// NewQueue makes the rings of a queue. All indices begin at start.
func NewQueue(fill, comp, start uint32) *Queue {
	return &Queue{Fill: NewRing[uint64](fill, start), Comp: NewRing[uint64](comp, start)}
}

// Config is what a Kernel has to know of its socket.
type Config struct {
	Mem                         []byte
	ChunkBytes, HeadroomBytes   uint64 // the headroom is the socket's own
	MTU                         int
	Unaligned, Chains, ZeroCopy bool
	Budget                      int // of packets that one system call sends
	RxEntries, TxEntries        uint32
	StartIndex                  uint32
	NoNeedWakeup                bool
	Signal                      func() // makes the socket's descriptor readable
}

// Kernel is the other side of a simulated socket: it does what the kernel and a driver do with the
// rings, when it is told to, and can be told to do what they never should. All methods are safe
// from any goroutine; the socket's own are not.
//
// A Kernel sends inside of Socket.Kick, as copy mode does: up to 32 packets, each of which is
// completed at once unless HoldCompletions was called.
type Kernel struct {
	*Queue
	Rx, Tx   *Ring[Desc]
	c        Config          // rxMu for Signal
	refuse   int             // packets that are to be refused
	failures []syscall.Errno // of the next kicks
	hold     bool
	building []Desc   // parts of a packet whose end was not taken yet
	sending  []uint64 // addresses taken from the transmit ring and not completed
	packet   []byte   // room to put parts together
	sent     [][]byte
	onSend   func([]byte)

	down, gone                                        atomic.Bool
	dropped, full, empty, fillBad, txInvalid, txEmpty atomic.Uint64
}

// NewKernel makes the kernel's side of a socket on a queue, with its receive and transmit rings.
func NewKernel(q *Queue, c Config) *Kernel {
	k := &Kernel{Queue: q, c: c, Rx: NewRing[Desc](c.RxEntries, c.StartIndex),
		Tx: NewRing[Desc](c.TxEntries, c.StartIndex), building: make([]Desc, 0, MaxChain)}
	k.Tx.wakeup(!c.NoNeedWakeup)
	return k
}

// Deliver lets a packet arrive, as a driver does: it takes frames from the fill ring, writes the
// packet behind both headrooms and puts descriptors into the receive ring; more than one only if
// the socket has MultiBuffer. It reports whether the packet got there; if not it counts in Stats,
// except while the link is down.
func (k *Kernel) Deliver(packet []byte) bool {
	if k.down.Load() || k.gone.Load() {
		return false
	}
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	room := int(k.c.ChunkBytes - k.c.HeadroomBytes - HeadroomBytes)
	parts := max(1, (len(packet)+room-1)/room)
	switch {
	case parts > 1 && !k.c.Chains || parts > MaxChain:
		k.dropped.Add(1)
		return false
	case k.Rx.room() < parts:
		k.full.Add(1)
		return false
	case int(k.Fill.Used()) < parts:
		k.empty.Add(1)
		return false
	}
	for i := range parts {
		addr, ok := k.frame()
		if !ok {
			return false // bad entries came instead of frames
		}
		at := addr + k.c.HeadroomBytes + HeadroomBytes
		d := Desc{Addr: at, Len: uint32(copy(k.c.Mem[at:at+uint64(room)], packet))}
		if k.c.Unaligned {
			d.Addr = addr | (at-addr)<<OffsetShift
		}
		packet = packet[d.Len:]
		if i < parts-1 {
			d.Options = PacketContinues
		}
		k.Rx.Push(d)
	}
	k.c.Signal()
	return true
}

// frame takes a frame to receive into and returns where it begins.
func (k *Kernel) frame() (uint64, bool) {
	for {
		addr, ok := k.Fill.Pop()
		if !ok {
			k.empty.Add(1)
			return 0, false
		}
		if !k.c.Unaligned {
			addr &^= k.c.ChunkBytes - 1
		}
		if size := uint64(len(k.c.Mem)); addr < size && size-addr >= k.c.ChunkBytes {
			return addr, true
		}
		k.fillBad.Add(1)
	}
}

// transmit is the system call that sends. It holds txMu.
func (k *Kernel) transmit(budget int) syscall.Errno {
	switch {
	case k.gone.Load():
		return syscall.ENXIO
	case k.down.Load():
		return syscall.ENETDOWN
	case len(k.failures) > 0:
		e := k.failures[0]
		k.failures = k.failures[1:]
		return e
	}
	for taken := 0; ; taken++ {
		d, ok := k.Tx.peek()
		switch {
		case !ok && taken == 0:
			k.txEmpty.Add(1)
			return 0
		case !ok:
			return 0
		case taken == budget, k.Comp.room() <= k.reserved+len(k.building):
			return syscall.EAGAIN
		}
		k.Tx.Pop()
		if k.building = append(k.building, d); d.Options&PacketContinues == 0 {
			e := k.send()
			k.building = k.building[:0]
			if e != 0 {
				return e
			}
		}
	}
}

// send sends the packet whose parts are in building.
func (k *Kernel) send() syscall.Errno {
	total := 0
	for _, d := range k.building {
		total += int(d.Len)
	}
	e := syscall.Errno(0)
	switch {
	case !k.valid():
		// Counted and not sent, and the address comes back as if it had been.
		k.txInvalid.Add(1)
	case k.refuse > 0 || total < MinPacketBytes || total > k.c.MTU+MinPacketBytes+TagBytes:
		k.refuse = max(0, k.refuse-1)
		e = syscall.EBUSY
	default:
		k.put()
	}
	for _, d := range k.building { // last: the frames may be written to from now on
		if k.hold {
			k.sending = append(k.sending, d.Addr)
			k.reserved++
			continue
		}
		k.Comp.Push(d.Addr)
	}
	return e
}

// valid says whether all parts of the packet are what the kernel takes.
func (k *Kernel) valid() bool {
	for _, d := range k.building {
		room := uint64(len(k.c.Mem)) - min(d.Addr, uint64(len(k.c.Mem)))
		if !k.c.Unaligned {
			room = min(room, k.c.ChunkBytes-d.Addr&(k.c.ChunkBytes-1))
		}
		if d.Len == 0 || uint64(d.Len) > room || uint64(d.Len) > k.c.ChunkBytes ||
			d.Options&^PacketContinues != 0 {
			return false
		}
	}
	return len(k.building) == 1 || k.c.Chains && len(k.building) <= MaxChain
}

// put gives the packet to whoever looks at what is sent.
func (k *Kernel) put() {
	d := k.building[0]
	packet := k.c.Mem[d.Addr : d.Addr+uint64(d.Len) : d.Addr+uint64(d.Len)]
	if len(k.building) > 1 {
		k.packet = k.packet[:0]
		for _, d := range k.building {
			k.packet = append(k.packet, k.c.Mem[d.Addr:d.Addr+uint64(d.Len)]...)
		}
		packet = k.packet
	}
	if k.onSend != nil {
		k.onSend(packet)
		return
	}
	k.sent = append(k.sent, slices.Clone(packet))
}

// SendTo is what the system call of that name does.
func (k *Kernel) SendTo() syscall.Errno {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	if !k.c.ZeroCopy {
		return k.transmit(k.c.Budget)
	}
	switch e := k.transmit(len(k.Tx.Slots)); e { // the driver goes on by itself
	case syscall.EAGAIN, syscall.EBUSY:
		return 0
	default:
		return e
	}
}

// State is what the system call recvfrom says.
func (k *Kernel) State() syscall.Errno {
	switch {
	case k.gone.Load():
		return syscall.ENXIO
	case k.down.Load():
		return syscall.ENETDOWN
	}
	return 0
}

// Transmit takes up to limit descriptors to send without being kicked, as a driver that is awake
// does, and returns the number of those that it took.
func (k *Kernel) Transmit(limit int) int {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	before := k.Tx.Used()
	_ = k.transmit(limit)
	return int(before - k.Tx.Used())
}

// TakeSent returns the packets sent since the last call, oldest first.
func (k *Kernel) TakeSent() [][]byte {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	sent := k.sent
	k.sent = nil
	return sent
}

// OnSend has f called for every packet that is sent, in place of keeping it for TakeSent. The bytes
// are the frame itself: they are f's until it returns. f must not call methods that send or
// complete on this Kernel; Deliver is allowed. A nil f goes back to keeping.
func (k *Kernel) OnSend(f func(packet []byte)) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.onSend = f
}

// Connect joins two simulated devices by a wire: what one sends the other receives, or loses if it
// has no room.
func Connect(a, b *Kernel) {
	a.OnSend(func(p []byte) { b.Deliver(p) })
	b.OnSend(func(p []byte) { a.Deliver(p) })
}

// HoldCompletions decides whether packets that are sent wait for Complete.
func (k *Kernel) HoldCompletions(hold bool) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.hold = hold
}

// Sending returns how many frames wait for Complete.
func (k *Kernel) Sending() int {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	return len(k.sending)
}

// Complete completes up to n of the frames that wait, oldest first, and returns how many.
func (k *Kernel) Complete(n int) (done int) {
	for ; done < n && k.CompleteAt(0); done++ {
	}
	return done
}

// CompleteAt completes one frame of those that wait; the kernel promises no order. It reports
// whether there was one with this number.
func (k *Kernel) CompleteAt(i int) bool {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	if i < 0 || i >= len(k.sending) || !k.Comp.Push(k.sending[i]) {
		return false
	}
	k.sending = slices.Delete(k.sending, i, i+1)
	k.reserved--
	return true
}

// SetDown takes the link down or up. While it is down system calls say ENETDOWN, what is to be sent
// waits, and nothing arrives.
func (k *Kernel) SetDown(down bool) { k.down.Store(down) }

// Remove removes the device: system calls say ENXIO for ever. As in the real kernel that wakes
// nobody who polls.
func (k *Kernel) Remove() { k.gone.Store(true) }

// Refuse has the device drop the next n packets to be sent, though they complete, as a full device
// queue does (EBUSY).
func (k *Kernel) Refuse(n int) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.refuse = n
}

// Stats are what the simulated kernel counts, as in xdp.KernelStats.
type Stats struct {
	RxDropped, RxInvalid, RxQueueFull, RxFillRingEmpty, TxInvalid, TxRingEmpty uint64
}

// Stats returns what the simulated kernel counts, which is also what Socket.KernelStats returns.
func (k *Kernel) Stats() Stats {
	return Stats{RxDropped: k.dropped.Load(), RxInvalid: k.fillBad.Load(),
		RxQueueFull: k.full.Load(), RxFillRingEmpty: k.empty.Load(),
		TxInvalid: k.txInvalid.Load(), TxRingEmpty: k.txEmpty.Load()}
}

// Unplug keeps the kernel's side from using the descriptor, which is about to be closed, and the
// frames, which may be unmapped then.
func (k *Kernel) Unplug() {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	k.gone.Store(true)
	k.c.Signal = func() {}
}

// Ring is the memory of one ring, with the kernel's end of it.
type Ring[E uint64 | Desc] struct {
	Prod, Cons, Flags atomic.Uint32
	Slots             []E
}

// NewRing makes an empty ring of a power of two of entries, whose indices begin at start.
func NewRing[E uint64 | Desc](entries, start uint32) *Ring[E] {
	r := &Ring[E]{Slots: make([]E, entries)}
	r.Prod.Store(start)
	r.Cons.Store(start)
	return r
}

// Mask is what an index is taken modulo by.
func (r *Ring[E]) Mask() uint32 { return uint32(len(r.Slots)) - 1 }

// Used counts the entries between the indices.
func (r *Ring[E]) Used() uint32 { return r.Prod.Load() - r.Cons.Load() }

func (r *Ring[E]) room() int { return len(r.Slots) - int(r.Used()) }

func (r *Ring[E]) peek() (e E, ok bool) {
	if r.Used() == 0 {
		return e, false
	}
	return r.Slots[r.Cons.Load()&r.Mask()], true
}

// Pop takes the oldest entry.
func (r *Ring[E]) Pop() (e E, ok bool) {
	if e, ok = r.peek(); ok {
		r.Cons.Add(1)
	}
	return e, ok
}

// Push makes an entry visible, if there is room.
func (r *Ring[E]) Push(e E) bool {
	prod := r.Prod.Load()
	if prod-r.Cons.Load() > r.Mask() {
		return false
	}
	r.Slots[prod&r.Mask()] = e
	r.Prod.Store(prod + 1)
	return true
}

func (r *Ring[E]) wakeup(on bool) {
	if on {
		r.Flags.Or(NeedWakeup)
		return
	}
	r.Flags.And(^uint32(NeedWakeup))
}

// ForgeReceive puts any descriptor into the receive ring, as no kernel does. It reports whether
// there was room.
func (k *Kernel) ForgeReceive(d Desc) bool {
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	ok := k.Rx.Push(d)
	k.c.Signal()
	return ok
}

// ForgeCompletion puts any address into the completion ring. It reports whether there was room.
func (k *Kernel) ForgeCompletion(addr uint64) bool {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	return k.Comp.Push(addr)
}

// FailKicks has the next system calls that send fail with these errors, and do nothing else.
func (k *Kernel) FailKicks(errs ...syscall.Errno) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.failures = append(k.failures, errs...)
}

// NeedWakeup sets what the driver says about being woken: to send, and to take frames to receive
// into. At first it is what copy mode says for ever: true and false.
func (k *Kernel) NeedWakeup(tx, fill bool) {
	k.Tx.wakeup(tx)
	k.Fill.wakeup(fill)
}
