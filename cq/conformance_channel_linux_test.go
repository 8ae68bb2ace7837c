package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// attachTo makes queues those of the channel until the test ends.
func attachTo(t *testing.T, c *cq.Channel, qs ...*cq.Queue) {
	t.Helper()
	for _, q := range qs {
		must(t, c.Attach(q))
		t.Cleanup(func() {
			for c.Ack(q, 1) == nil {
			}
			err := c.Detach(context.Background(), q)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, cq.ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// onChannel runs a case for a queue of a channel.
func onChannel(t *testing.T, name string, f func(t *testing.T, r *rig, c *cq.Channel)) {
	t.Helper()
	conform(t, name, cq.Options{Size: 16, UserContext: 0}, func(t *testing.T, r *rig) {
		c := channel(t, r.d)
		attachTo(t, c, r.q)
		f(t, r, c)
	})
}

func (r *rig) postSolicited(t *testing.T, context uint64) {
	t.Helper()
	must(t, r.w.Post(&cq.Entry{Context: context, Meta: cq.MetaSolicited}))
}

// TestConformanceChannel is ibv_req_notify_cq, ibv_get_cq_event and ibv_ack_cq_events.
func TestConformanceChannel(t *testing.T) {
	t.Parallel()
	onChannel(t, "event-after-arming", channelEventAfterArming)
	onChannel(t, "not-armed", func(t *testing.T, r *rig, c *cq.Channel) {
		fd, err := c.FD()
		must(t, err)
		r.post(t, 1, 3)
		noEvent(t, "not armed", c)
		if pollable(t, fd, 0) {
			t.Error("readable though nobody asked")
		}
	})
	onChannel(t, "nothing-for-what-was-there", func(t *testing.T, r *rig, c *cq.Channel) {
		r.post(t, 1, 3)
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		noEvent(t, "what was there", c)
		_, err := getEvent(c, time.Millisecond)
		wantErr(t, "get", err, cq.ErrTimedOut)
		r.post(t, 3, 4)
		gets(t, "what came", c, r.q)
	})
	onChannel(t, "two-arms-one-event", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		r.post(t, 1, 3)
		wantContexts(t, "empty it", drain(t, r.q), 1, 2)
		gets(t, "the one", c, r.q)
		noEvent(t, "no other", c)
	})
	onChannel(t, "event-for-what-was-read", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		r.post(t, 1, 2)
		wantContexts(t, "read first", drain(t, r.q), 1)
		gets(t, "the event comes", c, r.q)
		wantContexts(t, "nothing is there", drain(t, r.q))
	})
	onChannel(t, "late-get", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		r.post(t, 1, 2)
		time.Sleep(20 * time.Millisecond)
		gets(t, "late", c, r.q)
	})
	onChannel(t, "events-are-optional", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		for i := range uint64(40) { // more than the queue holds, and nobody gets the event
			r.post(t, i, i+1)
			wantContexts(t, "read", drain(t, r.q), i)
		}
	})
	onChannel(t, "any-operation", func(t *testing.T, r *rig, c *cq.Channel) {
		for _, f := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRMA | cq.FlagWrite,
			cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData} {
			must(t, c.RequestNotify(r.q, cq.NotifyAny))
			must(t, r.w.Post(&cq.Entry{Flags: f, Data: 0x01020304}))
			gets(t, f.String(), c, r.q)
			if got, err := readOne[cq.Data](r.q); err != nil || got.Flags != f || got.Data != 0x01020304 {
				t.Errorf("%+v, %v", got, err)
			}
		}
	})
	onChannel(t, "loop-misses-nothing", channelLoop)
	conform(t, "several-queues", cq.Options{Size: 8, UserContext: 0}, channelSeveralQueues)
}

func channelSeveralQueues(t *testing.T, r *rig) {
	c := channel(t, r.d)
	qs := []*rig{r, r.another(t, 1, cq.Options{}), r.another(t, 2, cq.Options{})}
	attachTo(t, c, qs[0].q, qs[1].q, qs[2].q)
	for _, q := range qs {
		must(t, c.RequestNotify(q.q, cq.NotifyAny))
	}
	for i := range uint64(9) {
		at := int(i*2) % 3
		done := later(func() { qs[at].post(t, i, i+1) })
		if ev := gets(t, "event", c, qs[at].q); ev.Context != at {
			t.Errorf("context %v, want %d", ev.Context, at)
		}
		done()
		must(t, c.RequestNotify(qs[at].q, cq.NotifyAny))
		wantContexts(t, "entry", drain(t, qs[at].q), i)
	}
}

func channelEventAfterArming(t *testing.T, r *rig, c *cq.Channel) {
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	noEvent(t, "nothing came", c)
	r.post(t, 1, 4)
	if ev := gets(t, "armed", c, r.q); ev.Dummy || ev.Solicited {
		t.Errorf("%+v", ev)
	}
	noEvent(t, "one for three", c)
	r.post(t, 4, 6)
	noEvent(t, "it is one-shot", c)
}

// channelLoop is get, ack, arm, drain, while a writer posts in bursts.
func channelLoop(t *testing.T, r *rig, c *cq.Channel) {
	const total = 300
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(0); i < total; {
			switch err := r.w.Post(&cq.Entry{Context: i}); err {
			case nil:
				i++
				if i%23 == 0 {
					time.Sleep(time.Millisecond)
				}
			case cq.ErrFull:
				runtime.Gosched()
			default:
				t.Error(err)
				return
			}
		}
	}()
	var got []uint64
	for len(got) < total {
		_ = gets(t, "get", c, r.q)
		must(t, c.Ack(r.q, 1))
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		got = append(got, drain(t, r.q)...)
	}
	wantContexts(t, "all", got, upTo(0, total)...)
	<-done
}

// TestConformanceChannelKinds is solicited and any.
func TestConformanceChannelKinds(t *testing.T) {
	t.Parallel()
	onChannel(t, "solicited-only", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifySolicited))
		r.post(t, 1, 4)
		noEvent(t, "plain ones", c)
		r.postSolicited(t, 4)
		gets(t, "a solicited one", c, r.q)
		must(t, c.RequestNotify(r.q, cq.NotifySolicited))
		_, err := r.w.PostBatch([]cq.Entry{{Context: 5, Meta: cq.MetaSolicited}, {Context: 6}})
		must(t, err)
		if ev := gets(t, "one in a batch", c, r.q); !ev.Solicited {
			t.Error("the event does not say so")
		}
		noEvent(t, "it is one-shot", c)
		wantContexts(t, "all are there", drain(t, r.q), upTo(1, 7)...)
	})
	onChannel(t, "errors-are-solicited", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifySolicited))
		r.post(t, 1, 2)
		noEvent(t, "a plain one", c)
		r.postError(t, 2)
		if ev := gets(t, "a failure", c, r.q); !ev.Solicited {
			t.Error("the event does not say so")
		}
	})
	onChannel(t, "arming-only-grows", channelKindsArmingOnlyGrows)
	onChannel(t, "says-if-solicited", func(t *testing.T, r *rig, c *cq.Channel) {
		for i, solicited := range []bool{false, true, false} {
			must(t, c.RequestNotify(r.q, cq.NotifyAny))
			if solicited {
				r.postSolicited(t, uint64(i))
			} else {
				r.post(t, uint64(i), uint64(i)+1)
			}
			if ev := gets(t, "event", c, r.q); ev.Solicited != solicited {
				t.Errorf("%d: solicited %v", i, ev.Solicited)
			}
			_ = drain(t, r.q)
		}
	})
	onChannel(t, "pending", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		if c.Pending(r.q) {
			t.Error("nothing came")
		}
		r.post(t, 1, 2)
		if !c.Pending(r.q) {
			t.Error("an event is pending")
		}
		gets(t, "event", c, r.q)
		if c.Pending(r.q) {
			t.Error("it was got")
		}
	})
	onChannel(t, "dummy-event", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.Inject(r.q))
		if ev := gets(t, "injected", c, r.q); !ev.Dummy {
			t.Errorf("%+v", ev)
		}
		noEvent(t, "one", c)
		wantContexts(t, "no entry", drain(t, r.q))
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		must(t, c.Inject(r.q))
		gets(t, "injected while armed", c, r.q)
		r.post(t, 1, 2)
		if ev := gets(t, "the arming is still good", c, r.q); ev.Dummy {
			t.Errorf("%+v", ev)
		}
	})
	conform(t, "budget", cq.Options{Size: 64, UserContext: 0}, channelKindsBudget)
}

func channelKindsBudget(t *testing.T, r *rig) {
	c := channel(t, r.d)
	quiet := r.another(t, 1, cq.Options{})
	attachTo(t, c, r.q, quiet.q)
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	must(t, c.RequestNotify(quiet.q, cq.NotifyAny))
	r.post(t, 0, 40)
	quiet.post(t, 100, 101)
	var got [2][]uint64
	for turn := 0; len(got[0]) < 40 || len(got[1]) < 1; turn++ {
		ev, err := getEvent(c, tooLong)
		must(t, err)
		at := ev.Context.(int)
		must(t, cq.Drain(c, ev, cq.NotifyAny, make([]cq.Context, 4), 8, func(es []cq.Context) error {
			got[at] = append(got[at], contexts(es)...)
			return nil
		}))
		if turn == 2 && len(got[1]) == 0 {
			t.Error("the busy queue starves the other")
		}
	}
	wantContexts(t, "the busy one", got[0], upTo(0, 40)...)
	boom, buf := errors.New("boom"), make([]cq.Context, 4)
	quiet.post(t, 1, 2)
	ev := cq.ChannelEvent{}
	for ev.Queue != quiet.q {
		var err error
		ev, err = getEvent(c, tooLong)
		must(t, err)
	}
	err := cq.Drain(c, ev, cq.NotifyAny, buf, 0, func([]cq.Context) error { return boom })
	wantErr(t, "handler's error", err, boom)
	wantErr(t, "no buffer", cq.Drain(c, ev, cq.NotifyAny, buf[:0], 0, nil), cq.ErrInvalid)
}

func channelKindsArmingOnlyGrows(t *testing.T, r *rig, c *cq.Channel) {
	for _, order := range [][]cq.Notify{{cq.NotifySolicited, cq.NotifyAny},
		{cq.NotifyAny, cq.NotifySolicited}} {
		for _, n := range order {
			must(t, c.RequestNotify(r.q, n))
		}
		r.post(t, 1, 2)
		gets(t, "any wins", c, r.q)
		noEvent(t, "one for both", c)
		wantContexts(t, "entry", drain(t, r.q), 1)
	}
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	r.post(t, 2, 3) // due
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	gets(t, "what was due before the second arming", c, r.q)
	r.post(t, 3, 4)
	gets(t, "the second's", c, r.q)
	noEvent(t, "no more", c)
}
