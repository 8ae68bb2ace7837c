package xdp

import (
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
)

// SimOptions describe a simulated device and the socket on it. Zero values stand for the defaults.
type SimOptions struct {
	Options
	Name  string // of the interface; "sim0" by default
	Queue uint32
	MTU   int // 1500 by default
	// StartIndex is where the indices of all rings begin, which wrap at 2^32.
	StartIndex uint32
}

// simBudget is how many packets one system call sends in copy mode.
const simBudget = 32

// Kernel is the other side of a simulated socket: it does what the kernel and a driver do with the
// rings, when it is told to, and can be told to do what they never should. All methods are safe from
// any goroutine; the socket's own are not.
//
// A Kernel sends inside of Socket.Kick, as copy mode does: up to 32 packets, each of which is
// completed at once unless HoldCompletions was called.
type Kernel struct {
	mem       []byte
	chunk     uint64
	headroom  uint64
	mtu       int
	zeroCopy  bool
	rxMu      sync.Mutex // of the fill and the receive ring
	fill      *simRing[uint64]
	rx        *simRing[Desc]
	signal    func()     // makes the socket's descriptor readable
	txMu      sync.Mutex // of all below, and of the transmit and the completion ring
	tx        *simRing[Desc]
	comp      *simRing[uint64]
	budget    int
	refuse    int             // packets that are to be refused
	failures  []syscall.Errno // of the next kicks
	hold      bool
	sending   []uint64 // addresses taken from the transmit ring and not completed
	sent      [][]byte
	onSend    func([]byte)
	down      atomic.Bool
	gone      atomic.Bool
	dropped   atomic.Uint64
	full      atomic.Uint64
	empty     atomic.Uint64
	fillBad   atomic.Uint64
	txInvalid atomic.Uint64
	txEmpty   atomic.Uint64
}

// Deliver lets a packet arrive, as a driver does: it takes a frame from the fill ring, writes the
// packet behind both headrooms and puts a descriptor into the receive ring. It reports whether the
// packet got there; if not it counts in Stats, except while the link is down.
func (k *Kernel) Deliver(packet []byte) bool {
	if k.down.Load() || k.gone.Load() {
		return false
	}
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	at := k.headroom + kernelHeadroomBytes
	switch {
	case uint64(len(packet)) > k.chunk-at:
		k.dropped.Add(1)
		return false
	case k.rx.room() <= 0:
		k.full.Add(1)
		return false
	}
	for {
		addr, ok := k.fill.pop()
		if !ok {
			k.empty.Add(1)
			return false
		}
		if addr >= uint64(len(k.mem)) {
			k.fillBad.Add(1)
			continue
		}
		at += addr &^ (k.chunk - 1)
		copy(k.mem[at:], packet)
		k.rx.push(Desc{Addr: at, Len: uint32(len(packet))})
		k.signal()
		return true
	}
}

// transmit is the system call that sends. It holds txMu.
func (k *Kernel) transmit(budget int) syscall.Errno {
	if k.gone.Load() {
		return syscall.ENXIO
	}
	if k.down.Load() {
		return syscall.ENETDOWN
	}
	if len(k.failures) > 0 {
		e := k.failures[0]
		k.failures = k.failures[1:]
		return e
	}
	sent := 0
	for {
		d, ok := k.tx.peek()
		switch {
		case !ok && sent == 0:
			k.txEmpty.Add(1)
			return 0
		case !ok:
			return 0
		case sent == budget, k.comp.room() <= len(k.sending):
			return syscall.EAGAIN
		}
		k.tx.pop()
		sent++
		if !k.valid(d) {
			// What the kernel makes of a bad descriptor: counted, not sent, its address echoed.
			k.txInvalid.Add(1)
			k.complete(d.Addr)
			continue
		}
		if k.refuse > 0 || d.Len < minPacketBytes || int(d.Len) > k.mtu+minPacketBytes+tagBytes {
			k.refuse = max(0, k.refuse-1)
			k.complete(d.Addr)
			return syscall.EBUSY
		}
		k.put(k.mem[d.Addr : d.Addr+uint64(d.Len) : d.Addr+uint64(d.Len)])
		k.complete(d.Addr) // last: the frame may be written to from now on
	}
}

func (k *Kernel) valid(d Desc) bool {
	return d.Len > 0 && d.Options == 0 && d.Addr < uint64(len(k.mem)) &&
		d.Addr&(k.chunk-1)+uint64(d.Len) <= k.chunk
}

func (k *Kernel) put(packet []byte) {
	if k.onSend != nil {
		k.onSend(packet)
		return
	}
	k.sent = append(k.sent, slices.Clone(packet))
}

// complete gives an address back, now or when it is told to.
func (k *Kernel) complete(addr uint64) {
	if k.hold {
		k.sending = append(k.sending, addr)
		return
	}
	k.comp.push(addr)
}

// sendto is what the system call of that name does.
func (k *Kernel) sendto() syscall.Errno {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	budget := k.budget
	if k.zeroCopy {
		budget = len(k.tx.slots) // the driver goes on by itself
	}
	e := k.transmit(budget)
	if k.zeroCopy && (e == syscall.EAGAIN || e == syscall.EBUSY) {
		return 0
	}
	return e
}

// state is what the system call recvfrom says.
func (k *Kernel) state() syscall.Errno {
	switch {
	case k.gone.Load():
		return syscall.ENXIO
	case k.down.Load():
		return syscall.ENETDOWN
	}
	return 0
}

// Transmit sends up to limit packets without being kicked, as a driver that is awake does, and
// returns the number of those that it took.
func (k *Kernel) Transmit(limit int) int {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	before := k.tx.used()
	_ = k.transmit(limit)
	return int(before - k.tx.used())
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
// are the frame itself: they are f's until it returns. f must not call methods that send or complete
// on this Kernel; Deliver is allowed. A nil f goes back to keeping.
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

// Sending returns how many packets wait for Complete.
func (k *Kernel) Sending() int {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	return len(k.sending)
}

// Complete completes up to n of the packets that wait, oldest first, and returns how many.
func (k *Kernel) Complete(n int) (done int) {
	for ; done < n && k.CompleteAt(0); done++ {
	}
	return done
}

// CompleteAt completes one packet of those that wait; the kernel promises no order. It reports
// whether there was one with this number.
func (k *Kernel) CompleteAt(i int) bool {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	if i < 0 || i >= len(k.sending) || !k.comp.push(k.sending[i]) {
		return false
	}
	k.sending = slices.Delete(k.sending, i, i+1)
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

// FailKicks has the next system calls that send fail with these errors, and do nothing else.
func (k *Kernel) FailKicks(errs ...syscall.Errno) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.failures = append(k.failures, errs...)
}

// SetBudget changes how many packets one system call sends in copy mode; 32 at first.
func (k *Kernel) SetBudget(n int) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.budget = n
}

// NeedWakeup sets what the driver says about being woken: to send, and to take frames to receive
// into. At first it is what copy mode says for ever: true and false.
func (k *Kernel) NeedWakeup(tx, fill bool) {
	k.tx.wakeup(tx)
	k.fill.wakeup(fill)
}

// Stats returns what the simulated kernel counts, which is also what Socket.KernelStats returns.
func (k *Kernel) Stats() KernelStats {
	return KernelStats{RxDropped: k.dropped.Load(), RxInvalid: k.fillBad.Load(),
		RxQueueFull: k.full.Load(), RxFillRingEmpty: k.empty.Load(),
		TxInvalid: k.txInvalid.Load(), TxRingEmpty: k.txEmpty.Load()}
}

// ForgeReceive puts any descriptor into the receive ring, as no kernel does. It reports whether
// there was room.
func (k *Kernel) ForgeReceive(d Desc) bool {
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	ok := k.rx.push(d)
	k.signal()
	return ok
}

// ForgeCompletion puts any address into the completion ring. It reports whether there was room.
func (k *Kernel) ForgeCompletion(addr uint64) bool {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	return k.comp.push(addr)
}

// Filled returns how many frames lie in the fill ring, and Unsent how many descriptors in the
// transmit ring.
func (k *Kernel) Filled() int { return int(k.fill.used()) }

// Unsent returns how many descriptors lie in the transmit ring.
func (k *Kernel) Unsent() int { return int(k.tx.used()) }

// SimRing names a ring whose indices are to be forged.
type SimRing uint8

// The rings of a socket.
const (
	SimFill SimRing = iota
	SimReceive
	SimTransmit
	SimCompletion
)

// ForgeIndex adds to the index that the kernel keeps in a ring, as if it had gone mad.
func (k *Kernel) ForgeIndex(r SimRing, add uint32) {
	switch r {
	case SimFill:
		k.fill.consWord.Add(add)
	case SimReceive:
		k.rx.prodWord.Add(add)
	case SimTransmit:
		k.tx.consWord.Add(add)
	case SimCompletion:
		k.comp.prodWord.Add(add)
	}
}
