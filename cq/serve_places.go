package cq

import (
	"context"
	"slices"
	"sync"

	"github.com/shmring/shmring/internal/kind"
)

// places are the connections of a Serve.
type places struct {
	mu    sync.Mutex
	free  int
	taken []*served     // oldest first
	freed chan struct{} // has room for one notice
}

// served is a connection that has a place.
type served struct {
	user   int
	cancel context.CancelCauseFunc
}

func newPlaces(most int) *places {
	return &places{free: most, freed: make(chan struct{}, 1)}
}

// await waits until a place is free. Others may take it first.
func (p *places) await(ctx context.Context) error {
	for {
		p.mu.Lock()
		free := p.free
		p.mu.Unlock()
		if free > 0 {
			return nil
		}
		select {
		case <-p.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take gives a user's connection a place, which cancel ends. If none is free, it gets the oldest
// one of the user with the most of them, provided that these are more than the newcomer's user has:
// so one who is silent in any number of connections keeps nobody else out, and whoever attaches
// without delay is put out only as one of the greediest user's. Otherwise it is ErrBusy.
func (p *places) take(user int, cancel context.CancelCauseFunc) (*served, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		loser := p.greediest(user)
		if loser == nil {
			return nil, errCrowded
		}
		p.remove(loser)
		loser.cancel(errCrowded)
	}
	p.free--
	c := &served{user: user, cancel: cancel}
	p.taken = append(p.taken, c)
	return c, nil
}

// errCrowded is why a meeting ends whose place is needed.
var errCrowded error = &Error{Pkg: kind.Pkg, Op: opMeet, Field: "connections", Err: ErrBusy,
	Hint: "too many of this user's processes attach at once, or begin to and do not go on"}

// greediest returns the oldest place of whoever has most of them, if these are more than user has.
func (p *places) greediest(user int) *served {
	count := map[int]int{}
	for _, c := range p.taken {
		count[c.user]++
	}
	most, whose := count[user], user
	for _, c := range p.taken { // and not the map, which has no order
		if count[c.user] > most {
			most, whose = count[c.user], c.user
		}
	}
	i := slices.IndexFunc(p.taken, func(c *served) bool { return c.user == whose && whose != user })
	if i < 0 {
		return nil
	}
	return p.taken[i]
}

// leave ends the use of a place, also of one that was lost.
func (p *places) leave(c *served) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(c)
}

func (p *places) remove(c *served) {
	i := slices.Index(p.taken, c)
	if i < 0 {
		return
	}
	p.taken = slices.Delete(p.taken, i, i+1)
	p.free++
	select {
	case p.freed <- struct{}{}:
	default:
	}
}
