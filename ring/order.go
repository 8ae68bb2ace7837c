package ring

// This file documents the few lines of assembly behind it. sync/atomic offers sequentially
// consistent stores only, which cost an XCHG on amd64; Go's plain stores promise no order at all
// and the compiler may merge them.

// StoreRelease stores v with release order: everything before it, in program order, is visible to
// a processor that loads v with acquire order. It does not order later loads of this processor;
// that is what makes it cheap, and why a doorbell must not be looked at behind it unless the other
// side pays for the order. Under the race detector it is a sync/atomic store.
func StoreRelease(p *Index, v uint64) { storeRelease(p, v) }
