package cq_test

import (
	"context"
	"io/fs"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

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
		must(t, c.SignalAll())
		_, err = getEvent(c, 0)
		wantErr(t, "a broadcast leaves nothing", err, cq.ErrTimedOut)
		r.post(t, 1, 2)
		gets(t, "no event was lost", c, r.q)
	})
	conform(t, "one-getter-per-event", cq.Options{Size: 32, Shared: true, UserContext: 0},
		channelGetOneGetterPerEvent)
	onChannel(t, "descriptor", channelGetDescriptor)
	onChannel(t, "edge", channelGetEdge)
	onChannel(t, "never-writable", func(t *testing.T, r *rig, c *cq.Channel) {
		fd, err := c.FD()
		must(t, err)
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		r.post(t, 1, 2)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		eventually(t, "it is readable", func() bool {
			_, err := unix.Poll(fds, 100)
			return err == nil && fds[0].Revents&unix.POLLIN != 0
		})
		if fds[0].Revents&unix.POLLOUT != 0 {
			t.Errorf("it is writable: %#x", fds[0].Revents)
		}
	})
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
		must(t, c.SignalAll())
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
	fd, err := c.FD()
	must(t, err)
	edge, level := epollOn(t, fd, unix.EPOLLIN|unix.EPOLLET), epollOn(t, fd, unix.EPOLLIN)
	for range 10 {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		must(t, c.RequestNotify(other.q, cq.NotifyAny))
		r.post(t, 1, 2)
		other.post(t, 1, 2) // two events are pending
		got := map[*cq.Queue]int{}
		for len(got) < 2 {
			if len(edge.wait(20_000)) == 0 {
				t.Fatalf("no edge after events %v", got)
			}
			for left := 2 - len(got); ; left-- { // what is level-triggered tells of each that is left
				if left > 0 && len(level.wait(20_000)) == 0 {
					t.Errorf("%d events are pending and the level is low", left)
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

func channelGetDescriptor(t *testing.T, r *rig, c *cq.Channel) {
	other := r.another(t, 1, cq.Options{})
	attachTo(t, c, other.q)
	fd, err := c.FD()
	must(t, err)
	for range 3 {
		must(t, c.RequestNotify(r.q, cq.NotifyAny))
		must(t, c.RequestNotify(other.q, cq.NotifyAny))
		if pollable(t, fd, 0) {
			t.Error("readable without an event")
		}
		r.post(t, 1, 2)
		other.post(t, 1, 2)
		for left := 2; left > 0; left-- {
			if !pollable(t, fd, 20_000) {
				t.Errorf("%d events are pending and it is not readable", left)
			}
			_, err := c.TryGetEvent()
			must(t, err)
		}
		_, err = c.TryGetEvent()
		wantErr(t, "the last was taken", err, cq.ErrWouldBlock)
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
