package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

const (
	readBatch  = 64
	queueSlots = 4096
	lentFrames = 512
	// sendSlots is how many payloads the application can have under way.
	sendSlots = 256
)

// application reads completions and posts sends.
type application struct {
	line   *line
	cfg    config
	way    way
	q      *cq.Queue
	credit *os.File   // to the peer; nil if there is none
	taken  []cq.Entry // of a batch, to be given back
	hist   *hdrhistogram.Histogram
	result result
}

// way is how datagrams get to an application and from it: a device process, or a producer that
// stands in for one.
type way interface {
	queue() *cq.Queue // where completions come
	view(e *cq.Entry) (shm.Loan, error)
	record(e *cq.Entry) (xdp.Record, error)
	giveBack(frames []cq.Entry) error
	// post makes a datagram of the sequence and sends it, now or with flush, from a slot that no
	// send under way has. The context has both. It is EAGAIN if the other side is behind.
	post(slot int, sequence, context uint64) error
	flush() error
	stats() (wakes, publishes uint64) // of what was posted
	close() error
}

func runApplication(l *line, c config) (err error) {
	a := &application{line: l, cfg: c, taken: make([]cq.Entry, 0, readBatch)}
	open := throughMemory
	if c.Socket != "" {
		open = throughDevice
		a.credit = inherited(fdCreditSocket, "credit")
	}
	if a.way, err = open(l.ctx, c); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	a.q = a.way.queue()
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
	s := a.q.Stats()
	a.result.Wakes, a.result.Publishes = a.way.stats()
	a.result.Syscalls = s.Sleeps + s.Barriers + a.result.Wakes
	l.send(event{Is: "report", Stats: &a.result})
	return nil
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
		end = spin.Now()
		if begin == 0 {
			begin = end
		}
		a.taken = a.taken[:0]
		for i := range es {
			if err := a.take(t, es[i], end); err != nil {
				return nil, err
			}
		}
		done += uint64(len(es))
		if err := errors.Join(a.way.giveBack(a.taken), a.q.Release(len(es))); err != nil {
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
	loan, err := a.way.view(&e)
	if err != nil {
		t.Corrupt++
		return nil
	}
	t.add(loan.Bytes())
	loan.Release()
	rec, err := a.way.record(&e)
	if err != nil {
		return err
	}
	_ = a.hist.RecordValue(max(1, now-int64(rec.RxNs)))
	a.taken = append(a.taken, e)
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

func (a *application) close() error {
	if a.credit != nil {
		_ = a.credit.Close()
	}
	return a.way.close()
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
