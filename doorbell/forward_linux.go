package doorbell

import (
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
)

// forwarded are all forwarders of the process. Their threads are their own, so that what other
// users ring holds up nobody who waits.
var forwarded = futex.Pool{BeforeSleep: func() { crash.At(crash.RelaySleep) }}

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
	t := forwarded.Join(f)
	return func() { forwarded.Leave(t, f) }
}

// Look is K1 and K2. What is slept on afterwards is the value that was passed on.
func (f *forwarder) Look() (on futex.Watched, untilNs int64, stays bool) {
	f.pass()
	if f.quiet() {
		return futex.Watched{}, f.quietNs, true
	}
	return futex.Watched{Value: uint64(f.heard), Word: f.word}, 0, true
}

func (f *forwarder) pass() {
	v := f.word.Load() // K1
	if v == f.heard || f.quiet() {
		return
	}
	f.heard = v
	f.note(f.level())
	crash.At(crash.RelayHeard)
	f.ring() // K2
}

// passAll passes on what was rung and is still on its way through a thread, so that what was posted
// before a look is seen by it.
func passAll() {
	forwarded.Each(func(s futex.Sleeper) { s.(*forwarder).pass() })
}
