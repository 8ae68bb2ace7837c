package soak

import (
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/internal/crash"
)

// casts are the roles of rounds: few at a time come round faster, all together find what is between
// them. Those of one user are nil. Who owns a device takes long to start, so there are two of that.
// The last has all.
var casts = [][]string{{"device"}, nil, {"churner"}, {"others-writer", "others-event-writer"},
	{"set-writer"}, {"vector-user"}, {"event-writer"}, {"counter"}, {"writer"}, torture.Roles()}

const (
	castDevice = 0
	castUser   = 1
	castFirst  = 4 // so many have a round each at the beginning
	// Of so many rounds one has all roles and one those of a user; the others are chosen.
	castTurn = 6
	userTurn = 2
)

// company is a cast with the steps at which it dies.
type company struct {
	roles []string
	steps []crash.Label
}

// playable returns the casts that can play here; the last is the one with all that can.
var playable = sync.OnceValue(func() (all []company) {
	for _, roles := range able(casts, lacking) {
		all = append(all, company{roles, torture.Steps(roles)})
	}
	return all
})

// cast returns the roles of the next round. chosen says that it was for what they lack: the round
// is over when they lack nothing.
//
// A step is drawn, more likely one that lags far behind, and the smallest cast that dies at it
// plays. So the seed of a round replays the choice only with the deaths before it, and the report
// says what was played.
func (r *Report) cast(seed uint64) (roles []string, chosen bool) {
	turn, all := r.Rounds%castTurn, playable()
	switch {
	case turn == castTurn-1:
		return all[len(all)-1].roles, false
	case turn == userTurn:
		return casts[castUser], false
	case r.Rounds < castFirst:
		return all[int(r.Rounds)%len(all)].roles, false
	}
	rare, sum := crash.None, uint64(0)
	rnd := rand.New(rand.NewPCG(seed, 2))
	for _, l := range crash.Labels() {
		killed, ok := r.Steps[l.String()]
		if _, played := smallest(all, l); !ok || !played || killed >= r.aim() {
			continue
		}
		weight := (r.aim() - killed) * (r.aim() - killed)
		if sum += weight; rnd.Uint64N(sum) < weight {
			rare = l
		}
	}
	if roles, chosen = smallest(all, rare); !chosen {
		roles = all[rnd.IntN(len(all))].roles
	}
	return roles, chosen
}

// smallest returns the cast with the fewest steps that dies at one, if any does.
func smallest(all []company, at crash.Label) (best []string, ok bool) {
	fewest := 0
	for _, c := range all {
		if slices.Contains(c.steps, at) && (!ok || len(c.steps) < fewest) {
			best, fewest, ok = c.roles, len(c.steps), true
		}
	}
	return best, ok
}
