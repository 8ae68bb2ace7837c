package xdp

import "github.com/shmring/shmring/internal/xskernel"

// SimOptions describe a simulated device and the socket on it. Zero values stand for the defaults.
type SimOptions struct {
	Options
	Name  string // of the interface; "sim0" by default
	Queue uint32
	MTU   int // 1500 by default
	// StartIndex is where the indices of all rings begin, which wrap at 2^32.
	StartIndex uint32
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
