package cq

import "errors"

// Slots returns up to n slots for completions that are posted together, to be filled and published
// with [Writer.Commit] of the queue's writer before anything else is posted. So many as credited of
// them end operations that Begin reserved room for, which is given up here: for those, n slots are
// always there. Wants says which operations are to have one, and Count counts them all. Errors are
// those of [Writer.Reserve].
func (b *Binding) Slots(n, credited int) (first, second []Entry, err error) {
	if b.closed || b.opt.Queue == nil {
		return nil, nil, ErrClosed
	}
	if b.reserving {
		credited = min(credited, b.credits)
		b.credits -= credited
		b.opt.Queue.Credits().Return(credited)
	}
	return b.opt.Queue.Reserve(n)
}

// Count adds n operations of a kind that went well, of so many bytes together, to the counters.
// Complete and its like count by themselves.
func (b *Binding) Count(kind Flags, n int, bytes uint64) error {
	var err error
	for _, c := range b.opt.Counters {
		switch {
		case c.Flags&kind == 0 || n == 0:
		case c.Counter.opt.Events == BytesCounter:
			err = errors.Join(err, c.Counter.Add(bytes))
		default:
			err = errors.Join(err, c.Counter.Add(uint64(n)))
		}
	}
	return err
}

// Reserves reports whether Begin reserves room, and refuses operations for which there is none. It
// does not for a queue with the policy OverrunQueue.
func (b *Binding) Reserves() bool { return b.reserving }
