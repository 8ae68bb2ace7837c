package cq

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
)

// Waitable is what wait sets and poll sets take: a [*Queue], an [*EventQueue] or a [*Counter] of
// this process.
type Waitable interface {
	// FID identifies the object in events, and UserContext is what its owner gave it.
	FID() FID
	UserContext() any

	// join makes the object ring the process's bell, at the bit that it returns. face is the object
	// as one set looks at it, with signals if the set ends a wait for them; the object cannot be
	// closed until the face has left.
	join(signals bool) (bit int, face face, err error)
	waitObject() WaitObject
	// feeds returns what moves only while somebody reads the object, or waits for it.
	feeds() *feeders
}

func errAbsent(op string) error {
	return kind.Refuse(op, "nil", "object", nil, "an open one", ErrInvalid)
}

// face is a member as one set sees it.
type face interface {
	wake.Member
	// claim is asked before the set returns a member that it found ready: not, if that was a signal
	// which another waiter took. The member is in the set.
	claim() bool
	// reported is told that the set returned the member as ready.
	reported()
	// left is told that the member left the set.
	left()
}

// queueFace is a queue in a set.
type queueFace struct {
	q        *core
	own      bool // the set is the one that the queue was opened in
	signals  bool // the set ends a wait for a signal
	signaled bool // the last look found nothing else; of the goroutine that waits
}

// Look implements wake.Member: a queue is ready while a read would return anything but
// ErrWouldBlock, or a signal is pending.
func (f *queueFace) Look() (more, signaled bool, err error) {
	f.signaled = false
	if !f.q.guard.enterAny() {
		return false, false, nil
	}
	defer f.q.guard.leaveAny()
	if due, err := f.q.due(); due || err != nil {
		return due, false, err
	}
	more, signaled, err = f.q.bell.Look()
	if !more && err == nil { // it was marked just now, and cannot be opened
		f.q.bell.Lock()
		f.q.reap()
		more = len(f.q.broken) > 0
		f.q.bell.Unlock()
	}
	f.signaled = f.signals && signaled && !more
	return more, f.signaled, err
}

// Join implements wake.Member.
func (f *queueFace) Join(on bool) { f.q.bell.Join(on) }

func (f *queueFace) claim() bool { return !f.signaled || f.q.bell.TakeSignal() }

func (f *queueFace) reported() {}

// left implements face. The queue's bit stays: producers may have it in their hands.
func (f *queueFace) left() {
	if f.own {
		f.q.holders.disown()
	} else {
		f.q.holders.unbind()
	}
}

func (q *core) join(signals bool) (int, face, error) {
	bit, err := q.seat()
	if err == nil && q.opening {
		q.holders.adopt()
	}
	return bit, &queueFace{q: q, own: q.opening, signals: signals}, err
}

// enterSet makes m, the queue as its user sees it, a member of the set that it was opened for.
func (q *core) enterSet(m Waitable, made bool) error {
	set := q.opt.WaitSet
	if q.opt.Wait != WaitInSet {
		return nil
	}
	if set == nil && made {
		return kind.Refuse("create", q.name, "WaitSet", nil, "an open wait set", ErrInvalid)
	}
	if set == nil { // an adopter may put it into one later
		return nil
	}
	q.opening = true // nobody else has the queue yet
	err := set.Add(m)
	q.opening = false
	return err
}

// seat binds the queue and gives it its bit in the process's bell, which it keeps until it closes.
func (q *core) seat() (int, error) {
	if err := q.holders.bind(); err != nil {
		return -1, err
	}
	bit, err := q.enroll()
	if err != nil {
		q.holders.unbind()
		return -1, failed("add", q.name, err)
	}
	return bit, nil
}

// enroll gives the queue its bit if it has none. The bell stays until the queue closes.
func (q *core) enroll() (bit int, err error) {
	q.seatMu.Lock()
	defer q.seatMu.Unlock()
	if q.bit >= 0 {
		return q.bit, nil
	}
	bit, bell, err := place.ProcessBell.Enroll(q.side.Beside(), &q.words.Bell, q.words.FaceGen.Load())
	if err != nil {
		return -1, err
	}
	q.bit = bit
	q.bell.SetDomain(bell, bit)
	q.seated.Store(true)
	q.side.Forward(q.bell)
	if q.sliced.Load() { // else whoever finds that out sees that the queue has a seat
		processWatch.add(unwatchedLanes{q})
	}
	return bit, nil
}

func (q *core) waitObject() WaitObject { return q.opt.Wait }

func (q *core) feeds() *feeders { return &q.feeders }

// join puts a counter into a wait set, with a bit for that set alone.
func (c *Counter) join(bool) (int, face, error) {
	if err := c.holders.bind(); err != nil {
		return -1, nil, err
	}
	bit, bell, err := place.ProcessBell.Lend()
	if err != nil {
		c.holders.unbind()
		return -1, nil, failed("add", c.name, err)
	}
	return bit, newCounterMember(c, bell, bit), nil
}

func (c *Counter) waitObject() WaitObject { return c.opt.Wait }

func (c *Counter) feeds() *feeders { return &c.feeders }

// join puts an event queue into a set. One with a handler is read by that alone.
func (e *EventQueue) join(signals bool) (int, face, error) {
	if e.handler != nil {
		return -1, nil, &Error{Pkg: kind.Pkg, Op: "add", Name: e.name, Err: ErrHandled,
			Hint: "open it without a Handler to wait for it yourself"}
	}
	return e.core.join(signals)
}

// ending makes a context end a wait on the process's bell, from its first sleep on: a wait that
// finds something ready costs no registration. The context may end late, when the set or channel
// and with it the bell are gone: its gate says so.
type ending struct {
	ctx    context.Context
	gate   *guard
	bell   *wake.Domain
	await  func() (rest func()) // has feeders driven while the wait sleeps
	cancel func() bool          // of context.AfterFunc
	fed    uint64               // feederChanges when feeders were driven last
}

// fedAnew reports that there may be others to drive since.
func (e *ending) fedAnew() bool { return feederChanges.Load() != e.fed }

// asleep is for [wake.Wait], which asks whether to stop after it.
func (e *ending) asleep() (awake func()) {
	if e.cancel == nil && e.ctx.Done() != nil {
		e.cancel = context.AfterFunc(e.ctx, func() {
			if e.gate.enterAny() {
				e.bell.Kick()
				e.gate.leaveAny()
			}
		})
	}
	return e.await()
}

func (e *ending) over() {
	if e.cancel != nil {
		e.cancel()
	}
}

// memberList is who is in a set, by bit and by object. Its own lock is held while the set's list
// changes with it, and never while a member is looked at.
type memberList struct {
	mu       sync.Mutex
	shut     bool // its set closes: nobody comes any more
	waits    bool // its set waits, which a member's signal ends; one that does not only polls
	byBit    map[int]listed
	bits     map[Waitable]int // of a counter that is polled it is polledBit
	counters []*polledCounter // replaced, never changed in place
}

// polledBit is that of counters which nobody rings for.
const polledBit = -1

type listed struct {
	m    Waitable
	face face
}

func (l *memberList) add(gate *guard, set *wake.Set, m Waitable) error {
	if kind.Absent(m) {
		return errAbsent("add")
	}
	if !gate.enterAny() {
		return ErrClosed
	}
	defer gate.leaveAny()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return ErrClosed
	}
	if _, is := l.bits[m]; is {
		return errMember(m)
	}
	if l.byBit == nil {
		l.byBit, l.bits = map[int]listed{}, map[Waitable]int{}
	}
	if c, is := m.(*Counter); is && !l.waits {
		if err := c.holders.bind(); err != nil {
			return err
		}
		l.counters, l.bits[m] = append(slices.Clone(l.counters), &polledCounter{c: c}), polledBit
		return nil
	}
	bit, face, err := m.join(l.waits)
	if err != nil {
		return err
	}
	l.byBit[bit], l.bits[m] = listed{m, face}, bit
	m.feeds().came()
	set.Add(bit, face)
	return nil
}

func (l *memberList) remove(gate *guard, set *wake.Set, m Waitable) error {
	if kind.Absent(m) {
		return errAbsent("remove")
	}
	if !gate.enterAny() {
		return ErrClosed
	}
	defer gate.leaveAny()
	l.mu.Lock()
	defer l.mu.Unlock()
	bit, is := l.bits[m]
	if !is {
		return errNoMember(m)
	}
	delete(l.bits, m)
	if bit == polledBit {
		l.counters = slices.DeleteFunc(slices.Clone(l.counters),
			func(p *polledCounter) bool { return p.c == m })
		m.(*Counter).holders.unbind()
		return nil
	}
	set.Delete(bit)
	face := l.byBit[bit].face
	delete(l.byBit, bit)
	face.left()
	return nil
}

func errMember(m Waitable) error {
	return fmt.Errorf("cq: add %v: it is a member: %w", m.FID(), syscall.EEXIST)
}

func errNoMember(m Waitable) error {
	return fmt.Errorf("cq: remove %v: it is no member: %w", m.FID(), syscall.ENOENT)
}

// close refuses members from now on, or returns how many there are.
func (l *memberList) close() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = l.shut || len(l.bits) == 0
	return len(l.bits)
}

// report turns bits into the members that they stand for, as many as dst holds, and counts those
// that are ready for this caller. A signal is taken here, where nobody can take its queue out.
func (l *memberList) report(bits []int, dst []Waitable) (n, ready int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, bit := range bits {
		e, is := l.byBit[bit]
		if !is || !e.face.claim() {
			continue
		}
		ready++
		if n < len(dst) {
			e.face.reported()
			dst[n] = e.m
			n++
		}
	}
	return n, ready
}

// driven returns what feeds the members and does not drive itself.
func (l *memberList) driven() []*feeders {
	return drivenOf(&l.mu, &l.byBit, func(e listed) *feeders { return e.m.feeds() })
}

// await has them driven while nobody here looks.
func (l *memberList) await() (rest func()) { return awaitAll(l.driven()) }

// roomFor returns an empty list with room for just n bits, or for one, from memory that is kept.
func roomFor(kept *[]int, n int) []int {
	n = max(1, n)
	if cap(*kept) < n {
		*kept = make([]int, 0, n)
	}
	return (*kept)[:0:n]
}
