package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/stage"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/port"
)

const (
	readBatch  = 64
	queueSlots = 4096
	// sendSlots is how many payloads the application can have under way.
	sendSlots = 256
)

// sectionPayload holds the payloads of sends, in a region of the application's own: frames are the
// device's and read-only here.
const sectionPayload shm.SectionKind = 0x200

// application creates the queue, reads completions and posts sends.
type application struct {
	line     *line
	cfg      config
	q        *cq.Queue
	commands *cq.Writer
	frames   *shm.Region // the device's, read-only
	geo      xdp.Geometry
	payloads *shm.Region
	credit   *os.File // to the peer; nil if there is none
	returns  []cq.Entry
	hist     *hdrhistogram.Histogram
	result   result
}

func runApplication(l *line, c config) (err error) {
	d, err := shm.OpenDir(c.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	a := &application{line: l, cfg: c, returns: make([]cq.Entry, 0, readBatch)}
	defer func() { err = errors.Join(err, a.close(d)) }()
	if a.q, err = cq.Create(d, c.Queue, cq.Options{Size: queueSlots, MaxLanes: 4}); err != nil {
		return err
	}
	if err := a.meetDevice(d); err != nil {
		return err
	}
	l.send(event{Is: "ready"})
	for _, phase := range []struct {
		name string
		run  func() (*Direction, error)
		into **Direction
	}{{"rx", a.receive, &a.result.RX}, {"tx", a.transmit, &a.result.TX}} {
		if err := l.await(phase.name); err != nil {
			return err
		}
		a.hist = hdrhistogram.New(1, int64(time.Minute), 3)
		if *phase.into, err = phase.run(); err != nil {
			return err
		}
		l.send(event{Is: "done", Phase: phase.name, Count: (*phase.into).Completed})
	}
	if err := l.await("report"); err != nil {
		return err
	}
	s, w := a.q.Stats(), a.commands.Stats()
	a.result.Syscalls = s.Sleeps + s.Barriers + w.Wakes
	a.result.Wakes, a.result.Publishes = w.Wakes, w.Publishes
	l.send(event{Is: "report", Stats: &a.result})
	return nil
}

// meetDevice attaches to the device's command queue and exchanges memory with it: its frames
// against our payloads.
func (a *application) meetDevice(d *shm.Dir) (err error) {
	a.commands, err = cq.Attach(a.line.ctx, d, a.cfg.Commands, cq.WriterOptions{Wait: true})
	if err != nil {
		return err
	}
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion, Name: "payloads",
		Sections: []shm.Section{{Kind: sectionPayload, Length: sendSlots * payloadMaxBytes}}}, nil)
	if err != nil {
		return err
	}
	// The device refuses memory that could get smaller while it reads.
	if err := obj.Seal(shm.SealShrink | shm.SealGrow | shm.SealSeal); err != nil {
		_ = obj.Close()
		return err
	}
	if a.payloads, err = shm.NewRegion(obj, sectionPayload); err != nil {
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
	if a.frames, a.geo, err = xdp.OpenUMEM(int(f.Fd()), "frames"); err != nil {
		return err
	}
	if a.cfg.Remote != "" {
		a.credit = inherited(fdCreditSocket, "credit")
	}
	return nil
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

// receive reads the payload of every frame where the device put it, and gives the frame back.
func (a *application) receive() (*Direction, error) {
	t := newTally(a.cfg.Count)
	var done, told uint64
	var begin, end int64
	var b [8]byte
	for done < a.cfg.Count {
		ctx, cancel := context.WithTimeout(a.line.ctx, quiet)
		es, err := a.q.PeekContext(ctx, readBatch)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break // what is missing is lost, and reported as such
		}
		if err != nil {
			return nil, err
		}
		end = doorbell.Now()
		if begin == 0 {
			begin = end
		}
		for i := range es {
			if err := a.take(t, es[i], end); err != nil {
				return nil, err
			}
		}
		done += uint64(len(es))
		if err := errors.Join(a.giveBack(), a.q.Release(len(es))); err != nil {
			return nil, err
		}
		if a.credit != nil && (done-told >= creditEvery || done == a.cfg.Count) {
			told = done
			binary.LittleEndian.PutUint64(b[:], done)
			if _, err := a.credit.Write(b[:]); err != nil {
				return nil, fmt.Errorf("credit to the peer: %w", err)
			}
		}
		a.progress("rx", done)
	}
	return a.direction(t.Arrived, t, done, begin, end), nil
}

// take looks at one completion. It is copied first: the writer could change it meanwhile.
func (a *application) take(t *tally, e cq.Entry, now int64) error {
	loan, err := a.frames.View(e.Buf, int(e.Len))
	if err != nil {
		t.Corrupt++
		return nil
	}
	t.add(loan.Bytes())
	loan.Release()
	rec, err := xdp.ReadFrame(a.frames, a.geo, e.Buf)
	if err != nil {
		return err
	}
	_ = a.hist.RecordValue(max(1, now-int64(rec.RxNs)))
	a.returns = append(a.returns, port.ReturnCommand(&e))
	return nil
}

// giveBack posts the returns of a batch. The device may be behind; then they wait.
func (a *application) giveBack() error {
	for rest := a.returns; len(rest) > 0; {
		n, err := a.commands.PostBatch(rest)
		if err != nil && !errors.Is(err, cq.ErrFull) {
			return err
		}
		if rest = rest[n:]; n == 0 {
			if a.line.ctx.Err() != nil {
				return stage.ErrGone
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	a.returns = a.returns[:0]
	return nil
}

// direction sums up a phase.
func (a *application) direction(arrived uint64, t *tally, completed uint64,
	begin, end int64) *Direction {
	r := &Direction{Sent: a.cfg.Count, Completed: completed, Lost: a.cfg.Count - arrived}
	if t != nil {
		r.Corrupt, r.Duplicate = t.Corrupt+t.Unexpected, t.Duplicate
	}
	if end > begin && completed > 1 {
		rate := float64(completed-1) / (float64(end-begin) / 1e9)
		r.RatePPS = &rate
	}
	if a.hist.TotalCount() > 0 {
		p50, p99, top := a.hist.ValueAtQuantile(50), a.hist.ValueAtQuantile(99), a.hist.Max()
		r.Latency = Latency{&p50, &p99, &top}
	}
	return r
}

// progressEvery is how many datagrams pass between two reports of progress.
const progressEvery = 4096

func (a *application) progress(phase string, n uint64) {
	if n%progressEvery < readBatch {
		a.line.send(event{Is: "progress", Phase: phase, Count: n})
	}
}

func (a *application) close(d *shm.Dir) error {
	var err error
	if a.commands != nil {
		err = a.commands.Close()
	}
	if a.q != nil {
		err = errors.Join(err, a.q.Close())
	}
	for _, r := range []*shm.Region{a.frames, a.payloads} {
		if r != nil {
			err = errors.Join(err, r.Close(context.Background()))
		}
	}
	if a.credit != nil {
		_ = a.credit.Close()
	}
	// If the device was killed, its queue is nobody's.
	_ = cq.RemoveDead(d, a.cfg.Commands)
	return err
}

// acks counts what the peer says it received. News end a wait for completions, since there may be
// room for another send.
type acks struct{ n atomic.Uint64 }

func (a *acks) follow(f *os.File, count uint64, q *cq.Queue) {
	var b [8]byte
	for a.n.Load() < count {
		if _, err := readFull(f, b[:]); err != nil {
			return
		}
		a.n.Store(binary.LittleEndian.Uint64(b[:]))
		if q.Signal() != nil {
			return
		}
	}
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
