package model

// Numbers that wrap, explored with very few values where the code has 32 bits: that of an arming in
// the armed word and in rung, and the epoch. (Indices and what a domain and a counter number have
// 64 bits and never wrap.) Other variants of the bell name an arming whatever has not been seen
// yet; these count, so that an arming can have the number of a former one.
//
// Within these bounds nothing is lost. A producer stands still between P4 and P5r for fewer
// armings than there are numbers, less the one that is left out: 2^32-1. Producers ring fewer times
// between R5 and R8 than the epoch has values: each rings once for an arming that it knows of. With
// one reader those are two, and more only while other readers of the same process arm.
//
// A rung that stands there since a whole round ago needs no bound: an arming never takes the number
// that was rung last (Bell.renumber), however long nobody has rung.

// Deviations.
const (
	wrapTaken    = "an arming takes the number that was rung last"
	wrapLess     = "a bell is rung if its number is less than that of the arming"
	wrapLessEdge = "the number that was rung last is left out, and numbers are compared by order"
	wrapStands   = "a producer stands between P4 and P5r for a whole round"
	wrapEpochs   = "the epoch has as many values as there are rings between R5 and R8"
	wrapZero     = "an arming with the number 0 counts as none"
)

// renumber gives the next arming its number, which is one less than the armed word of the model, as
// there 0 is none. It is false while the bound keeps the reader from it.
func (v *bell) renumber(s, n *bellState) bool {
	n.seq = (s.seq + 1) % v.numbers
	steps := uint8(1)
	if n.seq+1 == s.rung && v.bug != wrapTaken && v.bug != wrapLess {
		n.seq = (n.seq + 1) % v.numbers
		steps++
	}
	n.armed = n.seq + 1
	for l, at := range s.at {
		if at < P5 || at > P5r || v.bug == wrapStands {
			continue
		}
		if n.age[l] += steps; n.age[l] >= v.numbers {
			return false
		}
	}
	return true
}

// moves is epoch++, which who sleeps may take for none when it has as many values as there were.
func (v *bell) moves(t *task) {
	t.fresh = false
	if v.epochs > 0 && t.at >= R6 && t.at <= R8 {
		values := v.epochs
		if v.bug == wrapEpochs {
			values = 2
		}
		t.moved = (t.moved + 1) % values
		t.fresh = t.moved == 0
	}
}

func wrapping(publishes entries, numbers, epochs uint8) *bell {
	return &bell{publishes: publishes, roles: tasks{direct}, numbers: numbers, epochs: epochs}
}

var wraps = family{
	title: "Numbers that wrap",
	variants: []variant{
		form("1 lane x3, 4 numbers", wrapping(entries{3}, 4, 4)),
		form("2 lanes x2 and x1, 4 numbers", wrapping(entries{2, 1}, 4, 8)),
		form("2 lanes x2, 3 numbers", wrapping(entries{2, 2}, 3, 8)),
	},
	mutants: append(
		on("1 lane x3, 4 numbers", wrapTaken, wrapLess, wrapLessEdge, wrapZero, wrapEpochs),
		on("2 lanes x2 and x1, 4 numbers", wrapStands)...),
}

// The count of rings in the lane of another user's writer, explored with few values where the code
// has 32 bits. The reader compares it with what it heard last, for being another one, and sleeps on
// it: as many rings as it has values, between two looks, would look like none. A writer rings at
// most twice for a publish, in Q3 and Q6, and cannot publish more between two looks than the lane
// takes, once before the reader drains it and once after. So four times a lane's capacity has to be
// less than 2^32; cq allows much less.
//
// A writer remembers for which arming it rang last, by the arming's number alone. One that did not
// ring for 2^32 armings in a row would take the next for that one, and not wake its reader for a
// publish in just that one: this is a bound, and nothing in the code keeps to it.

// Deviations.
const (
	ringsFew  = "as many rings between two looks as their count has values"
	ringsLess = "a count is heard if it is more than the one heard last"
	ringsOld  = "a writer rang last for an arming a whole round ago"
)

// counts is rung++ in a lane.
func (v *othersModel) counts(n *othersState, l int) {
	bit := uint8(1) << l
	n.newKeeper |= bit
	n.newBell |= bit
	if v.values == 0 {
		return
	}
	n.count[l] = (n.count[l] + 1) % v.values
	if n.count[l] == n.heard[l] || v.bug == ringsLess && n.count[l] < n.heard[l] {
		n.newBell &^= bit
	}
}

// number gives an arming its number, which is one less than the armed word of the model.
func (v *othersModel) number(n *othersState) {
	n.armed = newSeq
	if v.numbers > 0 {
		n.seq = (n.seq + 1) % v.numbers
		n.armed = n.seq + 1
	}
}

func (v *othersModel) deviate(bug string) {
	switch v.bug = bug; bug {
	case ringsFew:
		v.values = 2
	case ringsOld:
		v.numbers = 3
	}
}

func ringing(publishes, capacity, values uint8) *othersModel {
	return &othersModel{publishes: [othersLanes]uint8{publishes}, roles: [2]othersRole{oDirect},
		values: values, capacity: capacity}
}

var rings = family{
	title: "Counts of rings that wrap",
	variants: []variant{
		form("1 slot x5, 5 values", ringing(5, 1, 5)),
		form("2 slots x12, 9 values", ringing(12, 2, 9)),
	},
	mutants: on("1 slot x5, 5 values", ringsFew, ringsLess, ringsOld),
}
