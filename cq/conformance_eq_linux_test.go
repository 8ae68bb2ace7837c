package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
	"golang.org/x/sys/unix"
)

// eqRig is an event queue and who writes to it: its owner, or another process.
type eqRig struct {
	site
	d *shm.Dir
	e *cq.EventQueue
	w eventWriter
	p *peer
}

// conformEQ runs a case for an event queue, written by its own process and by another one.
func conformEQ(t *testing.T, name string, o cq.EventOptions, f func(t *testing.T, r *eqRig)) {
	t.Helper()
	eachSite(t, name, queueSites, func(t *testing.T, at site, p *peer) {
		r := &eqRig{site: at, p: p.at(t, at)}
		o.Write = !at.far
		r.create(t, o)
		r.w = r.attach(t)
		f(t, r)
	})
}

func (r *eqRig) create(t *testing.T, o cq.EventOptions) {
	t.Helper()
	r.createAs(t, queueName(t), o)
}

func (r *eqRig) createAs(t *testing.T, name string, o cq.EventOptions) {
	t.Helper()
	r.d = openDir(t)
	var err error
	if r.memfd {
		r.e, err = cq.CreateEvents(cq.Unnamed(name), r.events(o))
	} else {
		r.e, err = cq.CreateEvents(cq.Named(r.d, name), o)
	}
	must(t, err)
	e := r.e // a case may put another one in its place
	t.Cleanup(func() { must(t, e.Close()) })
}

func (r *eqRig) attach(t *testing.T) eventWriter {
	t.Helper()
	if !r.far {
		return r.e
	}
	address := r.e.Name()
	if r.memfd {
		r.p.start(t)
		done := make(chan error, 1)
		go func() { done <- r.e.Accept(soon(t), r.p.conn) }()
		defer func() { must(t, <-done) }()
		address = ""
	}
	return r.p.open(t, OpenArgs{Kind: "events", Name: address})
}

// near attaches one more writer, in this process.
func (r *eqRig) near(t *testing.T) *cq.EventWriter {
	t.Helper()
	if !r.memfd {
		return attachEvents(t, r.d, r.e.Name())
	}
	a, b := connect(t, unix.SOCK_STREAM)
	done := make(chan error, 1)
	go func() { done <- r.e.Accept(soon(t), a) }()
	w, err := cq.AttachEvents(soon(t), cq.Over(b), r.writer())
	must(t, errors.Join(err, <-done))
	t.Cleanup(func() { must(t, w.Close()) })
	return w
}

func sameEvent(t *testing.T, what string, got, want cq.Event) {
	t.Helper()
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// TestConformanceEQOpen is fi_eq_open and its attributes.
func TestConformanceEQOpen(t *testing.T) {
	t.Parallel()
	conformEQ(t, "resolved-attributes", cq.EventOptions{Size: 5, DataMaxBytes: 100, MaxLanes: 2,
		Wait: cq.WaitYield}, func(t *testing.T, r *eqRig) {
		o := r.e.Options()
		if o.Size < 5 || o.DataMaxBytes != 104 || o.MaxLanes != 2 || o.Wait != cq.WaitYield {
			t.Errorf("%+v", o)
		}
	})
	conformEQ(t, "zero-attributes", cq.EventOptions{}, func(t *testing.T, r *eqRig) {
		if o := r.e.Options(); o.Size != 1024 || o.DataMaxBytes != 232 || o.MaxLanes != 63 ||
			r.e.Name() != queueName(t) || waitFD(r.e) != -1 || r.e.FID().Kind != cq.FIDEvents {
			t.Errorf("%+v", o)
		}
	})
	conformEQ(t, "size-is-guaranteed", cq.EventOptions{Size: 32}, func(t *testing.T, r *eqRig) {
		writeEvents(t, r.w, 0, 32)
		writeEvents(t, r.near(t), 32, 64) // who attaches has as much room
		got := drainEvents(t, r.e)
		slices.Sort(got)
		wantContexts(t, "all", got, upTo(0, 64)...)
	})
	conformEQ(t, "user-context", cq.EventOptions{UserContext: "mine"}, func(t *testing.T, r *eqRig) {
		if got := r.e.UserContext(); got != "mine" {
			t.Errorf("context %v", got)
		}
	})
	first := cq.EventOptions{Affinity: cq.Affinity{Valid: true, CPU: 0}}
	conformEQ(t, "affinity", first, func(t *testing.T, r *eqRig) {
		if got := r.e.Options().Affinity; got != first.Affinity {
			t.Errorf("hint %+v", got)
		}
		writeEvents(t, r.w, 0, 1)
	})
	conformOnce(t, "sizes", func(t *testing.T) {
		d := openDir(t)
		for size := 1; size <= 65536; size *= 2 {
			e, err := cq.CreateEvents(cq.Named(d, "e"), cq.EventOptions{Size: size, DataMaxBytes: 1,
				Write: true})
			must(t, err)
			if e.Options().Size != size {
				t.Errorf("size %d became %d", size, e.Options().Size)
			}
			writeEvents(t, e, 0, uint64(size))
			n, err := e.Write(&cq.Event{})
			wantErr(t, "one more than the size", err, cq.ErrFull, syscall.EAGAIN)
			if n != 0 {
				t.Errorf("%d bytes", n)
			}
			must(t, e.Close())
		}
	})
}

// TestConformanceEQClose is fi_close of an event queue.
func TestConformanceEQClose(t *testing.T) {
	t.Parallel()
	conformEQ(t, "unread-are-lost", cq.EventOptions{}, func(t *testing.T, r *eqRig) {
		writeEvents(t, r.w, 0, 3)
		must(t, r.e.Close())
		_, err := r.w.Write(&cq.Event{})
		wantErr(t, "write", err, cq.ErrClosed)
		_, err = r.e.Read(&cq.Event{}, 0)
		wantErr(t, "read", err, cq.ErrClosed)
		if !r.far {
			_, err = cq.OpenEvents(cq.Named(r.d, r.e.Name()), cq.EventOptions{Existing: true})
			wantErr(t, "adopt", err, fs.ErrNotExist)
		}
		_, err = cq.AttachEvents(t.Context(), cq.Named(r.d, r.e.Name()), cq.WriterOptions{})
		wantErr(t, "attach", err, syscall.ENOENT)
	})
}

// TestConformanceEQEnds: what ends a blocking read is in its error.
func TestConformanceEQEnds(t *testing.T) {
	t.Parallel()
	conformEQ(t, "ends", cq.EventOptions{Spin: -1}, func(t *testing.T, r *eqRig) {
		done := whenAsleep(t, r.e, func() { must(t, r.e.Close()) })
		_, err := eqSread(r.e, &cq.Event{}, tooLong)
		wantErr(t, "close", err, cq.ErrClosed, os.ErrClosed)
		done()
	})
}

// TestConformanceEQWaitObject is wait_obj of fi_eq_attr.
func TestConformanceEQWaitObject(t *testing.T) {
	t.Parallel()
	conformEQ(t, "none", cq.EventOptions{Wait: cq.WaitNone}, func(t *testing.T, r *eqRig) {
		for _, flags := range []cq.Flags{0, cq.FlagPeek} {
			_, err := eqSread(r.e, &cq.Event{}, -1, flags)
			wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
		}
		wantErr(t, "signal", r.e.Signal(), cq.ErrNoWait)
		if fd := waitFD(r.e); fd != -1 {
			t.Errorf("descriptor %d", fd)
		}
		wantErr(t, "trywait", r.e.TryWait(), cq.ErrNoWait)
		writeEvents(t, r.w, 1, 2)
		wantContexts(t, "polled", drainEvents(t, r.e), 1)
	})
	conformEQ(t, "fd", cq.EventOptions{Wait: cq.WaitFD}, func(t *testing.T, r *eqRig) {
		for i := range uint64(3) {
			for err := r.e.TryWait(); err != nil; err = r.e.TryWait() { // an attached lane is looked at
				wantErr(t, "trywait", err, cq.ErrWouldBlock)
				wantContexts(t, "nothing yet", drainEvents(t, r.e))
			}
			if readable(t, waitFD(r.e), 0) {
				t.Error("readable with nothing there")
			}
			writeEvents(t, r.w, i, i+1)
			if !readable(t, waitFD(r.e), 20_000) {
				t.Error("not readable with an event")
			}
			for range 2 {
				_, err := r.e.Read(&cq.Event{}, cq.FlagPeek)
				_, err2 := eqSread(r.e, &cq.Event{}, tooLong, cq.FlagPeek)
				if err != nil || err2 != nil || !readable(t, waitFD(r.e), 0) {
					t.Errorf("a peek takes the readiness away: %v, %v", err, err2)
				}
			}
			wantErr(t, "trywait with an event", r.e.TryWait(), cq.ErrWouldBlock)
			wantContexts(t, "event", drainEvents(t, r.e), i)
		}
	})
}
