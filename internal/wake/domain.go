package wake

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/spin"
)

// DomainRinger is a producer's hold on the bell of a reader's process.
type DomainRinger struct {
	Arm   *Arm
	Hints *Hints
	Bit   int // of the queue among the domain's
}

// ring is P6 and P7. It reports whether it woke anyone.
func (r *DomainRinger) ring() bool {
	if uint(r.Bit) >= uint(len(r.Hints.ready)*64) {
		return false // the reader's object names a bit that its domain does not have
	}
	mark(r.Hints.ready, r.Bit) // P6
	mark(r.Hints.summary, r.Bit/64)
	crash.At(crash.DomainMarked)
	a := r.Arm.Word.Load() // P7
	if a == 0 || r.Hints.rung.Load() == a {
		return false
	}
	r.Hints.epoch.Add(1)
	futex.WakeAll(r.Hints.epoch)
	crash.At(crash.DomainRung)
	r.Hints.rung.Store(a)
	return true
}

// Domain is the bell of a reader's process: one futex word, a bit per queue, and over them wait
// sets and completion channels. It is safe for use by several goroutines. The locks are taken in
// the order member, a queue's, mu.
type Domain struct {
	member sync.Mutex // held while members and their flags change
	joined []uint32   // under member: how many sets have the member

	mu       sync.Mutex
	arm      *Arm
	hints    *Hints
	bits     int
	watchers []*watcher
	seq      uint64
	nw       int // goroutines in sleep
	keeper   *keeper
}

// NewDomain returns the bell of this process over words that the caller mapped, for so many
// members.
func NewDomain(arm *Arm, hints *Hints, bits int) *Domain {
	return &Domain{arm: arm, hints: hints, bits: bits, joined: make([]uint32, bits),
		seq: arm.Word.Load()}
}

// Kick wakes everyone who waits on a set or channel of the domain, whatever was armed: for what
// [Wait].Stop asks. It may be called from anywhere.
func (d *Domain) Kick() {
	d.hints.epoch.Add(1)
	futex.WakeAll(d.hints.epoch)
}

// Consider makes every set and every armed channel that has the member look at it, and wakes them:
// for a death, a signal, and whatever else comes without a mark. It may be called from anywhere.
func (d *Domain) Consider(bit int) {
	if uint(bit) >= uint(d.bits) {
		return
	}
	d.mu.Lock()
	for _, x := range d.watchers {
		x.put(bit/64, x.mask[bit/64]&(1<<(bit%64)))
	}
	waiting := d.nw > 0
	d.mu.Unlock()
	// Whoever is not counted yet finds the member on its list at its second look.
	if waiting {
		d.Kick()
	}
}

// watcher is what sets and channels have in common. The fields are under Domain.mu.
type watcher struct {
	d      *Domain
	mask   bitset // members; of a channel, those that it is armed for
	todo   tree   // members to look at before sleeping
	next   int    // where the next look begins, so that nobody starves
	closed bool
	desc   *Face
	// lowered says that the descriptor is not readable, and is to be made so by whoever puts
	// something on the list.
	lowered bool
}

func (d *Domain) watch(x *watcher) {
	x.d, x.mask, x.todo = d, newBitset(d.bits), newTree(d.bits)
	d.mu.Lock()
	d.watchers = append(d.watchers, x)
	d.mu.Unlock()
}

// put adds members to the list. Domain.mu is held.
func (x *watcher) put(word int, bits uint64) {
	if bits == 0 {
		return
	}
	x.todo.or(word, bits)
	if x.lowered {
		x.lowered = false
		x.desc.Set()
	}
}

// Alert makes the descriptor readable and wakes who sleeps, for what no member has. What it is for
// is stored before, and looked at after a call that lowers the descriptor. It may be called from
// anywhere.
func (x *watcher) Alert() {
	x.d.mu.Lock()
	if x.lowered {
		x.lowered = false
		x.desc.Set()
	}
	x.d.mu.Unlock()
	x.d.Kick()
}

// pick takes the next member off the list, looking from bit from up to but not including bit to.
// Domain.mu is held.
func (x *watcher) pick(from, to int) int {
	bit := x.todo.next(from)
	if bit < 0 || bit >= to {
		return -1
	}
	x.todo.clear(bit)
	return bit
}

// all puts every member on the list: the full look at the end of a slice.
func (x *watcher) all() {
	x.d.mu.Lock()
	defer x.d.mu.Unlock()
	for i, m := range x.mask {
		x.put(i, m)
	}
}

// take is S1: the domain's bits go to everybody who has them in its mask, in one critical section.
func (d *Domain) take() {
	passAll()
	d.mu.Lock()
	d.takeLocked()
	d.mu.Unlock()
}

func (d *Domain) takeLocked() {
	for i := range d.hints.summary {
		for x := d.hints.summary[i].Load(); x != 0; x &= x - 1 {
			word := i*64 + lowest(x)
			if word >= len(d.hints.ready) {
				break // forged
			}
			// Summary before leaf, the opposite of the producer's order: a bit that is set in
			// between leaves its summary set.
			d.hints.summary[i].And(^(uint64(1) << (word % 64)))
			got := d.hints.ready[word].Swap(0)
			for _, w := range d.watchers {
				w.put(word, got&w.mask[word])
			}
			crash.At(crash.DomainTaken)
		}
	}
}

// sleep is S3 to S7. x is nil for the keeper.
func (d *Domain) sleep(x *watcher, w Wait) {
	e := d.hints.epoch.Load() // S3
	d.mu.Lock()
	d.seq++
	d.arm.Word.Store(d.seq) // S4
	d.nw++
	crash.At(crash.DomainArmed)
	busy := d.busy(x) // S5
	d.mu.Unlock()
	if !busy && (w.Stop == nil || !w.Stop()) {
		crash.At(crash.DomainSleep)
		futex.Wait(d.hints.epoch, e, w.DeadlineNs) // S6
		crash.At(crash.DomainWoken)
	}
	d.mu.Lock()
	d.nw-- // S7
	if d.nw == 0 {
		d.arm.Word.Store(0)
	}
	d.mu.Unlock()
}

// busy is the second look: at the shared bits and at what others took from them. Whatever is put
// on the list of somebody who has a descriptor shows there, so the keeper need not look at lists.
func (d *Domain) busy(x *watcher) bool {
	if x != nil {
		return x.closed || !x.todo.empty() || d.marked(x.mask)
	}
	for _, w := range d.watchers {
		if w.desc != nil && d.marked(w.mask) {
			return true
		}
	}
	return false
}

// marked looks through the summary, as take does: a bit whose summary is not set yet belongs to a
// producer that still has P7 before it.
func (d *Domain) marked(mask bitset) bool {
	h := d.hints
	for i := range h.summary {
		for x := h.summary[i].Load(); x != 0; x &= x - 1 {
			word := i*64 + lowest(x)
			if word < len(mask) && h.ready[word].Load()&mask[word] != 0 {
				return true
			}
		}
	}
	return false
}

// patience is how a blocking call on a set or channel spends its time: up to the deadline, with a
// full look at the end of each slice.
type patience struct {
	w       Wait
	sliceNs int64 // end of the present slice; 0 is none
}

func (p *patience) over() bool {
	if p.w.DeadlineNs < 0 || p.w.Stop != nil && p.w.Stop() {
		return true
	}
	return p.w.DeadlineNs > 0 && spin.Now() >= p.w.DeadlineNs
}

func (p *patience) sleep(x *watcher) {
	w := p.w
	if w.SliceNs > 0 && p.sliceNs == 0 {
		p.sliceNs = spin.Now() + w.SliceNs
	}
	if p.sliceNs > 0 && (w.DeadlineNs == 0 || p.sliceNs < w.DeadlineNs) {
		w.DeadlineNs = p.sliceNs
	}
	var awake func()
	if w.Asleep != nil {
		awake = w.Asleep()
	}
	x.d.sleep(x, w)
	if awake != nil {
		awake()
	}
	if p.sliceNs > 0 && spin.Now() >= p.sliceNs {
		p.sliceNs = 0
		x.all()
	}
}

// keeper is the goroutine that stands between the domain's futex, which is all that producers ring,
// and the descriptors of sets and channels. It waits as a set does, S1 and S3 to S7, and hands on
// what it takes; whoever puts something on the list of a set whose descriptor is lowered raises
// it. While it sleeps it holds a thread. It looks at no member.
type keeper struct {
	descriptors int
	stop        atomic.Bool
	done        chan struct{}
}

func (k *keeper) run(d *Domain) {
	defer close(k.done)
	w := Wait{Stop: k.stop.Load}
	for !k.stop.Load() {
		d.take()
		d.sleep(nil, w)
	}
}

// describe gives a set or channel its descriptor.
func (d *Domain) describe(x *watcher) (*Face, error) {
	d.member.Lock()
	defer d.member.Unlock()
	d.mu.Lock()
	face, closed := x.desc, x.closed
	d.mu.Unlock()
	if face != nil {
		return face, nil
	}
	if closed {
		return nil, os.ErrClosed
	}
	face, err := NewFace(-1)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	x.desc = face
	d.mu.Unlock()
	if d.keeper == nil {
		d.keeper = &keeper{done: make(chan struct{})}
		go d.keeper.run(d)
	} else {
		d.Kick() // its second look did not know of this one's members
	}
	d.keeper.descriptors++
	return face, nil
}

// undescribe closes the descriptor; the keeper leaves with the last one. Domain.member is held.
func (d *Domain) undescribe(x *watcher) {
	d.mu.Lock()
	face := x.desc
	x.desc, x.lowered = nil, false
	d.mu.Unlock()
	if face == nil {
		return
	}
	face.Close()
	k := d.keeper
	if k.descriptors--; k.descriptors > 0 {
		return
	}
	k.stop.Store(true)
	d.Kick()
	<-k.done
	d.keeper = nil
}

// leave takes a set or channel from the domain and wakes those who wait on it.
func (d *Domain) leave(x *watcher) {
	d.mu.Lock()
	x.closed = true
	d.watchers = slices.DeleteFunc(d.watchers, func(y *watcher) bool { return x == y })
	d.mu.Unlock()
	d.Kick()
}
