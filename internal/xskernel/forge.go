package xskernel

import "syscall"

// ForgeReceive puts any descriptor into the receive ring, as no kernel does. It reports whether
// there was room.
func (k *Kernel) ForgeReceive(d Desc) bool {
	k.rxMu.Lock()
	defer k.rxMu.Unlock()
	ok := k.Rx.Push(d)
	k.signal()
	return ok
}

// ForgeCompletion puts any address into the completion ring. It reports whether there was room.
func (k *Kernel) ForgeCompletion(addr uint64) bool {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	return k.Comp.Push(addr)
}

// Filled returns how many frames lie in the fill ring.
func (k *Kernel) Filled() int { return int(k.Fill.Used()) }

// Unsent returns how many descriptors lie in the transmit ring.
func (k *Kernel) Unsent() int { return int(k.Tx.Used()) }

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

// RingOf names a ring whose indices are to be forged.
type RingOf uint8

// The rings of a socket.
const (
	FillRing RingOf = iota
	ReceiveRing
	TransmitRing
	CompletionRing
)

// ForgeIndex adds to the index that the kernel keeps in a ring, as if it had gone mad.
func (k *Kernel) ForgeIndex(r RingOf, add uint32) {
	switch r {
	case FillRing:
		k.Fill.Cons.Add(add)
	case ReceiveRing:
		k.Rx.Prod.Add(add)
	case TransmitRing:
		k.Tx.Cons.Add(add)
	case CompletionRing:
		k.Comp.Prod.Add(add)
	}
}
