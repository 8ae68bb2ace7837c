package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
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
		m.payloads, m.theirs, err = exchange(sendSlots)
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

// exchange makes memory for so many payloads, passes it to the other process, and maps, read-only,
// what comes from there.
func exchange(slots uint64) (ours, theirs *shm.Region, err error) {
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion, Name: "payloads",
		Sections: []shm.Section{{Kind: sectionPayload, Length: slots * wire.PayloadMaxBytes}}}, nil)
	if err != nil {
		return nil, nil, err
	}
	if ours, err = shm.NewRegion(obj, sectionPayload); err != nil {
		return nil, nil, err
	}
	conn, err := socketOf(fdPeerSocket)
	if err != nil {
		return ours, nil, err
	}
	defer conn.Close()
	if err = shm.SendFDs(conn, []byte{1}, obj.FD()); err == nil {
		err = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	}
	if err != nil {
		return ours, nil, err
	}
	_, fds, err := shm.RecvFDs(conn, make([]byte, 1), 1)
	if err != nil {
		return ours, nil, err
	}
	defer shm.CloseFDs(fds)
	if len(fds) != 1 {
		return ours, nil, errors.New("the other process passed no memory")
	}
	if obj, err = shm.OpenFD(fds[0], "payloads", shm.ReadOnly); err != nil {
		return ours, nil, err
	}
	theirs, err = shm.NewRegion(obj, sectionPayload)
	return ours, theirs, err
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

// socketOf wraps an inherited socket.
func socketOf(fd uintptr) (*net.UnixConn, error) {
	f := os.NewFile(fd, "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("descriptor %d is no unix socket", fd)
	}
	return u, nil
}
