package ring

// sync/atomic offers sequentially consistent stores only, which cost an XCHG on amd64: as much as
// the rest of a publish. The two files beside this one say what a release store is instead.

// StoreRelease stores v with release order: everything before it, in program order, is visible to
// a processor that loads v with acquire order. It does not order later loads of this processor;
// that is what makes it cheap, and why a doorbell must not be looked at behind it unless the other
// side pays for the order. Of two stores to one word with no load between them the first may never
// be seen. Under the race detector it is a sync/atomic store.
func StoreRelease(p *Index, v uint64) { storeRelease(p, v) }
