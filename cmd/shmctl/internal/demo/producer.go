package demo

import (
	"context"
	"errors"
	"time"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// The producer's frames look like a device's: a record at the start of a chunk, the payload behind.
const (
	producerFrames   = 1024
	producerChunk    = 2048
	producerHeadroom = xdp.RecordBytes + 256
)

// producer stands in for device and wire where there is no privilege: it makes the payloads that a
// peer would send, and verifies those that it would receive.
type producer struct {
	line     *line
	cfg      config
	rx, tx   *cq.Writer
	commands *cq.Queue
	umem     *xdp.UMEM   // memory laid out as a device's, no socket
	frames   *shm.Region // the umem's
	payloads *shm.Region // the application's
	free     []uint32
	loaned   [producerFrames]bool
	sequence [producerFrames]uint32
	sent     uint64
	stale    uint64
	tally    *tally
	done     []cq.Entry
	buf      []cq.Entry
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
	l.send(event{Is: "ready"})
	for _, phase := range []string{"rx", "tx"} {
		if err := l.await(phase); err != nil {
			return err
		}
		if err := p.run(phase); err != nil {
			return err
		}
		l.send(event{Is: "done", Phase: phase})
	}
	if err := l.await("report"); err != nil {
		return err
	}
	r := &result{
		RX: &Direction{Sent: p.sent, Duplicate: p.stale},
		TX: &Direction{Completed: p.tally.Arrived, Lost: c.Count - p.tally.Arrived,
			Corrupt: p.tally.Corrupt + p.tally.Unexpected, Duplicate: p.tally.Duplicate},
	}
	for _, w := range []*cq.Writer{p.rx, p.tx} {
		s := w.Stats()
		r.Wakes, r.Publishes = r.Wakes+s.Wakes, r.Publishes+s.Publishes
	}
	s := p.commands.Stats()
	r.Syscalls = r.Wakes + s.Sleeps + s.Barriers
	l.send(event{Is: "report", Stats: r})
	return nil
}

func (p *producer) open(d *shm.Dir) (err error) {
	p.commands, err = cq.Create(cq.Named(d, p.cfg.Commands), cq.Options{Size: queueSlots, MaxLanes: 4})
	if err != nil {
		return err
	}
	if p.rx, err = cq.Attach(p.line.ctx, cq.Named(d, p.cfg.Queue),
		cq.WriterOptions{Wait: true}); err != nil {
		return err
	}
	if p.tx, err = cq.Attach(p.line.ctx, cq.Named(d, p.cfg.Queue), cq.WriterOptions{}); err != nil {
		return err
	}
	p.umem, err = xdp.NewUMEM(xdp.UMEMOptions{Name: "frames", Frames: producerFrames,
		ChunkBytes: producerChunk})
	if err != nil {
		return err
	}
	p.frames = p.umem.Region()
	for i := range uint32(producerFrames) {
		p.free = append(p.free, i)
	}
	conn, err := socketOf(fdPeerSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err = shm.SendFDs(conn, []byte{1}, p.umem.FD()); err != nil {
		return err
	}
	p.payloads, err = receivePayloads(conn)
	return err
}

// run serves one direction until all its completions are posted, or the other side is silent.
func (p *producer) run(phase string) error {
	var handled uint64
	last := time.Now()
	for {
		made := 0
		if phase == "rx" {
			made = p.produce()
		}
		k, err := p.serve(made)
		if err != nil {
			return err
		}
		handled += uint64(k)
		switch {
		case made+k > 0:
			last = time.Now()
		case p.line.ctx.Err() != nil:
			return stage.ErrGone
		case time.Since(last) > quiet:
			return nil
		}
		if handled >= p.cfg.Count { // every frame returned, or every send completed
			return nil
		}
	}
}

// produce fills free frames and posts their completions as one batch.
func (p *producer) produce() int {
	n := int(min(readBatch, uint64(len(p.free)), p.cfg.Count-p.sent))
	if n == 0 {
		return 0
	}
	a, b, err := p.rx.Reserve(n)
	if err != nil {
		return 0 // the application is behind
	}
	now, next := uint64(spin.Now()), p.rx.Next()
	for _, span := range [][]cq.Entry{a, b} {
		for i := range span {
			span[i] = p.frame(next, now)
			next++
		}
	}
	if p.rx.Commit(len(a)+len(b)) != nil {
		return 0
	}
	return len(a) + len(b)
}

// frame writes the next payload into a free frame and returns its completion.
func (p *producer) frame(index, now uint64) cq.Entry {
	id := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	off := uint64(id) * producerChunk
	chunk := p.frames.Bytes()[off : off+producerChunk]
	n := makePayload(chunk[producerHeadroom:], p.sent)
	p.sent++
	rec := xdp.Record{Sequence: index, RxNs: now, PayloadOff: producerHeadroom,
		PayloadLen: uint16(n)}
	rec.Put(chunk)
	p.loaned[id], p.sequence[id] = true, uint32(index)
	return cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagFrame, Len: uint64(n),
		Buf: p.frames.Ref(off + producerHeadroom), Meta: cq.MetaNoContext}
}

// serve reads commands: frames that come back, and sends.
func (p *producer) serve(made int) (int, error) {
	o := cq.ReadOptions{Timeout: -1}
	if made == 0 {
		o.Timeout = 10 * time.Millisecond
	}
	n, err := cq.ReadContext(context.Background(), p.commands, p.buf, o)
	if errors.Is(err, cq.ErrTimedOut) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	p.done = p.done[:0]
	handled := 0
	for i := range p.buf[:n] {
		e := &p.buf[i]
		if e.Flags&cq.FlagFrame != 0 {
			handled += p.takeBack(e)
			continue
		}
		handled++
		p.verify(e)
		p.done = append(p.done, cq.Entry{Context: e.Context, Flags: cq.FlagSend | cq.FlagMsg})
	}
	return handled, p.complete()
}

func (p *producer) takeBack(e *cq.Entry) int {
	id := uint32(e.Buf.Offset() / producerChunk)
	if id >= producerFrames || !p.loaned[id] || p.sequence[id] != uint32(e.Data) {
		p.stale++
		return 0
	}
	p.loaned[id] = false
	p.free = append(p.free, id)
	return 1
}

func (p *producer) verify(e *cq.Entry) {
	loan, err := p.payloads.View(e.Buf, int(min(e.Len, payloadMaxBytes)))
	if err != nil {
		p.tally.Corrupt++
		return
	}
	p.tally.add(loan.Bytes())
	loan.Release()
}

// complete posts the completions of sends; the application has room for all it has under way.
func (p *producer) complete() error {
	for rest := p.done; len(rest) > 0; {
		n, err := p.tx.PostBatch(rest)
		if err != nil && !errors.Is(err, cq.ErrFull) {
			return err
		}
		if rest = rest[n:]; n == 0 {
			if p.line.ctx.Err() != nil {
				return stage.ErrGone
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
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
	if p.umem != nil {
		err = errors.Join(err, p.umem.Close(context.Background()))
	}
	if p.payloads != nil {
		err = errors.Join(err, p.payloads.Close(context.Background()))
	}
	_ = cq.Remove(cq.Named(d, p.cfg.Queue))
	return err
}
