package xdp

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
