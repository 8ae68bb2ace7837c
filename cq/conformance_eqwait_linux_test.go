package cq_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestConformanceEQControl is fi_control of an event queue.
func TestConformanceEQControl(t *testing.T) {
	t.Parallel()
	for wait, ok := range map[cq.WaitObject]bool{cq.WaitUnspec: false, cq.WaitYield: false,
		cq.WaitFD: true, cq.WaitPollFD: true, cq.WaitMutexCond: true} {
		name := "getwait"
		o := cq.EventOptions{Wait: wait}
		conformEQ(t, name+"/"+wait.String(), o, func(t *testing.T, r *eqRig) {
			if kind := r.e.Options().Wait; kind != wait {
				t.Errorf("kind %v", kind)
			}
			n, err := r.e.GetWait()
			if !ok {
				wantErr(t, "getwait", err, syscall.ENOSYS)
				return
			}
			must(t, err)
			if (n.FD >= 0) != (wait == cq.WaitFD) || (len(n.PollFDs) == 1) != (wait == cq.WaitPollFD) ||
				(n.Cond != nil) != (wait == cq.WaitMutexCond) {
				t.Errorf("%+v", n)
			}
		})
	}
	none := cq.EventOptions{Wait: cq.WaitNone}
	conformEQ(t, "getwait-none", none, func(t *testing.T, r *eqRig) {
		_, err := r.e.GetWait()
		wantErr(t, "getwait", err, cq.ErrNoData, syscall.ENODATA)
	})
}

// TestConformanceEQInSet is an event queue that was opened with a wait set.
func TestConformanceEQInSet(t *testing.T) {
	t.Parallel()
	p := &peer{t: t}
	t.Run("set", func(t *testing.T) {
		for _, at := range sampled(queueSites) {
			t.Run(at.String(), func(t *testing.T) {
				shmtest.Conforms(t)
				s := waitSet(t, openDir(t), cq.WaitSetOptions{})
				r := &eqRig{site: at, p: p.at(t, at)}
				r.create(t, cq.EventOptions{Wait: cq.WaitInSet, WaitSet: s, Write: !at.far})
				r.w = r.attach(t)
				if s.Len() != 1 {
					t.Fatalf("%d members", s.Len())
				}
				_, err := eqSread(r.e, &cq.Event{}, -1)
				wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
				dst := make([]cq.Waitable, 2)
				for i := range uint64(3) {
					done := later(func() { writeEvents(t, r.w, i, i+1) })
					if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != r.e {
						t.Errorf("%d, %v, %v", n, err, dst[0])
					}
					done()
					wantContexts(t, "event", drainEvents(t, r.e), i)
				}
			})
		}
	})
	t.Run("many", func(t *testing.T) {
		for _, at := range sampled(queueSites) {
			t.Run(at.String(), func(t *testing.T) {
				shmtest.Conforms(t)
				manyInSet(t, at, p)
			})
		}
	})
	conformOnce(t, "no-set", func(t *testing.T) {
		_, err := cq.CreateEvents(openDir(t), "none", cq.EventOptions{Wait: cq.WaitInSet})
		wantErr(t, "create", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "WaitSet")
	})
	conformOnce(t, "set-ignored", func(t *testing.T) {
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		_, e := createEvents(t, cq.EventOptions{WaitSet: s, Write: true})
		if s.Len() != 0 {
			t.Errorf("%d members", s.Len())
		}
		writeEvents(t, e, 1, 2)
		if _, err := eqSread(e, &cq.Event{}, tooLong); err != nil {
			t.Error(err)
		}
	})
}

// manyInSet has several event queues opened with one set, which tells which of them has an event.
func manyInSet(t *testing.T, at site, p *peer) {
	s := waitSet(t, openDir(t), cq.WaitSetOptions{})
	var rs [4]*eqRig
	for i := range rs {
		rs[i] = &eqRig{site: at, p: p.at(t, at)}
		rs[i].createAs(t, fmt.Sprint("events-", i),
			cq.EventOptions{Wait: cq.WaitInSet, WaitSet: s, Write: !at.far})
		rs[i].w = rs[i].attach(t)
		if s.Len() != i+1 {
			t.Errorf("%d members after %d queues", s.Len(), i+1)
		}
	}
	dst := make([]cq.Waitable, len(rs))
	for i := range uint64(12) {
		r := rs[i*7%4]
		done := later(func() { writeEvents(t, r.w, i, i+1) })
		if n, err := setWait(s, dst, tooLong); n != 1 || err != nil || dst[0] != r.e {
			t.Errorf("%d: %d, %v, %v", i, n, err, dst[0])
		}
		done()
		wantContexts(t, "event", drainEvents(t, r.e), i)
	}
	writeEvents(t, rs[1].w, 0, 1)
	writeEvents(t, rs[3].w, 0, 1)
	if n, err := setWait(s, dst, tooLong); n != 2 || err != nil {
		t.Errorf("two have an event: %d, %v", n, err)
	}
}
