package demo

import (
	"context"
	"errors"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

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
		p.payloads, p.theirs, err = exchange(queueSlots)
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
