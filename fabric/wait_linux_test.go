package fabric_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// waited is an endpoint, and what somebody waits on until it has news.
type waited struct {
	*end
	count *cq.Counter // of receives
	ctx   context.Context
	n     uint64 // of the receive that is waited for
}

// polled waits on a descriptor, which arm says when to wait for.
func (w *waited) polled(fd int, err error, arm func() error) error {
	if err != nil {
		return err
	}
	switch err := arm(); {
	case errors.Is(err, cq.ErrWouldBlock):
		return nil
	case err != nil:
		return err
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 1000)
		if err == unix.EINTR || err == nil && fds[0].Revents == 0 && w.ctx.Err() == nil {
			continue
		}
		return errors.Join(err, w.ctx.Err())
	}
}

// ways in which a program waits for what only its own progress brings. Each is made once and then
// called as often as there are messages.
var ways = []struct {
	name string
	make func(t *testing.T, w *waited) func() error
}{
	{"read", func(_ *testing.T, w *waited) func() error {
		return func() error {
			_, err := cq.ReadContext(w.ctx, w.q, []cq.Entry{}, cq.ReadOptions{Threshold: 1})
			return err
		}
	}},
	{"descriptor", func(_ *testing.T, w *waited) func() error {
		return func() error {
			n, err := w.q.GetWait()
			return w.polled(n.FD, err, w.q.TryWait)
		}
	}},
	{"set", func(t *testing.T, w *waited) func() error {
		s := w.set(t, w.q)
		return func() error { _, err := s.Wait(w.ctx, nil, cq.WaitOptions{}); return err }
	}},
	{"set-descriptor", func(t *testing.T, w *waited) func() error {
		s := w.set(t, w.q)
		return func() error {
			n, err := s.GetWait()
			return w.polled(n.FD, err, s.TryWait)
		}
	}},
	{"channel", func(t *testing.T, w *waited) func() error {
		c := w.channel(t)
		return func() error {
			_, err := c.GetEvent(w.ctx, cq.WaitOptions{})
			return errors.Join(err, c.Ack(w.q, 1), c.RequestNotify(w.q, cq.NotifyAny))
		}
	}},
	{"channel-descriptor", func(t *testing.T, w *waited) func() error {
		c := w.channel(t)
		return func() error {
			fd, err := c.FD()
			var got cq.ChannelEvent
			err = w.polled(fd, err, func() (err error) {
				if got, err = c.TryGetEvent(); err == nil {
					err = cq.ErrWouldBlock // that is, do not block
				} else if err == cq.ErrWouldBlock {
					err = nil
				}
				return err
			})
			if got.Queue == nil || err != nil {
				return err
			}
			return errors.Join(c.Ack(w.q, 1), c.RequestNotify(w.q, cq.NotifyAny))
		}
	}},
	{"counter", func(_ *testing.T, w *waited) func() error {
		return func() error { return w.count.Wait(w.ctx, w.n, cq.WaitOptions{}) }
	}},
	{"counter-descriptor", func(_ *testing.T, w *waited) func() error {
		return func() error {
			n, err := w.count.GetWait()
			if v, e := w.count.Read(); e != nil || v >= w.n {
				return e
			}
			return w.polled(n.FD, err, w.count.TryWait)
		}
	}},
	{"counter-in-a-set", func(t *testing.T, w *waited) func() error {
		s := w.set(t, w.count)
		return func() error { _, err := s.Wait(w.ctx, nil, cq.WaitOptions{}); return err }
	}},
}

func (w *waited) set(t *testing.T, m cq.Waitable) *cq.WaitSet {
	s := shmtest.Got(cq.NewWaitSet(w.d, cq.WaitSetOptions{Wait: cq.WaitFD})).Or(t)
	must(t, s.Add(m))
	t.Cleanup(func() { must(t, errors.Join(s.Remove(m), s.Close())) })
	return s
}

func (w *waited) channel(t *testing.T) *cq.Channel {
	c := shmtest.Got(cq.NewChannel(w.d)).Or(t)
	must(t, c.Attach(w.q))
	must(t, c.RequestNotify(w.q, cq.NotifyAny))
	t.Cleanup(func() { must(t, errors.Join(c.Detach(context.Background(), w.q), c.Close())) })
	return c
}

// TestWaits: whatever a program waits on that its endpoint completes into, another process wakes it
// there, although nothing moves the endpoint but those who wait.
func TestWaits(t *testing.T) {
	shmtest.Conforms(t)
	for _, by := range []string{"queue", "counter"} {
		w := newWaited(t, by == "counter")
		c := started(t, "echo", shm.EnvDir+"="+w.d.Path())
		to := w.knows(t, "echo")
		for _, way := range ways {
			if strings.HasPrefix(way.name, "counter") != (by == "counter") {
				continue
			}
			t.Run(way.name, func(t *testing.T) {
				var cancel func()
				w.ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				wait := way.make(t, w)
				for range 30 {
					w.exchange(t, to, wait)
				}
			})
		}
		c.Stop(t)
		w.close(t)
	}
}

// newWaited opens the endpoint, which either its counter or its queue drives.
func newWaited(t *testing.T, counts bool) *waited {
	d, err := shm.OpenDir(shmtest.Dir(t))
	must(t, err)
	w := &waited{end: &end{d: d}}
	w.q, err = cq.Create(cq.Unnamed("q"), cq.Options{Size: 64, Shared: true, Wait: cq.WaitFD})
	must(t, err)
	w.w = shmtest.Got(w.q.Writer()).Or(t)
	w.count, err = cq.CreateCounter(cq.Unnamed("count"), cq.CounterOptions{Wait: cq.WaitFD})
	must(t, err)
	o := fabric.Options{Transmit: w.w, Receive: w.w, Progress: []*cq.Queue{w.q}}
	if counts {
		o.Counters, o.Progress = map[*cq.Counter]cq.Flags{w.count: cq.FlagRecv}, nil
	}
	w.Endpoint = shmtest.Got(fabric.Open(w.d, "main", o)).Or(t)
	return w
}

func (w *waited) close(t *testing.T) {
	must(t, errors.Join(w.Endpoint.Close(), w.w.Close(), w.q.Close(), w.count.Close(), w.d.Close()))
}

// exchange sends a message, and waits until the echo of it is here.
func (w *waited) exchange(t *testing.T, to cq.Addr, wait func() error) {
	t.Helper()
	w.n++
	var buf [16]byte
	must(t, w.Recv(buf[:], w.n))
	must(t, w.Inject([]byte("message"), to))
	for {
		must(t, wait())
		var dst [4]cq.Entry
		n, err := cq.Read(w.q, dst[:])
		if err != nil && err != cq.ErrWouldBlock {
			t.Fatal(err)
		}
		for _, c := range dst[:n] {
			if c.Flags&cq.FlagRecv != 0 && c.Context == w.n {
				return
			}
		}
	}
}

// TestSolicited: a channel that is armed for solicited entries alone has an event for a message, or
// data, whose sender asked for it, however it came; and none for what else makes entries.
func TestSolicited(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range []struct {
		name   string
		stored bool // it comes before its receive
		bytes  int
		data   bool // written, in place of a message
	}{
		{name: "inline"},
		{name: "stored", stored: true},
		{name: "chunk", bytes: 5000},
		{name: "segments", bytes: 1 << 20},
		{name: "data", data: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Remote: 4096})
			to := a.knows(t, "b")
			r, err := b.Register(8, allAccess)
			must(t, err)
			events := shmtest.Got(cq.NewChannel(b.d)).Or(t)
			must(t, errors.Join(events.Attach(b.q), events.RequestNotify(b.q, cq.NotifySolicited)))
			for _, solicited := range []bool{false, true} {
				told := false
				m := fabric.Msg{Addr: to, Buf: make([]byte, c.bytes), Solicited: solicited,
					Flags: cq.FlagRemoteCQData}
				switch {
				case c.data:
					must(t, a.WriteMsg(&m, fabric.Remote{Key: r.Key()}))
				case c.stored:
					must(t, a.SendMsg(&m))
					_, err = b.Progress()
					must(t, errors.Join(err, b.Recv(make([]byte, c.bytes), 1)))
				default:
					must(t, b.Recv(make([]byte, c.bytes), 1))
					must(t, a.SendMsg(&m))
				}
				for here := false; !here; {
					_, err = a.Progress()
					_, err2 := b.Progress()
					must(t, errors.Join(err, err2))
					e, err := events.TryGetEvent()
					if err == nil && (!solicited || !e.Solicited) || err != nil && err != cq.ErrWouldBlock {
						t.Fatalf("solicited %v: an event %+v, %v", solicited, e, err)
					}
					told = told || err == nil
					var dst [2]cq.Entry
					n, err := cq.Read(b.q, dst[:])
					if err != nil && err != cq.ErrWouldBlock {
						t.Fatal(err)
					}
					for _, c := range dst[:n] {
						here = here || c.Flags&(cq.FlagRecv|cq.FlagRemoteWrite) != 0
					}
				}
				if told != solicited {
					t.Errorf("solicited %v: told %v", solicited, told)
				}
			}
			must(t, errors.Join(events.Ack(b.q, 1), events.Detach(t.Context(), b.q)))
			must(t, events.Close())
		})
	}
}
