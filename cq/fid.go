package cq

import (
	"encoding/binary"
	"fmt"

	"github.com/shmring/shmring/shm"
)

// FIDKind says what kind of object a fabric identifier means (the class of a struct fid).
type FIDKind uint32

// The kinds of objects that an event can be about.
const (
	FIDNone FIDKind = iota
	FIDQueue
	FIDEvents
	FIDCounter
	FIDAddresses
	FIDMemory
	FIDPollSet
	FIDWaitSet
	FIDChannel
	FIDEndpoint
	FIDPassiveEndpoint
	FIDConnRequest
	FIDDomain
	FIDFabric
	FIDUser // an application's own object
)

var fidNames = [...]string{"none", "queue", "events", "counter", "addresses", "memory", "poll set",
	"wait set", "channel", "endpoint", "passive endpoint", "connection request", "domain", "fabric",
	"user"}

// String returns the kind in a word, or its number.
func (k FIDKind) String() string {
	if int(k) < len(fidNames) {
		return fidNames[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// FID names an object to every process (in place of libfabric's pointer, struct fid). The id of a
// shared object is drawn from its uuid; that of an object of one process is drawn at random. The
// generation grows when another process takes a shared object over. The zero FID means no object.
type FID struct {
	Kind       FIDKind
	ID         uint64
	Generation uint64
}

// String returns kind, id in hexadecimal and generation.
func (f FID) String() string {
	return fmt.Sprintf("%v %016x.%d", f.Kind, f.ID, f.Generation)
}

// objectFID returns the identifier of a shared object as its present owner has it. The object must
// stay open meanwhile.
func objectFID(kind FIDKind, obj *shm.Object) FID {
	return FID{Kind: kind, ID: objectID(obj), Generation: obj.Owner().Generation}
}

// objectID is FID.ID of a shared object, which may be closed at any time: its memory is not looked
// at.
func objectID(obj *shm.Object) uint64 {
	u := obj.Header().UUID
	return binary.LittleEndian.Uint64(u[:8])
}

// FID returns the queue's identifier, by which events mean it.
func (q *core) FID() FID { return q.fid }
