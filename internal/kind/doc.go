// Package kind is what stands in shared memory of queues, counters, address vectors and the bells
// of processes: sections, attributes and their bounds, words, and how an entry lies in its slot.
// It has raw integers only; what they mean to users says package cq, which asserts that both agree.
//
// # Files
//
//	queue, counter, addresses, bell, device
//	                                  a kind each: attributes, bounds, sections
//	layout, slot, details             words and slots
//	attributes                        what a header says of a kind, checked by one walk
//	addresses_table                   what is kept in a vector, and in which order it is stored
//	level, sections                   how they are read and mapped
//	life                              how they begin and end
//	names                             what files are called
//	errors, sockaddr                  what the others need
package kind
