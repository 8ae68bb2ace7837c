// Package hostile has peers write anything and proves that it harms nobody else.
//
// A supervisor attacks one surface after the other. A surface has a victim, which uses the library
// as any application would; attackers, which have the right to attach; bystanders, whose traffic
// goes on all the while; and a newcomer, who is honest too and comes, posts or sends, and leaves
// again and again. All are real processes, of different users where the surface is a
// border between users ("others"). Where it is none ("user": what only processes of one user can
// share) nothing protects the memory that is shared, and only that nobody is ended or held up by it
// is asked; there a wake may come late, until the next post.
//
//	lane, event-lane      a writer's lane, against the reader and its other writers
//	reader, event-reader  a reader's object, against its writers
//	user-lane, -reader    the same between processes of one user, with the hints that all write
//	counter, vector       counters, address vectors
//	endpoint              outbox, pool, regions, control rings and mail of an endpoint's peers, and
//	                      the group that they are in
//	endpoint-conn         all that either end of a connection by name may write of the other's
//	endpoint-meet         messages and descriptors of meetings of endpoints, one by one and at a
//	                      listener of connections
//	endpoint-dial         the same against those who connect
//	endpoint-met          outbox and rows of endpoints that were met, and of ends of connections
//	meet-accept, -attach  messages and descriptors of a rendezvous, against either side
//	meet-dial             the same of a device process, against applications
//	device-meet           and against the device process
//	device-app            payload, commands and queues of applications, against a device process
//	device-server         UMEM, status page and lanes of a device process, against applications
//
// # What attackers do
//
// They use the library in the role that they have, to be met and mapped at all. Meanwhile a
// goroutine on a thread of its own, pinned to a processor, writes to every word of every mapping
// that they may write and others read, found in /proc/self/maps and not by what the library says.
// It aims at indices, at entries and their records, at the header, at anything; stores chosen
// values (0, 1, -1, a power of two and its neighbours, what stands there and its neighbours, what
// stood somewhere before) and random ones. It wakes for nothing, or not at all, and writes to pipes
// until they are full. When they are found out, or after some milliseconds, they leave and come
// again; now and then a whole process does, and at the end all are killed in the middle of what
// they do. Those who meet others say what the protocol wants, but for little, or anything, in
// pieces or twice, with descriptors of all kinds and of wrong sizes and seals; and keep connections
// open in silence. Those who meet endpoints, or were met, write objects, lanes, rows and messages
// field by field, too: each is right, or just within or beyond a bound. Each store and each message
// is a mutation; bursts of stores go at full speed and some microseconds lie between them, so that
// many states are seen and not the last one often.
//
// What a word does that changes between two loads of a call is not left to luck: TestFlip of the
// packages tries each sequence of values that the loads can see.
//
// # What is provable
//
// Nothing of the library decides whether it did well:
//
//   - A victim that panics, or touches memory that it does not have, ends, and its supervisor sees
//     how. Every mapping stands between pages that nobody may touch (see package shm).
//   - Entries of bystanders carry a number and a seal over it with a key that attackers do not
//     have. Each is to come once and in order, and none may be missing at the end; what has no such
//     seal is foreign, and may be anything.
//   - A newcomer of a user of its own is let in within twenty seconds, and nothing that it does
//     then is refused; what it posts is read as that of bystanders is. It comes three times at
//     least during each attack at a border between users. To endpoints one of the same user comes,
//     or of its own where they are met; it is let in when all that it sent has its receive, or came
//     back.
//   - Each call of a victim is watched: one that takes over a minute hangs. It may compute for two
//     seconds, as the clock of its thread counts them, and is asked how many system calls it made
//     to sleep, wake or order: 32 may be, 400 while it waits, 1000 while it waits for a context.
//   - Every error is held against a list of what callers can ask for with errors.Is.
//   - Each attack must have provoked something: lanes that were given up where lanes are attacked,
//     errors that blame a peer elsewhere, counters excepted, of which any value is a value.
//   - When the attackers are gone, descriptors, mappings and goroutines of the victim must be as
//     few as before the first came.
//
// The seed replays the choices of each process, not the schedule of all of them.
package hostile
