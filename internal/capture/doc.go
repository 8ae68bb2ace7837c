// Package capture copies packets of an endpoint to a tool, without disturbing the endpoint: a copy
// that finds no room is left out and counted, nothing waits.
//
// The tool makes an object in the directory of queues, capture-UUID, and holds the lock on it:
//
//	+--------+--------------------+---------------------+---------+--------+
//	| page 0 | head               | tail, counts, state | records | bytes  |
//	+--------+--------------------+---------------------+---------+--------+
//	         the tool writes       the endpoint writes
//
// Then it puts the UUID into the object of the endpoint (package status). The endpoint finds it
// there in its next round, maps the object and fills it as the one producer of a ring: a record of
// 64 bytes for each packet and, at the same index, its first bytes. The tool is proved dead when
// its lock is free; the endpoint looks ten times a second and removes what it left.
package capture
