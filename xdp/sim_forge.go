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

// Filled returns how many frames lie in the fill ring.
func (k *Kernel) Filled() int { return int(k.fill.used()) }

// Unsent returns how many descriptors lie in the transmit ring.
func (k *Kernel) Unsent() int { return int(k.tx.used()) }
