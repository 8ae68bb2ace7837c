package xdp

import "syscall"

// FailKicks has the next system calls that send fail with these errors, and do nothing else.
func (k *Kernel) FailKicks(errs ...syscall.Errno) {
	k.txMu.Lock()
	defer k.txMu.Unlock()
	k.failures = append(k.failures, errs...)
}

// NeedWakeup sets what the driver says about being woken: to send, and to take frames to receive
// into. At first it is what copy mode says for ever: true and false.
func (k *Kernel) NeedWakeup(tx, fill bool) {
	k.tx.wakeup(tx)
	k.fill.wakeup(fill)
}

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

// ReadRecord decodes a record.
var ReadRecord = readRecord
