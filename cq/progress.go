package cq

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
)

// Feeder is what posts into a queue from the queue's own process and has a life of its own: an
// endpoint, say. See [Queue.Bind].
type Feeder interface {
	// Progress moves the feeder's operations on, without blocking, and says after how long it
	// wants to be called again at the latest: 0 is as soon as possible, less is never. It is only
	// called for feeders that were bound with manual progress, by whoever reads, polls or waits: by
	// several goroutines at once, if several do. Nobody calls it while all of them sleep on
	// descriptors. It may post, and must neither read nor call the sets and channels that have the
	// queue.
	Progress() (again time.Duration)
	// Overrun tells the feeder that the queue loses entries and reports nothing new any more. It
	// may come from any goroutine, and must not call the queue, bind or unbind.
	Overrun(q *Queue)
}

// belled is a feeder with a bell of its own, which others ring when Progress has something to do.
// Who sleeps on that bell too need not call Progress before, unless that is to be at once. It is
// for any number of goroutines, so one of ours may stand in for who sleeps elsewhere.
type belled interface {
	// HoldBell returns the bell, which is shared, and keeps its memory until DropBell; nil once the
	// feeder is closed.
	HoldBell() *wake.Bell
	DropBell()
}

// manualFeeders counts them in the whole process, so that sets need not ask their members.
var manualFeeders atomic.Int32

// feederChanges grows when one comes, or what it feeds comes to a set or channel: who sleeps there
// then drives it from now on. It grows after that can be seen, and before the sleeper is woken.
var feederChanges atomic.Uint64

// feeders of a queue, or of a counter.
type feeders struct {
	mu      sync.Mutex
	all     atomic.Pointer[[]*feeder] // never changed in place; stored with mu
	told    bool                      // that the queue is overrun
	manual  atomic.Int32              // how many of them are driven by reads
	awaited int                       // calls of await without their rest
	armed   standIns                  // while a descriptor is armed
}

type feeder struct {
	f      Feeder
	q      *Queue // which it is bound to, or nil
	manual bool
	belled belled // of a manual one, or nil

	// Under feeders.mu: whether a goroutine follows it, and whether it is bound no more.
	followed, gone bool
	following      sync.WaitGroup
}

// Bind says that f posts into the queue. Until unbind is called the queue cannot be closed
// (ErrBusy), and f learns of an overrun. With manual progress f moves on only while somebody reads
// (also nothing: a Read into an empty slice), polls or waits (FI_PROGRESS_MANUAL); otherwise it
// drives itself (FI_PROGRESS_AUTO), which is for free. Bind and unbind may be called from anywhere,
// unbind by Progress too; but binding with manual progress counts as reading. A read that has begun
// when unbind is called may call Progress once more.
func (q *Queue) Bind(f Feeder, manual bool) (unbind func(), err error) {
	if kind.Absent(f) {
		return nil, errAbsent("bind")
	}
	if err := q.holders.bind(); err != nil {
		return nil, &Error{Pkg: kind.Pkg, Op: "bind", Name: q.name, Err: err}
	}
	stop := q.feeders.add(&feeder{f: f, q: q, manual: manual})
	if manual && q.enter() { // so that the next read looks closer
		q.leave()
		q.kick() // who sleeps has it followed
		q.channel.Load().kick()
	}
	return sync.OnceFunc(func() { stop(); q.holders.unbind() }), nil
}

// Bind says that f adds to the counter (fi_cntr_bind of an endpoint): until unbind is called the
// counter cannot be closed (ErrBusy), and f moves on while somebody reads the counter or waits for
// it (FI_PROGRESS_MANUAL). Other handles of the counter do not move it. Bind and unbind may be
// called from anywhere, and what has begun when unbind is called is as with [Queue.Bind].
func (c *Counter) Bind(f Feeder) (unbind func(), err error) {
	if kind.Absent(f) {
		return nil, errAbsent("bind")
	}
	if err := c.holders.bind(); err != nil {
		return nil, &Error{Pkg: kind.Pkg, Op: "bind", Name: c.name, Err: err}
	}
	stop := c.feeders.add(&feeder{f: f, manual: true})
	atomic.StoreUint32(&c.careful, 1)
	c.kick()
	return sync.OnceFunc(func() { stop(); c.holders.unbind() }), nil
}

// add returns what takes the feeder out again.
func (s *feeders) add(e *feeder) (stop func()) {
	if e.manual {
		e.belled, _ = e.f.(belled)
		s.manual.Add(1)
		manualFeeders.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := append(slices.Clone(s.list()), e)
	s.all.Store(&all)
	if e.manual {
		feederChanges.Add(1)
	}
	return func() { s.remove(e) }
}

func (s *feeders) remove(e *feeder) {
	s.mu.Lock()
	all := slices.DeleteFunc(slices.Clone(s.list()), func(x *feeder) bool { return x == e })
	s.all.Store(&all)
	e.gone = true
	s.mu.Unlock()
	if !e.manual {
		return
	}
	s.manual.Add(-1)
	manualFeeders.Add(-1)
	if e.belled == nil {
		return
	}
	if b := e.belled.HoldBell(); b != nil {
		b.Kick()
		e.belled.DropBell()
	}
	e.following.Wait()
}

// came is told that a set or channel has what they feed.
func (s *feeders) came() {
	if s.driven() {
		feederChanges.Add(1)
	}
}

// driven reports whether there are feeders that do not drive themselves.
func (s *feeders) driven() bool { return s.manual.Load() > 0 }

// progress drives the feeders that do not drive themselves, for a read.
func (s *feeders) progress() {
	s.armed.replace(nil)
	s.drive()
}

// drive drives them, and returns after how long they want it again, or a negative number for never.
// Of those with a bell, on which the caller sleeps or has somebody sleep, only 0 counts.
func (s *feeders) drive() (again time.Duration) {
	again = -1
	for _, e := range s.drivenFeeders() {
		if !e.manual {
			continue
		}
		d := e.f.Progress()
		if e.belled != nil && d > 0 {
			continue
		}
		if d >= 0 && (again < 0 || d < again) {
			again = d
		}
	}
	return again
}

// drivenFeeders returns all feeders if there are some that do not drive themselves.
func (s *feeders) drivenFeeders() []*feeder {
	if !s.driven() {
		return nil
	}
	return s.list()
}

func (s *feeders) list() []*feeder {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// await has goroutines drive the feeders with bells until rest, for a caller that sleeps where who
// rings these does not look: on a set, a channel, a counter or a descriptor. It is nil if there are
// none; one that is added later wakes the caller, to await it too.
func (s *feeders) await() (rest func()) {
	if !s.driven() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	any := false
	for _, e := range s.list() {
		if e.belled != nil {
			s.follow(e)
			any = true
		}
	}
	if !any {
		return nil
	}
	s.awaited++
	return func() {
		s.mu.Lock()
		s.awaited--
		s.mu.Unlock()
	}
}

// drivenOf returns what feeds those under a lock and does not drive itself.
func drivenOf[M any](mu *sync.Mutex, members *map[int]M, feeds func(M) *feeders) (all []*feeders) {
	if manualFeeders.Load() == 0 {
		return nil
	}
	mu.Lock()
	defer mu.Unlock()
	for _, m := range *members {
		if s := feeds(m); s.driven() {
			all = append(all, s)
		}
	}
	return all
}

// awaitAll is await for several. None of all is nil.
func awaitAll(all []*feeders) (rest func()) {
	var rests []func()
	for _, s := range all {
		if r := s.await(); r != nil {
			rests = append(rests, r)
		}
	}
	if rests == nil {
		return nil
	}
	return func() {
		for _, r := range rests {
			r()
		}
	}
}

// driveAll is drive for several.
func driveAll(all []*feeders) (again time.Duration) {
	again = -1
	for _, s := range all {
		if d := s.drive(); d >= 0 && (again < 0 || d < again) {
			again = d
		}
	}
	return again
}

// sliced drives all, and makes a wait of a set or channel end when that is to be done again.
func sliced(w wake.Wait, all []*feeders) wake.Wait {
	if again := driveAll(all); again >= 0 {
		until := deadline(max(1, again))
		if w.DeadlineNs == 0 || until < w.DeadlineNs {
			w.DeadlineNs = until
		}
	}
	return w
}

// standIns are the goroutines that drive feeders for who sleeps on a descriptor, which was armed.
type standIns struct {
	mu    sync.Mutex
	there atomic.Bool
	rest  func()
}

// replace has those of the last arming rest. rest is that of those who came in their place, or nil.
func (a *standIns) replace(rest func()) {
	if rest == nil && !a.there.Load() {
		return
	}
	a.mu.Lock()
	a.rest, rest = rest, a.rest
	a.there.Store(a.rest != nil)
	a.mu.Unlock()
	if rest != nil {
		rest()
	}
}

// follow has a goroutine drive a feeder while that is awaited. One that is there already, and
// sleeps, is woken by whoever has news. The lock is held.
func (s *feeders) follow(e *feeder) {
	if !e.followed {
		e.followed = true
		e.following.Go(func() { s.drives(e) })
	}
}

// drives is that goroutine. It begins with a look, so that what came before it was awaited is not
// left.
func (s *feeders) drives(e *feeder) {
	for s.awaits(e) {
		if again := e.f.Progress(); again == 0 {
			runtime.Gosched()
		} else if !e.sleep(func() bool { return !s.isAwaited(e) }) {
			time.Sleep(max(time.Millisecond, again))
		}
	}
}

// isAwaited reports whether somebody wants the feeder driven.
func (s *feeders) isAwaited(e *feeder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaited > 0 && !e.gone
}

// awaits is isAwaited for the goroutine, which ends if it is not so.
func (s *feeders) awaits(e *feeder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.followed = s.awaited > 0 && !e.gone
	return e.followed
}

// sleep sleeps on the feeder's bell, and reports that a look is worth while: not if the feeder is
// closed, or the bell cannot be parked.
func (e *feeder) sleep(stop func() bool) bool {
	b := e.belled.HoldBell()
	if b == nil {
		return false
	}
	defer e.belled.DropBell()
	b.Lock()
	more, err := b.Park()
	b.Unlock()
	if !more && err == nil {
		b.Sleep(wake.Wait{Stop: stop})
	}
	return err == nil
}

// feederBells are the bells of a queue's feeders while somebody looks at them or sleeps on them. A
// feeder that is closed ends that, and waits for it.
type feederBells struct {
	bells []*wake.Bell
	held  []belled
	room1 [2]*wake.Bell
	room2 [2]belled
}

// holdBells fills h, for which there is a drop.
func (s *feeders) holdBells(h *feederBells) {
	h.bells, h.held = h.room1[:0], h.room2[:0]
	for _, e := range s.drivenFeeders() {
		if e.belled == nil {
			continue
		}
		if b := e.belled.HoldBell(); b != nil {
			h.bells, h.held = append(h.bells, b), append(h.held, e.belled)
		}
	}
}

func (h *feederBells) drop() {
	for _, f := range h.held {
		f.DropBell()
	}
}

// pending reports whether a feeder has something to do.
func (h *feederBells) pending() (any bool) {
	for _, b := range h.bells {
		b.Lock()
		any = any || b.Pending()
		b.Unlock()
	}
	return any
}

// park has others ring from now on, and reports whether there is something to do.
func (h *feederBells) park() (more bool, err error) {
	for _, b := range h.bells {
		b.Lock()
		m, e := b.Park()
		b.Unlock()
		more, err = more || m, errors.Join(err, e)
	}
	return more, err
}

// overran tells all of them that the queue loses entries, once.
func (s *feeders) overran() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told {
		return
	}
	s.told = true
	for _, e := range s.list() {
		e.f.Overrun(e.q)
	}
}
