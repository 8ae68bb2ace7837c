package cq_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

func init() {
	maps.Copy(roles, map[string]func(){
		"history writer": childHistoryWriter,
		"history reader": childHistoryReader,
	})
}

const (
	envClient = "SHMRING_TEST_CLIENT"
	envEvents = "SHMRING_TEST_EVENTS"
)

// recorder says to the parent what a process is about to do, and what came of it. A process can be
// killed at any moment: what was said stays, in whole lines.
type recorder struct {
	out    *json.Encoder
	client int
	rnd    *rand.Rand
	dir    *shm.Dir
	name   string
	events bool
	fence  atomic.Uint64
}

func newRecorder() *recorder {
	client := number(envClient, 0)
	d, err := shm.OpenDir("")
	need(err)
	return &recorder{out: json.NewEncoder(os.Stdout), client: client, dir: d,
		rnd:  rand.New(rand.NewPCG(uint64(number("SEED", 0)), uint64(client))),
		name: os.Getenv(envQueue), events: os.Getenv(envEvents) != ""}
}

// do records an operation. It is written before it begins, and again when it has ended. A clock is
// no barrier: what a post has stored may be on its way to other CPUs for some time after it
// returned, and a read may look before the clock does.
func (r *recorder) do(o histOp, f func(o *histOp)) {
	o.Client, o.Pending = r.client, true
	o.CallNs = spin.Now()
	need(r.out.Encode(&o))
	o.CallNs = spin.Now()
	r.fence.Add(1)
	f(&o)
	r.fence.Add(1)
	o.EndNs, o.Pending = spin.Now(), false
	need(r.out.Encode(&o))
}

// pause lets the other processes come in between.
func (r *recorder) pause() {
	switch r.rnd.IntN(8) {
	case 0:
		time.Sleep(time.Duration(r.rnd.IntN(200)) * time.Microsecond)
	case 1, 2:
		for range r.rnd.IntN(3000) {
		}
	}
}

// needOr ends the child unless the error is one of those; it reports whether there was none.
func needOr(err error, others ...error) bool {
	for _, e := range others {
		if errors.Is(err, e) {
			return false
		}
	}
	need(err)
	return true
}

// historyWriter is either kind of writer.
type historyWriter interface {
	Lane() int
	Close() error
}

// childHistoryWriter posts entries whose contexts are unlike all others.
func childHistoryWriter() {
	r := newRecorder()
	var w historyWriter
	r.do(histOp{Op: "attach"}, func(o *histOp) {
		var err error
		if ctx := context.Background(); r.events {
			w, err = cq.AttachEvents(ctx, r.dir, r.name, cq.WriterOptions{})
		} else {
			w, err = cq.Attach(ctx, r.dir, r.name, cq.WriterOptions{})
		}
		need(err)
		o.OK, o.Lane = true, w.Lane()
	})
	next := uint64(r.client) << 32
	for range number(envCount, 0) {
		r.pause()
		n := 1
		if !r.events && r.rnd.IntN(2) == 0 {
			n = 1 + r.rnd.IntN(3)
		}
		o := histOp{Op: "post", Lane: w.Lane()}
		for i := range n {
			o.Values = append(o.Values, next+uint64(i))
		}
		r.do(o, func(o *histOp) { historyPost(w, o) })
		next += uint64(n)
	}
	need(w.Close())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}

// historyPost posts what the operation says, or as much as there is room for.
func historyPost(w historyWriter, o *histOp) {
	switch w := w.(type) {
	case *cq.EventWriter:
		_, err := w.Write(&cq.Event{Context: o.Values[0]})
		o.OK = needOr(err, cq.ErrFull)
	case *cq.Writer:
		if len(o.Values) == 1 {
			o.OK = needOr(w.Post(&cq.Entry{Context: o.Values[0]}), cq.ErrFull)
			return
		}
		a, b, err := w.Reserve(len(o.Values))
		if o.OK = needOr(err, cq.ErrFull); !o.OK {
			return
		}
		o.Values = o.Values[:len(a)+len(b)]
		for i, v := range o.Values {
			if i < len(a) {
				a[i] = cq.Entry{Context: v}
			} else {
				b[i-len(a)] = cq.Entry{Context: v}
			}
		}
		need(w.Commit(len(o.Values)))
	}
}

// childHistoryReader takes the queue over and reads.
func childHistoryReader() {
	r := newRecorder()
	if r.events {
		r.readEvents()
		return
	}
	var q *cq.Queue
	r.do(histOp{Op: "adopt"}, func(o *histOp) {
		var err error
		q, err = cq.Adopt(r.dir, r.name, cq.Options{Spin: -1})
		need(err)
		o.OK = true
	})
	for range number(envCount, 0) {
		r.pause()
		r.readSome(q)
	}
	need(q.Detach())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}

// readSome reads once, or peeks and releases.
func (r *recorder) readSome(q *cq.Queue) {
	n := 1 + r.rnd.IntN(4)
	how := r.rnd.IntN(5)
	if how > 1 {
		r.do(histOp{Op: "read", N: n}, func(o *histOp) {
			es := make([]cq.Entry, n)
			var k int
			var err error
			if how == 2 { // it may have waited: nothing was there at its end at least
				k, err = sread(q, es, 200*time.Microsecond)
			} else {
				k, err = cq.Read(q, es)
			}
			o.OK = needOr(err, cq.ErrWouldBlock, cq.ErrTimedOut)
			for _, e := range es[:k] {
				o.Values = append(o.Values, e.Context)
				o.Again = append(o.Again, e.Flags&cq.FlagRedelivered != 0)
			}
		})
		return
	}
	left := 0
	r.do(histOp{Op: "peek", N: n}, func(o *histOp) {
		es, err := q.Peek(n)
		o.OK = needOr(err, cq.ErrWouldBlock, cq.ErrTimedOut)
		for i := range es {
			o.Values = append(o.Values, es[i].Context)
			o.Again = append(o.Again, q.Redelivered())
		}
		left = len(es)
		o.N = left
	})
	for left > 0 {
		time.Sleep(time.Duration(r.rnd.IntN(300)) * time.Microsecond) // to be killed in
		k := 1 + r.rnd.IntN(left)
		r.do(histOp{Op: "release", N: k}, func(o *histOp) { need(q.Release(k)); o.OK = true })
		left -= k
	}
}

func (r *recorder) readEvents() {
	var e *cq.EventQueue
	r.do(histOp{Op: "adopt"}, func(o *histOp) {
		var err error
		e, err = cq.AdoptEvents(r.dir, r.name, cq.EventOptions{Spin: -1})
		need(err)
		o.OK = true
	})
	for range number(envCount, 0) {
		r.pause()
		r.do(histOp{Op: "read", N: 1}, func(o *histOp) {
			var ev cq.Event
			_, err := e.Read(&ev, 0)
			if o.OK = needOr(err, cq.ErrWouldBlock); o.OK {
				o.Values, o.Again = []uint64{ev.Context}, []bool{ev.Redelivered}
			}
		})
	}
	need(e.Detach())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}
