package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// Show looks at one queue once. A queue that exists and cannot be looked at is returned with Error
// set, together with the error.
func Show(d *shm.Dir, name string) (Queue, error) {
	m := NewMonitor(d)
	defer m.Close()
	return m.Show(name)
}

// Monitor looks at the queues of a directory again and again. It keeps their mappings in between,
// and knows how fast their counters grow and which entries are new. One goroutine may use it at a
// time.
type Monitor struct {
	dir    *shm.Dir
	views  map[string]*view
	copied func() // what a test does to a queue after each copy of an entry
}

type view struct {
	*inspect.View
	last   Queue
	lastNs int64

	posted, read growth

	uuid shm.UUID       // of the queue whose entries were looked at
	next map[int]uint64 // by row, the first index that was not there yet; nil: none was looked at
}

// growth is when a counter was seen to grow.
type growth struct {
	value uint64
	atNs  int64
	seen  bool // it grew between two looks
}

// since notes the value of a counter now, and says how long it has stood.
func (g *growth) since(value uint64, nowNs int64) *Since {
	if value > g.value {
		g.atNs, g.seen = nowNs, true
	}
	g.value = value // with a lane its count can go
	return &Since{Ns: nowNs - g.atNs, More: !g.seen}
}

// NewMonitor returns a monitor. The directory must stay open as long as the monitor is.
func NewMonitor(d *shm.Dir) *Monitor {
	return &Monitor{dir: d, views: map[string]*view{}, copied: func() {}}
}

// Close unmaps everything. It may be called again.
func (m *Monitor) Close() error {
	var err error
	for name := range m.views {
		err = errors.Join(err, m.forget(name))
	}
	return err
}

func (m *Monitor) forget(name string) error {
	v := m.views[name]
	delete(m.views, name)
	if v == nil {
		return nil
	}
	return v.Close()
}

// List looks at every queue in the directory. What cannot be looked at has its Error set; an error
// means that the directory itself cannot be read.
func (m *Monitor) List() ([]Queue, error) {
	names, _, err := Names(m.dir)
	if err != nil {
		return nil, err
	}
	queues := make([]Queue, 0, len(names))
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
		q, err := m.Show(name)
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, cq.ErrClosed) {
			continue // it was destroyed meanwhile, or is just being made
		}
		queues = append(queues, q)
	}
	for name := range m.views {
		if !there[name] {
			_ = m.forget(name)
		}
	}
	return queues, nil
}

// Names returns the names that queues of a directory may have, and those that other objects may
// have, sorted. It looks at none of them.
func Names(d *shm.Dir) (queues, objects []string, err error) {
	entries, err := d.List()
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			queues = append(queues, e.Name())
		default:
			objects = append(objects, e.Name())
		}
	}
	return queues, objects, err
}

// look calls f with the memory of a queue. After an error the next look begins anew.
func (m *Monitor) look(name string, f func(*view, *inspect.Queue) error) error {
	v := m.views[name]
	if v == nil {
		mapped, err := inspect.Open(m.dir, name)
		if err != nil {
			return err
		}
		v = &view{View: mapped}
		m.views[name] = v
	}
	err := v.Look(func(q *inspect.Queue) error { return f(v, q) })
	if err != nil {
		_ = m.forget(name)
	}
	return err
}

// Show looks at one queue, as the function [Show] does.
func (m *Monitor) Show(name string) (Queue, error) {
	var q Queue
	err := m.look(name, func(_ *view, mem *inspect.Queue) (err error) {
		q, err = describe(name, mem)
		return err
	})
	if err != nil {
		return m.failed(name, err)
	}
	v := m.views[name]
	nowNs := spin.Now()
	q.PerSecond = rates(&v.last, &q, nowNs-v.lastNs)
	if q.PerSecond == nil { // the first look at this queue
		v.posted, v.read = growth{value: *q.Posted, atNs: nowNs}, growth{value: *q.Read, atNs: nowNs}
	} else {
		q.SincePosted, q.SinceRead = v.posted.since(*q.Posted, nowNs), v.read.since(*q.Read, nowNs)
	}
	v.last, v.lastNs = q, nowNs
	return q, nil
}

func (m *Monitor) failed(name string, err error) (Queue, error) {
	if errors.Is(err, fs.ErrNotExist) && m.leftover(name) {
		err = &shm.Error{Op: "open", Name: name, Err: errLeftover,
			Hint: "it goes when the writers that are still attached close"}
	}
	path := filepath.Join(m.dir.Path(), name)
	return Queue{Name: name, Path: path, Error: NewProblem(err), State: new(stateOfError(err))}, err
}

// errLeftover is a queue that is not there any more, but for what its writers hold.
var errLeftover = fmt.Errorf("destroyed by its reader: %w, %w", cq.ErrClosed, fs.ErrNotExist)

// leftover reports whether a directory without a queue still takes memory: its reader destroyed the
// queue, and some writer has not noticed yet.
func (m *Monitor) leftover(name string) bool {
	sub, err := m.dir.Sub(name, false)
	if err != nil {
		return false
	}
	defer sub.Close()
	names, err := sub.List()
	if err != nil {
		return false
	}
	for _, n := range names {
		if kind.IsLane(n.Name()) {
			return true
		}
	}
	return false
}

// rates compares two looks at the same queue.
func rates(before, now *Queue, elapsedNs int64) *Rates {
	if before.UUID == nil || *before.UUID != *now.UUID || elapsedNs <= 0 {
		return nil
	}
	per := func(a, b *uint64) float64 {
		if *b < *a { // a lane went, and its counters with it
			return 0
		}
		return float64(*b-*a) / time.Duration(elapsedNs).Seconds()
	}
	return &Rates{Posted: per(before.Posted, now.Posted), Read: per(before.Read, now.Read),
		Wakes:           per(before.Wakes, now.Wakes),
		WakesSuppressed: per(before.WakesSuppressed, now.WakesSuppressed)}
}
