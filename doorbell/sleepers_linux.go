package doorbell

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/spin"
)

// A futex wait holds a thread. Sleepers share threads, of which each sleeps on the words of at most
// perThread of them at once, and lives while it has any. There are two pools of them, so that what
// other users ring holds up nobody who waits: goroutines that wait, beyond the first soloWaiters of
// the process, and what passes on the rings of other users' producers.
const (
	soloWaiters = 32
	perThread   = 127 // the kernel's limit for one call is 128, of which one wakes the thread
)

var waiters, forwarded pool

// sleeper is somebody for whom a thread sleeps on a word. Its methods run under the lock of its
// pool, and wait for nothing.
type sleeper interface {
	// look does what a change of the word asks for, if it has changed. It returns what to sleep on,
	// which has no word as long as nobody listens, until when at most (0: any time), and whether
	// the sleeper stays.
	look() (on watched, untilNs int64, stays bool)
}

type pool struct {
	mu      sync.Mutex
	threads []*thread
	n       atomic.Int32 // sleepers
}

// thread is a goroutine that sleeps for others.
type thread struct {
	sleepers []sleeper     // under pool.mu
	change   atomic.Uint32 // futex word of its own: grows with every change of sleepers
	words    []watched
}

// join finds s a thread that has room. That sleeps on the words that it knows: it is woken to learn
// of this one, and finds out if the word changed meanwhile.
func (p *pool) join(s sleeper) *thread {
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
	t := &thread{sleepers: []sleeper{s}, words: make([]watched, 0, perThread+1)}
	p.threads = append(p.threads, t)
	go p.run(t)
	return t
}

// leave takes a sleeper out, if it has not left. Words are looked at under the same lock, so that
// the memory of this one may go afterwards.
func (p *pool) leave(t *thread, s sleeper) {
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
func (t *thread) wake() {
	t.change.Add(1)
	wakeAll(&t.change)
}

func (p *pool) run(t *thread) {
	for {
		words, until := p.gather(t)
		if words == nil {
			return
		}
		if p == &forwarded {
			crash.At(crash.RelaySleep)
		}
		switch waitMany(words, until) { // K3
		case syscall.ENOSYS, syscall.EPERM: // EPERM is a sandbox that does not know the call
			noSharing.Store(true)
		}
	}
}

// gather looks at all sleepers of a thread, and returns what to sleep on for those that stay:
// nothing if there are none, and the thread is no more.
func (p *pool) gather(t *thread) (words []watched, untilNs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	words = append(t.words[:0], watched{value: uint64(t.change.Load()), word: &t.change})
	t.sleepers = slices.DeleteFunc(t.sleepers, func(s sleeper) bool {
		on, until, stays := s.look()
		if !stays {
			p.n.Add(-1)
			return true
		}
		if on.word != nil {
			words = append(words, on)
		}
		if until != 0 && (untilNs == 0 || until < untilNs) {
			untilNs = until
		}
		return false
	})
	if len(t.sleepers) == 0 {
		p.threads = slices.DeleteFunc(p.threads, func(x *thread) bool { return x == t })
		return nil, 0
	}
	return words, untilNs
}

var (
	soloNow atomic.Int32
	// noSharing is set once the kernel was found to have no call for it: everybody waits alone.
	noSharing atomic.Bool
)

// wait sleeps while the word holds old, until a wake, the absolute monotonic deadline (0: none), or
// for no reason.
func wait(word *atomic.Uint32, old uint32, deadlineNs int64) {
	if n := soloNow.Add(1); n > soloWaiters && !noSharing.Load() {
		soloNow.Add(-1)
		waitShared(word, old, deadlineNs)
		return
	}
	futexWait(word, old, deadlineNs)
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
	t := waiters.join(w)
	var late <-chan time.Time
	if deadlineNs > 0 {
		timer := time.NewTimer(time.Duration(deadlineNs - spin.Now()))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.woke:
	case <-late:
		waiters.leave(t, w)
	}
}

func (w *waiter) look() (on watched, untilNs int64, stays bool) {
	if w.word.Load() != w.old || noSharing.Load() {
		w.woke <- struct{}{}
		return watched{}, 0, false
	}
	return watched{value: uint64(w.old), word: w.word}, 0, true
}

// forwarder listens to one producer of another user for those who cannot sleep on its word: wait
// sets, channels, and goroutines that share a queue. A thread sleeps on the words of many, and each
// ring is passed on as the producer itself would have rung.
//
//	K1 load rung            K2 mark, ring (Bell.ringFor)            K3 sleep on the words
type forwarder struct {
	word  *atomic.Uint32 // mapped read-only
	heard uint32
	level func() uint64 // the lane's tail, loaded afresh
	ring  func()
	alarms
}

// Forward passes on the rings of a producer of another user, who has this row and counts them in
// rung, until stop. After that the word is not looked at. level returns the lane's tail afresh. It
// is called from other goroutines, and must not wait. The first ring is passed on at once: whatever
// came before counts as one. Forward may be called from anywhere.
func (b *Bell) Forward(bit int, rung *atomic.Uint32, level func() uint64) (stop func()) {
	f := &forwarder{word: rung, level: level, ring: func() { b.ringFor(bit) },
		heard: rung.Load() - 1}
	f.tail = level() - 1
	t := forwarded.join(f)
	return func() { forwarded.leave(t, f) }
}

// look is K1 and K2. What is slept on afterwards is the value that was passed on.
func (f *forwarder) look() (on watched, untilNs int64, stays bool) {
	f.pass()
	if f.quiet() {
		return watched{}, f.quietNs, true
	}
	return watched{value: uint64(f.heard), word: f.word}, 0, true
}

func (f *forwarder) pass() {
	v := f.word.Load() // K1
	if v == f.heard || f.quiet() {
		return
	}
	f.heard = v
	f.judge(f.level())
	crash.At(crash.RelayHeard)
	f.ring() // K2
}

// passAll passes on what was rung and is still on its way through a thread, so that what was posted
// before a look is seen by it.
func passAll() {
	if forwarded.n.Load() == 0 {
		return
	}
	forwarded.mu.Lock()
	defer forwarded.mu.Unlock()
	for _, t := range forwarded.threads {
		for _, s := range t.sleepers {
			s.(*forwarder).pass()
		}
	}
}

var haveWaitMany = sync.OnceValue(func() error {
	var word atomic.Uint32
	err := waitMany([]watched{{value: 1, word: &word}}, 0) // returns at once: it holds 0
	if err == syscall.EAGAIN {
		return nil
	}
	return fmt.Errorf("doorbell: futex_waitv: %w: %w", errors.ErrUnsupported, err)
})
