package cq

// laneBudget is how many entries one lane gives before the next one's turn, in one read or in
// many small ones, so that a busy writer starves nobody. Order is kept per lane.
const laneBudget = 64

// coolAfter is how many reads in a row may find several lanes empty before all of them are parked:
// a system call for as many reads, so that polling costs what the lanes in use cost.
const coolAfter = 1024

// Read copies up to len(dst) completions and removes them from the queue (fi_cq_read). T is one of
// the formats, no larger than the queue's. It never blocks.
//
// It returns how many it copied, at least one, or 0 and: ErrAgain if there is none; ErrAvail if an
// error entry is next, until ReadErr has taken it; ErrOverrun once an overrun queue is drained;
// a *LaneError, once, for a lane that was given up; ErrFormat, ErrClosed, or ErrBusy while
// entries handed out by Peek are not released. Entries ahead of an error are returned first.
//
// An entry that Read returned is gone: if the process dies before it acted on it, no successor
// sees it. Peek and Release keep it until it was acted on.
func Read[T Readable](q *Queue, dst []T) (int, error) { return readFrom(q, dst, nil) }

// ReadFrom is Read with the source of each entry, AddrNotAvail where it is not known
// (fi_cq_readfrom). Both slices must have the same length.
func ReadFrom[T Readable](q *Queue, dst []T, src []Addr) (int, error) {
	if len(dst) != len(src) {
		return 0, refuse("readfrom", q.name, "len(src)", len(src), len(dst), ErrInvalid)
	}
	return readFrom(q, dst, src)
}

func readFrom[T Readable](q *Queue, dst []T, src []Addr) (int, error) {
	if !q.guard.enter() {
		return 0, ErrClosed
	}
	if q.opt.Format != FormatTagged && formatOf[T]() > q.opt.Format {
		q.guard.leave()
		return 0, refuse("read", q.name, "format", formatOf[T](), q.opt.Format, ErrFormat)
	}
	q.bell.Lock()
	n, err := drain(q, dst, src)
	q.bell.Unlock()
	q.guard.leave()
	return n, err
}

// drain is R1 to R3: one round over the lanes that may have something, and more while a lane had
// more than its budget.
func drain[T Readable](q *Queue, dst []T, src []Addr) (n int, err error) {
	if q.final {
		return 0, ErrOverrun
	}
	if q.errLane != nil {
		return 0, ErrAvail
	}
	if q.out != nil {
		return 0, ErrBusy
	}
	// With a writer whose death would not be noticed, only full rounds lead to a full look.
	if bit := q.bell.Sole(); bit >= 0 && !q.sliced.Load() {
		if n, ok := takeSole(q, q.lanes[bit], dst, src); ok {
			return q.result(n, len(dst))
		}
	}
	q.bell.Take()
	q.bell.Heat()
	q.redelivered = false
	for again := true; again && n < len(dst); {
		again = false
		start := q.cur
		for pass := range 2 { // from the current lane to the last, then from the first to it
			from, to := start, len(q.lanes)
			if pass == 1 {
				from, to = 0, start
			}
			for bit := q.bell.Next(from); bit >= 0 && bit < to; bit = q.bell.Next(bit + 1) {
				if bit != q.cur {
					q.cur, q.turn = bit, 0
				}
				if n > 0 && q.lanes[bit].again() > 0 {
					return q.result(n, len(dst)) // these do not mix
				}
				got, more, stop := takeLane(q, q.lanes[bit], dst[n:], tail(src, n))
				n += got
				if q.turn += got; q.turn == laneBudget {
					q.cur, q.turn = (bit+1)%len(q.lanes), 0
				}
				if stop || n == len(dst) {
					return q.result(n, len(dst))
				}
				again = again || more
				if got == 0 {
					q.empty(bit)
				}
			}
		}
	}
	if n > 0 {
		q.idle = 0
	} else if q.idle++; q.idle == coolAfter {
		// A reader that only polls would look at every lane that was ever hot for ever.
		q.idle = 0
		if _, err := q.bell.Park(); err != nil {
			return 0, err
		}
		if q.sliced.Load() { // nobody tells of a writer that died before it could mark its lane
			if err := q.findLanes(false); err != nil {
				return 0, err
			}
		}
	}
	return q.result(n, len(dst))
}

// takeSole is a round over one lane that alone can have anything. ok says that nothing about the
// lane needs a closer look; otherwise nothing was taken.
func takeSole[T Readable](q *Queue, l *lane, dst []T, src []Addr) (n int, ok bool) {
	if l.again() > 0 {
		return 0, false
	}
	a, b := l.cons.Peek(len(dst))
	if len(a) == 0 {
		return 0, l.cons.Err() == nil && l.words.overrun.Load() == 0
	}
	q.redelivered = false
	n, stop := copyEntries(q, l, dst, src, a, false)
	if !stop && len(b) > 0 {
		k, _ := copyEntries(q, l, dst[n:], tail(src, n), b, false)
		n += k
	}
	if n > 0 {
		l.release(n)
	}
	return n, true
}

func tail(src []Addr, n int) []Addr {
	if src == nil {
		return nil
	}
	return src[n:]
}

// result says what a read that copied n entries returns.
func (q *Queue) result(n, wanted int) (int, error) {
	switch {
	case n > 0:
		return n, nil
	case q.errLane != nil:
		return 0, ErrAvail
	case len(q.broken) > 0:
		err := q.broken[0]
		q.broken = q.broken[1:]
		return 0, err
	case wanted == 0:
		return 0, nil
	case q.overrun != nil:
		// Whoever had reserved room before it was told may still commit: too late.
		q.final = true
		return 0, ErrOverrun
	}
	return 0, ErrAgain
}

// takeLane copies entries of one lane. more says that it stopped at the budget, stop that the read
// must end here: at an error entry, or where redelivered entries end.
func takeLane[T Readable](q *Queue, l *lane, dst []T, src []Addr) (n int, more, stop bool) {
	want := min(len(dst), laneBudget-q.turn)
	again := l.again()
	if again > 0 {
		want = int(min(uint64(want), again))
	}
	a, b := l.cons.Peek(want)
	n, stop = copyEntries(q, l, dst, src, a, again > 0)
	if !stop && len(b) > 0 {
		var k int
		k, stop = copyEntries(q, l, dst[n:], tail(src, n), b, again > 0)
		n += k
	}
	if n > 0 {
		l.release(n)
		q.redelivered = again > 0
		stop = stop || again > 0
		more = n == want
	}
	return n, more, stop
}

// again returns how many entries from the head on an earlier reader may have seen.
func (l *lane) again() uint64 {
	if left := l.marked - l.cons.Head(); left <= uint64(l.cons.Cap()) {
		return left
	}
	return 0
}

// release gives n entries back to the writer and keeps the row's statistics.
func (l *lane) release(n int) {
	if waiting := l.cons.Waiting(); waiting > countLoad(&l.row.highWater) {
		countStore(&l.row.highWater, waiting)
	}
	plainCount(&l.row.read, uint64(n))
	l.cons.Release(n)
	l.peeked = l.cons.Head()
}

// copyEntries copies one span. The kind of each entry is loaded once; what is copied is what was
// there at that moment, and means nothing to us.
func copyEntries[T Readable](q *Queue, l *lane, dst []T, src []Addr, span []Entry,
	redelivered bool) (n int, stop bool) {
	for i := range span {
		e := &span[i]
		m := loadMeta(e)
		if m&kindMask != kindEntry {
			q.notEntry(l, m)
			return n, true
		}
		dst[n] = as[T](e)
		if src != nil {
			src[n] = e.Src
		}
		if redelivered || m&MetaNoContext != 0 {
			markEntry(&dst[n], m, redelivered)
		}
		n++
	}
	return n, false
}

// markEntry sets this library's flags in formats that have flags.
func markEntry[T Readable](t *T, m Meta, redelivered bool) {
	f := flagsOf(t)
	if f == nil {
		return
	}
	if redelivered {
		*f |= FlagRedelivered
	}
	if m&MetaNoContext != 0 {
		*f |= FlagNoContext
	}
}

// notEntry notes why a read stopped at a slot that holds no completion.
func (q *Queue) notEntry(l *lane, m Meta) {
	if m&kindMask == kindError {
		q.errLane = l
		return
	}
	q.giveUp(l, "entry kind", refuse("read", q.name, "kind", uint64(m&kindMask),
		"completion or error", ErrCorrupt))
}

// empty is called for a lane that had nothing: it leaves the candidates if it is parked, and is
// looked at more closely if it overran or broke.
func (q *Queue) empty(bit int) {
	l := q.lanes[bit]
	if err := l.cons.Err(); err != nil {
		q.giveUp(l, "index", err)
		return
	}
	if at := l.words.overrun.Load(); at != 0 {
		switch {
		case q.opt.Overrun != OverrunQueue:
			q.giveUp(l, "overrun", refuse("read", q.name, "overrun", at, 0, ErrCorrupt))
			return
		case q.overrun == nil && l.cons.Len() == 0:
			q.promote(l)
		}
	}
	q.bell.Drained(bit)
}

// promote makes a lane's overrun the queue's: what the lane had published before is drained, every
// writer learns of it at its next post.
func (q *Queue) promote(l *lane) {
	q.overrun = l
	defer q.overran()
	q.words.state.Store(stateOverrun)
	q.bell.SetFlags(rowOverrun)
	for bit := range q.rows {
		if !q.bell.Knows(bit) {
			q.rows[bit].bell.Parked.Store(rowOverrun | 1)
		}
	}
}

// Redelivered reports whether what the last Read or Peek returned may have been seen by an
// earlier reader. Such entries never mix with others in one call, so that formats without flags
// can be told apart too. Only the goroutine that read may ask; in a shared queue another one may
// have read since, so look at FlagRedelivered there.
func (q *Queue) Redelivered() bool {
	q.bell.Lock()
	defer q.bell.Unlock()
	return q.redelivered
}
