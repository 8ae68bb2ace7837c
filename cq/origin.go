package cq

import (
	"io/fs"
	"math"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// Lane says who entries came from: the writer of a lane. What it says is known in different ways.
//
//	Row         which lane an entry was in is the reader's own knowledge: no writer can put one into
//	            another one's
//	UID, PID    with CrossUser what the kernel said of the process that connected, at the
//	            rendezvous. Otherwise UID is this process's own, since no other user can write to
//	            the queue, and PID is what the writer said of itself
//	the rest    what the writer says
//
// So with CrossUser a reader knows which user and process posted an entry, whatever stands in it:
// another one's context, tag or source. It does not know whether that process has passed its lane
// on to others, a child say. Among processes of one user nothing is authenticated.
type Lane struct {
	Row        int
	PID        int // 0 if it is not known
	UID        int
	Object     shm.UUID // of the lane, as PeerEntry.Object
	Generation uint64   // of the writer among those that the lane had, as PeerEntry.Generation
	Published  uint64   // how many entries all of them have published
}

// Lane returns who has a row. With the zero object that is the one who has it now, or had it last:
// fs.ErrNotExist if nobody has had it, or if its writer was of another user and has left. What a
// read returned may be a former one's: [ReadOptions].From, [Queue.PeekedLane] and the From of
// failures and events say whose.
//
// With the object of a lane it is about that one. Whoever knows under which index a writer that
// died was about to publish, see [Writer.Next], learns from Published whether that came about. A
// row of writers of other users has a new object for each writer, and the last one that left is
// still known; of those before the error is [shm.ErrStale].
//
// Other errors are ErrInvalid for a row that there is not, and ErrClosed. Lane may be called from
// anywhere.
func (q *Queue) Lane(row int, object shm.UUID) (l Lane, err error) {
	err = q.withLane(row, func(obj *shm.Object, peer *place.Peer, former place.Lane) error {
		switch whoever := object == (shm.UUID{}); {
		case obj != nil && (whoever || obj.Header().UUID == object):
		case whoever:
			return fs.ErrNotExist
		case former.Object == object:
			l = Lane(former)
			return nil
		default:
			return &Error{Pkg: kind.Pkg, Op: "look at lane of", Name: q.name, Field: "lane", Got: row,
				Want: object, Err: shm.ErrStale, Hint: "ask for its row again: it has another writer"}
		}
		words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(row))
		if err != nil {
			return err
		}
		l = Lane(place.LaneFrom(row, obj, peer, obj.Owner().Generation))
		l.Published = words.Tail.Load()
		return nil
	})
	return l, err
}

// readLane is readFrom that takes the entries of one writer only, and says in from whose they are.
func readLane[T Readable](q *Queue, dst []T, src []Addr, from *Lane) (n int, err error) {
	if q.feeders.driven() {
		q.feeders.progress()
	}
	if !q.enter() {
		return 0, q.guard.refusal()
	}
	q.from = from
	n, err = drain(q, dst, src)
	q.from = nil
	q.leave()
	return n, err
}

// PeekedLane says whose the entries are that are handed out, by Peek, PeekContext and in the body
// of a loop over Entries: they all come from one lane. If that had several writers, one after the
// other, which only processes of one user can be, it is that of the first entry. Without any handed
// out it is ErrInvalid.
func (q *Queue) PeekedLane() (Lane, error) {
	if !q.enter() {
		return Lane{}, q.guard.refusal()
	}
	defer q.leave()
	if q.out == nil {
		return Lane{}, kind.Refuse("look at lane of", q.name, "entries handed out", 0, "1 or more",
			ErrInvalid)
	}
	l, _ := q.origin(q.out)
	return l, nil
}

// origin says whose the next entry of a lane is, and before which index those of another begin.
func (q *core) origin(l *lane) (from Lane, end uint64) {
	obj, end := l.obj, uint64(math.MaxUint64)
	if l.att != nil {
		from = Lane(place.LaneFrom(l.bit, obj, l.att.Peer, obj.Owner().Generation))
	} else {
		if obj == nil {
			obj = q.obj
		}
		var generation uint64
		generation, end = l.writerOf(l.cons.Head())
		from = Lane(place.LaneFrom(l.bit, obj, nil, generation))
	}
	from.Published = l.words.Tail.Load()
	return from, end
}

// ofOne says whose the next entries of a lane are, and returns how many of n at most are.
func (q *core) ofOne(bit, n int) int {
	l := q.lanes[bit]
	var end uint64
	*q.from, end = q.origin(l)
	return int(min(uint64(n), end-l.cons.Head()))
}

// writerOf returns the generation of the writer of an entry, and the index at which the next one
// began. Nothing is checked: a writer may have written anything.
func (l *lane) writerOf(at uint64) (generation, end uint64) {
	end = math.MaxUint64
	for i := range l.words.Epochs {
		e := &l.words.Epochs[i]
		g, start := e.Generation.Load(), e.Start.Load()
		if start > at {
			end = min(end, start)
		} else {
			generation = max(generation, g)
		}
	}
	return generation, end
}

// withLane lends the object of a row, or nil if there is none, with the peer whose it is if that is
// of another user, and says which lane of the row was retired last.
func (q *core) withLane(row int, do func(*shm.Object, *place.Peer, place.Lane) error) error {
	if row < 0 || row >= q.opt.rows() {
		return kind.Refuse("look at lane of", q.name, "lane", row, q.opt.MaxLanes, ErrInvalid)
	}
	if !q.guard.enterAny() {
		return ErrClosed
	}
	defer q.guard.leaveAny()
	if row == 0 {
		return do(q.obj, nil, place.Lane{})
	}
	return failed("look at lane of", q.name, q.side.Look(row, do))
}

// copySources is for sources what copyEntries is for entries.
func copySources(src []Addr, span []Entry) int {
	n := min(len(src), len(span))
	for i := range n {
		src[i] = span[i].Src.Addr()
	}
	return n
}
