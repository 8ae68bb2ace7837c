package model

import "slices"

// A lane without enough room, explored: its writer is refused and waits until there is, its reader
// sleeps for entries, and another process of the same user takes or wipes the marks, which are
// hints, at any moment and as often as it likes. Nobody else would ring: a refused writer has
// nothing to publish. So whoever is refused rings again (cq: Writer.remind).
//
// The library wakes no writer: it tries again. Here it does so when the head has moved since it
// looked, and after each wipe; whoever tries more often loses no more. Both sides must not wait for
// each other, nor the writer for room that is there, nor the reader for a publish that was not
// wiped away. What is wiped while its writer does not ask for room is lost until the next publish.
//
//	W1 look for room    W2 refused: parked?    W3 anything in the lane? then P3 to P7
//	W4 wait until the head moves

// asks is how much room each operation of lane 0 asks for.
type asks [3]uint8

// room is what a writer of a lane without enough of it does. One with enough changes nothing.
type room struct {
	asked    uint8 // operations that are done
	refused  bool  // the writer rings for a refusal, not for a publish
	moved    bool  // the head, since the writer looked
	tried    bool  // it has tried since the last wipe
	wiped    bool  // a mark of what is unread was
	rangOnce bool  // mutant: it does not ring for another refusal
}

// Deviations.
const (
	roomSilent    = "a refused writer does not ring"
	roomFullOnly  = "a refused writer rings only if the lane has no room at all"
	roomOnce      = "a refused writer rings for the first refusal only"
	roomUnmarked  = "a refused writer rings and does not mark"
	roomWakesOnly = "a refused writer marks and does not ring"
	roomHeadLate  = "who waits for room loads the head when it begins to wait"
	roomEarly     = "a refused writer had rung before it looked for room"
)

// asksForRoom is W1 to W4, and P1 where there is room.
func (v *bell) asksForRoom(s, n *bellState) {
	early := v.bug == roomEarly
	at := s.at[0]
	looks := at == W1 || at == P1 && !early
	n.tried = s.tried || looks != early && at != W4f && at != W4 // with the first that it does
	switch {
	case looks:
		n.moved = false
		if ask := v.asks[s.asked]; v.capacity-s.unread[0] >= ask {
			n.unread[0] += ask
			n.left[0] -= ask
			n.asked++
			n.rangOnce, n.at[0] = false, P2
		} else if n.at[0] = W2; early {
			n.at[0] = W4f
		}
	case at == W4f:
		n.moved, n.at[0] = s.moved && v.bug != roomHeadLate, W4
	case at == W4:
		n.at[0] = P1
	case at != W3 && s.parked&1 != 0 && v.bug != roomSilent:
		n.at[0] = W3
	case at == W3 && s.unread[0] > 0 && (v.bug != roomFullOnly || s.unread[0] == v.capacity) &&
		!s.rangOnce:
		n.at[0], n.refused, n.rangOnce = P3, true, v.bug == roomOnce
	default:
		n.refused = true
		n.finish(0)
	}
}

// reminded goes on when a refused writer has rung, or need not.
func (v *bell) reminded(n *bellState) {
	if n.refused && n.at[0] == P1 {
		n.refused, n.at[0] = false, W4f
		if v.bug == roomEarly {
			n.at[0] = W1
		}
	}
}

// waits: a refused writer does not try again before something has changed.
func (v *bell) waits(s *bellState) bool { return s.at[0] == W4 && s.tried && !s.moved }

func (n *bellState) wipe() { n.ready, n.tried, n.wiped = 0, false, n.unread[0] > 0 }

// takes is a read.
func (v *bell) takes(n *bellState) {
	n.moved = v.capacity > 0
	n.wiped = n.wiped && n.unread[0] > 0
}

// unfinished is how many entries are published, and not yet rung for.
func (v *bell) unfinished(s *bellState) uint8 {
	switch {
	case v.capacity == 0:
		return 1
	case s.refused, s.at[0] < P1:
		return 0
	}
	return v.asks[s.asked-1]
}

// hinted tells that what is unread had a mark that was wiped away, and nobody asks for room.
func (v *bell) hinted(s *bellState) bool { return s.wiped && !v.waits(s) }

// stuck tells that a writer waits for room that is there.
func (v *bell) stuck(s *bellState) bool {
	return v.waits(s) && v.capacity-s.unread[0] >= v.asks[s.asked]
}

func crowded(capacity uint8, a asks, wipes bool) *bell {
	return &bell{publishes: entries{a[0] + a[1] + a[2]}, roles: tasks{direct}, sift: true, rests: true,
		capacity: capacity, asks: a, wipes: wipes}
}

var rooms = family{
	title: "Lanes without room",
	variants: []variant{
		form("1 slot", crowded(1, asks{1, 1, 1}, false)),
		form("1 slot, wiped", crowded(1, asks{1, 1, 1}, true)),
		form("3 slots, wiped", crowded(3, asks{2, 2, 3}, true)),
		form("4 slots, wiped", crowded(4, asks{1, 4, 2}, true)),
	},
	mutants: slices.Concat(
		on("1 slot, wiped", roomSilent, roomOnce, roomUnmarked, roomWakesOnly),
		on("3 slots, wiped", roomFullOnly),
		on("1 slot", roomHeadLate, noTailsAgain, noSecondLook)),
	spare: on("3 slots, wiped", roomEarly),
}
