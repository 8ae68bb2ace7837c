package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

func newEvents(t testing.TB) *cq.EventQueue {
	t.Helper()
	d := shmtest.Have(shm.OpenDir("")).In(t)
	return shmtest.Have(cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Write: true})).In(t)
}

// TestCloseAnswers: what was under way is answered with ECANCELED, and its frames are not used
// again.
func TestCloseAnswers(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	s.kernel.HoldCompletions(true)
	for i := range uint64(5) {
		must(t, s.Send(nil, s.peer, i))
	}
	must(t, s.SendMsg(&endpoint.Msg{To: s.peer, Context: 5, Flags: cq.FlagInjectComplete}))
	s.kernel.Complete(2)
	must(t, s.Close())
	must(t, s.Close())
	es := s.read(t)
	if len(es) != 3 || es[0].Context != 5 || es[1].Context != 0 || es[2].Context != 1 {
		t.Errorf("%+v", es)
	}
	for i := range uint64(3) {
		if e := s.readErr(t); e.Context != 2+i || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("%+v", e)
		}
	}
	if st := s.Stats(); st.Cancelled != 3 || st.Frames.Quarantine != 4 ||
		st.Frames.Send != 0 {
		t.Errorf("%+v", st)
	}
	_, err := s.Progress()
	for _, err := range []error{err, s.Send(nil, s.peer, 1), s.Inject(nil, s.peer), s.Cancel(1),
		s.Run(t.Context())} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// TestDeviceGone: whoever uses or drives the endpoint learns of it, once by an event.
func TestDeviceGone(t *testing.T) {
	events := newEvents(t)
	s := alone(t, configured(func(c *endpoint.Config) { c.Events, c.Context = events, 55 }))
	s.kernel.HoldCompletions(true)
	must(t, s.Send(nil, s.peer, 1))
	s.kernel.Remove()
	must(t, s.Send(nil, s.peer, 2)) // accepted, and answered
	for i := range uint64(2) {
		if e := s.readErr(t); e.Context != 1+i || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("%+v", e)
		}
	}
	if err := s.Send(nil, s.peer, 3); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Errorf("after that: %v", err)
	}
	if _, err := s.Progress(); !errors.Is(err, xdp.ErrDeviceGone) {
		t.Errorf("after that: %v", err)
	}
	var e cq.EventError
	if _, err := events.ReadErr(&e, 0); err != nil || e.Context != 55 || e.FID != s.FID() ||
		e.Err != cq.Errno(syscall.ENXIO) {
		t.Errorf("%+v, %v", e, err)
	}
	if _, err := events.ReadErr(&e, 0); err == nil {
		t.Errorf("a second event: %+v", e)
	}
}

// TestSilentDeviceGone: nothing is sent, nothing comes, and it is noticed all the same.
func TestSilentDeviceGone(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, nil)
	s.kernel.Remove()
	shmtest.Eventually(t, "the end", func() bool {
		_, err := s.Progress()
		gone := errors.Is(err, xdp.ErrDeviceGone)
		if !gone {
			must(t, err)
		}
		return gone
	})
}

// TestLinkDown: packets wait for the link, and go out without anything being opened again.
func TestLinkDown(t *testing.T) {
	s := alone(t, nil)
	s.kernel.SetDown(true)
	must(t, s.Send([]byte("waits"), s.peer, 1))
	s.drive(t)
	if es := s.read(t); len(es) != 0 {
		t.Errorf("%+v", es)
	}
	s.kernel.SetDown(false)
	s.drive(t)
	if e := s.one(t); e.Context != 1 || len(s.sent(t)) != 1 {
		t.Errorf("%+v", e)
	}
	if st := s.Stats(); st.LinkDown == 0 {
		t.Errorf("%+v", st)
	}
}

// TestStarved: an event says that all frames are lent; it does not come again and again.
func TestStarved(t *testing.T) {
	events := newEvents(t)
	s := alone(t, configured(func(c *endpoint.Config) { c.Events = events }))
	for range 48 {
		s.arrive(t, addrB, addrA, "x")
		s.drive(t)
	}
	s.drive(t)
	var ev cq.Event
	if _, err := events.Read(&ev, 0); err != nil || ev.Event != cq.EventStarved ||
		ev.Data != 48 {
		t.Errorf("%+v, %v", ev, err)
	}
	s.drive(t)
	if _, err := events.Read(&ev, 0); !errors.Is(err, cq.ErrWouldBlock) {
		t.Errorf("%+v, %v", ev, err)
	}
	es := s.read(t)
	must(t, s.Release(es...))
	if s.kernel.Fill.Used() == 0 {
		t.Error("the kernel did not get the frames at once")
	}
	s.arrive(t, addrB, addrA, "y")
	e := s.one(t)
	if s.text(t, &e) != "y" {
		t.Errorf("%+v", e)
	}
	must(t, s.Release(e)) // the others are there, and a sleeper would show it ten times a second
	if n := s.kernel.Fill.Used(); n != 48 {
		t.Errorf("the kernel has %d of 48 frames", n)
	}
}

// TestRekick: one system call sends 32 packets; more than that are sent all the same, and the ones
// behind a packet that the device refused too.
func TestRekick(t *testing.T) {
	shmtest.Conforms(t)
	s := alone(t, func(o *options) { o.umem.Frames = 256 })
	ms := make([]endpoint.Msg, 50)
	for i := range ms {
		ms[i] = endpoint.Msg{To: s.peer, Context: uint64(i), Buf: []byte{byte(i)}}
	}
	s.kernel.Refuse(1)
	n := shmtest.Got(s.SendBatch(ms)).Or(t)
	if n != 50 || len(s.sent(t)) != 49 {
		t.Errorf("%d accepted", n)
	}
	s.drive(t)
	// Nobody knows which one the device refused, so all complete; the count tells.
	if es := s.read(t); len(es) != 50 || s.Stats().Syscalls.SendDropped != 1 {
		t.Errorf("%d completed: %+v", len(es), s.Stats())
	}
	s.kernel.Refuse(1)
	must(t, s.Send(nil, s.peer, 99))
	if e := s.readErr(t); e.Context != 99 || !errors.Is(&e, syscall.EIO) {
		t.Errorf("%+v", e)
	}
	// One that waited for the link may be the one that is refused, so nobody is blamed.
	s.kernel.SetDown(true)
	must(t, s.Send(nil, s.peer, 1))
	s.kernel.SetDown(false)
	s.kernel.Refuse(1)
	must(t, s.Send(nil, s.peer, 2))
	if es := s.read(t); len(es) != 2 {
		t.Errorf("%+v", es)
	}
}

// TestSentWhileAsleep: a Run that sleeps looks for the completion of what others send meanwhile,
// and not only when it looks at the device the next time.
func TestSentWhileAsleep(t *testing.T) {
	s := alone(t, configured(func(c *endpoint.Config) { c.Shared = true }))
	s.kernel.HoldCompletions(true)
	stop, result := started(t, s.Run)
	soon := false
	for i := uint64(0); i < 20 && !soon; i++ { // at any time it may be about to look anyway
		before := s.Stats().Polls
		shmtest.Eventually(t, "sleep", func() bool { return s.Stats().Polls >= before+2 })
		checks := s.Stats().Syscalls.Receive
		must(t, s.Send(nil, s.peer, i))
		s.kernel.Complete(1)
		var es [1]cq.Entry
		_, err := cq.ReadContext(t.Context(), s.q, es[:], cq.ReadOptions{Timeout: patience})
		must(t, err)
		s.drive(t) // shows the counters
		soon = s.Stats().Syscalls.Receive == checks
	}
	if !soon {
		t.Error("each completion came with a look at the device")
	}
	stop()
	_ = result()
}

// TestManualProgress: whoever reads the queue drives the endpoint, a blocking read too.
func TestManualProgress(t *testing.T) {
	shmtest.Conforms(t)
	var q *cq.Queue
	a := alone(t, nil)
	o := sideOptions()
	o.self, o.peer, o.mac, o.next = addrB, addrA, macB, macA
	o.config = func(c *endpoint.Config) { c.Progress, c.Shared = []*cq.Queue{q}, true }
	o.opened = func(s *side) { q = s.q }
	b := newSide(t, "b", o)
	xskernel.Connect(a.kernel, b.kernel)
	for i := range uint64(10) {
		must(t, a.Inject([]byte("ping"), a.peer))
		var es [4]cq.Entry
		n, err := cq.ReadContext(context.Background(), b.q, es[:], cq.ReadOptions{Timeout: time.Minute})
		if n != 1 || err != nil || b.text(t, &es[0]) != "ping" {
			t.Fatalf("%d, %v", n, err)
		}
		must(t, b.Release(es[0]))
		must(t, b.Send([]byte("pong"), b.peer, i))
		if n, err := cq.Read(b.q, es[:]); n != 1 || err != nil || es[0].Context != i {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if err := b.q.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a queue with an endpoint was closed: %v", err)
	}
}

func TestConfigRefused(t *testing.T) {
	s := alone(t, nil)
	av := shmtest.Have(cq.CreateAddresses(cq.Unnamed("opaque"),
		cq.AddressOptions{Format: cq.AddrOpaque})).In(t)
	for what, change := range map[string]func(c *endpoint.Config){
		"no socket":       func(c *endpoint.Config) { c.Socket = nil },
		"no queue":        func(c *endpoint.Config) { c.Receive, c.Transmit = nil, nil },
		"one lane":        func(c *endpoint.Config) { c.Receive = c.Transmit },
		"selective":       func(c *endpoint.Config) { c.Selective = cq.FlagMore },
		"transmit flags":  func(c *endpoint.Config) { c.TransmitFlags = cq.FlagPeek },
		"batch":           func(c *endpoint.Config) { c.RxBatch = -1 },
		"opaque":          func(c *endpoint.Config) { c.Addresses = av },
		"source err":      func(c *endpoint.Config) { c.Addresses, c.SourceErr = nil, true },
		"nil events":      func(c *endpoint.Config) { c.Events = (*cq.EventQueue)(nil) },
		"posted, no lane": func(c *endpoint.Config) { c.Posted, c.Receive = true, nil },
		"counter": func(c *endpoint.Config) {
			c.Counters = map[*cq.Counter]cq.Flags{nil: cq.FlagRead}
		},
		"no counter": func(c *endpoint.Config) {
			c.Counters = map[*cq.Counter]cq.Flags{nil: cq.FlagSend}
		},
	} {
		c := endpoint.Config{Socket: s.Socket(), Receive: s.rx, Transmit: s.tx}
		change(&c)
		if _, err := endpoint.Open(c); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// closer takes the queue over and closes it: that is for another process to do.
func closer() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Open(cq.Named(d, "alone"), cq.Options{Existing: true}))
	need(q.Close())
}

// TestQueueClosed: a queue that its reader closed is told to whoever posts and drives, and no frame
// is lost track of. What needs no queue goes on.
func TestQueueClosed(t *testing.T) {
	shmtest.Conforms(t)
	for _, posted := range []bool{false, true} {
		t.Run(map[bool]string{false: "loaned", true: "posted"}[posted], func(t *testing.T) {
			s := alone(t, configured(func(c *endpoint.Config) { c.Posted = posted }))
			s.kernel.HoldCompletions(true)
			must(t, s.Send(nil, s.peer, 1))
			if posted {
				must(t, s.Recv(make([]byte, 8), 2))
			}
			if err := s.q.Close(); !errors.Is(err, cq.ErrBusy) {
				t.Errorf("close with an endpoint on it: %v", err)
			}
			must(t, s.q.Detach())
			must(t, shmtest.Child(t, "closer").Run())
			s.arrive(t, addrB, addrA, "too late")
			if _, err := s.Progress(); !errors.Is(err, cq.ErrClosed) {
				t.Errorf("progress: %v", err)
			}
			if err := s.Send(nil, s.peer, 3); !errors.Is(err, cq.ErrClosed) {
				t.Errorf("send: %v", err)
			}
			must(t, s.Inject(nil, s.peer))
			s.kernel.Complete(2)
			if _, err := s.Progress(); !errors.Is(err, cq.ErrClosed) {
				t.Errorf("progress: %v", err)
			}
			if n := len(s.kernel.TakeSent()); n != 2 {
				t.Errorf("%d were sent", n)
			}
			must(t, s.Close())
			f := s.Stats().Frames
			if f.Send+f.Loaned+f.Received != 0 {
				t.Errorf("%+v", f)
			}
		})
	}
}

// TestHostileWire: whatever the wire brings, references stay inside of their frames, and no frame
// is lost.
func TestHostileWire(t *testing.T) {
	shmtest.Conforms(t)
	for i := range 8 {
		posted, chains, data := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("posted-%v-chains-%v-data-%v", posted, chains, data), func(t *testing.T) {
			s := alone(t, func(o *options) {
				o.umem.Frames = 128
				if chains {
					o.sim = xdptest.SimOptions{MTU: 9000, Options: xdp.Options{MultiBuffer: true}}
				}
				o.config = func(c *endpoint.Config) {
					c.Posted, c.RemoteData, c.SourceErr = posted, data, i > 3
				}
			})
			s.bombard(t, rand.New(rand.NewPCG(uint64(i), 9)), posted)
			for posted && s.Socket().FrameStats().Received > 0 {
				must(t, s.Recv(make([]byte, 9000), 0)) // one may wait for this
				s.drive(t)
				_ = s.read(t)
			}
			s.drive(t)
			if f := s.Stats().Frames; f.Loaned+f.Received != 0 {
				t.Errorf("%+v", f)
			}
			if st := s.Stats(); st.Malformed < 100 || st.Received+st.UnknownSource < 100 {
				t.Errorf("too one-sided: %+v", st)
			}
		})
	}
}

// bombard delivers damaged packets and takes what becomes of them.
func (s *side) bombard(t *testing.T, r *rand.Rand, posted bool) {
	for range 5000 {
		b := hostile(t, r)
		s.kernel.Deliver(b)
		if posted {
			m := endpoint.Msg{Buf: make([]byte, 64+r.IntN(100)),
				Flags: cq.FlagMultiRecv * cq.Flags(r.IntN(2))}
			if err := s.RecvMsg(&m); err != nil && err != cq.ErrFull {
				t.Fatal(err)
			}
		}
		s.drive(t)
		for es := s.read(t); ; es = s.read(t) {
			for i := range es {
				if es[i].Flags&cq.FlagFrame == 0 {
					continue
				}
				chunk := uint64(s.Socket().UMEM().Geometry().ChunkBytes)
				off := es[i].Buf.Offset()
				if off%chunk < xdp.RecordBytes || off%chunk+es[i].Len > chunk {
					t.Fatalf("%+v lies outside of its frame", es[i])
				}
				_ = s.text(t, &es[i])
			}
			must(t, s.Release(es...))
			var e cq.ErrorEntry
			if s.q.ReadErr(&e) != nil {
				break
			}
			if e.Flags&cq.FlagFrame != 0 {
				must(t, s.ReleaseError(&e))
			}
		}
	}
}

// hostile returns a packet that is nearly right.
func hostile(t *testing.T, r *rand.Rand) []byte {
	from, size := addrB, r.IntN(200)
	if r.IntN(4) == 0 {
		from = stranger
	}
	if r.IntN(4) == 0 {
		size = r.IntN(8000)
	}
	path := packet.Path{LocalMAC: macB, NextMAC: macA, Src: from, Dst: addrA}
	path.Tags = make([]packet.Tag, r.IntN(3))
	tm := shmtest.Got(path.Template()).Or(t)
	b := make([]byte, 9000)
	n, err := tm.Build(b, []byte("ShRM\x00\x01\x00\x00some data behind it"+string(make([]byte, size))))
	must(t, err)
	for range r.IntN(4) {
		b[12+r.IntN(40)] ^= 1 << r.IntN(8)
	}
	if r.IntN(4) == 0 {
		n = 14 + r.IntN(n)
	}
	return b[:n]
}
