package futex

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/spin"
)

// A futex wait holds a thread. The first soloWaiters goroutines of the process that wait have one
// each, those beyond them share threads.
const (
	soloWaiters = 32
	perThread   = MostWords - 1 // one wakes the thread
)

var waiters Pool

// Sleeper is somebody for whom a thread sleeps on a word. Its methods run under the lock of its
// pool, and wait for nothing.
type Sleeper interface {
	// Look does what a change of the word asks for, if it has changed. It returns what to sleep on,
	// which has no word as long as nobody listens, until when at most (0: any time), and whether
	// the sleeper stays.
	Look() (on Watched, untilNs int64, stays bool)
}

// Pool is sleepers that share threads. Each thread sleeps on the words of at most 127 of them at
// once, and lives while it has any. Those of one pool never hold up those of another one.
type Pool struct {
	// BeforeSleep, if there is one, is called by each thread before it sleeps.
	BeforeSleep func()

	mu      sync.Mutex
	threads []*Thread
	n       atomic.Int32 // sleepers
}

// Thread is a goroutine that sleeps for others.
type Thread struct {
	sleepers []Sleeper     // under Pool.mu
	change   atomic.Uint32 // futex word of its own: grows with every change of sleepers
	words    []Watched
}

// Join finds s a thread that has room. That sleeps on the words that it knows: it is woken to learn
// of this one, and finds out if the word changed meanwhile.
func (p *Pool) Join(s Sleeper) *Thread {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n.Add(1)
	for _, t := range p.threads {
		if len(t.sleepers) < perThread {
			t.sleepers = append(t.sleepers, s)
			t.wake()
			return t
		}
	}
	t := &Thread{sleepers: []Sleeper{s}, words: make([]Watched, 0, perThread+1)}
	p.threads = append(p.threads, t)
	go p.run(t)
	return t
}

// Leave takes a sleeper out, if it has not left. Words are looked at under the same lock, so that
// the memory of this one may go afterwards.
func (p *Pool) Leave(t *Thread, s Sleeper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(t.sleepers, s); i >= 0 {
		t.sleepers = slices.Delete(t.sleepers, i, i+1)
		p.n.Add(-1)
		t.wake() // the word is not to be slept on any more
	}
}

// wake ends the sleep of a thread. If it comes before that, the thread wakes at once, also when the
// memory of a word is gone by then.
func (t *Thread) wake() {
	t.change.Add(1)
	WakeAll(&t.change)
}

func (p *Pool) run(t *Thread) {
	for {
		words, until := p.gather(t)
		if words == nil {
			return
		}
		if p.BeforeSleep != nil {
			p.BeforeSleep()
		}
		switch WaitMany(words, until) {
		case syscall.ENOSYS, syscall.EPERM: // EPERM is a sandbox that does not know the call
			noSharing.Store(true)
		}
	}
}

// gather looks at all sleepers of a thread, and returns what to sleep on for those that stay:
// nothing if there are none, and the thread is no more.
func (p *Pool) gather(t *Thread) (words []Watched, untilNs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	words = append(t.words[:0], Watched{Value: uint64(t.change.Load()), Word: &t.change})
	t.sleepers = slices.DeleteFunc(t.sleepers, func(s Sleeper) bool {
		on, until, stays := s.Look()
		if !stays {
			p.n.Add(-1)
			return true
		}
		if on.Word != nil {
			words = append(words, on)
		}
		if until != 0 && (untilNs == 0 || until < untilNs) {
			untilNs = until
		}
		return false
	})
	if len(t.sleepers) == 0 {
		p.threads = slices.DeleteFunc(p.threads, func(x *Thread) bool { return x == t })
		return nil, 0
	}
	return words, untilNs
}

var (
	soloNow atomic.Int32
	// noSharing is set once the kernel was found to have no call for it: everybody waits alone.
	noSharing atomic.Bool
)

// Wait sleeps while the word holds old, until a wake, the absolute monotonic deadline (0: none), or
// for no reason.
func Wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	if n := soloNow.Add(1); n > soloWaiters && !noSharing.Load() {
		soloNow.Add(-1)
		waitShared(word, old, deadlineNs)
		return
	}
	waitAlone(word, old, deadlineNs)
	soloNow.Add(-1)
}

// waiter is a goroutine that shares a thread with others, and leaves when its word has changed.
type waiter struct {
	word *atomic.Uint32
	old  uint32
	woke chan struct{} // has room for one
}

func waitShared(word *atomic.Uint32, old uint32, deadlineNs int64) {
	w := &waiter{word: word, old: old, woke: make(chan struct{}, 1)}
	t := waiters.Join(w)
	var late <-chan time.Time
	if deadlineNs > 0 {
		timer := time.NewTimer(time.Duration(deadlineNs - spin.Now()))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.woke:
	case <-late:
		waiters.Leave(t, w)
	}
}

func (w *waiter) Look() (on Watched, untilNs int64, stays bool) {
	if w.word.Load() != w.old || noSharing.Load() {
		w.woke <- struct{}{}
		return Watched{}, 0, false
	}
	return Watched{Value: uint64(w.old), Word: w.word}, 0, true
}

// Each calls f for every sleeper, under the lock that Look is called under.
func (p *Pool) Each(f func(Sleeper)) {
	if p.n.Load() == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.threads {
		for _, s := range t.sleepers {
			f(s)
		}
	}
}

// HasWaitMany reports whether the kernel lets one thread sleep on several words, which a reader of
// other users needs.
func HasWaitMany() error { return haveWaitMany() }

var haveWaitMany = sync.OnceValue(func() error {
	var word atomic.Uint32
	err := WaitMany([]Watched{{Value: 1, Word: &word}}, 0) // returns at once: it holds 0
	if err == syscall.EAGAIN {
		return nil
	}
	return fmt.Errorf("doorbell: futex_waitv: %w: %w", errors.ErrUnsupported, err)
})
