package doorbell

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
)

// Relay listens to one producer of another user for those who cannot sleep on its word: wait sets,
// channels, and goroutines that share a queue. A keeper of this process, one thread for 127 of
// them, sleeps on all words at once and passes each ring on as the producer itself would have.
//
//	K1 load rung            K2 mark, ring (Bell.Forward)            K3 sleep on the words
type Relay struct {
	word  *atomic.Uint32 // mapped read-only
	heard uint32
	level func() uint64 // the lane's tail, loaded afresh
	ring  func()
	alarms
	k *relayKeeper
}

// relayKeeper is a thread with up to crowdSize relays. It lives while it has any.
type relayKeeper struct {
	members []*Relay
	change  atomic.Uint32 // grows with every change of members
	words   []watched
}

// relays are all keepers of the process. Rings are passed on under the lock, which waits for
// nothing.
var relays struct {
	mu      sync.Mutex
	keepers []*relayKeeper
	n       atomic.Int32 // members
}

// NewRelay begins to listen. level returns the lane's tail, and ring passes a ring on; both are
// called from other goroutines, and must not wait. The first ring is passed on at once: whatever
// came before counts as one.
func NewRelay(word *atomic.Uint32, level func() uint64, ring func()) *Relay {
	r := &Relay{word: word, level: level, ring: ring, heard: word.Load() - 1}
	r.tail = level() - 1
	relays.mu.Lock()
	defer relays.mu.Unlock()
	relays.n.Add(1)
	for _, k := range relays.keepers {
		if len(k.members) < crowdSize {
			r.k = k
			k.members = append(k.members, r)
			k.change.Add(1)
			wakeAll(&k.change)
			return r
		}
	}
	r.k = &relayKeeper{members: []*Relay{r}, words: make([]watched, 0, crowdSize+1)}
	relays.keepers = append(relays.keepers, r.k)
	go r.k.run()
	return r
}

// Close ends listening: afterwards the word is not looked at any more. It is harmless on nil.
func (r *Relay) Close() {
	if r == nil {
		return
	}
	relays.mu.Lock()
	defer relays.mu.Unlock()
	k := r.k
	if i := slices.Index(k.members, r); i >= 0 {
		k.members = slices.Delete(k.members, i, i+1)
		relays.n.Add(-1)
		k.change.Add(1)
		wakeAll(&k.change)
	}
}

// run is the keeper. Its first word is its own, so that a change of members ends the sleep; one
// that comes before it sleeps makes it wake at once, also when the memory of a word is gone by
// then.
func (k *relayKeeper) run() {
	for {
		words, until := k.pass()
		if words == nil {
			return
		}
		crash.At(crash.RelaySleep)
		_ = waitMany(words, until) // K3
	}
}

// pass is K1 and K2 for all members. It returns what to sleep on, nothing when there are none left.
func (k *relayKeeper) pass() (words []watched, until int64) {
	relays.mu.Lock()
	defer relays.mu.Unlock()
	if len(k.members) == 0 {
		relays.keepers = slices.DeleteFunc(relays.keepers,
			func(x *relayKeeper) bool { return x == k })
		return nil, 0
	}
	words = append(k.words[:0], watched{value: uint64(k.change.Load()), word: &k.change})
	for _, r := range k.members {
		r.pass()
		if r.quiet() {
			if until == 0 || r.quietNs < until {
				until = r.quietNs
			}
			continue
		}
		words = append(words, watched{value: uint64(r.heard), word: r.word})
	}
	return words, until
}

// pass is K1 and K2 for one. What is slept on afterwards is the value that was passed on.
func (r *Relay) pass() {
	v := r.word.Load() // K1
	if v == r.heard || r.quiet() {
		return
	}
	r.heard = v
	r.judge(r.level())
	crash.At(crash.RelayHeard)
	r.ring() // K2
}

// sweepRelays passes on what was rung and is still on its way through a keeper, so that what was
// posted before a look is seen by it.
func sweepRelays() {
	if relays.n.Load() == 0 {
		return
	}
	relays.mu.Lock()
	defer relays.mu.Unlock()
	for _, k := range relays.keepers {
		for _, r := range k.members {
			r.pass()
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
