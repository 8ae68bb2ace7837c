package hostile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/shmring/shmring/cq"
)

// Counters and address vectors are for processes of one user, all of which may write a counter:
// what is attacked here is no border between users. It must not end a process all the same.

const counterName = "counter"

// victimCounter uses a counter over which attackers scribble, beside a queue with honest writers.
func victimCounter(c *child) error {
	p := cq.Named(c.dir, counterName)
	n, err := cq.CreateCounter(p, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	if err != nil {
		return err
	}
	other, err := cq.AttachCounter(p, cq.CounterOptions{Spin: -1})
	if err != nil {
		return err
	}
	err = c.readQueues(func() {
		c.manyTimes(1, func(rnd *rand.Rand, i int) {
			c.lookAtCounter(rnd, []*cq.Counter{n, other}[i])
		})
	})
	defer c.watch("close of a counter")()
	c.assess("close", errors.Join(n.Close(), other.Close()))
	return err
}

func (c *child) lookAtCounter(rnd *rand.Rand, n *cq.Counter) {
	defer c.watch("a call of a counter")()
	before := n.Stats()
	var err error
	what, bound := "add to a counter", uint64(plainBound)
	switch rnd.IntN(8) {
	case 0:
		_, err = n.Read()
	case 1:
		err = n.Wait(context.Background(), rnd.Uint64()>>rnd.IntN(64),
			cq.WaitOptions{Timeout: 2 * time.Millisecond})
		what, bound = "wait for a counter", waitBound
	case 2:
		ctx, cancel := limited(2 * time.Millisecond)
		err = n.Wait(ctx, rnd.Uint64()>>rnd.IntN(64), cq.WaitOptions{})
		what, bound = "wait for a counter with a context", contextBound
		cancel()
	case 3:
		err = n.AddErr(1)
	case 4:
		err = n.Set(rnd.Uint64())
	case 5:
		if n.Options().Wait == cq.WaitFD {
			if err = n.TryWait(); err == nil {
				poll(n, 1)
			}
		}
	default:
		err = n.Add(rnd.Uint64N(3))
	}
	after := n.Stats()
	c.steps(what, after.Sleeps-before.Sleeps, bound)
	c.assess(what, err)
}

func attackCounter(c *child) error {
	return c.attackAs(func() (*guest, error) {
		n, err := cq.AttachCounter(cq.Named(c.dir, counterName), cq.CounterOptions{Spin: -1})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			// What says that it is one is scribbled over, and its creator goes on.
			time.Sleep(time.Millisecond)
			return nil, errOver
		}
		c.counts[attaches].Add(1)
		return &guest{play: func() {
			_ = n.Add(c.rnd.Uint64())
			_ = n.Wait(context.Background(), c.rnd.Uint64(), cq.WaitOptions{Timeout: 50 * time.Microsecond})
		}, leave: func() error { _ = n.Close(); return nil }}, nil
	})
}

const vectorName = "vector-%d"

func address(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 1)
}

// lookAtVector looks addresses up in a vector of an attacker.
func lookAtVector(c *child, rnd *rand.Rand, i int) {
	defer c.watch("looks at an address vector")()
	v, err := cq.AttachAddresses(cq.Named(c.dir, fmt.Sprintf(vectorName, i)))
	if err != nil {
		c.counts[calls].Add(1)
		if !errors.Is(err, fs.ErrNotExist) {
			c.refusedBy("open a vector", err)
		}
		time.Sleep(time.Millisecond)
		return
	}
	buf := make([]byte, 64)
	for range 200 {
		c.counts[calls].Add(1)
		switch rnd.IntN(4) {
		case 0:
			at, ok := v.Resolve(cq.AppendSockaddr(nil, address(rnd.IntN(1<<10))))
			if ok && uint64(at) >= uint64(v.Options().Count) && at>>32 == 0 {
				c.counts[foreign].Add(1) // an index of its owner's making
			}
		case 1:
			if n := v.Len(); n < 0 || n > v.Options().Count {
				c.broken(unbounded, "a vector says that it has %d addresses, and has room for %d", n,
					v.Options().Count)
			}
		default:
			at := cq.Addr(rnd.Uint64() >> rnd.IntN(64))
			if rnd.IntN(4) > 0 {
				at = cq.Addr(rnd.IntN(1 << 10))
			}
			_, err := v.Lookup(at, buf[:rnd.IntN(len(buf))])
			c.assess("look an address up", err)
		}
	}
	c.assess("close a vector", v.Close())
}

// attackVector owns a vector and scribbles over it.
func attackVector(c *child) error {
	name := fmt.Sprintf(vectorName, c.Index)
	away := func() error { _ = os.Remove(filepath.Join(c.Shm, name)); return nil }
	return c.attackAs(func() (*guest, error) {
		v, err := cq.CreateAddresses(cq.Named(c.dir, name), cq.AddressOptions{Count: 1 << 10})
		if errors.Is(err, fs.ErrExist) {
			v, err = cq.OpenAddresses(cq.Named(c.dir, name), cq.AddressOptions{Existing: true})
			if err != nil { // too broken
				return nil, away()
			}
		}
		if err != nil {
			return nil, err
		}
		c.counts[attaches].Add(1)
		return &guest{raids: 1 + c.rnd.IntN(4), play: func() {
			at, err := v.Insert([][]byte{cq.AppendSockaddr(nil, address(c.rnd.IntN(1<<10)))},
				cq.InsertOptions{})
			if err == nil && c.rnd.IntN(2) == 0 {
				_ = v.Remove(at...)
			}
		}, leave: func() error { _ = v.Close(); return away() }}, nil
	})
}
