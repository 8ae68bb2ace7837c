package fabric

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/wake"
)

// Of the goroutines that wait for something of a mux one leads: it moves the endpoint, looks for a
// while, and sleeps on its bell. The others follow: they sleep as goroutines, until the leader
// finds what is theirs, or leaves and has one of them lead. So no connection costs a thread, and
// one that waits alone is woken by its peer without a switch to another goroutine.
//
// The keeper leads while nobody else does. It takes its turn late, so that a reader which comes
// back soon finds the lanes as it left them, and its peer need not ring.

// keepAfter is how late.
const keepAfter = 10 * time.Millisecond

// waiter is a goroutine that may wait. All is under the bell's lock but for kicked.
type waiter struct {
	token    chan struct{} // one says: look again
	queued   bool          // among the followers
	asleep   bool          // on the bell
	room     bool          // for room in a lane, among others
	moved    uint64        // how much has come, of what comes bit by bit
	kicked   atomic.Bool   // asleep no longer
	patience spin.Patience
}

func (w *waiter) init() { w.token = make(chan struct{}, 1) }

// wake has a waiter look again. The bell's lock is held.
func (m *mux) wake(w *waiter) {
	switch {
	case w.asleep:
		if !w.kicked.Swap(true) {
			m.e.bell.Kick()
		}
	case w.queued:
		select {
		case w.token <- struct{}{}:
		default:
		}
	}
}

// wakeRoomers wakes those who wait for room in a lane.
func (m *mux) wakeRoomers() {
	for _, w := range m.followers {
		if w.room {
			m.wake(w)
		}
	}
	if w := m.leader; w != nil && w.room {
		m.wake(w)
	}
}

// await returns when ready is true, which is asked with the lock held. Who makes it true elsewhere
// calls wake.
func (m *mux) await(w *waiter, ready func() bool) {
	if ready() {
		return
	}
	m.e.users++ // nobody closes the endpoint meanwhile
	defer m.e.dropUser()
	m.e.poll()
	for looked := false; !ready(); {
		if m.leader != nil && m.leader != w && m.leader != &m.keeper {
			m.follow(w)
			continue
		}
		m.leader = w
		if !looked {
			looked = true
			if m.linger(w, ready) {
				break
			}
		}
		m.sleep(w)
		m.e.poll()
	}
	if m.leader == w {
		m.leader = nil
	}
	if m.leader == nil {
		m.handOver()
	}
}

// follow sleeps until the leader, or who takes its place, has a token for us.
func (m *mux) follow(w *waiter) {
	m.followers = append(m.followers, w)
	w.queued = true
	m.e.bell.Unlock()
	<-w.token
	m.e.bell.Lock()
	w.queued = false
	m.followers = slices.DeleteFunc(m.followers, func(f *waiter) bool { return f == w })
	select { // one that came meanwhile is for the same look
	case <-w.token:
	default:
	}
}

// handOver has a follower lead, or the keeper after a while.
func (m *mux) handOver() {
	if len(m.followers) > 0 {
		m.wake(m.followers[0])
		return
	}
	m.recent = true
	m.wake(&m.keeper)
}

// linger looks for a leader that would have to sleep, if that has been of use, and for as long as
// what it waits for comes bit by bit.
func (m *mux) linger(w *waiter, ready func() bool) (found bool) {
	if m.budget <= 0 || !w.patience.Grant() {
		return false
	}
	m.e.bell.Unlock()
	var interrupted, looked bool
	for moved := w.moved - 1; moved != w.moved && !found; {
		moved = w.moved
		found, interrupted, looked = spin.Linger(m.budget, func() bool {
			m.e.bell.Lock()
			defer m.e.bell.Unlock()
			m.e.poll()
			return ready()
		})
	}
	m.e.bell.Lock()
	if looked {
		w.patience.Learn(found, interrupted)
	}
	return ready()
}

// sleep sleeps on the bell, until a peer rings or somebody wakes w.
func (m *mux) sleep(w *waiter) {
	e := m.e
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

// keep is the keeper, and ends the mux when there is nothing to keep.
func (m *mux) keep() {
	m.e.bell.Lock()
	for !m.abandoned && !m.idle() {
		switch {
		case m.leader != nil:
			m.keeper.queued = true
			m.e.bell.Unlock()
			<-m.keeper.token
			m.e.bell.Lock()
			m.keeper.queued = false
		case m.recent:
			m.recent = false
			m.e.bell.Unlock()
			time.Sleep(keepAfter)
			m.e.bell.Lock()
		default:
			m.leader = &m.keeper
			if m.e.poll() == 0 {
				m.sleep(&m.keeper)
			}
			if m.leader == &m.keeper {
				m.leader = nil
				if m.e.poll(); len(m.followers) > 0 {
					m.handOver()
				}
			}
		}
	}
	m.over = true
	m.e.bell.Unlock()
	_ = m.e.Close()
	close(m.done)
}

// closePatience is how long Close waits for room in the lane, and again for the peer. Ten times as
// long that is kept which one that was met over a socket has not answered.
var closePatience = time.Second // a variable for tests only

// leave waits for the end of a mux that its program has left, so that a process which ends next
// leaves nothing behind. Who stands at the other end is not waited for long, and of one that was
// met over a socket, who may never answer, nothing is kept for long.
func (m *mux) leave() {
	m.e.bell.Lock()
	left := m.listener == nil && m.pins == 0
	for _, p := range m.places {
		left = left && (p.c == nil || p.c.closed)
	}
	m.e.bell.Unlock()
	if !left {
		return
	}
	late := time.NewTimer(m.patience)
	defer late.Stop()
	select {
	case <-m.done:
	case <-late.C:
		if m.e.met() {
			time.AfterFunc(10*m.patience, m.abandon)
		}
	}
}

// abandon ends a mux whatever its peer has not answered.
func (m *mux) abandon() {
	m.e.bell.Lock()
	defer m.e.bell.Unlock()
	m.abandoned = true
	m.wake(&m.keeper)
}

// idle reports whether there is nothing to keep.
func (m *mux) idle() bool {
	return m.listener == nil && m.used == 0 && m.owing == 0 && m.pins == 0
}

// settle has the keeper look for that.
func (m *mux) settle() {
	if m.idle() {
		m.wake(&m.keeper)
	}
}

// unpin ends what dialMux, or a dial, keeps the mux for.
func (m *mux) unpin() {
	m.pins--
	m.settle()
}
