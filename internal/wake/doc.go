// Package wake decides who must be woken when something was published, and when not to.
//
// It is the one protocol behind every blocking call of shmring. A reader that finds a lane empty
// parks it (one word that the producer of this lane looks at after each publish), looks at the
// lane again, arms the bell, looks again at what producers marked meanwhile, and sleeps. While it
// is awake and keeps up, a producer pays one load of a line that does not change; no system call.
// Package doorbell gives it to programs that have rings of their own.
//
// # Steps
//
// The code names the steps of the protocol, and internal/model explores them under the same names.
//
//	producer            reader, direct wait           reader, wait set over many queues
//	P1 publish          R1 take the ready bits        S1 take the domain's bits, hand them on
//	P2 parked?          R2 un-park candidates         S2 look at each queue that was marked
//	P3 ready bit        R3 drain (the caller's)       S3 load the domain's epoch
//	P4 load armed       R4 park, look again           S4 arm the domain
//	P5 queue's bell     R5 load epoch, wake indices   S5 second look
//	P6 domain bit       R6 arm                        S6 futex wait
//	P7 domain's bell    R7 second look                S7 disarm if nobody waits
//	                    R8 futex wait
//	                    R9 disarm
//
//	reader, arming a channel                 reader, getting an event of a channel
//	N1 take the ready bits, park             C1 take the domain's bits, hand them on
//	N2 the event of the arming before        C2 decide on each queue that was marked
//	N3 arm                                   C3 is S3 to S7
//	N4 note the indices
//
// Only the reader disarms. A producer wakes first and marks the bell rung afterwards, so that one
// that dies between the two mutes nobody. Ready bits are hints: they may be lost with whoever
// took them or forged; published indices are the truth.
//
// # Who pays for order
//
// Between P1 and P2 a producer's publish must be visible before it looks at its parked word, and
// between the two halves of R4 the parked word before the reader looks at the lane. Either the
// producer pays, with a sequentially consistent publish, or the reader does, with a
// membarrier(2) each time it parks a lane that was hot. In the second case a producer that does
// find itself parked fences before it goes on to P3 (see [RingerConfig.Fence]). R2 leaves lanes
// parked at the first look after they were, so a reader that sleeps for each entry never pays.
//
// # Other users
//
// A producer whose reader is another user's cannot write to the reader's hints. After P2 it counts
// the ring in a word of its own lane, rung, and wakes that word:
//
//	producer                      reader                        keeper of its process
//	Q3 rung++                     H1 load rung, mark the lane   K1 load rung
//	Q4 load armed                 R1 to R7 as above             K2 mark, P4 to P7 as a producer
//	Q5 byte into the pipe         R8 futex_waitv on the epoch   K3 futex_waitv on every rung
//	Q6 rung++ once more              and on every rung
//	Q7 wake rung
//
// What is slept on is the count that was heard last, never one loaded since. Q6 ends a sleep for
// which Q7 comes too early: the first count may have been heard before the arming. A reader with
// a queue of its own sleeps on the words itself; for goroutines that share one, sets and channels
// [Bell.Forward] listens, and rings in place of the producer. A queue's descriptor nests a pipe for
// each lane. Whoever rings often for nothing is not listened to for a while, up to 128 ms at a
// time, so that the work which a hostile producer makes is bounded. Producers pay for order here.
//
// # Domain
//
// A [Domain] is the bell of a reading process: a bit for each of its queues and counters, and one
// futex word. A wait set ([Set]) is a mask over the bits and a list of members to look at;
// waiting costs what the marked members cost, however many there are. A completion channel
// ([Channel]) is the same with one-shot armings: its mask is what it is armed for, and an event is
// measured against the indices at the arming, under the queue's lock, so that each has one taker.
// While a channel is armed for a queue its lanes stay parked, since the channel needs their marks.
//
// A queue may be in sets, on a channel, and read directly at the same time. Whoever takes shared
// bits hands them to everybody who may wait for them, in the same critical section.
//
// # Faces
//
// A sleeping reader waits on a futex (the epoch word), or the user waits in epoll on a descriptor.
// That of a queue is written to by producers, and armed by TryWait steps, never by reading. That
// of a set or channel is raised here, by whoever puts something on its list while it is lowered;
// one goroutine per domain, the keeper, sleeps on the futex for them all. A set's is lowered by
// TryWait, a channel's by the get that takes the last event. Exactly one consumer owns a
// descriptor.
//
// # Deaths
//
// A producer that dies between publish and mark cannot ring. Whoever gets notice of its death calls
// [Bell.Mark], which wakes the queue's own sleepers and makes every set and channel look; where no
// notice comes, waits have slices, each of which ends with a look at every member.
//
// # Files
//
//	words                 the words in shared memory, and sets of bits
//	ringer                the producer's half
//	bell                  the reader's half: which lanes can have something
//	sleep                 how a reader sleeps, and listens to producers of other users
//	domain, set, channel  many queues at once
//	face                  descriptors to wait on; threads that pass rings on
package wake
