package cq_test

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQSelective is FI_SELECTIVE_COMPLETION.
func TestConformanceCQSelective(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8}
	const send = cq.FlagSend | cq.FlagMsg
	conform(t, "success-only-when-asked", o, func(t *testing.T, r *rig) {
		must(t, r.w.Bind(cq.FlagTransmit|cq.FlagSelectiveCompletion))
		for i, op := range []cq.Flags{0, cq.FlagCompletion, cq.FlagInject, cq.FlagDeliveryComplete} {
			must(t, r.w.Begin(op))
			must(t, r.w.Complete(&cq.Entry{Context: uint64(i), Flags: send}, op))
		}
		wantContexts(t, "those that asked", drain(t, r.q), 1, 3)
	})
	conform(t, "errors-always", o, func(t *testing.T, r *rig) {
		must(t, r.w.Bind(cq.FlagTransmit|cq.FlagSelectiveCompletion))
		for i, op := range []cq.Flags{0, cq.FlagInject, cq.FlagInjectCall, cq.FlagCompletion} {
			must(t, r.w.Begin(op))
			must(t, r.w.Fail(&cq.ErrorEntry{Context: uint64(i), Flags: send,
				Err: cq.Errno(syscall.EIO)}, op))
		}
		if got := fmt.Sprint(takeAll(t, r.q)); got != "[E0 E1 E0 E3]" { // an inject call has no context
			t.Errorf("got %v", got)
		}
	})
}

// fed is an endpoint of this process.
type fed struct {
	progressed atomic.Int64
	overran    atomic.Pointer[cq.Queue]
}

func (f *fed) Progress() time.Duration {
	f.progressed.Add(1)
	return -1
}

func (f *fed) Overrun(q *cq.Queue) { f.overran.Store(q) }

// TestConformanceCQBound is a queue with something bound to it.
func TestConformanceCQBound(t *testing.T) {
	t.Parallel()
	conform(t, "busy-while-bound", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.w.Bind(cq.FlagTransmit))
		must(t, r.w.Begin(0))
		unbind, err := r.q.Bind(&fed{}, false)
		must(t, err)
		busy := func(what string) {
			for range 2 {
				wantErr(t, "close of the queue "+what, r.q.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}
		wantErr(t, "close of a bound writer", r.w.Close(), cq.ErrBusy, syscall.EBUSY)
		busy("with an endpoint and a feeder")
		must(t, r.w.Complete(&cq.Entry{Context: 1, Flags: cq.FlagSend}, 0))
		wantContexts(t, "the operation that was begun", read(t, r.q, 2), 1)
		must(t, r.w.Unbind())
		busy("with a feeder")
		must(t, r.w.Bind(cq.FlagTransmit))
		unbind()
		if !r.far { // an endpoint of another process does not keep it
			busy("with an endpoint")
			must(t, r.w.Unbind())
		}
		must(t, r.q.Close())
	})
	o := cq.Options{Size: 4, Overrun: cq.OverrunQueue}
	conform(t, "overrun-told-to-feeders", o, func(t *testing.T, r *rig) {
		f := &fed{}
		unbind, err := r.q.Bind(f, false)
		must(t, err)
		defer unbind()
		r.post(t, 0, 4)
		wantErr(t, "one too many", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
		_ = overrun(t, r.q)
		if f.overran.Load() != r.q {
			t.Error("the feeder was not told")
		}
	})
	conform(t, "overrun-told-to-event-queue", o, func(t *testing.T, r *rig) {
		e, err := cq.CreateEvents(r.d, "events", cq.EventOptions{})
		must(t, err)
		must(t, r.q.BindEvents(e))
		defer func() { must(t, r.q.BindEvents(nil)); must(t, e.Close()) }()
		r.post(t, 0, 4)
		wantErr(t, "one too many", r.w.Post(&cq.Entry{}), cq.ErrOverrun)
		_, err = eqSread(e, &cq.Event{}, tooLong) // nobody reads the queue
		wantErr(t, "read of events", err, cq.ErrAvail)
		var ev cq.EventError
		_, err = e.ReadErr(&ev, 0)
		if err != nil || ev.FID != r.q.FID() {
			t.Errorf("%+v, %v", ev, err)
		}
		wantErr(t, "event", &ev, cq.EOverrun)
		_ = overrun(t, r.q)
		_, err = e.ReadErr(&ev, 0)
		wantErr(t, "it is told once", err, cq.ErrWouldBlock)
	})
}

// TestConformanceBoundCounter is a counter bound to an endpoint: each operation that ends counts
// once, as what became of it.
func TestConformanceBoundCounter(t *testing.T) {
	kinds := []cq.Flags{cq.FlagSend, cq.FlagRecv, cq.FlagRead, cq.FlagWrite, cq.FlagRemoteRead,
		cq.FlagRemoteWrite}
	conformOnce(t, "success-and-failure", func(t *testing.T) {
		q, w := pair(t, cq.Options{Size: 16})
		for _, of := range kinds {
			c, err := cq.CreateAnonymousCounter("count", cq.CounterOptions{})
			must(t, err)
			b, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagTransmit | cq.FlagRecv,
				Counters: []cq.CounterBinding{{Counter: c, Flags: of}}})
			must(t, err)
			for _, kind := range kinds {
				for range 2 {
					must(t, b.Begin(0))
					must(t, b.Fail(&cq.ErrorEntry{Flags: kind, Len: 5, Err: cq.EOther}, 0))
				}
				must(t, b.Begin(0))
				must(t, b.Complete(&cq.Entry{Flags: kind, Len: 5}, 0))
				must(t, b.Begin(0))
				b.Drop(0)
				_ = takeAll(t, q)
			}
			value, err := c.Read()
			must(t, err)
			errs, err := c.ReadErr()
			must(t, err)
			if value != 1 || errs != 2 {
				t.Errorf("%v: %d and %d, want one success and two failures", of, value, errs)
			}
			must(t, b.Close())
			must(t, c.Close())
		}
	})
}

// TestConformanceCQControl is fi_control of a queue.
func TestConformanceCQControl(t *testing.T) {
	t.Parallel()
	conform(t, "getwait-fd", cq.Options{Wait: cq.WaitFD}, func(t *testing.T, r *rig) {
		n, err := r.q.GetWait()
		if err != nil || n.Object != cq.WaitFD || n.FD != waitFD(r.q) || n.FD < 0 {
			t.Errorf("%+v, %v", n, err)
		}
	})
	conform(t, "getwait-pollfd", cq.Options{Wait: cq.WaitPollFD}, func(t *testing.T, r *rig) {
		n, err := r.q.GetWait()
		if err != nil || n.Object != cq.WaitPollFD || len(n.PollFDs) != 1 || n.PollFDs[0] != waitFD(r.q) {
			t.Errorf("%+v, %v", n, err)
		}
		again, err := r.q.GetWait()
		if err != nil || again.ChangeIndex != n.ChangeIndex {
			t.Errorf("the list is the same but its index is not: %+v, %v", again, err)
		}
	})
	conform(t, "getwait-none", cq.Options{Wait: cq.WaitNone}, func(t *testing.T, r *rig) {
		_, err := r.q.GetWait()
		wantErr(t, "getwait", err, cq.ErrNoData, syscall.ENODATA)
	})
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitYield} {
		name := "getwait-without"
		conform(t, name+"/"+wait.String(), cq.Options{Wait: wait}, func(t *testing.T, r *rig) {
			_, err := r.q.GetWait()
			wantErr(t, "control", err, syscall.ENOSYS)
		})
	}
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD, cq.WaitYield, cq.WaitMutexCond,
		cq.WaitPollFD} {
		name := "getwaitobj"
		conform(t, name+"/"+wait.String(), cq.Options{Wait: wait}, func(t *testing.T, r *rig) {
			n, _ := r.q.GetWait()
			if kind := r.q.Options().Wait; kind != wait || n.Object != wait {
				t.Errorf("%v and %v; want %v", kind, n.Object, wait)
			}
		})
	}
}

// TestConformanceCQIterator is ibv_start_poll, ibv_next_poll and ibv_end_poll.
func TestConformanceCQIterator(t *testing.T) {
	t.Parallel()
	conform(t, "all", cq.Options{Size: 64}, func(t *testing.T, r *rig) {
		for range r.q.Entries(0) {
			t.Error("an empty queue has an entry")
		}
		r.post(t, 0, 40)
		var got []uint64
		for e, err := range r.q.Entries(0) {
			must(t, err)
			got = append(got, e.Context)
		}
		wantContexts(t, "all", got, upTo(0, 40)...)
		wantContexts(t, "they are gone", drain(t, r.q))
	})
	conform(t, "some", cq.Options{Size: 64}, func(t *testing.T, r *rig) {
		r.post(t, 0, 10)
		var got []uint64
		for e, err := range r.q.Entries(3) {
			must(t, err)
			got = append(got, e.Context)
		}
		wantContexts(t, "a limit", got, 0, 1, 2)
		for e, err := range r.q.Entries(0) {
			must(t, err)
			if e.Context == 5 {
				break
			}
		}
		wantContexts(t, "what a break left", drain(t, r.q), 6, 7, 8, 9)
		r.post(t, 10, 11)
		r.postError(t, 11)
		got = nil
		for e, err := range r.q.Entries(0) {
			if err != nil {
				wantErr(t, "at the error", err, cq.ErrAvail)
				break
			}
			got = append(got, e.Context)
		}
		wantContexts(t, "ahead of the error", got, 10)
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
	})
}
