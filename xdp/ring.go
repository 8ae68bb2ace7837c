package xdp

import (
	"sync/atomic"

	"github.com/shmring/shmring/internal/xskernel"
)

// ringWords are the shared words of one ring. Indices run freely and wrap at 2^32, so they are
// never widened: the difference of two of them is only right in 32 bits.
type ringWords struct {
	prod  *atomic.Uint32 // stored by whoever fills the ring
	cons  *atomic.Uint32 // stored by whoever empties it
	flags *atomic.Uint32 // stored by the kernel
}

// producer is this process's end of a fill or a transmit ring.
type producer[E uint64 | xskernel.Desc] struct {
	ringWords
	slots []E
	mask  uint32
	next  uint32 // the index that the next put writes; ahead of *prod until publish
	seen  uint32 // the kernel's consumer index as last loaded
	// faults counts index pairs that no ring can have; the ring is then taken as full.
	faults uint64
}

func newProducer[E uint64 | xskernel.Desc](w ringWords, slots []E) producer[E] {
	p := producer[E]{ringWords: w, slots: slots, mask: uint32(len(slots)) - 1}
	p.next, p.seen = w.prod.Load(), w.cons.Load()
	return p
}

// room returns how many entries can be put. It asks the kernel's index only when the copy that it
// has does not show as many as wanted.
func (p *producer[E]) room(want uint32) uint32 {
	size := p.mask + 1
	free := size - (p.next - p.seen)
	if free < want {
		// Pairs with the kernel's release of the entries that it has read.
		cons := p.cons.Load()
		if p.next-cons > size {
			p.faults++
			return 0
		}
		p.seen = cons
		free = size - (p.next - cons)
	}
	return free
}

// put writes one entry that publish makes visible. The caller has asked room.
func (p *producer[E]) put(e E) {
	p.slots[p.next&p.mask] = e
	p.next++
}

// span returns the next n entries, or those of them that lie in a row, to be put in place. The
// caller has asked room, and has next go past those that it put.
func (p *producer[E]) span(n uint32) []E {
	at := p.next & p.mask
	return p.slots[at:min(at+n, p.mask+1)]
}

// publish makes everything that was put visible with one store, and returns how many entries it
// was.
func (p *producer[E]) publish() uint32 {
	n := p.next - p.prod.Load()
	if n > 0 {
		storeRelease(p.prod, p.next) // pairs with the kernel's acquire: the entries are written before it
	}
	return n
}

// pending returns how many published entries the kernel has not taken yet.
func (p *producer[E]) pending() uint32 { return p.untaken(p.prod.Load()) }

// reach returns how many entries were put that the kernel has not taken, published or not.
func (p *producer[E]) reach() uint32 { return p.untaken(p.next) }

// untaken returns how many of the entries before an index the kernel has not taken.
func (p *producer[E]) untaken(before uint32) uint32 {
	if p.slots == nil {
		return 0 // dead
	}
	n := before - p.cons.Load()
	if n > p.mask+1 {
		p.faults++
		return 0
	}
	return n
}

// revoke takes back the entry that was put last. The caller knows that nobody reads the ring.
func (p *producer[E]) revoke() E {
	p.next--
	return p.slots[p.next&p.mask]
}

// wantsWakeup reports whether the kernel asked for a system call. A driver that goes to sleep asks
// and then looks at the ring once more, so the index must be visible before the flag is believed to
// be clear: the addition is a full barrier. In copy mode the flag is always set.
func (p *producer[E]) wantsWakeup() bool {
	if p.flags.Load()&xskernel.NeedWakeup != 0 {
		return true
	}
	p.prod.Add(0)
	return p.flags.Load()&xskernel.NeedWakeup != 0
}

// consumer is this process's end of a receive or a completion ring.
type consumer[E uint64 | xskernel.Desc] struct {
	ringWords
	slots  []E
	mask   uint32
	next   uint32 // the index that the next take reads; ahead of *cons until release
	seen   uint32 // the kernel's producer index as last loaded
	faults uint64
}

func newConsumer[E uint64 | xskernel.Desc](w ringWords, slots []E) consumer[E] {
	c := consumer[E]{ringWords: w, slots: slots, mask: uint32(len(slots)) - 1}
	c.next, c.seen = w.cons.Load(), w.prod.Load()
	return c
}

// available returns how many entries can be taken, looking at the kernel's index only when the copy
// shows fewer than wanted.
func (c *consumer[E]) available(want uint32) uint32 {
	n := c.seen - c.next
	if n < want {
		// Pairs with the kernel's release of the entries that it wrote.
		prod := c.prod.Load()
		if prod-c.next > c.mask+1 {
			c.faults++
			return 0
		}
		c.seen = prod
		n = prod - c.next
	}
	return n
}

// take reads one entry. The caller has asked available.
func (c *consumer[E]) take() E {
	e := c.slots[c.next&c.mask]
	c.next++
	return e
}

// span returns the next n entries, or those of them that lie in a row, each word of which is to be
// loaded once. The caller has asked available, and has next go past those that it read.
func (c *consumer[E]) span(n uint32) []E {
	at := c.next & c.mask
	return c.slots[at:min(at+n, c.mask+1)]
}

// peek reads the entry that lies i behind the next one and takes nothing. The caller has asked
// available.
func (c *consumer[E]) peek(i uint32) E { return c.slots[(c.next+i)&c.mask] }

// release gives everything that was taken back to the kernel with one store.
func (c *consumer[E]) release() {
	if c.cons.Load() != c.next {
		storeRelease(c.cons, c.next) // pairs with the kernel's acquire: the entries are read before it
	}
}

// deadProducer stands in for a ring that was unmapped: it is full for ever.
func deadProducer[E uint64 | xskernel.Desc]() producer[E] {
	w := ringWords{prod: new(atomic.Uint32), cons: new(atomic.Uint32), flags: new(atomic.Uint32)}
	w.prod.Store(1)
	p := newProducer(w, make([]E, 1))
	p.slots = nil
	return p
}

// deadConsumer stands in for a ring that was unmapped: it is empty for ever.
func deadConsumer[E uint64 | xskernel.Desc]() consumer[E] {
	w := ringWords{prod: new(atomic.Uint32), cons: new(atomic.Uint32), flags: new(atomic.Uint32)}
	return newConsumer(w, make([]E, 1))
}

// simKernel makes the kernel's side of a core, and joins them. The core is a member of a pool.
func simKernel(c *core, q *xskernel.Queue, o Options, start uint32,
	signal func()) *xskernel.Kernel {
	k := xskernel.NewKernel(q, xskernel.Config{Mem: c.mem, ChunkBytes: c.chunk,
		HeadroomBytes: c.headroom,
		MTU:           int(c.mtu), Unaligned: c.odd, Chains: c.chains, ZeroCopy: o.Mode == BindZeroCopy,
		Budget: defaultTxBudget, RxEntries: o.RxEntries, TxEntries: o.TxEntries, StartIndex: start,
		NoNeedWakeup: o.NoNeedWakeup, Signal: signal})
	c.rx, c.tx = newConsumer(wordsOf(k.Rx), k.Rx.Slots), newProducer(wordsOf(k.Tx), k.Tx.Slots)
	return k
}

func wordsOf[E uint64 | xskernel.Desc](r *xskernel.Ring[E]) ringWords {
	return ringWords{prod: &r.Prod, cons: &r.Cons, flags: &r.Flags}
}
