package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// herd is what the scale commands of role 0 use: a queue with many writers, or many queues of one
// writer each in a set.
type herd struct {
	dir   *shm.Dir
	owns  []*cq.Queue
	outs  []*cq.Writer
	set   *cq.WaitSet
	buf   []cq.Tagged
	ready []cq.Waitable
	next  int // whose turn it is to post
}

var scaleVerbs = map[string]func(h *herd) error{
	"empty": (*herd).empty, "one": (*herd).one, "all": (*herd).all, "set": (*herd).oneOfSet,
	"set-same": (*herd).sameOfSet,
}

// openHerd makes n writers of one queue, or n queues in a set.
func openHerd(verb string, n int) (h *herd, err error) {
	h = &herd{}
	if h.dir, err = shm.OpenDir(""); err != nil {
		return h, err
	}
	defer func() {
		if err != nil {
			_ = h.Close()
		}
	}()
	h.buf, h.ready = make([]cq.Tagged, max(n, 1)), make([]cq.Waitable, 1)
	owns := 1
	if strings.HasPrefix(verb, "set") {
		owns = n
		if h.set, err = cq.NewWaitSet(h.dir, cq.WaitSetOptions{}); err != nil {
			return h, err
		}
	}
	for i := range owns {
		writers := n / owns
		if verb == "set-same" && i > 0 {
			writers = 0
		}
		if err := h.open(strconv.Itoa(i), writers); err != nil {
			return h, err
		}
	}
	return h, nil
}

// open makes one queue with its writers, which each have posted once: the reader knows their lanes.
func (h *herd) open(name string, writers int) error {
	p := cq.Named(h.dir, name)
	q, err := cq.Create(p, cq.Options{MaxLanes: max(writers, 1), Size: 64})
	if err != nil {
		return err
	}
	h.owns = append(h.owns, q)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for range writers {
		w, err := cq.Attach(ctx, p, cq.WriterOptions{Wait: true})
		if err != nil {
			return err
		}
		h.outs = append(h.outs, w)
		if err := w.Post(&cq.Entry{Flags: cq.FlagSend}); err != nil {
			return err
		}
		if err := h.take(q); err != nil {
			return err
		}
	}
	if h.set != nil {
		return h.set.Add(q)
	}
	return nil
}

// take reads an entry that was posted before.
func (h *herd) take(q *cq.Queue) error {
	if _, err := cq.Read(q, h.buf[:1]); err != nil {
		return fmt.Errorf("an entry that was posted: %w", err)
	}
	return nil
}

// empty is a read of a queue where every writer has been heard of and none has anything.
func (h *herd) empty() error {
	if _, err := cq.Read(h.owns[0], h.buf); err != cq.ErrWouldBlock {
		return fmt.Errorf("read of an empty queue: %w", err)
	}
	return nil
}

// one is a post by one writer, always the same, and its read.
func (h *herd) one() error {
	if err := h.outs[0].Post(&cq.Entry{Flags: cq.FlagSend}); err != nil {
		return err
	}
	return h.take(h.owns[0])
}

// all is a post by the next writer of all, and its read.
func (h *herd) all() error {
	h.next = (h.next + 1) % len(h.outs)
	if err := h.outs[h.next].Post(&cq.Entry{Flags: cq.FlagSend}); err != nil {
		return err
	}
	return h.take(h.owns[0])
}

// oneOfSet is a post to the next queue of a set, a wait for the set, which finds it ready, and the
// read.
func (h *herd) oneOfSet() error {
	h.next = (h.next + 1) % len(h.owns)
	return h.sameOfSet()
}

// sameOfSet is oneOfSet for the same queue each time.
func (h *herd) sameOfSet() error {
	if err := h.outs[h.next].Post(&cq.Entry{Flags: cq.FlagSend}); err != nil {
		return err
	}
	n, err := h.set.Wait(context.Background(), h.ready, cq.WaitOptions{})
	if err != nil {
		return err
	}
	if n != 1 || h.ready[0] != cq.Waitable(h.owns[h.next]) {
		return fmt.Errorf("%d queues of the set are ready, not the one that was posted to", n)
	}
	return h.take(h.owns[h.next])
}

func (h *herd) Close() error {
	for _, w := range h.outs {
		_ = w.Close()
	}
	for _, q := range h.owns {
		if h.set != nil {
			_ = h.set.Remove(q)
		}
		_ = q.Close()
	}
	closeAll(h.set, h.dir)
	return nil
}

// scaleRunner is the round of a scale command, which role 0 does alone.
func (p *party) scaleRunner(c command) (func() (uint64, bool, error), error) {
	n := c.batch
	if c.option == "one" {
		n = 1
	}
	do := scaleVerbs[c.verb]
	if do == nil || !c.hasOption(c.verb, "one") {
		return nil, fmt.Errorf("no such command: %q", c.name)
	}
	if p.role == 1 {
		return p.sleepOut, nil
	}
	h, err := have(p, func() (*herd, error) { return openHerd(c.verb, n) })
	if err != nil {
		return nil, err
	}
	return p.solo(func() (took time.Duration, err error) {
		began := time.Now()
		for range c.count {
			if err = do(h); err != nil {
				break
			}
		}
		return time.Since(began), err
	}), nil
}
