package cq

import (
	"time"

	"github.com/shmring/shmring/internal/kind"
)

// Drain handles one event of a queue as its manual says: it acknowledges the event, arms the queue
// again and then reads it until it is empty, so that no completion stays behind unseen. handle gets
// what each read returned, in buf; an error of it ends the call and is returned.
//
// A queue that is filled as fast as it is read would keep its handler for ever. After budget
// completions (0: no limit) Drain stops, and has the channel make a dummy event, so that the queue
// is visited again after the others: nothing is lost and nobody starves. Other errors are those of
// Read; the queue is armed even so.
func Drain[T Readable](c *Channel, ev ChannelEvent, n Notify, buf []T, budget int,
	handle func([]T) error) error {
	q := ev.Queue
	if len(buf) == 0 {
		return kind.Refuse("drain", q.name, "len(buf)", 0, "1 or more", ErrInvalid)
	}
	if budget < 0 {
		return kind.Refuse("drain", q.name, "budget", budget, "0 or more", ErrInvalid)
	}
	if err := c.Ack(q, 1); err != nil {
		return err
	}
	if err := c.RequestNotify(q, n); err != nil {
		return err
	}
	for left := budget; budget == 0 || left > 0; {
		room := buf
		if budget > 0 {
			room = buf[:min(len(buf), left)]
		}
		got, err := Read(q, room)
		if err == ErrWouldBlock {
			return nil
		}
		if err != nil {
			return err
		}
		left -= got
		if err := handle(room[:got]); err != nil {
			return err
		}
	}
	return c.Inject(q)
}

// progress drives what feeds the queues, and returns after how long it wants that again, or 0 for
// never.
func (c *Channel) progress() (again time.Duration) {
	if manualFeeders.Load() == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.byBit {
		if d := a.q.progress(); d >= 0 && (again == 0 || d < again) {
			again = max(1, d)
		}
	}
	return again
}
