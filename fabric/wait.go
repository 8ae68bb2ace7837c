package fabric

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
)

// waits are the goroutines that wait for what a move of an endpoint brings: room in a lane, or the
// messages of a connection. One leads: it moves the endpoint, looks for a while, and sleeps on its
// bell. The others follow: they sleep as goroutines, until the leader finds what is theirs, or
// leaves and has one of them lead. So no connection costs a thread, and one that waits alone is
// woken by its peer without a switch to another goroutine.
//
// Over connections a keeper leads while nobody else does. It takes its turn late, so that a reader
// which comes back soon finds the lanes as it left them, and its peer need not ring.
type waits struct {
	leader    *waiter
	followers []*waiter
	keeper    *waiter       // nil: there is none
	recent    bool          // somebody led since the keeper looked
	budget    time.Duration // of a look
}

// keepAfter is how late.
const keepAfter = 10 * time.Millisecond

// waiter is a goroutine that may wait. All is under the bell's lock but for kicked.
type waiter struct {
	token    chan struct{} // one says: look again
	queued   bool          // for a token
	asleep   bool          // on the bell
	room     bool          // for room in a lane, among others
	moved    uint64        // how much has come, of what comes bit by bit
	kicked   atomic.Bool   // asleep no longer
	patience spin.Patience
}

// wake has a waiter look again. The bell's lock is held.
func (e *Endpoint) wake(w *waiter) {
	switch {
	case w.asleep:
		if !w.kicked.Swap(true) {
			e.bell.Kick()
		}
	case w.queued:
		select {
		case w.token <- struct{}{}:
		default:
		}
	}
}

// makeRoom wakes those who wait for room in a lane: it may be there, and what others took notice of
// rings no more.
func (e *Endpoint) makeRoom() {
	for _, w := range e.followers {
		if w.room {
			e.wake(w)
		}
	}
	if w := e.leader; w != nil && w.room {
		e.wake(w)
	}
}

// within is await that the end of a context ends too.
func (e *Endpoint) within(ctx context.Context, w *waiter, ready func() bool) {
	defer context.AfterFunc(ctx, func() {
		e.bell.Lock()
		defer e.bell.Unlock()
		e.wake(w)
	})()
	e.await(w, func() bool { return ready() || ctx.Err() != nil })
}

// untilRoom tries something until it need not wait for room any more, or the context ends. Then it
// reports that it would have to.
func (e *Endpoint) untilRoom(ctx context.Context, try func() (wait bool)) (wait bool) {
	wait = true
	e.within(ctx, &waiter{room: true}, func() bool {
		wait = wait && try() // what is done is asked for once more
		return !wait
	})
	return wait
}

// await returns when ready is true, which is asked with the lock held. Who makes it true elsewhere
// calls wake.
func (e *Endpoint) await(w *waiter, ready func() bool) {
	if ready() {
		return
	}
	e.users++ // nobody closes the endpoint meanwhile
	defer e.dropUser()
	e.poll()
	for looked := false; !ready(); {
		if e.leader != nil && e.leader != w && e.leader != e.keeper {
			e.follow(w)
			continue
		}
		e.leader = w
		if !looked {
			looked = true
			if e.linger(w, ready) {
				break
			}
		}
		e.sleep(w)
		e.poll()
	}
	if e.leader == w {
		e.leader = nil
	}
	if e.leader == nil {
		e.handOver()
	}
}

// follow sleeps until the leader, or who takes its place, has a token for us.
func (e *Endpoint) follow(w *waiter) {
	e.followers = append(e.followers, w)
	e.rest(w)
	e.followers = slices.DeleteFunc(e.followers, func(f *waiter) bool { return f == w })
	select { // one that came meanwhile is for the same look
	case <-w.token:
	default:
	}
}

// rest sleeps as a goroutine.
func (e *Endpoint) rest(w *waiter) {
	if w.token == nil {
		w.token = make(chan struct{}, 1)
	}
	w.queued = true
	e.bell.Unlock()
	<-w.token
	e.bell.Lock()
	w.queued = false
}

// handOver has a follower lead, or the keeper after a while.
func (e *Endpoint) handOver() {
	if len(e.followers) > 0 {
		e.wake(e.followers[0])
		return
	}
	if e.recent = true; e.keeper != nil {
		e.wake(e.keeper)
	}
}

// linger looks for a leader that would have to sleep, if that has been of use, and for as long as
// what it waits for comes bit by bit.
func (e *Endpoint) linger(w *waiter, ready func() bool) (found bool) {
	if e.budget <= 0 || !w.patience.Grant() {
		return false
	}
	moved := w.moved
	e.bell.Unlock()
	var interrupted, looked bool
	for came := true; came && !found; {
		came, interrupted, looked = spin.Linger(e.budget, func() bool {
			e.bell.Lock()
			defer e.bell.Unlock()
			e.poll()
			came, moved = w.moved != moved, w.moved
			found = ready()
			return found || came
		})
	}
	e.bell.Lock()
	if looked {
		w.patience.Learn(found, interrupted)
	}
	return ready()
}

// sleep sleeps on the bell, until a peer rings or somebody wakes w.
func (e *Endpoint) sleep(w *waiter) {
	more, err := e.bell.Park()
	if more {
		return
	}
	w.asleep = true
	w.kicked.Store(false)
	e.bell.Unlock()
	if err != nil { // the kernel refuses what a sleep needs
		time.Sleep(lookEvery)
	} else {
		e.bell.Sleep(wake.Wait{Stop: w.kicked.Load})
	}
	e.bell.Lock()
	w.asleep = false
}
