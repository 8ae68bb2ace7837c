package cq

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
		return refuse("drain", q.name, "len(buf)", 0, "1 or more", ErrInvalid)
	}
	if err := c.Ack(q, 1); err != nil {
		return err
	}
	if err := c.Arm(q, n); err != nil {
		return err
	}
	for left := budget; budget == 0 || left > 0; {
		room := buf
		if budget > 0 {
			room = buf[:min(len(buf), left)]
		}
		got, err := Read(q, room)
		if err == ErrAgain {
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
