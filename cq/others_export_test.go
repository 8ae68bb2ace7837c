package cq

import (
	"net"

	"github.com/shmring/shmring/internal/place"
)

// StoreHead and StorePeeked write what a reader says of a lane.
func StoreHead(q *Queue, bit int, at uint64)   { q.rows[bit].Head.Store(at) }
func StorePeeked(q *Queue, bit int, at uint64) { q.rows[bit].Peeked.Store(at) }

// Decider meets the reader at the other end, and returns what a writer does whose rendezvous broke
// when its lane was sent.
func Decider(conn *net.UnixConn) (decided func() bool, end func(), err error) {
	p, err := place.MeetPeer(conn, nil)
	return func() bool { return decide(p) }, p.Close, err
}

// ShareReader returns a descriptor of a queue's reader object, as writers of other users get it.
func ShareReader(q *Queue) (int, error) { return q.obj.ShareFD() }

// StoreTail writes what a writer says of its own lane.
func (w *Writer) StoreTail(at uint64) { w.words.Tail.Store(at) }

// Relays reports whether a keeper was to pass on the rings of a row's writer.
func Relays(q *Queue, bit int) bool {
	h := q.home.(*memfdHome)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes[bit].att.relay != nil
}
