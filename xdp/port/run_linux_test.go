package port_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/port"
)

// runRig starts Run and returns what ends it and what it returns.
func (r *portRig) run(t testing.TB) (stop context.CancelFunc, wait func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- r.port.Run(ctx) }()
	return stop, func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(time.Minute):
			t.Fatal("Run does not end")
			return nil
		}
	}
}

// asleep waits until Run sleeps, and then some.
func (r *portRig) asleep(t testing.TB) {
	t.Helper()
	for before := r.port.Stats().Polls; r.port.Stats().Polls < before+2; {
		time.Sleep(time.Millisecond)
	}
}

// TestRunWakes: a command ends the sleep of Run, and so do the context and Close.
func TestRunWakes(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	stop, wait := r.run(t)
	defer stop()
	for i := range uint64(50) {
		if i%10 == 0 {
			r.asleep(t)
		}
		r.ask(t, port.SendCommand(i, r.payload.Ref(0), 10, 1))
		var m [1]cq.Msg
		if _, err := cq.ReadTimeout(r.app, m[:], time.Minute); err != nil || m[0].Context != i {
			t.Fatalf("%+v, %v", m, err)
		}
	}
	if _, err := r.port.Progress(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Progress beside Run: %v", err)
	}
	if err := r.port.Run(t.Context()); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("Run beside Run: %v", err)
	}
	r.asleep(t)
	stop()
	if err := wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	_, wait = r.run(t) // it can go on
	r.asleep(t)
	must(t, r.port.Close())
	if err := wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	must(t, r.port.Close())
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := r.port.Run(ctx); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// closer takes the application's queue over and closes it.
func closer() {
	d, err := shm.OpenDir("")
	if err == nil {
		var q *cq.Queue
		if q, err = cq.Adopt(d, "app", cq.Options{}); err == nil {
			err = q.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "closer:", err)
		os.Exit(1)
	}
}

// TestQueueClosed: a queue that its reader closed ends the port, and nothing is lost track of.
func TestQueueClosed(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	_, wait := r.run(t)
	must(t, r.app.Detach()) // the port keeps it open in this process
	must(t, shmtest.Child(t, "closer").Run())
	r.arrive(t, r.from, []byte("too late"))
	r.ask(t, port.SendCommand(1, r.payload.Ref(0), 10, 1))
	if err := wait(); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	must(t, r.port.Close())
	s := r.port.Stats()
	if s.Frames.States[xdp.FrameLoaned] != 0 || s.Frames.Sum() != s.Frames.Frames {
		t.Errorf("%+v", s)
	}
}

// TestAbandons: at the end a taken command for whose answer there is no room is counted, and
// the queue of commands can be left to somebody else.
func TestAbandons(t *testing.T) {
	r := newPortRig(t, rigOptions{lane: 4})
	for i := range 6 {
		r.ask(t, port.SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	for range 4 {
		_, err := r.port.Progress()
		must(t, err)
	}
	must(t, r.port.Close())
	if s := r.port.Stats(); s.Completed != 4 || s.Unanswered != 1 || s.Cancelled+s.Unsent != 0 {
		t.Errorf("%+v", s)
	}
	if es, err := r.q.Peek(8); err != nil || len(es) != 1 || es[0].Context != 5 {
		t.Errorf("left in the queue: %+v, %v", es, err)
	}
	must(t, r.q.Release(1))
}

func TestRegions(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	if err := r.port.AddRegion(r.payload); !errors.Is(err, xdp.ErrOptions) {
		t.Errorf("twice: %v", err)
	}
	if err := syscall.Ftruncate(r.payload.Object().FD(), 4096); err == nil {
		t.Error("memory that sends refer to got smaller")
	}
	// A file by name can be cut off at any time, and that cannot be forbidden.
	o, err := r.dir.Create("file", shm.Spec{Kind: shm.KindUMEM, Name: "file",
		Sections: []shm.Section{{Kind: secPayload, Length: 4096, ElemSize: 1, Capacity: 4096}}}, nil)
	must(t, err)
	file, err := shm.NewRegion(o, secPayload)
	must(t, err)
	defer func() {
		must(t, o.Unlink())
		must(t, file.Close(context.WithoutCancel(t.Context())))
	}()
	if err := r.port.AddRegion(file); !errors.Is(err, xdp.ErrOptions) {
		t.Errorf("a named file: %v", err)
	}
	r.port.RemoveRegion(file) // never added
	r.port.RemoveRegion(r.payload)
	r.ask(t, port.SendCommand(1, r.payload.Ref(0), 1, 1))
	r.rounds(t)
	r.read(t)
	if e := r.readErr(t); !errors.Is(&e, cq.ENoKey) {
		t.Errorf("removed: %v", &e)
	}
	must(t, r.port.AddRegion(r.payload))
	r.ask(t, port.SendCommand(2, r.payload.Ref(0), 1, 1))
	r.rounds(t)
	if es := r.read(t); len(es) != 1 {
		t.Errorf("added again: %+v", es)
	}
}

// TestSuccessor: what a device process before this one had looked at is not sent a second time,
// and what it had not is.
func TestSuccessor(t *testing.T) {
	r := newPortRig(t, rigOptions{send: 4})
	for i := range 40 {
		r.ask(t, port.SendCommand(uint64(i), r.payload.Ref(0), 10, 1))
	}
	es, err := r.q.Peek(8)
	must(t, err)
	if len(es) != 8 {
		t.Fatal(len(es))
	}
	port.Redeliver(r.port, es)
	r.rounds(t)
	for i := range uint64(8) {
		if e := r.readErr(t); e.Context != i || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("%+v", e)
		}
	}
	for i, e := range r.read(t) {
		if e.Context != uint64(8+i) {
			t.Errorf("completion of %d", e.Context)
		}
	}
	if s := r.port.Stats(); s.Accepted != 32 || s.Completed != 32 || s.BadCommands != 8 {
		t.Errorf("%+v", s)
	}
}

func TestOpenRefuses(t *testing.T) {
	r := newPortRig(t, rigOptions{})
	noFD, err := cq.Create(r.dir, "nofd", cq.Options{})
	must(t, err)
	defer noFD.Close()
	for name, change := range map[string]func(c *port.Config){
		"no lane":   func(c *port.Config) { c.Endpoint.Transmit = nil },
		"one lane":  func(c *port.Config) { c.Endpoint.Transmit = c.Endpoint.Receive },
		"no queue":  func(c *port.Config) { c.Commands = nil },
		"no FD":     func(c *port.Config) { c.Commands = noFD },
		"batch":     func(c *port.Config) { c.Batch = -1 },
		"posted":    func(c *port.Config) { c.Endpoint.Posted = true },
		"no socket": func(c *port.Config) { c.Endpoint.Socket = nil },
	} {
		c := port.Config{Commands: r.q, Endpoint: endpoint.Config{Socket: r.socket, Receive: r.rx,
			Transmit: r.tx}}
		change(&c)
		if _, err := port.Open(c); !errors.Is(err, xdp.ErrOptions) || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
