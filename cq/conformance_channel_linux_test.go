package cq_test

import (
	"context"
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

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
		fd := shmtest.Got(c.FD()).Or(t)
		r.post(t, 1, 3)
		noEvent(t, "not armed", c)
		if readable(t, fd, 0) {
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
		gets(t, "the one, late", c, r.q)
		wantContexts(t, "nothing is there", drain(t, r.q))
		noEvent(t, "no other", c)
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
	const total = uint64(100)
	must(t, c.RequestNotify(r.q, cq.NotifyAny))
	done := make(chan struct{})
	go func() {
		defer close(done)
		postAll(t, r.w, 0, total, func(i uint64) {
			if i%23 == 0 {
				time.Sleep(time.Millisecond)
			}
		})
	}()
	var got []uint64
	for uint64(len(got)) < total {
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
		shmtest.Got(r.w.PostBatch([]cq.Entry{{Context: 5, Meta: cq.MetaSolicited}, {Context: 6}})).Or(t)
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
		ev := shmtest.Got(getEvent(c, tooLong)).Or(t)
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
		ev = shmtest.Got(getEvent(c, tooLong)).Or(t)
	}
	err := cq.Drain(c, ev, cq.NotifyAny, buf, 0, func([]cq.Context) error { return boom })
	wantErr(t, "handler's error", err, boom)
	wantField(t, cq.Drain(c, ev, cq.NotifyAny, buf[:0], 0, nil), "len(buf)")
	wantField(t, cq.Drain(c, ev, cq.NotifyAny, buf, -1, nil), "budget")
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

// TestConformanceChannelGet is the ways to wait for an event, and to leave that.
func TestConformanceChannelGet(t *testing.T) {
	t.Parallel()
	onChannel(t, "get-blocks", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		got := make(chan error, 1)
		go func() {
			_, err := c.GetEvent(t.Context(), cq.WaitOptions{})
			got <- err
		}()
		select {
		case err := <-got:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		r.post(t, 1, 2)
		must(t, <-got)
	})
	onChannel(t, "get-with-timeout", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		begin := time.Now()
		_, err := getEvent(c, 20*time.Millisecond)
		wantErr(t, "get", err, cq.ErrTimedOut, syscall.EAGAIN)
		if took := time.Since(begin); took < 20*time.Millisecond {
			t.Errorf("over after %v", took)
		}
		_, err = c.TryGetEvent()
		wantErr(t, "get without waiting", err, cq.ErrWouldBlock, syscall.EAGAIN)
	})
	onChannel(t, "leave-a-blocked-get", func(t *testing.T, r *rig, c *cq.Channel) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		ctx, cancel := context.WithCancel(t.Context())
		done := later(cancel)
		_, err := c.GetEvent(ctx, cq.WaitOptions{})
		wantErr(t, "by context", err, context.Canceled)
		done()
		done = later(func() { must(t, c.Signal()) })
		_, err = c.GetEvent(t.Context(), cq.WaitOptions{})
		wantErr(t, "by signal", err, cq.ErrSignaled)
		done()
		must(t, c.Signal())
		_, err = getEvent(c, tooLong)
		wantErr(t, "by a signal before", err, cq.ErrSignaled)
		_, err = getEvent(c, 0)
		wantErr(t, "a signal that was taken leaves nothing", err, cq.ErrTimedOut)
		r.post(t, 1, 2)
		gets(t, "no event was lost", c, r.q)
	})
	conform(t, "one-getter-per-event", cq.Options{Size: 32, Shared: true, UserContext: 0},
		channelGetOneGetterPerEvent)
	onChannel(t, "edge", channelGetEdge)
}

func channelGetOneGetterPerEvent(t *testing.T, r *rig) {
	c := channel(t, r.d)
	attachTo(t, c, r.q)
	got := make(chan cq.ChannelEvent, 100)
	var getters sync.WaitGroup
	for range 4 {
		getters.Go(func() {
			for {
				ev, err := c.GetEvent(t.Context(), cq.WaitOptions{})
				if err != nil {
					return
				}
				got <- ev
			}
		})
	}
	for i := range uint64(30) {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		r.post(t, i, i+1)
		<-got
		_ = drain(t, r.q)
	}
	eventually(t, "the getters leave", func() bool {
		must(t, c.Signal())
		time.Sleep(time.Millisecond)
		waited := make(chan struct{})
		go func() { getters.Wait(); close(waited) }()
		select {
		case <-waited:
			return true
		case <-time.After(10 * time.Millisecond):
			return false
		}
	})
	if n := len(got); n != 0 {
		t.Errorf("%d events too many", n)
	}
}

func channelGetEdge(t *testing.T, r *rig, c *cq.Channel) {
	other := r.another(t, 1, cq.Options{})
	attachTo(t, c, other.q)
	fd := shmtest.Got(c.FD()).Or(t)
	edge, level := epollOn(t, fd, unix.EPOLLIN|unix.EPOLLET), epollOn(t, fd, unix.EPOLLIN)
	polled := func() int16 {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		if _, err := unix.Poll(fds, 0); err != unix.EINTR { // that is nothing, and a signal
			must(t, err)
		}
		return fds[0].Revents
	}
	for range 10 {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		must(t, c.RequestNotify(other.q, cq.NotifyAny))
		if is := polled(); is != 0 {
			t.Errorf("%#x without an event", is)
		}
		r.post(t, 1, 2)
		other.post(t, 1, 2) // two events are pending
		got := map[*cq.Queue]int{}
		for len(got) < 2 {
			if len(edge.wait(20_000)) == 0 {
				t.Fatalf("no edge after events %v", got)
			}
			for left := 2 - len(got); ; left-- { // what is level-triggered tells of each that is left
				if left > 0 && len(level.wait(20_000)) == 0 || left > 0 && polled() != unix.POLLIN {
					t.Errorf("%d events are pending and the level is low, or %#x", left, polled())
				}
				ev, err := c.TryGetEvent()
				if err != nil {
					wantErr(t, "no more", err, cq.ErrWouldBlock)
					break
				}
				got[ev.Queue]++
			}
		}
		if got[r.q] != 1 || got[other.q] != 1 {
			t.Errorf("events %v", got)
		}
		if len(level.wait(0)) != 0 {
			t.Error("the level is high without an event")
		}
		_, _ = drain(t, r.q), drain(t, other.q)
	}
}

// TestConformanceChannelEnd is acknowledging and destroying.
func TestConformanceChannelEnd(t *testing.T) {
	t.Parallel()
	onChannel(t, "busy-while-attached", func(t *testing.T, r *rig, c *cq.Channel) {
		wantErr(t, "close", c.Close(), cq.ErrBusy, syscall.EBUSY)
		wantErr(t, "close of the queue", r.q.Close(), cq.ErrBusy, syscall.EBUSY)
		wantErr(t, "attach twice", c.Attach(r.q), fs.ErrExist, syscall.EEXIST)
		other := channel(t, r.d)
		wantErr(t, "to another one", other.Attach(r.q), cq.ErrBusy)
		wantErr(t, "not of this one", other.RequestNotify(r.q, cq.NotifyAny), fs.ErrNotExist)
		must(t, c.Detach(t.Context(), r.q))
		wantErr(t, "detached", c.Detach(t.Context(), r.q), fs.ErrNotExist)
		done := later(func() { must(t, c.Close()) })
		_, err := c.GetEvent(t.Context(), cq.WaitOptions{})
		wantErr(t, "a get that it ends", err, cq.ErrClosed)
		done()
		_, err = c.TryGetEvent()
		wantErr(t, "closed", err, cq.ErrClosed)
		must(t, c.Close())
		must(t, r.q.Close())
	})
	onChannel(t, "destroy-waits-for-acks", func(t *testing.T, r *rig, c *cq.Channel) {
		for range 2 {
			must(t, c.RequestNotify(r.q, cq.NotifyAny))
			r.post(t, 1, 2)
			gets(t, "event", c, r.q)
		}
		must(t, c.Ack(r.q, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		err := c.Detach(ctx, r.q)
		wantErr(t, "one is not acknowledged", err, context.DeadlineExceeded)
		wantField(t, err, "unacknowledged events")
		wantErr(t, "detached half", c.RequestNotify(r.q, cq.NotifyAny), fs.ErrNotExist)
		r.post(t, 2, 3)
		noEvent(t, "detached half", c)
		done := later(func() { must(t, c.Ack(r.q, 1)) })
		must(t, c.Detach(t.Context(), r.q))
		done()
	})
	onChannel(t, "acks-at-the-end", func(t *testing.T, r *rig, c *cq.Channel) {
		const events = 20
		for i := range uint64(events) {
			must(t, c.RequestNotify(r.q, cq.NotifyAny))
			r.post(t, i, i+1)
			gets(t, "event", c, r.q)
			wantContexts(t, "entry", drain(t, r.q), i)
		}
		wantErr(t, "more than were got", c.Ack(r.q, events+1), cq.ErrInvalid, syscall.EINVAL)
		must(t, c.Ack(r.q, events))
		must(t, c.Detach(t.Context(), r.q))
	})
}

// epollOn is an epoll with one descriptor.
func epollOn(t *testing.T, fd int, events uint32) epoll {
	t.Helper()
	ep := newEpoll(t, events)
	must(t, unix.EpollCtl(ep.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events}))
	return ep
}
