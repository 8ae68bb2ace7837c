package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
)

const maxBatch = 32

// poster is a writer in one session: with one reader, or between users with one after the other.
type poster struct {
	*child
	w    writer
	name uint64
	s    session
	next uint64 // number of the next entry
}

// writes has one session of this process after the other until it is told to stop, each with a lane
// of its own. It is told the deaths of readers: between users in all sessions, else in most.
func (c *child) writes() error {
	ss := c.ledger.sessions(c.role.name)
	return c.withDeaths(func(deaths *cq.EventQueue) error {
		for c.ledger.phase() == phaseRun {
			if c.hushed() { // who attaches wakes the reader
				nap(time.Millisecond)
				continue
			}
			n := ss.count(c.Index).Add(1)
			if n >= maxSessions {
				return fmt.Errorf("%d sessions are more than the ledger has room for", n)
			}
			p := &poster{child: c, name: sessionName(c.Index, n), s: ss.at(c.Index, n), next: 1}
			if err := p.attached(deaths); err != nil {
				return err
			}
		}
		return nil
	})
}

// attached is a session with the lane that it attaches to.
func (p *poster) attached(deaths *cq.EventQueue) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err = p.begin(ctx); err != nil {
		return p.notAttached(err)
	}
	if deaths != nil && (p.between() || p.rnd.IntN(4) > 0) {
		if err = p.w.BindEvents(deaths); err == nil {
			p.bound()
		}
	}
	if err == nil {
		err = p.session()
	}
	p.unbound()
	p.has(0)
	p.owned()
	return errors.Join(err, p.w.Close())
}

// hushed tells whether nobody is to post.
func (c *child) hushed() bool {
	return c.still.Load() != 0 && c.ledger.phase() == phaseRun
}

// notAttached looks at the error of an attachment, which may be tried again if it is nil then.
func (c *child) notAttached(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c.tell(kindHung, "no queue to attach to for %v: %v", patience, err)
	case errors.Is(err, cq.ErrLanes): // those of the dead can be had; but all may have owners
		nap(time.Millisecond)
	default:
		return fmt.Errorf("attach: %w", err)
	}
	return nil
}

// session posts for a while. What it waited for in vain it has told. Between users all must be
// seen before it ends: what its reader had would be gone with both.
func (p *poster) session() error {
	err := p.post()
	if err == nil && p.between() {
		err = p.untilSeen()
	}
	if errors.Is(err, errGaveUp) {
		return nil
	}
	return err
}

func (p *poster) post() error {
	most, pause := 2500, 0
	if p.role.site.idle {
		most, pause = 20, 5000
	}
	for range 1 + p.rnd.IntN(most) {
		nap(time.Duration(p.rnd.IntN(pause+1)) * time.Microsecond)
		for p.hushed() {
			if err := p.untilSeen(); err != nil {
				return err
			}
			nap(time.Millisecond)
		}
		if p.ledger.phase() != phaseRun {
			return nil
		}
		var err error
		switch k := p.rnd.IntN(100); {
		case k < 94:
			err = p.role.site.post(p)
		case k < 98:
			nap(time.Duration(p.rnd.IntN(3000)) * time.Microsecond)
		default:
			err = p.untilSeen()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// published notes that n more entries are.
func (p *poster) published(n int) {
	p.next += uint64(n)
	p.s.published.Store(p.next - 1)
}

// errGaveUp ends a session that told what it waited for in vain.
var errGaveUp = errors.New("gave up")

// try posts, and waits for room, or for the next reader, as long as there is none. Anything else is
// an error.
func (p *poster) try(post func() error) error {
	for since := stage.Lifetime(); ; {
		err := post()
		switch {
		case err == nil:
			return nil
		case p.between() && errors.Is(err, cq.ErrPeerGone):
			err = p.renew()
		case !errors.Is(err, cq.ErrFull):
		case stage.Lifetime()-since > patience:
			p.tell(kindHung, "no room for %v, with %d of %d seen", patience, p.s.seen.Load(), p.next-1)
			err = errGaveUp
		default:
			err = p.pause(200 * time.Microsecond)
		}
		if err != nil {
			return err
		}
	}
}

// pause waits for a moment, or goes on with the next reader.
func (p *poster) pause(d time.Duration) error {
	if !p.between() {
		nap(d)
		return nil
	}
	select {
	case <-p.w.ReaderGone():
		return p.renew()
	case <-time.After(d):
		return nil
	}
}

// untilSeen waits until a reader has seen everything: no later post helps a lost wake.
func (p *poster) untilSeen() error {
	for since := stage.Lifetime(); p.s.seen.Load() < p.next-1; {
		if !p.between() && p.ledger.phase() != phaseRun {
			return nil // the reader gets it all, whether we are there or not
		}
		if stage.Lifetime()-since > patience {
			p.tell(kindHung, "%d of %d seen, and no more for %v", p.s.seen.Load(), p.next-1, patience)
			return errGaveUp
		}
		if err := p.pause(100 * time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

// queue is what it posts entries to, which changes with the reader.
func (p *poster) queue() *cq.Writer { return p.w.(*cq.Writer) }

// somehow posts a few entries.
func (p *poster) somehow() error {
	switch k := p.rnd.IntN(94); {
	case k < 50:
		return p.batch(1)
	case k < 75:
		return p.batch(1 + p.rnd.IntN(maxBatch))
	case k < 90:
		return p.reserved(1 + p.rnd.IntN(maxBatch))
	default:
		return p.credited(1 + p.rnd.IntN(4))
	}
}

// entry makes the entry of a number.
func (p *poster) entry(number uint64) cq.Entry {
	e := cq.Entry{Context: number, Flags: cq.FlagSend | cq.FlagMsg, Data: p.name,
		Tag: mix(p.name, number), Len: number & 0xffff}
	if number%7 == 0 {
		e.Meta = cq.MetaSolicited
	}
	return e
}

// batch posts n entries.
func (p *poster) batch(n int) (err error) {
	var buf [maxBatch]cq.Entry
	for i := range n {
		buf[i] = p.entry(p.next + uint64(i))
	}
	rest := buf[:n]
	p.s.intent.Store(p.next + uint64(n) - 1)
	for len(rest) > 0 && err == nil {
		err = p.try(func() (err error) {
			k := 1
			if n > 1 {
				k, err = p.queue().PostBatch(rest)
			} else if err = p.queue().Post(&rest[0]); err != nil {
				k = 0
			}
			if rest = rest[k:]; k > 0 {
				p.published(k)
				return nil
			}
			return err
		})
	}
	return err
}

// reserved fills slots in place, and says only then that it is going to commit some of them,
// perhaps after the reader is gone.
func (p *poster) reserved(n int) error {
	var w *cq.Writer
	var spans [2][]cq.Entry
	err := p.try(func() (err error) {
		w = p.queue()
		spans[0], spans[1], err = w.Reserve(n)
		return err
	})
	if err != nil {
		return err
	}
	number := p.next
	for _, span := range spans {
		for i := range span {
			span[i] = p.entry(number)
			number++
		}
	}
	k := p.rnd.IntN(int(number-p.next) + 1) // what is left is never published like this
	p.s.intent.Store(max(p.s.intent.Load(), p.next+uint64(k)-1))
	if p.rnd.IntN(50) == 0 { // so that kills find it with slots in its hands
		nap(time.Duration(p.rnd.IntN(3000)) * time.Microsecond)
	}
	if err := w.Commit(k); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	p.published(k)
	return nil
}

// credited posts with credits, which go along to the next reader.
func (p *poster) credited(n int) error {
	if err := p.try(func() error { return p.queue().Credits().Add(n) }); err != nil {
		return err
	}
	for range n {
		e := p.entry(p.next)
		p.s.intent.Store(p.next)
		for {
			err := p.queue().Credits().Post(&e)
			if err == nil {
				break
			}
			if !p.between() || !errors.Is(err, cq.ErrPeerGone) {
				return fmt.Errorf("post with credit: %w", err)
			}
			if err = p.renew(); err != nil {
				return err
			}
		}
		p.published(1)
	}
	return nil
}

// event writes one event.
func (p *poster) event() error {
	p.s.intent.Store(p.next)
	err := p.try(func() error { return p.writeEvent(p.w.(*cq.EventWriter), p.name, p.next) })
	if err == nil {
		p.published(1)
	}
	return err
}

// A reader that is rung by nobody is woken all the same, by whoever attaches or dies next, and then
// reads what all of them posted: a ring that was lost is not missed. So everybody is left alone now
// and then, and no writer posts until everything is seen.

// seenLatest is when more is seen of what was published, in time that the reader could run. Its
// writer needs none: it has rung before it notes what it published.
const seenLatest = 20 * time.Second

// vigilEvery is how far two looks are apart that count: many of the steps in which lives are told.
const vigilEvery = 10 * stage.LivedEvery

// calm is role.calm of writers, with their reader. One who died a moment ago may be missing.
func calm(s *supervisor, writers *role) error {
	ss := s.ledger.sessions(writers.name)
	who := s.there(writers.site.reader, writers.name)
	return s.silence(writers.name, who, func() (missing string, of []*proc) {
		if missing, of = s.unseen(ss, who); missing == "" {
			ss.calms().Add(1)
		}
		return missing, of
	})
}

// silence has the processes of a role begin nothing until nothing is missing, or long after those
// of whom it is could have seen to that.
func (s *supervisor) silence(role string, who map[*proc]process,
	look func() (missing string, of []*proc)) error {
	var v vigil
	return s.still(role, who, func() bool {
		missing, of := look()
		if missing == "" {
			return true
		}
		latest := cmp.Or(s.o.latest, seenLatest)
		late := v.look(s, missing, of, stage.Lifetime()) > latest
		if late {
			s.broken(role, kindHung, 1, "nobody begins anything or is killed, and for %v %s", latest,
				missing)
		}
		return late
	})
}

// still has the processes of a role keep still until it is done, or for a minute. It ends early if
// one of those whose part in it counts dies.
func (s *supervisor) still(role string, who map[*proc]process, done func() bool) error {
	word := s.ledger.still(role)
	word.Store(1)
	defer word.Store(0)
	for since := stage.Lifetime(); stage.Lifetime()-since < patience; nap(time.Millisecond) {
		if s.overdue(stage.Lifetime()); done() {
			return nil
		}
		for p, was := range who {
			if p.empty || p.Over() || p.process() != was {
				return nil
			}
		}
		if err := s.reviveAll(); err != nil {
			return err
		}
	}
	return nil
}

// there returns the processes of some roles that live.
func (s *supervisor) there(roles ...string) map[*proc]process {
	who := map[*proc]process{}
	for _, p := range s.procs {
		if slices.Contains(roles, p.role.name) && !p.empty && !p.Over() {
			who[p] = p.process()
		}
	}
	return who
}

// unseen says what is published and not seen, and of what reader it is missing: of none as long as
// nothing waits for one.
func (s *supervisor) unseen(ss sessions, who map[*proc]process) (missing string, of []*proc) {
	holder, pid := uint64(0), s.ledger.region(ss.role.site.reader)[heldBy].Load()
	if ss.holder != nil {
		holder = ss.holder.Load()
	}
	waiting := false
	for _, p := range s.procs {
		n := ss.last(p.index)
		if p.role.name != ss.role.name || n == 0 {
			continue
		}
		// Between users the rest of one that died may be gone with both, and the next waits for us.
		if ss.holder != nil && (s.has(p) == 0 || p.empty || p.Over()) {
			continue
		}
		e := ss.at(p.index, n)
		seen, want := e.seen.Load(), e.published.Load()
		if p.left.want > 0 { // it is dead, and has no successor yet
			want = max(want, p.left.want)
		}
		if seen < want {
			missing += fmt.Sprintf("%d of %d of writer %d in session %d are seen, ", seen, want, p.index, n)
			waiting = waiting || ss.holder == nil || e.reader.Load() == holder // else on its way there
		}
	}
	if missing == "" {
		return "", nil
	}
	for p, is := range who {
		if uint64(is.pid) == pid && waiting {
			of = append(of, p)
		}
	}
	return fmt.Sprintf("%sand no more by %s (pid %d, holder %d, waits by %s)", missing,
		ss.role.site.reader, pid, holder, ss.role.site.waits(s.ledger)), of
}

// vigil measures for how long processes could run while the same was missing of them.
type vigil struct {
	last string
	both
}

// look compares with the last look. own is the life of this process.
func (v *vigil) look(s *supervisor, missing string, of []*proc, own time.Duration) time.Duration {
	if missing != v.last || len(of) == 0 {
		*v = vigil{last: missing}
	}
	if len(of) == 0 {
		v.last = ""
		return 0
	}
	least := s.lived(of[0])
	for _, p := range of[1:] {
		least = min(least, s.lived(p))
	}
	return v.live(own, least, vigilEvery)
}

// both measures for how long this process and another one could run since a look.
type both struct {
	known      bool          // there was one
	own, other time.Duration // their lives at the last one
	lived      time.Duration
}

// live looks at both lives. Lives go on in steps: of two looks that are not far enough apart the
// second is none.
func (b *both) live(own, other, apart time.Duration) time.Duration {
	if b.known {
		if max(own-b.own, other-b.other) < apart {
			return b.lived
		}
		b.lived += min(own-b.own, other-b.other)
	}
	b.known, b.own, b.other = true, own, other
	return b.lived
}

// lived is for how long the process of a place could run.
func (s *supervisor) lived(p *proc) time.Duration {
	return time.Duration(s.ledger.word(wordLived + p.place).Load())
}
