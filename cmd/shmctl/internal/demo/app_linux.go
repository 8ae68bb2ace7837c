package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

const (
	readBatch  = 64
	queueSlots = 4096
	lentFrames = 512
	// sendSlots is how many sends the application can have under way.
	sendSlots = 256
)

// application reads completions and posts sends.
type application struct {
	line   *line
	cfg    config
	way    way
	q      *cq.Queue
	pace   *pace       // with the peer; nil if there is none
	taken  []cq.Entry  // of a batch, to be given back
	times  stage.Times // of one direction
	result result
}

// way is how datagrams get to an application and from it: a device process, or a producer that
// stands in for one.
type way interface {
	queue() *cq.Queue // where completions come
	view(e *cq.Entry) (shm.Loan, error)
	arrived(e *cq.Entry) (ns uint64, err error) // when it came
	giveBack(frames []cq.Entry) error
	// post makes the datagram of a sequence, which is its context, and sends it, now or with flush. It
	// is EAGAIN if the other side is behind.
	post(sequence uint64) error
	flush() error
	stats() (wakes, publishes uint64) // of what was posted
	close() error
}

func runApplication(l *line, c config) (err error) {
	a := &application{line: l, cfg: c, taken: make([]cq.Entry, 0, readBatch)}
	open := throughMemory
	if c.Socket != "" {
		open = throughDevice
		a.pace = &pace{f: os.NewFile(fdCredit, "credit")}
	}
	if a.way, err = open(l.ctx, c); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	a.q = a.way.queue()
	return l.phases(func(phase string) (uint64, error) {
		a.times = stage.Times{}
		run, into := a.receive, &a.result.RX
		if phase == "tx" {
			run, into = a.transmit, &a.result.TX
		}
		d, err := run()
		if err != nil {
			return 0, err
		}
		*into = d
		return d.Completed, nil
	}, func() *result {
		s := a.q.Stats()
		a.result.Wakes, a.result.Publishes = a.way.stats()
		a.result.Syscalls = s.Sleeps + s.Barriers + a.result.Wakes
		return &a.result
	})
}

// receive reads the payload of every frame where the device put it, and gives the frame back.
func (a *application) receive() (*Direction, error) {
	t := newTally(a.cfg.Count)
	var done uint64
	var begin, end int64
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
		if err := errors.Join(a.way.giveBack(a.taken), a.q.Release(len(es)),
			a.pace.tell(done, a.cfg.Count)); err != nil {
			return nil, err
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
	came, err := a.way.arrived(&e)
	if err != nil {
		return err
	}
	a.times.Add(uint64(max(1, now-int64(came))))
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
	a.times.Each(func(ns, part float64) {
		l := &r.Latency
		l.Max = new(int64(ns))
		if part >= 0.5 && l.P50 == nil {
			l.P50 = l.Max
		}
		if part >= 0.99 && l.P99 == nil {
			l.P99 = l.Max
		}
	})
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
	a.pace.close()
	return a.way.close()
}

// sender is the state of the sending phase.
type sender struct {
	a         *application
	postedNs  map[uint64]int64 // of sends under way, by their contexts
	posted    uint64
	completed uint64
	wrong     uint64 // completions that match no send under way
	failed    uint64 // completions in error
	begin     int64
	end       int64
	buf       []cq.Tagged
}

// transmit posts sends and reads their completions.
func (a *application) transmit() (*Direction, error) {
	s := &sender{a: a, buf: make([]cq.Tagged, readBatch), postedNs: map[uint64]int64{}}
	if a.pace != nil { // news end a wait for completions: there may be room for another send
		go a.pace.follow(a.cfg.Count, func() { _ = a.q.Signal() })
	}
	last := time.Now()
	s.begin = spin.Now()
	for s.completed+s.failed < a.cfg.Count {
		posted, err := s.post()
		if err != nil {
			return nil, err
		}
		read, err := s.read(posted)
		if err != nil {
			return nil, err
		}
		if posted+read > 0 {
			last = time.Now()
			a.progress("tx", s.completed)
		} else if time.Since(last) > quiet {
			break
		}
	}
	s.end = spin.Now()
	d := a.direction(s.completed, nil, s.completed, s.begin, s.end)
	d.Sent, d.Duplicate, d.Corrupt = s.posted, s.wrong, s.failed
	return d, nil
}

// post sends as much as there is room for, no further ahead of the peer than the window.
func (s *sender) post() (int, error) {
	room := uint64(sendSlots - len(s.postedNs))
	if p := s.a.pace; p != nil {
		room = min(room, window-min(window, s.posted-p.heard.Load()))
	}
	n := int(min(room, readBatch, s.a.cfg.Count-s.posted))
	if n == 0 {
		return 0, nil
	}
	now := spin.Now()
	for k := range n {
		err := s.a.way.post(s.posted)
		if errors.Is(err, syscall.EAGAIN) {
			n = k
			break
		}
		if err != nil {
			return 0, err
		}
		s.postedNs[s.posted] = now
		s.posted++
	}
	return n, s.a.way.flush()
}

// read takes completions, and waits for one if there was nothing to post either.
func (s *sender) read(posted int) (int, error) {
	o := cq.ReadOptions{Timeout: -1}
	if posted == 0 {
		o.Timeout = 10 * time.Millisecond
	}
	n, err := cq.ReadContext(context.Background(), s.a.q, s.buf, o)
	switch {
	case errors.Is(err, cq.ErrAvail):
		return s.readError()
	case errors.Is(err, cq.ErrTimedOut), errors.Is(err, cq.ErrSignaled):
		if s.a.line.ctx.Err() != nil {
			return 0, stage.ErrGone
		}
		return 0, nil
	case err != nil:
		return 0, err
	}
	now := spin.Now()
	for _, e := range s.buf[:n] {
		if posted, ok := s.ends(e.Context); ok {
			s.completed++
			s.a.times.Add(uint64(max(1, now-posted)))
		}
	}
	return n, nil
}

// ends is the completion of a send, if it is one that is due.
func (s *sender) ends(context uint64) (postedNs int64, ok bool) {
	if postedNs, ok = s.postedNs[context]; !ok {
		s.wrong++
	}
	delete(s.postedNs, context)
	return postedNs, ok
}

func (s *sender) readError() (int, error) {
	var e cq.ErrorEntry
	if err := s.a.q.ReadErr(&e); err != nil {
		return 0, err
	}
	if _, ok := s.ends(e.Context); ok {
		if s.failed++; s.failed == 1 {
			s.a.result.Notes = []string{fmt.Sprintf("first failed send: %v", &e)}
		}
	}
	return 1, nil
}

// through is the way through a device process, which lends frames where the kernel put them.
type through struct {
	e       *device.Endpoint
	to      netip.AddrPort
	payload [wire.PayloadMaxBytes]byte
}

func throughDevice(ctx context.Context, c config) (way, error) {
	t := &through{to: netip.AddrPortFrom(c.Ends[1].Addr, peerPort)}
	r := device.Request{Name: "demo", Ports: []uint16{devicePort}, Frames: lentFrames,
		Sends: sendSlots, InPlace: true, NoReconnect: true,
		QueueOptions: cq.Options{Size: queueSlots}}
	var err error
	t.e, err = wire.Dial(ctx, c.Socket, r)
	return t, err
}

func (t *through) queue() *cq.Queue                   { return t.e.Queue() }
func (t *through) view(e *cq.Entry) (shm.Loan, error) { return t.e.View(e) }
func (t *through) giveBack(frames []cq.Entry) error   { return t.e.Release(frames...) }
func (t *through) flush() error                       { return nil }
func (t *through) close() error                       { return t.e.Close() }

func (t *through) arrived(e *cq.Entry) (ns uint64, err error) {
	r, err := t.e.Record(e)
	return r.RxNs, err
}

func (t *through) post(sequence uint64) error {
	return t.e.SendTo(t.payload[:wire.Put(t.payload[:], sequence)], 0, t.to, sequence)
}

func (t *through) stats() (wakes, publishes uint64) {
	s := t.e.Stats()
	return s.Wakes, s.Publishes
}
