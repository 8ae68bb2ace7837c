package cq_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func TestMain(m *testing.M) {
	shmtest.Apart(8) // they wait more than they compute
	shmtest.Main(m, roles)
}

const tooLong = time.Minute // for anything that is not broken

// roles are what the test binary does when it is started as a child. Files that are for some
// systems only add theirs.
var roles = map[string]func(){}

func openDir(t testing.TB) *shm.Dir {
	t.Helper()
	return shmtest.Have(shm.OpenDir(shmtest.Dir(t))).In(t)
}

// counter makes a counter named after the test and closes it when the test ends.
func counter(t testing.TB, o cq.CounterOptions) (*shm.Dir, *cq.Counter) {
	t.Helper()
	d := openDir(t)
	c := shmtest.Have(cq.CreateCounter(cq.Named(d, queueName(t)), o)).In(t)
	return d, c
}

// queueName is the test's name as a queue can have it.
func queueName(t testing.TB) string {
	name := strings.NewReplacer("/", ".", " ", "-", "#", "n").Replace(t.Name())
	if len(name) > 60 {
		name = name[len(name)-60:]
	}
	return strings.TrimLeft(name, ".-_")
}

// create makes a queue named after the test and closes it when the test ends.
func create(t testing.TB, o cq.Options) (*shm.Dir, *cq.Queue) {
	t.Helper()
	d := openDir(t)
	if withoutName(t) {
		q := createUnnamed(t, o)
		unnamed.Store(q.Name(), q)
		return d, q
	}
	q := shmtest.Got(cq.Create(cq.Named(d, queueName(t)), o)).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	return d, q
}

// withoutName says that the test is repeated with queues that have no name.
func withoutName(t testing.TB) bool {
	return strings.HasPrefix(t.Name(), "TestWithoutName/") ||
		strings.HasPrefix(t.Name(), "TestForOthers/")
}

// How queues without a name are made and attached to, where the system has them.
var (
	createUnnamed func(testing.TB, cq.Options) *cq.Queue
	attachUnnamed func(testing.TB, *cq.Queue) *cq.Writer
	unnamed       sync.Map // by name
)

// closeQueue closes a queue that a test may have left with entries handed out.
func closeQueue(t testing.TB, q *cq.Queue) {
	t.Helper()
	err := q.Close()
	for errors.Is(err, cq.ErrBusy) && q.Release(1) == nil {
		err = q.Close()
	}
	if err != nil {
		t.Error(err)
	}
}

// attach makes a writer and closes it when the test ends.
func attach(t testing.TB, d *shm.Dir, name string) *cq.Writer {
	t.Helper()
	if withoutName(t) {
		if q, ok := unnamed.Load(name); ok {
			return attachUnnamed(t, q.(*cq.Queue))
		}
	}
	return shmtest.Have(cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})).In(t)
}

// pair makes a queue with one writer.
func pair(t testing.TB, o cq.Options) (*cq.Queue, *cq.Writer) {
	t.Helper()
	d, q := create(t, o)
	return q, attach(t, d, queueName(t))
}

var must = shmtest.Must

// sread is fi_cq_sread: a timeout of 0 looks once, and a negative one is for ever.
func sread[T cq.Readable](q *cq.Queue, dst []T, timeout time.Duration, threshold ...int) (int,
	error) {
	return sreadFrom(q, dst, nil, timeout, threshold...)
}

// sreadFrom is fi_cq_sreadfrom.
func sreadFrom[T cq.Readable](q *cq.Queue, dst []T, src []cq.Addr, timeout time.Duration,
	threshold ...int) (int, error) {
	o := cq.ReadOptions{Timeout: within(timeout).Timeout, Source: src}
	if len(threshold) > 0 {
		o.Threshold = threshold[0]
	}
	return cq.ReadContext(context.Background(), q, dst, o)
}

// eqSread is fi_eq_sread.
func eqSread(e *cq.EventQueue, ev *cq.Event, timeout time.Duration, flags ...cq.Flags) (int,
	error) {
	o := cq.ReadOptions{Timeout: within(timeout).Timeout}
	if len(flags) > 0 {
		o.Flags = flags[0]
	}
	return e.ReadContext(context.Background(), ev, o)
}

// cntrWait is fi_cntr_wait.
func cntrWait(c *cq.Counter, threshold uint64, timeout time.Duration) error {
	return c.Wait(context.Background(), threshold, within(timeout))
}

// setWait is fi_wait.
func setWait(s *cq.WaitSet, dst []cq.Waitable, timeout time.Duration) (int, error) {
	return s.Wait(context.Background(), dst, within(timeout))
}

// getEvent is ibv_get_cq_event with a timeout.
func getEvent(c *cq.Channel, timeout time.Duration) (cq.ChannelEvent, error) {
	return c.GetEvent(context.Background(), within(timeout))
}

// within is a timeout of libfabric's, 0 for a look and negative for ever.
func within(timeout time.Duration) cq.WaitOptions {
	switch {
	case timeout == 0:
		timeout = -1
	case timeout < 0:
		timeout = 0
	}
	return cq.WaitOptions{Timeout: timeout}
}

// waitFD returns the descriptor to wait on, or -1.
func waitFD(o interface{ GetWait() (cq.Native, error) }) int {
	n, err := o.GetWait()
	if err == nil && n.Object == cq.WaitPollFD {
		return n.PollFDs[0]
	}
	return n.FD
}

var wantErr = shmtest.WantErr

// wantField checks that err is a *cq.Error about the field.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	var e *cq.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v, want a *cq.Error about %s", err, field)
	}
	if e.Field != field {
		t.Errorf("%v: field %q, want %q", err, e.Field, field)
	}
}

// post publishes contexts from to to-1.
func post(t testing.TB, w *cq.Writer, from, to uint64) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := w.Post(&cq.Entry{Context: i}); err != nil {
			t.Fatalf("post %d: %v", i, err)
		}
	}
}

// show looks at a queue from outside.
func show(t testing.TB, d *shm.Dir, name string) ctl.Queue {
	t.Helper()
	s := shmtest.Got(ctl.Show(d, name)).Or(t)
	return s
}

// postError publishes a failed operation.
func postError(t testing.TB, w *cq.Writer, context uint64) {
	t.Helper()
	must(t, w.PostError(&cq.ErrorEntry{Context: context, Err: cq.ETrunc}))
}

// read returns the contexts that one Read of up to n entries returned.
func read(t testing.TB, q *cq.Queue, n int) []uint64 {
	t.Helper()
	dst := make([]cq.Context, n)
	k, err := cq.Read(q, dst)
	if err != nil && err != cq.ErrWouldBlock {
		t.Fatal(err)
	}
	return contexts(dst[:k])
}

func contexts(es []cq.Context) []uint64 {
	var out []uint64
	for _, e := range es {
		out = append(out, e.Context)
	}
	return out
}

// wantContexts checks which contexts one read got.
func wantContexts(t testing.TB, what string, got []uint64, want ...uint64) {
	t.Helper()
	if strings.Trim(fmt.Sprint(got), "[]") != strings.Trim(fmt.Sprint(want), "[]") {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// drain reads until there is nothing more.
func drain(t testing.TB, q *cq.Queue) []uint64 {
	t.Helper()
	var out []uint64
	for {
		got := read(t, q, 16)
		if len(got) == 0 {
			return out
		}
		out = append(out, got...)
	}
}

// upTo returns from, from+1, … to-1.
func upTo(from, to uint64) []uint64 {
	var out []uint64
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

var eventually = shmtest.Eventually

// later runs f soon, when the caller probably waits for what it does; wait returns when it has.
func later(f func()) (wait func()) {
	done := make(chan struct{})
	time.AfterFunc(5*time.Millisecond, func() {
		defer close(done)
		f()
	})
	return func() { <-done }
}

// repeatedly calls f every few milliseconds: on a busy machine the first time may come before the
// caller waits for what it does.
func repeatedly(f func(n uint64)) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := uint64(0); ; n++ {
			select {
			case <-end:
				return
			case <-time.After(5 * time.Millisecond):
				f(n)
			}
		}
	}()
	return func() { close(end); <-ended }
}

// sleepy is a queue of either kind, as far as its sleeps are counted.
type sleepy interface{ Stats() cq.Stats }

// asleep waits until the queue's reader has gone to sleep once more than before.
func asleep(t testing.TB, q sleepy, before uint64) {
	t.Helper()
	eventually(t, "the reader sleeps", func() bool { return q.Stats().Sleeps > before })
}

// whenAsleep runs f as soon as the queue's reader sleeps, or just soon where none ever does; wait
// returns when it has.
func whenAsleep(t testing.TB, q sleepy, f func()) (wait func()) {
	if q, is := q.(*cq.Queue); is && q.Options().Wait == cq.WaitYield {
		return later(f)
	}
	before, done := q.Stats().Sleeps, make(chan struct{})
	go func() {
		defer close(done)
		asleep(t, q, before)
		f()
	}()
	return func() { <-done }
}

// postAll publishes contexts from to to-1, and waits where there is no room. After each it says
// which one comes next.
func postAll(t testing.TB, w interface{ Post(*cq.Entry) error }, from, to uint64,
	posted func(next uint64)) {
	for from < to {
		switch err := w.Post(&cq.Entry{Context: from}); err {
		case nil:
			from++
			posted(from)
		case cq.ErrFull:
			runtime.Gosched()
		default:
			t.Error(err)
			return
		}
	}
}
