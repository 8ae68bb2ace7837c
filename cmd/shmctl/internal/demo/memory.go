package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// sectionPayload holds the payloads of sends, in a region of the application's own: frames are the
// producer's and read-only here.
const sectionPayload shm.SectionKind = 0x200

// memory is the way to a producer: a queue in each direction, and the memory that their entries
// refer to.
type memory struct {
	ctx      context.Context
	dir      *shm.Dir
	cfg      config
	q        *cq.Queue
	commands *cq.Writer
	frames   *shm.Region // the producer's, read-only
	geo      xdp.Geometry
	payloads *shm.Region
	returns  []cq.Entry
	sends    []cq.Entry
}

func throughMemory(ctx context.Context, c config) (way, error) {
	m := &memory{ctx: ctx, cfg: c}
	var err error
	if m.dir, err = shm.OpenDir(c.Dir); err != nil {
		return nil, err
	}
	m.q, err = cq.Create(cq.Named(m.dir, c.Queue), cq.Options{Size: queueSlots, MaxLanes: 4})
	if err == nil {
		err = m.meet()
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// meet attaches to the producer's command queue and exchanges memory with it: its frames against
// our payloads.
func (m *memory) meet() (err error) {
	m.commands, err = cq.Attach(m.ctx, cq.Named(m.dir, m.cfg.Commands), cq.WriterOptions{Wait: true})
	if err != nil {
		return err
	}
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion, Name: "payloads",
		Sections: []shm.Section{{Kind: sectionPayload, Length: sendSlots * payloadMaxBytes}}}, nil)
	if err != nil {
		return err
	}
	if m.payloads, err = shm.NewRegion(obj, sectionPayload); err != nil {
		return err
	}
	conn, err := socketOf(fdPeerSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := shm.SendFDs(conn, []byte{1}, obj.FD()); err != nil {
		return err
	}
	f, err := receiveFD(conn, "frames")
	if err != nil {
		return err
	}
	defer f.Close()
	m.frames, m.geo, err = xdp.OpenUMEM(int(f.Fd()), "frames", 0)
	return err
}

func (m *memory) queue() *cq.Queue { return m.q }

func (m *memory) view(e *cq.Entry) (shm.Loan, error) { return m.frames.View(e.Buf, int(e.Len)) }

func (m *memory) record(e *cq.Entry) (xdp.Record, error) {
	return xdp.ReadFrame(m.frames, m.geo, e.Buf)
}

// giveBack names each frame with the generation that it was lent under.
func (m *memory) giveBack(frames []cq.Entry) error {
	m.returns = m.returns[:0]
	for _, e := range frames {
		m.returns = append(m.returns, cq.Entry{Flags: cq.FlagFrame, Buf: e.Buf,
			Data: uint64(e.Meta.Seq()), Meta: cq.MetaNoContext})
	}
	return m.postAll(m.returns)
}

func (m *memory) post(slot int, sequence, context uint64) error {
	off := slot * payloadMaxBytes
	n := makePayload(m.payloads.Bytes()[off:off+payloadMaxBytes], sequence)
	m.sends = append(m.sends, cq.Entry{Context: context, Flags: cq.FlagSend | cq.FlagMsg,
		Len: uint64(n), Buf: m.payloads.Ref(uint64(off))})
	return nil
}

func (m *memory) flush() error {
	defer func() { m.sends = m.sends[:0] }()
	return m.postAll(m.sends)
}

// postAll posts commands. The producer may be behind; then they wait.
func (m *memory) postAll(rest []cq.Entry) error {
	for len(rest) > 0 {
		n, err := m.commands.PostBatch(rest)
		if err != nil && !errors.Is(err, cq.ErrFull) {
			return err
		}
		if rest = rest[n:]; n == 0 {
			if m.ctx.Err() != nil {
				return stage.ErrGone
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
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
	for _, r := range []*shm.Region{m.frames, m.payloads} {
		if r != nil {
			err = errors.Join(err, r.Close(context.Background()))
		}
	}
	// If the producer was killed, its queue is nobody's.
	_ = cq.Remove(cq.Named(m.dir, m.cfg.Commands))
	return errors.Join(err, m.dir.Close())
}

// receiveFD takes one descriptor from the other end of a socket.
func receiveFD(conn *net.UnixConn, name string) (*os.File, error) {
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return nil, err
	}
	_, fds, err := shm.RecvFDs(conn, make([]byte, 1), 1)
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, errors.New("the other process passed no memory")
	}
	return os.NewFile(uintptr(fds[0]), name), nil
}

// receivePayloads maps the payloads that an application passes, read-only.
func receivePayloads(conn *net.UnixConn) (*shm.Region, error) {
	f, err := receiveFD(conn, "payloads")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	obj, err := shm.OpenFD(int(f.Fd()), "payloads", shm.ReadOnly)
	if err != nil {
		return nil, err
	}
	return shm.NewRegion(obj, sectionPayload)
}

// socketOf wraps an inherited socket.
func socketOf(fd uintptr) (*net.UnixConn, error) {
	f := inherited(fd, "socket")
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
