package cq

import "net"

// StoreHead and StorePeeked write what a reader says of a lane.
func StoreHead(q *Queue, bit int, at uint64)   { q.rows[bit].head.Store(at) }
func StorePeeked(q *Queue, bit int, at uint64) { q.rows[bit].peeked.Store(at) }

// Decide is what a writer does whose rendezvous broke when its lane was sent.
func Decide(conn *net.UnixConn) bool { return (&meeting{conn: conn}).decide() }

// ShareReader returns a descriptor of a queue's reader object, as writers of other users get it.
func ShareReader(q *Queue) (int, error) { return q.obj.ShareFD() }
