// Package ring is the single-producer, single-consumer ring that every lane of a queue is made of.
//
// It is pure logic over memory that the caller maps: no system call, no lock, no allocation after
// construction. Two 64-bit indices run freely; the slot of index i is slots[i&(len-1)], so every
// slot is usable and full and empty cannot be confused.
//
//	head                    tail
//	 |  published, unread    |   free, the producer's     |
//	 +-----------------------+----------------------------+  (len(slots) slots, a power of two)
//	consumer writes head     producer writes tail
//
// Half-open ownership: the consumer may read slots [head, tail), the producer may write slots
// [tail, head+len). Each side keeps the other's index in private memory and loads the shared word
// only when its copy says that there is not enough room, or nothing more to read; a batch is
// published with one store.
//
// # Order of memory accesses
//
// The producer fills slots and then stores tail; the consumer loads tail and then reads slots: a
// release store and an acquire load, so that a slot is never read before it was written. The
// consumer reads slots and then stores head; the producer loads head and then writes slots, in the
// same way. How the store of tail is ordered against what the producer does AFTER it is the
// producer's [Order]: a doorbell that is looked at after a publish needs more than a release
// store, and somebody has to pay for that.
//
// # The peer may be hostile
//
// An index that comes out of shared memory is loaded once, compared with the private copies and
// used only if it lies within the ring; otherwise the handle is poisoned for good: its Err is a
// [*CorruptError], and it goes no further than the last index that was possible. Slot
// contents are the caller's to distrust.
//
// # Race detector
//
// Memory outside the Go heap gives the race detector no happens-before edges, so a producer and
// a consumer in one process would look racy for what they hand over. Under -race the package adds
// the edges itself; see race_unsafe.go.
package ring
