package hostile

import (
	"github.com/shmring/shmring/cq"
)

// surface is one thing that can be attacked.
type surface struct {
	name   string
	trust  cq.Trust
	weight int // of its share of the mutations; a message costs more than a store
	// What the processes do. honest is the writer of completions where it is nil.
	victim, attack, honest func(*child) error
	newcomer               func(*child) error // that of completions where it is nil
	honestWriters          int
	// kind is of the writers to the victim, and writes of those of the victim; nil is completions.
	kind, writes *kind
	prepare      func(*scene) (done func(), skip error)
	users        map[string]int // of roles that are not as usual
	attackFirst  bool
	// provokes is what the victim must have counted, each once at least: an attack that nothing
	// came of proves nothing.
	provokes []int
	// uncounted is how many lanes of a queue between processes of one user may be there that its
	// statistics do not show: nothing was read from them, or an attacker wrote that over the row.
	uncounted int
}

// surfaces are attacked in this order.
var surfaces []*surface

func init() {
	others, user := cq.CrossUser, cq.SameUser
	surfaces = []*surface{
		{name: "lane", trust: others, weight: 20, honestWriters: queues,
			victim: victimReader, attack: attackLane, provokes: []int{poisoned}},
		{name: "reader", trust: others, weight: 20, honestWriters: 1,
			victim: victimWriter, attack: attackReader, provokes: []int{corrupt}},
		{name: "event-lane", trust: others, weight: 10, honestWriters: 1,
			victim: victimOne, attack: attackLane, kind: events,
			provokes: []int{poisoned}},
		{name: "event-reader", trust: others, weight: 10, honestWriters: 1,
			victim: victimWriter, attack: attackReader, writes: events, provokes: []int{corrupt}},
		{name: "user-lane", trust: user, weight: 10, honestWriters: queues,
			victim: victimReader, attack: attackLane, provokes: []int{poisoned}, uncounted: 32},
		{name: "user-reader", trust: user, weight: 10, honestWriters: 1,
			victim: victimWriter, attack: attackReader, provokes: []int{corrupt}},
		// Any value of a counter is a value: nothing is to be provoked.
		{name: "counter", trust: user, weight: 5, honestWriters: 1,
			victim: victimCounter, attack: attackCounter},
		{name: "vector", trust: user, weight: 5, honestWriters: 1,
			victim: victimVector, attack: attackVector, provokes: []int{corrupt}},
		{name: "meet-accept", trust: others, weight: 1, honestWriters: 1,
			victim: victimOne, attack: attackAccept, provokes: []int{corrupt}},
		{name: "meet-attach", trust: others, weight: 1, honestWriters: 1,
			victim: victimAttacher, attack: attackAttach, provokes: []int{corrupt}},
		{name: "meet-dial", trust: others, weight: 1, honestWriters: 1,
			victim: victimDialer, attack: attackDial, provokes: []int{corrupt}},
		{name: "device-app", trust: others, weight: 10, honestWriters: 1, prepare: prepareDevice,
			victim: victimServer, attack: attackServer, honest: honestApp, newcomer: newcomerApp,
			provokes: []int{poisoned}},
		{name: "device-server", trust: others, weight: 10, honestWriters: 1, prepare: prepareDevice,
			victim: victimApp, attack: attackApp,
			users:    map[string]int{roleAttacker: 0, roleVictim: attackerUID},
			provokes: []int{corrupt}},
		{name: "device-meet", trust: others, weight: 1, honestWriters: 1, prepare: prepareDevice,
			victim: victimServer, attack: attackDeviceAccept, honest: honestApp, newcomer: newcomerApp,
			provokes: []int{corrupt}},
	}
}

// border reports whether what is attacked is one between users. Only then is there a newcomer: one
// of the same user can get a lane that an attacker had.
func (s *surface) border() bool { return s.trust == cq.CrossUser }

func surfaceOf(name string) *surface {
	for _, s := range surfaces {
		if s.name == name {
			return s
		}
	}
	return &surface{}
}

// user returns whose process plays a role.
func (s *surface) user(role string) int {
	if uid, ok := s.users[role]; ok || s.trust == cq.SameUser {
		return uid
	}
	return map[string]int{roleAttacker: attackerUID, roleHonest: honestUID,
		roleNewcomer: newcomerUID}[role]
}
