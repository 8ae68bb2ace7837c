// Package shm makes and opens shared memory objects that other processes of the same user can
// find, check and outlive.
//
// An object is one file in memory, or one memfd. Page 0 describes it; sections follow, each on
// pages of its own unless its maker asks for less. One process at a time owns an object and writes
// it; what others may write is a section that its maker sets aside.
//
//	byte      page 0, all numbers little-endian
//	0x000     magic "shmring\0"
//	0x008     byte order mark u32, ABI major u16, ABI minor u16
//	0x010     header length u32, kind u32, total size u64
//	0x020     feature bits: compatible, read-only-compatible, incompatible (u64 each)
//	0x038     uuid 16, generation at creation u64, boot id 16
//	0x060     creator: pid u64, pid namespace u64, start time u64
//	0x078     creation: CLOCK_MONOTONIC ns, CLOCK_REALTIME ns (i64 each)
//	0x088     length of name u32, number of sections u32, name 64
//	0x0d0     bytes that have memory from the beginning u64, 0: all of them; zero 40
//	0x100     attributes 16 x u64, meaning by kind
//	0x180     32 sections of 64 bytes: kind u32, id u32, offset, length, element size,
//	          capacity, layout hash, alignment (u64 each), zero 8
//	0x980     CRC32C of the 0x980 bytes before it; from here to 0xa00 zero
//	          ---- nothing above changes after creation ----
//	0xa00     state u64: 1 when complete, written last          | creator
//	0xa80     turn u64: its low bit says which record holds     | owner, under the lock
//	0xa88     generation u64: grows with every claim            | owner, under the lock
//	0xb00     owner record 0: pid, pid namespace, start time,   | owner, under the lock
//	          boot id 16, state, claimed ns, generation
//	0xb80     owner record 1                                    | owner, under the lock
//	0xc00     8 records of owners that died, 64 bytes each, by  | next owner, under the lock
//	          generation modulo 8: generation, pid, pid
//	          namespace, start time, how many until then
//	0xe00     zero
//	page 1    first section
//
// # Ownership and death
//
// The owner holds a write lock of its own open file description on the object. The kernel drops it
// when the process dies, however it dies; nothing is ever taken over because time has passed. See
// [Object.Life] and [Object.Claim].
//
// A process that becomes another program (execve) loses the lock and the memory, and lives. A
// process that may read its entries in /proc finds that, and may claim what it owned.
//
// An object that many processes write has no owner while they have it open. Each has a [Seat]
// instead, a lock on one byte with a record of its own, and nobody can claim the object, to remove
// it, beside them. Objects and seats answer the same questions: Owner, Life, OwnerDied, Deaths.
//
// # Trust
//
// Objects with a name are for processes of one user, who could trace each other anyway. Even so
// nothing in a page is believed: a header is copied, checked, and the copy used. One thing cannot
// be prevented: a process of that user may truncate a file, which ends with SIGBUS whoever touches
// its memory outside of [Guard]. A sealed memfd cannot be truncated. What is left of a
// file that was, and that nobody has any more, goes with the next collection ("shmctl gc").
//
// A memfd can go to another user once it has its [SealOthers]: then nobody writes to it but through
// the mapping that its creator has, and nobody truncates it. [OpenPassed] takes such an object, and
// nothing else. The lock of an object proves nothing across users, who could hold one on anything
// that they can open: a peer is dead when its process and its end of the socket have ended.
//
// # Files
//
//	dir                      names in a directory
//	create, open             an object is made, or mapped; descriptors that are sent
//	header, spec, check      page 0, as pure functions
//	claim, owner, seat       who owns it, and whether that process lives
//	object, region           what users of it share: memory, windows, loans
//	sys, process             system calls; who a process is, and its death
package shm
