package doorbell

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// A futex wait holds a thread. The first soloWaiters goroutines of the process that wait have one
// each; those that come while they wait form crowds, which have one thread for crowdSize of them.
const (
	soloWaiters = 32
	crowdSize   = 127 // the kernel's limit for one call is 128, of which one wakes the keeper
)

var (
	soloNow atomic.Int32
	crowds  struct {
		mu   sync.Mutex
		list []*crowd
	}
	// noCrowds is set once the kernel was found to have no call for it.
	noCrowds atomic.Bool
)

// wait sleeps while the word holds old, until a wake, the absolute monotonic deadline (0: none), or
// for no reason.
func wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	if n := soloNow.Add(1); n > soloWaiters && !noCrowds.Load() {
		soloNow.Add(-1)
		waitInCrowd(word, old, deadlineNs)
		return
	}
	futexWait(word, old, deadlineNs)
	soloNow.Add(-1)
}

// crowd is waiters that share a thread, which sleeps on the words of all of them. It lives while it
// has members.
type crowd struct {
	members []*crowdMember // under crowds.mu
	change  atomic.Uint32  // futex word of the keeper's own: grows with every change of members
}

type crowdMember struct {
	word *atomic.Uint32
	old  uint32
	woke chan struct{} // has room for one
}

func waitInCrowd(word *atomic.Uint32, old uint32, deadlineNs int64) {
	m := &crowdMember{word: word, old: old, woke: make(chan struct{}, 1)}
	c := joinCrowd(m)
	var late <-chan time.Time
	if deadlineNs > 0 {
		t := time.NewTimer(time.Duration(deadlineNs - spin.Now()))
		defer t.Stop()
		late = t.C
	}
	select {
	case <-m.woke: // whoever woke it took it out
	case <-late:
		c.part(m)
	}
}

// joinCrowd makes m a member of a crowd that has room. Its keeper sleeps on the words that it
// knows: it is woken to learn of m's, and finds out if that changed meanwhile.
func joinCrowd(m *crowdMember) *crowd {
	crowds.mu.Lock()
	defer crowds.mu.Unlock()
	for _, c := range crowds.list {
		if len(c.members) < crowdSize {
			c.members = append(c.members, m)
			c.change.Add(1)
			wakeAll(&c.change)
			return c
		}
	}
	c := &crowd{members: []*crowdMember{m}}
	crowds.list = append(crowds.list, c)
	go c.keep()
	return c
}

// part takes a member out. The keeper looks at words of members only, under the same lock, so that
// the memory of m's word may go afterwards.
func (c *crowd) part(m *crowdMember) {
	crowds.mu.Lock()
	defer crowds.mu.Unlock()
	for i, x := range c.members {
		if x == m {
			last := len(c.members) - 1
			c.members[i], c.members[last] = c.members[last], nil
			c.members = c.members[:last]
			c.change.Add(1) // its word is not to be slept on any more
			wakeAll(&c.change)
			return
		}
	}
}

// keep sleeps for all members until there are none left.
func (c *crowd) keep() {
	words := make([]watched, 0, crowdSize+1)
	for {
		if words = c.gather(words[:0]); words == nil {
			return
		}
		switch waitMany(words, 0) {
		case syscall.ENOSYS, syscall.EPERM: // EPERM is a sandbox that does not know the call
			noCrowds.Store(true)
			c.disband()
			return
		}
	}
}

// gather wakes the members whose word has changed and returns the words of the others, or nil if
// there are none: then the crowd is no more.
func (c *crowd) gather(words []watched) []watched {
	crowds.mu.Lock()
	defer crowds.mu.Unlock()
	words = append(words, watched{value: uint64(c.change.Load()), word: &c.change})
	left := c.members[:0]
	for _, m := range c.members {
		if m.word.Load() != m.old {
			m.woke <- struct{}{}
			continue
		}
		left = append(left, m)
		words = append(words, watched{value: uint64(m.old), word: m.word})
	}
	clear(c.members[len(left):])
	c.members = left
	if len(left) > 0 {
		return words
	}
	for i, x := range crowds.list {
		if x == c {
			crowds.list = append(crowds.list[:i], crowds.list[i+1:]...)
			break
		}
	}
	return nil
}

// disband wakes everybody: they wait again, alone.
func (c *crowd) disband() {
	crowds.mu.Lock()
	defer crowds.mu.Unlock()
	for _, m := range c.members {
		m.woke <- struct{}{}
	}
	c.members = nil
	for i, x := range crowds.list {
		if x == c {
			crowds.list = append(crowds.list[:i], crowds.list[i+1:]...)
			return
		}
	}
}
