// Package inspect looks at the objects of queues, counters, address vectors and bells from outside,
// by read-only mappings: nobody waits for it or notices. Package ctl is its face.
//
// # Files
//
//	view           the memory of a queue and its lanes, for as long as somebody looks
//	words          names for numbers of package cq
//	check          invariants, and one object
//	queue, lane    what a queue's objects must be together
//	object         what stands beside the queues
//	held           what a process has, whatever names that has
package inspect
