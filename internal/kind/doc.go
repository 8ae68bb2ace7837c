// Package kind is what stands in shared memory of queues, counters, address vectors and the bells
// of processes: sections, attributes and their bounds, words, and how an entry lies in its slot.
// It has raw integers only; what they mean to users says package cq, which asserts that both agree.
//
// # Files
//
//	queue, addresses, device, counter   a kind each: attributes, bounds, words, how it begins and
//	                                    ends; counter has the bell too
//	attributes                          what a header says of a kind, checked by one walk; sections
//	                                    and names of files
//	errors                              what the others need
package kind
