package cq

import (
	"sync"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// counterPeers are the handles of other processes, as one that sleeps watches them: who dies
// between an add and its wake leaves a value behind that nobody was told of.
type counterPeers struct {
	mu     sync.Mutex
	joined uint64 // number of handles that had come when the rows were looked at, plus one
	sliced bool   // some death would not be noticed
	seats  [doorbell.CountSeats]counterPeer
}

type counterPeer struct {
	mark  uint64 // of the row that is watched
	stop  func()
	blind bool // it cannot be watched
}

// watchPeers is the first half of W4: after arming, so that a handle which comes later finds
// somebody to wake. It reports whether sleeps must be short.
func (c *Counter) watchPeers() (sliced bool) {
	p := &c.peers
	p.mu.Lock()
	defer p.mu.Unlock()
	joined := c.words.Bell.Joined() + 1
	if p.joined == joined && !p.sliced { // a reason for slices may be over
		return false
	}
	p.joined, p.sliced = joined, false
	for i := range p.seats {
		if i != c.seat.Index() {
			c.watchSeat(i)
			p.sliced = p.sliced || p.seats[i].blind
		}
	}
	if c.words.Bell.Standing() {
		stands, err := c.obj.Standing(doorbell.CountSeats)
		p.sliced = p.sliced || stands || err != nil
	}
	return p.sliced
}

// watchSeat follows one row. A row that changes while it is read is announced once more when it is
// complete.
func (c *Counter) watchSeat(i int) {
	p, row := &c.peers.seats[i], &c.words.Rows[i]
	mark := row.Mark.Load()
	if mark == p.mark {
		return
	}
	p.drop()
	if mark == 0 {
		return
	}
	o := row.Owner()
	if row.Mark.Load() != mark {
		return
	}
	p.mark = mark
	stop, err := shm.FollowOwner(o, c.kick)
	if err == nil {
		p.stop = stop
		return
	}
	// Its seat tells at least whether it is worth while to look every now and then.
	taken, err := c.obj.Seated(i)
	p.blind = taken || err != nil
	if !p.blind {
		p.mark = 0
	}
}

func (p *counterPeer) drop() {
	if p.stop != nil {
		p.stop()
	}
	*p = counterPeer{}
}

// stop ends all watches when nobody waits any more.
func (p *counterPeers) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.seats {
		p.seats[i].drop()
	}
}
