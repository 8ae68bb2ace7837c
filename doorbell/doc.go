// Package doorbell decides who must be woken when something was published, and when not to.
//
// It is the one protocol behind every blocking call of shmring. A reader that finds a lane empty
// parks it (one word that the producer of this lane looks at after each publish), looks at the
// lane again, arms the bell, looks again at what producers marked meanwhile, and sleeps. While it
// is awake and keeps up, a producer pays one load of a line that does not change; no system call.
//
// # Steps
//
// The code names the steps of the protocol, and the model check in this package explores them
// under the same names.
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
// find itself parked fences before it goes on to P3 (see [Ringer.Fence]).
//
// # Faces
//
// A sleeping reader waits on a futex (the epoch word), or the user waits in epoll on a descriptor
// that producers write to; the second is armed by TryWait steps and never by reading. Exactly one
// consumer owns a descriptor.
package doorbell
