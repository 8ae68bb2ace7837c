package demo

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// memory is the way to a producer: a queue in each direction, and the payloads that their entries
// refer to, each in a region of who sends it, which the other maps read-only. A payload of the
// producer is there until the entry that refers to it is released, and no longer.
type memory struct {
	ctx              context.Context
	dir              *shm.Dir
	cfg              config
	q                *cq.Queue
	commands         *cq.Writer
	payloads, theirs *shm.Region
	sends            []cq.Entry
}

func throughMemory(ctx context.Context, c config) (way, error) {
	m := &memory{ctx: ctx, cfg: c}
	var err error
	if m.dir, err = shm.OpenDir(c.Dir); err != nil {
		return nil, err
	}
	m.q, err = cq.Create(cq.Named(m.dir, c.Queue), cq.Options{Size: queueSlots, MaxLanes: 4})
	if err == nil {
		m.commands, err = cq.Attach(ctx, cq.Named(m.dir, c.Commands), cq.WriterOptions{Wait: true})
	}
	if err == nil {
		m.payloads, m.theirs, err = regions()
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *memory) queue() *cq.Queue { return m.q }

func (m *memory) view(e *cq.Entry) (shm.Loan, error) { return m.theirs.View(e.Buf, int(e.Len)) }

// arrived is what the producer says of it, where a device has a record before each payload.
func (m *memory) arrived(e *cq.Entry) (ns uint64, err error) { return e.Data, nil }

func (m *memory) giveBack([]cq.Entry) error { return nil }

func (m *memory) post(slot int, sequence, context uint64) error {
	off, n := putSlot(m.payloads, uint64(slot), sequence)
	m.sends = append(m.sends, cq.Entry{Context: context, Flags: cq.FlagSend | cq.FlagMsg,
		Len: uint64(n), Buf: m.payloads.Ref(off)})
	return nil
}

func (m *memory) flush() error {
	defer func() { m.sends = m.sends[:0] }()
	return postAll(m.ctx, m.commands, m.sends)
}

func (m *memory) stats() (wakes, publishes uint64) {
	s := m.commands.Stats()
	return s.Wakes, s.Publishes
}

func (m *memory) close() error {
	var err error
	if m.commands != nil {
		err = m.commands.Close()
	}
	if m.q != nil {
		err = errors.Join(err, m.q.Close())
	}
	err = errors.Join(err, closeRegions(m.theirs, m.payloads))
	// If the producer was killed, its queue is nobody's.
	_ = cq.Remove(cq.Named(m.dir, m.cfg.Commands))
	return errors.Join(err, m.dir.Close())
}

// postAll posts entries. The other side may be behind; then they wait.
func postAll(ctx context.Context, w *cq.Writer, rest []cq.Entry) error {
	for len(rest) > 0 {
		n, err := w.PostBatch(rest)
		if err != nil && !errors.Is(err, cq.ErrFull) {
			return err
		}
		if rest = rest[n:]; n == 0 {
			if ctx.Err() != nil {
				return stage.ErrGone
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

// sectionPayload holds payloads, each in a slot for the longest.
const sectionPayload shm.SectionKind = 0x200

// putSlot makes the payload of a sequence in a slot.
func putSlot(r *shm.Region, slot, sequence uint64) (off uint64, n int) {
	off = slot * wire.PayloadMaxBytes
	return off, wire.Put(r.Bytes()[off:off+wire.PayloadMaxBytes], sequence)
}

// startPair starts application and producer, each with memory of its own for what it sends, which
// the other one maps read-only.
func (s *supervisor) startPair() error {
	var files [2]*os.File
	for i, slots := range []uint64{sendSlots, queueSlots} {
		o, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion, Name: "payloads",
			Sections: []shm.Section{{Kind: sectionPayload, Length: slots * wire.PayloadMaxBytes}}}, nil)
		if err != nil {
			return err
		}
		s.memory = append(s.memory, o)
		fd, err := unix.FcntlInt(uintptr(o.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("fcntl", err)
		}
		files[i] = os.NewFile(uintptr(fd), "payloads")
		defer files[i].Close()
	}
	if err := s.start("application", nil, files[0], files[1]); err != nil {
		return err
	}
	return s.start("producer", nil, files[1], files[0])
}

// regions maps the payloads that this process sends, and those that it gets.
func regions() (ours, theirs *shm.Region, err error) {
	if ours, err = region(fdOwn, shm.ReadWrite); err != nil {
		return nil, nil, err
	}
	theirs, err = region(fdTheirs, shm.ReadOnly)
	return ours, theirs, err
}

func region(fd int, how shm.Access) (*shm.Region, error) {
	defer unix.Close(fd)
	o, err := shm.OpenFD(fd, "payloads", how)
	if err != nil {
		return nil, err
	}
	return shm.NewRegion(o, sectionPayload)
}

// closeRegions closes those that were made.
func closeRegions(all ...*shm.Region) (err error) {
	for _, r := range all {
		if r != nil {
			err = errors.Join(err, r.Close(context.Background()))
		}
	}
	return err
}

// producer stands in for device and wire where there is no privilege: it makes the payloads that a
// peer would send, and verifies those that it would receive.
type producer struct {
	line             *line
	cfg              config
	rx, tx           *cq.Writer
	commands         *cq.Queue
	payloads, theirs *shm.Region // a payload for each slot of the lane of rx
	sent             uint64
	tally            *tally
	done, buf        []cq.Entry
}

func runProducer(l *line, c config) (err error) {
	d, err := shm.OpenDir(c.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	p := &producer{line: l, cfg: c, tally: newTally(c.Count), buf: make([]cq.Entry, readBatch),
		done: make([]cq.Entry, 0, readBatch)}
	defer func() { err = errors.Join(err, p.close(d)) }()
	if err := p.open(d); err != nil {
		return err
	}
	return l.phases(func(phase string) (uint64, error) {
		if phase == "rx" {
			return c.Count, p.run(p.produce)
		}
		return c.Count, p.run(p.serve)
	}, p.report)
}

func (p *producer) report() *result {
	r := &result{RX: &Direction{Sent: p.sent}, TX: p.tally.direction()}
	for _, w := range []*cq.Writer{p.rx, p.tx} {
		s := w.Stats()
		r.Wakes, r.Publishes = r.Wakes+s.Wakes, r.Publishes+s.Publishes
	}
	s := p.commands.Stats()
	r.Syscalls = r.Wakes + s.Sleeps + s.Barriers
	return r
}

func (p *producer) open(d *shm.Dir) (err error) {
	p.commands, err = cq.Create(cq.Named(d, p.cfg.Commands), cq.Options{Size: queueSlots, MaxLanes: 4})
	for _, w := range []**cq.Writer{&p.rx, &p.tx} {
		if err == nil {
			*w, err = cq.Attach(p.line.ctx, cq.Named(d, p.cfg.Queue), cq.WriterOptions{Wait: true})
		}
	}
	if err == nil {
		p.payloads, p.theirs, err = regions()
	}
	return err
}

// run does a direction step by step until all is done, or the other side is silent.
func (p *producer) run(step func() (int, error)) error {
	last := time.Now()
	for done := uint64(0); done < p.cfg.Count; {
		n, err := step()
		done += uint64(n)
		switch {
		case err != nil:
			return err
		case n > 0:
			last = time.Now()
		case p.line.ctx.Err() != nil:
			return stage.ErrGone
		case time.Since(last) > quiet:
			return nil
		}
	}
	return nil
}

// produce fills slots and posts the completions as one batch. What stands in the slot of an entry
// is free as soon as that is.
func (p *producer) produce() (int, error) {
	a, b, err := p.rx.Reserve(int(min(readBatch, p.cfg.Count-p.sent)))
	if errors.Is(err, cq.ErrFull) { // the application is behind
		time.Sleep(50 * time.Microsecond)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now, at := uint64(spin.Now()), p.rx.Next()
	for _, span := range [][]cq.Entry{a, b} {
		for i := range span {
			off, n := putSlot(p.payloads, at%queueSlots, p.sent)
			span[i] = cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: uint64(n), Data: now,
				Buf: p.payloads.Ref(off), Meta: cq.MetaNoContext}
			at++
			p.sent++
		}
	}
	return len(a) + len(b), p.rx.Commit(len(a) + len(b))
}

// serve verifies what is sent, and posts the completions.
func (p *producer) serve() (int, error) {
	n, err := cq.ReadContext(context.Background(), p.commands, p.buf,
		cq.ReadOptions{Timeout: 10 * time.Millisecond})
	if errors.Is(err, cq.ErrTimedOut) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	p.done = p.done[:0]
	for i := range p.buf[:n] {
		e := &p.buf[i]
		p.verify(e)
		p.done = append(p.done, cq.Entry{Context: e.Context, Flags: cq.FlagSend | cq.FlagMsg})
	}
	return n, postAll(p.line.ctx, p.tx, p.done)
}

func (p *producer) verify(e *cq.Entry) {
	loan, err := p.theirs.View(e.Buf, int(min(e.Len, wire.PayloadMaxBytes)))
	if err != nil {
		p.tally.Corrupt++
		return
	}
	p.tally.add(loan.Bytes())
	loan.Release()
}

func (p *producer) close(d *shm.Dir) error {
	var err error
	for _, w := range []*cq.Writer{p.rx, p.tx} {
		if w != nil {
			err = errors.Join(err, w.Close())
		}
	}
	if p.commands != nil {
		err = errors.Join(err, p.commands.Close())
	}
	err = errors.Join(err, closeRegions(p.payloads, p.theirs))
	_ = cq.Remove(cq.Named(d, p.cfg.Queue))
	return err
}
