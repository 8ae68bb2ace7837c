// Package status lets tools look at endpoints: each one keeps an object in shared memory that says
// what it is and counts what it does.
//
//	+--------+----------------------+-----------------+--------------------------+
//	| page 0 | what does not change | counters        | which capture is wanted  |
//	+--------+----------------------+-----------------+--------------------------+
//	         written when it is made  its driver writes  tools of this user write
//
// The object is called endpoint-UUID and stands in the directory of queues. Its process holds the
// lock on it, so an object whose process died is known for one, and removed by whoever comes by.
//
// The counters are 64-bit words that the driver of the endpoint stores at most once a millisecond.
// Each is true at some moment, not all at the same one. The last page is the one thing that others
// write: a tool puts the number of a capture there (see package capture) and counts the generation
// up, which the driver looks at once a round.
package status
