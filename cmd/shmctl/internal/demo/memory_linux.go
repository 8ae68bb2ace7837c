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

// memory is one end of the way between an application and a producer: a queue for what comes, the
// other's queue for what goes, and the payloads that their entries refer to, in regions that the
// other one maps read-only. A payload of the producer is there until the entry that refers to it is
// released, and no longer.
type memory struct {
	ctx              context.Context
	dir              *shm.Dir
	to               string // name of the other's queue
	q                *cq.Queue
	out              *cq.Writer
	payloads, theirs *shm.Region
	sends            []cq.Entry
}

// openMemory makes an end, with a queue of its own, when the other one is there.
func openMemory(ctx context.Context, c config, own, to string) (m *memory, err error) {
	m = &memory{ctx: ctx, to: to}
	if m.dir, err = shm.OpenDir(c.Dir); err != nil {
		return nil, err
	}
	m.q, err = cq.Create(cq.Named(m.dir, own), cq.Options{Size: queueSlots, MaxLanes: 4})
	if err == nil {
		m.out, err = cq.Attach(ctx, cq.Named(m.dir, to), cq.WriterOptions{Wait: true})
	}
	if err == nil {
		m.payloads, err = region(fdOwn, shm.ReadWrite)
	}
	if err == nil {
		m.theirs, err = region(fdTheirs, shm.ReadOnly)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func throughMemory(ctx context.Context, c config) (way, error) {
	return openMemory(ctx, c, c.Queue, c.Commands)
}

func (m *memory) queue() *cq.Queue { return m.q }

func (m *memory) view(e *cq.Entry) (shm.Loan, error) { return m.theirs.View(e.Buf, int(e.Len)) }

// arrived is what the producer says of it, where a device has a record before each payload.
func (m *memory) arrived(e *cq.Entry) (ns uint64, err error) { return e.Data, nil }

func (m *memory) giveBack([]cq.Entry) error { return nil }

// post has a slot of the region for each send that may be under way. They complete in order.
func (m *memory) post(sequence uint64) error {
	off, n := putSlot(m.payloads, sequence%sendSlots, sequence)
	m.sends = append(m.sends, cq.Entry{Context: sequence, Flags: cq.FlagSend | cq.FlagMsg,
		Len: uint64(n), Buf: m.payloads.Ref(off)})
	return nil
}

// flush posts what is to be sent. The other side may be behind; then it waits.
func (m *memory) flush() error {
	for len(m.sends) > 0 {
		n, err := m.out.PostBatch(m.sends)
		if err != nil && !errors.Is(err, cq.ErrFull) {
			return err
		}
		if m.sends = m.sends[n:]; n == 0 {
			if m.ctx.Err() != nil {
				return stage.ErrGone
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

func (m *memory) stats() (wakes, publishes uint64) {
	s := m.out.Stats()
	return s.Wakes, s.Publishes
}

func (m *memory) close() (err error) {
	if m.out != nil {
		err = m.out.Close()
	}
	if m.q != nil {
		err = errors.Join(err, m.q.Close())
	}
	for _, r := range []*shm.Region{m.theirs, m.payloads} {
		if r != nil {
			err = errors.Join(err, r.Close(context.Background()))
		}
	}
	_ = cq.Remove(cq.Named(m.dir, m.to)) // if the other one was killed, it is nobody's
	return errors.Join(err, m.dir.Close())
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

// region maps the payloads that this process sends, or those that it gets.
func region(fd int, how shm.Access) (*shm.Region, error) {
	defer unix.Close(fd)
	o, err := shm.OpenFD(fd, "payloads", how)
	if err != nil {
		return nil, err
	}
	return shm.NewRegion(o, sectionPayload)
}

// producer stands in for device and wire where there is no privilege: it makes the payloads that a
// peer would send, a payload for each slot of its lane, and verifies those that it would receive.
type producer struct {
	*memory
	count, sent uint64
	tally       *tally
	buf         []cq.Entry
}

func runProducer(l *line, c config) error {
	m, err := openMemory(l.ctx, c, c.Commands, c.Queue)
	if err != nil {
		return err
	}
	p := &producer{memory: m, count: c.Count, tally: newTally(c.Count),
		buf: make([]cq.Entry, readBatch)}
	err = l.phases(func(phase string) (uint64, error) {
		if phase == "rx" {
			return c.Count, p.run(p.produce)
		}
		return c.Count, p.run(p.serve)
	}, p.report)
	return errors.Join(err, m.close())
}

func (p *producer) report() *result {
	r := &result{RX: &Direction{Sent: p.sent}, TX: p.tally.direction()}
	r.Wakes, r.Publishes = p.stats()
	s := p.q.Stats()
	r.Syscalls = r.Wakes + s.Sleeps + s.Barriers
	return r
}

// run does a direction step by step until all is done, or the other side is silent.
func (p *producer) run(step func() (int, error)) error {
	last := time.Now()
	for done := uint64(0); done < p.count; {
		n, err := step()
		done += uint64(n)
		switch {
		case err != nil:
			return err
		case n > 0:
			last = time.Now()
		case p.ctx.Err() != nil:
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
	a, b, err := p.out.Reserve(int(min(readBatch, p.count-p.sent)))
	if errors.Is(err, cq.ErrFull) { // the application is behind
		time.Sleep(50 * time.Microsecond)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	now, at := uint64(spin.Now()), p.out.Next()
	for _, span := range [][]cq.Entry{a, b} {
		for i := range span {
			off, n := putSlot(p.payloads, at%queueSlots, p.sent)
			span[i] = cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: uint64(n), Data: now,
				Buf: p.payloads.Ref(off), Meta: cq.MetaNoContext}
			at++
			p.sent++
		}
	}
	return len(a) + len(b), p.out.Commit(len(a) + len(b))
}

// serve verifies what is sent, and posts the completions.
func (p *producer) serve() (int, error) {
	n, err := cq.ReadContext(context.Background(), p.q, p.buf,
		cq.ReadOptions{Timeout: 10 * time.Millisecond})
	if errors.Is(err, cq.ErrTimedOut) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for i := range p.buf[:n] {
		e := &p.buf[i]
		p.verify(e)
		p.sends = append(p.sends, cq.Entry{Context: e.Context, Flags: cq.FlagSend | cq.FlagMsg})
	}
	return n, p.flush()
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
