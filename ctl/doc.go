// Package ctl looks at queues from outside. What shmctl prints, a program gets from here as
// structs; their JSON form is the one of testdata/schema/shmctl-1.json.
//
// Looking changes nothing: objects are mapped read-only, locks are asked for and never taken, and
// no process that uses a queue notices. Only [Collect], and only when asked to, removes something.
// What cannot be known is nil, which JSON prints as null; no key is ever left out. Times are
// nanoseconds, sizes bytes.
//
// All functions may be called from any goroutine; a [Monitor] is for one at a time.
//
// # Files
//
//	describe, object, entries   the structs
//	state                       what one word says of each; errors as they are printed
//	monitor                     queues, again and again
//	check, held                 what is broken: by path, or in a process
//	collect                     what is garbage
package ctl
