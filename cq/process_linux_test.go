package cq_test

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// readLanes reads from blocking calls until want entries came and checks order and content.
func readLanes(t *testing.T, q *cq.Queue, next map[uint64]uint64, want uint64) {
	t.Helper()
	dst := make([]cq.Entry, 40)
	for got := uint64(0); got < want; {
		n, err := sread(q, dst, time.Minute)
		if err != nil {
			t.Fatalf("after %d of %d: %v", got, want, err)
		}
		for _, e := range dst[:n] {
			if e.Tag != next[e.Context] || e.Data != ^e.Tag || e.Meta.Seq() != uint32(e.Tag) {
				t.Fatalf("lane %d: %+v, want index %d", e.Context, e, next[e.Context])
			}
			next[e.Context]++
		}
		got += uint64(n)
	}
}

// TestManyProcesses has 20 writers in 5 processes, for every wait object and both ways to pay for
// order.
func TestManyProcesses(t *testing.T) {
	shmtest.Long(t)
	const processes, lanes, each = 5, 4, 2000
	for _, tt := range []cq.Options{
		{Wait: cq.WaitUnspec}, {Wait: cq.WaitUnspec, WritersPay: true, Spin: -1},
		{Wait: cq.WaitFD, Spin: -1}, {Wait: cq.WaitYield},
	} {
		t.Run(fmt.Sprint(tt.Wait, tt.WritersPay), func(t *testing.T) {
			tt.Size = 32
			d, q := create(t, tt)
			var ws []*child
			for range processes {
				ws = append(ws, startChild(t, "writer", envQueue+"="+q.Name(),
					envLanes+"="+fmt.Sprint(lanes), envCount+"="+fmt.Sprint(each)))
			}
			next := map[uint64]uint64{}
			readLanes(t, q, next, processes*lanes*each)
			for _, w := range ws {
				_ = w.stop(t)
			}
			if len(next) != processes*lanes {
				t.Errorf("%d lanes", len(next))
			}
			for lane, n := range next {
				if n != each {
					t.Errorf("lane %d: %d entries", lane, n)
				}
			}
			if rest := drain(t, q); len(rest) != 0 {
				t.Errorf("%d entries too many", len(rest))
			}
			must(t, q.Close())
			if left, err := d.List(); len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

// TestWriterKilled: what a dead writer published is read, what it had not does not exist, and the
// next writer of its lane goes on with its numbers.
func TestWriterKilled(t *testing.T) {
	t.Parallel()
	const kills = 12
	d, q := create(t, cq.Options{Size: 16, MaxLanes: 2, Spin: -1})
	steady := startChild(t, "writer", envQueue+"="+q.Name())
	if got := steady.line(t); got != "lane 1" {
		t.Fatal(got)
	}
	next := map[uint64]uint64{}
	for i := range kills {
		w := startChild(t, "writer", envQueue+"="+q.Name())
		if got := w.line(t); got != "lane 2" {
			t.Fatalf("the lane of a dead writer is not given again: %s", got)
		}
		readLanes(t, q, next, uint64(100+37*i))
		// The other one alone may have been heard so far.
		for end := time.Now().Add(time.Minute); i == kills-1 && next[2] == 0; {
			if readLanes(t, q, next, 1); time.Now().After(end) {
				t.Fatal("nothing comes on lane 2")
			}
		}
		w.kill() // in the middle of a write, or in its sleep
	}
	for tails := tailsOf(t, d, q.Name()); next[2] < tails[2]; {
		readLanes(t, q, next, 1)
	}
	w := attach(t, d, q.Name())
	if w.Lane() != 2 || w.Next() != next[2] {
		t.Errorf("lane %d goes on at %d, want %d", w.Lane(), w.Next(), next[2])
	}
	must(t, w.Post(&cq.Entry{Context: 2, Tag: next[2], Data: ^next[2]}))
	_ = steady.stop(t)
	for tails := tailsOf(t, d, q.Name()); next[1] < tails[1] || next[2] < tails[2]; {
		readLanes(t, q, next, 1)
	}
}

// TestWriterClosed: a lane that was given back goes to the next writer, also in this process.
func TestWriterClosed(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, MaxLanes: 2})
	a, b := attach(t, d, q.Name()), attach(t, d, q.Name())
	_, err := cq.Attach(t.Context(), d, q.Name(), cq.WriterOptions{})
	wantErr(t, "a third of two", err, cq.ErrLanes, syscall.ENOSPC)
	post(t, a, 0, 3)
	_, _, err = a.Reserve(2) // never published
	must(t, err)
	must(t, a.Close())
	a = attach(t, d, q.Name())
	if a.Lane() != 1 || a.Next() != 3 || a.Free() != 5 {
		t.Errorf("lane %d, next %d, free %d", a.Lane(), a.Next(), a.Free())
	}
	post(t, a, 3, 5)
	post(t, b, 100, 101)
	got := drain(t, q)
	slices.Sort(got)
	if want := []uint64{0, 1, 2, 3, 4, 100}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if s := a.Stats(); s.Posted != 5 {
		t.Errorf("%+v", s)
	}
}

// TestStoppedIsNotDead: a reader that was stopped keeps its queue.
func TestStoppedIsNotDead(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	c := startChild(t, "creator", envQueue+"="+name)
	_ = c.line(t)
	must(t, c.Process.Signal(syscall.SIGSTOP))
	w := attach(t, d, name)
	post(t, w, 0, 8)
	for range 3 {
		_, err := cq.Adopt(d, name, cq.Options{})
		var busy *shm.BusyError
		if !errors.As(err, &busy) || busy.PID != c.Process.Pid {
			t.Fatalf("adopt: %v, want a BusyError of %d", err, c.Process.Pid)
		}
		wantErr(t, "adopt", err, syscall.EBUSY)
		wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrFull)
		time.Sleep(10 * time.Millisecond)
	}
	_, err := cq.Create(d, name, cq.Options{})
	wantErr(t, "create", err, syscall.EEXIST)
	must(t, c.Process.Signal(syscall.SIGCONT))
	c.kill()
	q, err := cq.Adopt(d, name, cq.Options{})
	must(t, err)
	if got := drain(t, q); !slices.Equal(got, upTo(0, 8)) {
		t.Error(got)
	}
	post(t, w, 8, 9)
	must(t, q.Close())
}

// TestBlockedReaderDies: a successor finds what came while the queue had no reader, and sleeps and
// wakes as its predecessor did.
func TestBlockedReaderDies(t *testing.T) {
	t.Parallel()
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: wait, Spin: -1})
			w := attach(t, d, q.Name())
			_, err := sread(q, make([]cq.Msg, 1), time.Millisecond) // lanes are parked
			wantErr(t, "nothing", err, cq.ErrTimedOut)
			must(t, q.Detach())
			for i := range uint64(5) {
				c := startChild(t, "reader", envQueue+"="+q.Name(), envLog+"=/dev/null")
				_ = c.line(t)
				post(t, w, 10*i, 10*i+4)
				eventually(t, "the child has read", func() bool { return w.Free() == 8 })
				c.kill()
				post(t, w, 10*i+4, 10*i+6)
				q, err := cq.Adopt(d, q.Name(), cq.Options{Spin: -1})
				must(t, err)
				if got := drain(t, q); !slices.Equal(got, upTo(10*i+4, 10*i+6)) {
					t.Error(got)
				}
				wait := later(func() { post(t, w, 99, 100) })
				if n, err := sread(q, make([]cq.Msg, 1), time.Minute); n != 1 || err != nil {
					t.Error(n, err)
				}
				wait()
				must(t, q.Detach())
			}
			q, err = cq.Adopt(d, q.Name(), cq.Options{})
			must(t, err)
			must(t, q.Close())
		})
	}
}
