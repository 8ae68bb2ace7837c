package torture

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/shmring/shmring/internal/stage"
)

// Words of the role: counts, then some for each place, then talks.
const (
	endSent       = iota // messages
	endDone              // of them completed
	endFailed            // ended with an error
	endSeen              // were received
	endCut               // receives that a death or a close cut short
	endOpened            // endpoints
	endNoRoom            // talks that ended for want of a row or a place
	endCalms             // how often everything was seen
	endEchoed            // connections of which all came back
	endReset             // that a death or a close cut short
	endLinked            // connections by events that went as was asked for
	endUnlinked          // that a death or a close cut short
	endGrouped           // sends to groups
	endMissed            // messages of these that members were told to have missed
	endMatched           // messages that completed because they have their receive
	endLent              // that were lent to their receiver
	endReferenced        // that were sent by reference
	endReached           // reads and writes of memory of peers, and atomics, without data
	endHead

	endHolder  = 0 // outbox of the endpoint that a place has, 0 if it is closing or has none
	endBy      = 1 // and the process that has it
	endOpen    = 2 // its sends that have not ended
	endTalks   = 3 // talks that were begun
	endListens = 4 // odd while its listener is open, and counts these
	endSum     = 5 // key of the word that others add to, as long as that holds; else 0
	endKey     = 6 // the same of the memory in which each place has a part
	endLinks   = 7 // as endListens, of its passive endpoint
	endWaits   = 8 // receives of each kind that may have a message and are not seen
	endPlace   = endWaits + endKinds

	// Begun are additions to the receiver's word, added those that completed.
	talkTo, talkFrom, talkIntent, talkBegun, talkAdded, talkDone = 0, 1, 2, 3, 4, 5
	talkSeen                                                     = talkDone + talkMessages/64
	talkWords                                                    = talkSeen + talkMessages/64
)

// talks is the part of the ledger that the role has.
type talks []atomic.Uint64

func (l *ledger) talks() talks { return l.region("endpoint") }

func (t talks) place(i int) []atomic.Uint64 {
	return t[endHead+i*endPlace : endHead+(i+1)*endPlace]
}

func (t talks) at(place int, n uint64) talk {
	at := endHead + endpoints*endPlace + (place*maxTalks+int(n))*talkWords
	return talk(t[at : at+talkWords])
}

// begun is how many talks a place began, within bounds.
func (t talks) begun(place int) uint64 {
	return min(t.place(place)[endTalks].Load(), maxTalks)
}

// of returns the talk of a message, and its place there.
func (t talks) of(id uint64) (talk talk, k int, ok bool) {
	place, n := int(id>>40)-1, id<<24>>24>>talkBits
	if place < 0 || place >= endpoints || n >= t.begun(place) {
		return nil, 0, false
	}
	return t.at(place, n), int(id % talkMessages), true
}

// has returns the place whose endpoint has an outbox, -1 if there is none.
func (t talks) has(outbox uint64) int {
	for i := range endpoints {
		if outbox != 0 && t.place(i)[endHolder].Load() == outbox {
			return i
		}
	}
	return -1
}

// missing returns how many messages that a place sent to an endpoint are done and not seen. Talks
// before from are not looked at.
func (t talks) missing(place int, to, from uint64) (n int) {
	for i := from; i < t.begun(place); i++ {
		if talk := t.at(place, i); talk[talkTo].Load() == to {
			for w := range talkMessages / 64 {
				n += bits.OnesCount64(talk[talkDone+w].Load() &^ talk[talkSeen+w].Load())
			}
		}
	}
	return n
}

type talk []atomic.Uint64

// set sets the bit of a message, and reports whether that was set.
func (t talk) set(first, k int) bool { return t[first+k/64].Or(1<<(k%64))>>(k%64)&1 != 0 }

func (t talk) is(first, k int) bool { return t[first+k/64].Load()>>(k%64)&1 != 0 }

// calmEndpoints is role.calm of endpoints.
func (s *supervisor) calmEndpoints(r *role) error {
	who, t := s.there(r.name), s.ledger.talks()
	var last string
	var all both // the other one is whoever could run least
	return s.still(r.name, who, func() bool {
		what := ""
		for _, p := range s.procs {
			if _, there := who[p]; !there {
				continue
			}
			here := t.place(p.index)
			if n := here[endOpen].Load(); n > 0 {
				what = fmt.Sprintf("%d sends of endpoint %d have not ended", n, p.index)
			}
			for i, from := range s.looked {
				if n := t.missing(i, here[endHolder].Load(), from); n > 0 {
					what = fmt.Sprintf("%d messages from %d to %d are done and not seen", n, i, p.index)
				}
			}
		}
		if what == "" {
			for i := range s.looked {
				s.looked[i] = max(t.begun(i), 1) - 1 // the last may go on
			}
			t[endCalms].Add(1)
			return true
		}
		if what != last {
			all, last = both{}, what
		}
		least := stage.Lifetime()
		for p := range who {
			least = min(least, s.lived(p))
		}
		late := all.live(stage.Lifetime(), least, vigilEvery) > cmp.Or(s.o.latest, seenLatest)
		if late {
			s.broken(r.name, kindHung, 1, "nobody begins a send or is killed, and %s", what)
		}
		return late
	})
}
