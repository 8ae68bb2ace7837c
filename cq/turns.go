package cq

import (
	"context"
	"sync"
)

// turns bounds how many rendezvous of each user may have a row at a time. A row that was offered is
// nobody else's until the peer has brought a lane or given up, so a user who goes silent there
// would keep all rows from the others.
type turns struct {
	mu    sync.Mutex
	most  int
	users map[int]*turn
}

type turn struct {
	places chan struct{} // full while most of them have a row
	here   int           // that have one, or wait for it
}

// newTurns leaves three rows of four to the others.
func newTurns(lanes int) turns {
	return turns{most: max(1, lanes/4), users: map[int]*turn{}}
}

// take waits for a turn of this user, which done ends.
func (t *turns) take(ctx context.Context, user int) (done func(), err error) {
	t.mu.Lock()
	u := t.users[user]
	if u == nil {
		u = &turn{places: make(chan struct{}, t.most)}
		t.users[user] = u
	}
	u.here++
	t.mu.Unlock()
	select {
	case u.places <- struct{}{}:
		return func() {
			<-u.places
			t.leave(user, u)
		}, nil
	case <-ctx.Done():
		t.leave(user, u)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) leave(user int, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.here--; u.here == 0 {
		delete(t.users, user)
	}
}
