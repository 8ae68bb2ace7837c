package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/shm"
)

const toolName = "demo"

// Tool is what the processes of a demonstration do.
var Tool = stage.Tool{Name: toolName, Play: func(c *stage.Child) error {
	l := &line{child: c, orders: make(chan string, 4)}
	l.ctx = c.Listen(l.orders)
	var cfg config
	err := c.Script(&cfg)
	if run, ok := roles[c.Role]; ok && err == nil {
		err = run(l, cfg)
	} else if err == nil {
		err = fmt.Errorf("no role %q", c.Role)
	}
	if err != nil {
		l.send(event{Is: "error", Error: err.Error()})
	}
	return err
}}

var roles = map[string]func(*line, config) error{
	"application": runApplication,
	"device":      runDevice,
	"producer":    runProducer,
	"peer":        runPeer,
}

// config is what the supervisor tells a child when it starts it.
type config struct {
	Dir      string    `json:"dir"`
	Queue    string    `json:"queue"`            // the application's completion queue
	Commands string    `json:"commands"`         // the producer's command queue
	Socket   string    `json:"socket,omitempty"` // where the device process listens
	Count    uint64    `json:"count"`
	Ends     wire.Ends `json:"ends"`
}

// Ports of the two ends. They are private to the namespaces.
const (
	devicePort = 7000
	peerPort   = 7001
)

// event is a line from a child to the supervisor.
type event struct {
	Is    string  `json:"is"` // ready, progress, done, report, error
	Phase string  `json:"phase,omitempty"`
	Count uint64  `json:"count,omitempty"`
	Error string  `json:"error,omitempty"`
	Stats *result `json:"stats,omitempty"`
}

// result is what a child knows at the end; the supervisor adds them up.
type result struct {
	RX, TX    *Direction
	Mode      string
	Copy      bool
	Queue     uint32
	Syscalls  uint64
	Publishes uint64
	Wakes     uint64
	Notes     []string `json:",omitempty"` // for people, when something was lost
}

// Descriptors that a child is started with, after the standard three.
const (
	fdCredit = 3 // application and peer, to pace each other

	fdOwn    = 3 // application and producer: the payloads that they send
	fdTheirs = 4 // and those that they get
)

// line is a child's connection to the supervisor.
type line struct {
	child  *stage.Child
	ctx    context.Context // ends with the supervisor
	orders chan string     // "rx", "tx" or "report"; the end of the context is to leave at once
}

func (l *line) send(e event) { l.child.Send(e) }

// await returns when the supervisor gives the order.
func (l *line) await(what string) error {
	select {
	case got := <-l.orders:
		if got != what {
			return fmt.Errorf("supervisor ordered %q instead of %q", got, what)
		}
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// phases plays both directions, each when it is ordered, and reports when that is ordered.
func (l *line) phases(play func(phase string) (done uint64, err error),
	report func() *result) error {
	l.send(event{Is: "ready"})
	for _, phase := range []string{"rx", "tx"} {
		if err := l.await(phase); err != nil {
			return err
		}
		done, err := play(phase)
		if err != nil {
			return err
		}
		l.send(event{Is: "done", Phase: phase, Count: done})
	}
	if err := l.await("report"); err != nil {
		return err
	}
	l.send(event{Is: "report", Stats: report()})
	return nil
}

// pace is one end of the socket by which application and peer keep from running away from each
// other: in each direction the one that receives tells how many datagrams it has. A nil one tells
// nothing.
type pace struct {
	f     *os.File
	told  uint64
	heard atomic.Uint64
}

// creditEvery is after how many datagrams the other side is told.
const creditEvery = 32

// tell says how many of all are done, now and then.
func (p *pace) tell(done, all uint64) error {
	if p == nil || done-p.told < creditEvery && done != all {
		return nil
	}
	p.told = done
	if _, err := p.f.Write(binary.LittleEndian.AppendUint64(nil, done)); err != nil {
		return fmt.Errorf("credit: %w", err)
	}
	return nil
}

// follow hears until all are done, or the socket ends, and calls news each time.
func (p *pace) follow(all uint64, news func()) {
	var b [8]byte
	for p.heard.Load() < all {
		for n := 0; n < len(b); {
			k, err := p.f.Read(b[n:])
			if err != nil {
				return
			}
			n += k
		}
		p.heard.Store(binary.LittleEndian.Uint64(b[:]))
		news()
	}
}

func (p *pace) close() {
	if p != nil {
		_ = p.f.Close()
	}
}

// Paths of Options.Path.
const (
	PathAuto   = "auto"   // the device path where it is possible, shared memory alone if not
	PathAFXDP  = "af_xdp" // the device path or an error
	PathShm    = "shm"    // shared memory alone
	defaultN   = 200_000
	maxCount   = 1 << 40 // no run is as long
	graceful   = 30 * time.Second
	startLimit = 30 * time.Second
)

// Options of a run.
type Options struct {
	Path     string
	Count    uint64 // datagrams in each direction; 0 is 200,000
	Dir      string // "" is the default directory
	Progress func(phase string, done, total uint64)
}

// ErrNotGood says that something was lost, corrupt or seen twice; the report has the numbers.
var ErrNotGood = errors.New("demo: not every datagram arrived exactly once and intact")

// Run runs the demonstration. The report is not nil if all processes finished; the error is nil
// only if nothing was lost, corrupt or duplicate. Nothing is left behind either way.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Count == 0 {
		o.Count = defaultN
	}
	if o.Count > maxCount {
		return nil, fmt.Errorf("demo: count %d is more than %d", o.Count, uint64(maxCount))
	}
	d, err := shm.OpenDir(o.Dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	removeFormer(d)
	s := &supervisor{o: o, dir: d, events: make(chan childEvent, 64),
		children: map[string]*stage.Process{}, over: make(chan struct{})}
	name := fmt.Sprintf("%s%d", queuePrefix, os.Getpid())
	s.cfg = config{Dir: d.Path(), Queue: name, Commands: name + "-device", Count: o.Count}
	s.report = Report{Kernel: stage.Here().System(), PIDs: map[string]int{"supervisor": os.Getpid()}}
	err = s.run(ctx)
	s.stop()
	if err != nil {
		return nil, err
	}
	if s.report.Good(o.Count) {
		s.report.Notes = nil
	} else {
		err = ErrNotGood
	}
	return &s.report, err
}

// queuePrefix begins the names of all queues of a demonstration.
const queuePrefix = "demo-"

// removeFormer removes what a demonstration left of which every process was killed at once.
func removeFormer(d *shm.Dir) {
	entries, _ := d.List()
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), queuePrefix) {
			_ = cq.Remove(cq.Named(d, e.Name())) // which leaves alone what may be alive
		}
	}
}

type supervisor struct {
	o        Options
	dir      *shm.Dir
	cfg      config
	report   Report
	net      *veth.Pair // nil on the shared memory path
	memory   []*shm.Object
	children map[string]*stage.Process
	events   chan childEvent
	over     chan struct{} // closed when nobody takes events any more
}

type childEvent struct {
	role string
	event
}

func (s *supervisor) run(ctx context.Context) error {
	if err := s.choosePath(); err != nil {
		return err
	}
	if err := s.startAll(); err != nil {
		return err
	}
	if err := s.gather(ctx, "ready", "", nil); err != nil {
		return err
	}
	for _, phase := range []string{"rx", "tx"} {
		s.tell(phase)
		if err := s.gather(ctx, "done", phase, nil); err != nil {
			return err
		}
	}
	s.tell("report")
	results := map[string]*result{}
	if err := s.gather(ctx, "report", "", results); err != nil {
		return err
	}
	s.sum(results)
	return nil
}

// choosePath opens the network if the device path is wanted and possible.
func (s *supervisor) choosePath() error {
	s.report.Path = PathShm
	switch s.o.Path {
	case PathShm:
		s.reason("not asked for (--path shm)")
		return nil
	case PathAFXDP, PathAuto, "":
	default:
		return fmt.Errorf("demo: path %q: possible are %s, %s and %s", s.o.Path, PathAuto,
			PathAFXDP, PathShm)
	}
	n, err := openNetwork()
	if err != nil {
		if s.o.Path == PathAFXDP {
			return err
		}
		s.reason(err.Error())
		return nil
	}
	s.net, s.report.Path = n, PathAFXDP
	dir, err := os.MkdirTemp("", queuePrefix)
	if err != nil {
		return err
	}
	s.cfg.Socket = filepath.Join(dir, "device")
	s.cfg.Ends = wire.Ends{*n.A, *n.B}
	return nil
}

func (s *supervisor) reason(text string) { s.report.Reason = &text }

// startAll starts the children with what they share.
func (s *supervisor) startAll() error {
	if s.net == nil {
		return s.startPair()
	}
	credit, err := socketPair()
	if err != nil {
		return err
	}
	defer credit[0].Close()
	defer credit[1].Close()
	if err := s.start("application", nil, credit[0]); err != nil {
		return err
	}
	if err := s.start("device", s.net.A.Do); err != nil {
		return err
	}
	return s.start("peer", s.net.B.Do, credit[1])
}

// start starts a child, in a network namespace if within says so.
func (s *supervisor) start(role string, within func(func() error) error, files ...*os.File) error {
	hear := func(e event) {
		select {
		case s.events <- childEvent{role, e}:
		case <-s.over:
		}
	}
	p, err := stage.Spec{Tool: toolName, Role: role, Script: s.cfg, Files: files, Stderr: os.Stderr,
		Within: within, Hear: stage.JSON(hear), Ended: func() { hear(event{Is: "exit"}) }}.Start()
	if err != nil {
		return err
	}
	s.report.PIDs[role], s.children[role] = p.PID(), p
	return nil
}

// tell gives every child an order; one that is gone is noticed when it should answer.
func (s *supervisor) tell(order string) {
	for _, p := range s.children {
		_ = p.Tell(order)
	}
}

// gather waits until every child has sent the event. Reports go to results.
func (s *supervisor) gather(ctx context.Context, what, phase string,
	results map[string]*result) error {
	missing := map[string]bool{}
	for role := range s.children {
		missing[role] = true
	}
	var limit <-chan time.Time
	if what == "ready" {
		limit = time.After(startLimit)
	}
	for len(missing) > 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit:
			return fmt.Errorf("demo: not ready after %v: %v", startLimit,
				slices.Sorted(maps.Keys(missing)))
		case e := <-s.events:
			switch {
			case e.Is == "error":
				return fmt.Errorf("demo: %s: %s", e.role, e.Error)
			case e.Is == "exit" && (what != "report" || missing[e.role]):
				return fmt.Errorf("demo: the %s process ended early (%v)", e.role,
					s.children[e.role].State())
			case e.Is == "progress" && s.o.Progress != nil:
				s.o.Progress(e.Phase, e.Count, s.o.Count)
			case e.Is == what && e.Phase == phase:
				delete(missing, e.role)
				if results != nil {
					results[e.role] = e.Stats
				}
			}
		}
	}
	return nil
}

// stop ends every child and removes what one that was killed left behind.
func (s *supervisor) stop() {
	close(s.over)
	stage.End(graceful, slices.Collect(maps.Values(s.children))...)
	if s.net != nil {
		_ = s.net.Close()
		_ = os.RemoveAll(filepath.Dir(s.cfg.Socket))
	}
	for _, o := range s.memory {
		_ = o.Close()
	}
	for _, name := range []string{s.cfg.Queue, s.cfg.Commands} {
		_ = cq.Remove(cq.Named(s.dir, name))
	}
}

// sum makes the report from what the children know. The sides that received are believed about
// what arrived, those that sent about what was sent.
func (s *supervisor) sum(results map[string]*result) {
	r := &s.report
	app := results["application"]
	other := results["peer"]
	if s.net == nil {
		other = results["producer"]
	} else if dev := results["device"]; dev != nil {
		r.Mode, r.Copy, r.Queue = &dev.Mode, &dev.Copy, &dev.Queue
		r.Interface = &s.cfg.Ends[0].Name
	}
	if app == nil || other == nil {
		return
	}
	r.RX, r.TX = *app.RX, *app.TX
	r.RX.Sent = other.RX.Sent
	r.RX.Duplicate += other.RX.Duplicate
	// A send counts as completed when both its completion and its datagram arrived.
	r.TX.Completed = min(app.TX.Completed, other.TX.Completed)
	r.TX.Lost = max(app.TX.Lost, other.TX.Lost)
	r.TX.Corrupt += other.TX.Corrupt
	r.TX.Duplicate += other.TX.Duplicate
	var syscalls, wakes, publishes uint64
	for _, role := range slices.Sorted(maps.Keys(results)) {
		c := results[role]
		for _, note := range c.Notes {
			r.Notes = append(r.Notes, role+": "+note)
		}
		syscalls, wakes, publishes = syscalls+c.Syscalls, wakes+c.Wakes, publishes+c.Publishes
	}
	suppressed := publishes - min(wakes, publishes)
	r.Wakes, r.Suppressed = &wakes, &suppressed
	if frames := r.RX.Completed + r.TX.Completed; frames > 0 {
		per := float64(syscalls) / float64(frames) * 1000
		r.Syscalls1000 = &per
	}
}
