package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
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
	r.e = shmtest.Have(cq.CreateEvents(r.place(t, name), r.events(o))).In(t)
}

func (r *eqRig) attach(t *testing.T) eventWriter {
	t.Helper()
	if !r.far {
		return r.e
	}
	address := r.e.Name()
	if r.memfd {
		r.p.start(t)
		done := accept(soon(t), r.e, r.p.conn)
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
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	done := accept(soon(t), r.e, a)
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
			e := shmtest.Got(cq.CreateEvents(cq.Named(d, "e"), cq.EventOptions{Size: size, DataMaxBytes: 1,
				Write: true})).Or(t)
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
			armed(t, func() { wantContexts(t, "nothing yet", drainEvents(t, r.e)) }, r.e)
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

// TestConformanceEQRead is fi_eq_read.
func TestConformanceEQRead(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 8}
	conformEQ(t, "control-operation", o, func(t *testing.T, r *eqRig) {
		want := cq.Event{Event: cq.EventAVComplete, FID: cq.FID{Kind: cq.FIDAddresses, ID: 5,
			Generation: 2}, Context: 7, Data: 9}
		shmtest.Got(r.w.Write(&want)).Or(t)
		var got cq.Event
		n, err := r.e.Read(&got, 0)
		if n != cq.EventHeaderBytes || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		sameEvent(t, "read", got, want)
	})
	conformEQ(t, "one-event", o, func(t *testing.T, r *eqRig) {
		for i := range uint64(3) {
			_, err := r.w.Write(&cq.Event{Event: cq.EventUser, Context: i, Payload: make([]byte, i)})
			must(t, err)
		}
		for i := range uint64(3) {
			ev := cq.Event{Payload: make([]byte, 0, 100)}
			n, err := r.e.Read(&ev, 0)
			if n != cq.EventHeaderBytes+int(i) || err != nil || ev.Context != i {
				t.Errorf("%d: %d bytes, %v, %+v", i, n, err, ev)
			}
		}
		n, err := r.e.Read(&cq.Event{}, 0)
		wantErr(t, "a fourth", err, cq.ErrWouldBlock, syscall.EAGAIN)
		if n != 0 {
			t.Errorf("%d bytes", n)
		}
	})
	bounded := cq.EventOptions{Size: 4, DataMaxBytes: 100}
	conformEQ(t, "every-length", bounded, func(t *testing.T, r *eqRig) {
		most := r.e.Options().DataMaxBytes
		text := make([]byte, most+1)
		for i := range text {
			text[i] = byte(i + 1)
		}
		ev := cq.Event{Payload: make([]byte, 0, most)}
		for n := range most + 1 {
			shmtest.Got(r.w.Write(&cq.Event{Event: cq.EventUser, Payload: text[:n]})).Or(t)
			k, err := r.e.Read(&ev, 0)
			if k != cq.EventHeaderBytes+n || err != nil || string(ev.Payload) != string(text[:n]) {
				t.Fatalf("%d bytes: %d, %v, %x", n, k, err, ev.Payload)
			}
		}
		near := r.near(t)
		_, err := near.Write(&cq.Event{Payload: text})
		wantErr(t, "a long payload", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "len(Payload)")
		_, err = near.WriteErr(&cq.EventError{ErrData: text})
		wantField(t, err, "len(ErrData)")
	})
	conformEQ(t, "too-large-stays", o, func(t *testing.T, r *eqRig) {
		_, err := r.w.Write(&cq.Event{Event: cq.EventUser, Context: 1, Payload: []byte("connection")})
		must(t, err)
		near := r.near(t)
		for _, flags := range []cq.Flags{0, cq.FlagPeek, 0} {
			ev := cq.Event{Context: 77, Payload: make([]byte, 3, 9)}
			n, err := r.e.Read(&ev, flags)
			wantErr(t, "read", err, cq.ETooSmall, syscall.EMSGSIZE)
			var small *cq.Error
			if !errors.As(err, &small) || small.Want != 10 || n != 0 {
				t.Fatalf("%d, %v does not say that 10 bytes are needed", n, err)
			}
			_, err = eqSread(r.e, &ev, -1, flags)
			wantErr(t, "sread", err, cq.ETooSmall)
			if ev.Context != 77 || len(ev.Payload) != 3 {
				t.Errorf("changed: %+v", ev)
			}
			writeEvents(t, near, 10, 12) // whatever else there is
		}
		ev := cq.Event{Payload: make([]byte, 0, 10)}
		if _, err := r.e.Read(&ev, 0); err != nil || string(ev.Payload) != "connection" {
			t.Errorf("%v, %q", err, ev.Payload)
		}
		wantContexts(t, "behind it", drainEvents(t, r.e), 10, 11, 10, 11, 10, 11)
	})
}

// TestConformanceEQPeek is FI_PEEK.
func TestConformanceEQPeek(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 32, Wait: cq.WaitFD}
	conformEQ(t, "leaves-it", o, func(t *testing.T, r *eqRig) {
		writeEvents(t, r.w, 0, 5)
		for range 5 {
			var ev cq.Event
			if n, err := r.e.Read(&ev, cq.FlagPeek); n != cq.EventHeaderBytes || err != nil ||
				ev.Context != 0 {
				t.Errorf("peek: %d, %v, %+v", n, err, ev)
			}
		}
		wantContexts(t, "reads", drainEvents(t, r.e), upTo(0, 5)...)
		_, err := r.e.Read(&cq.Event{}, cq.FlagPeek)
		wantErr(t, "peek at nothing", err, cq.ErrWouldBlock)
		_, err = r.e.Read(&cq.Event{}, cq.FlagMore)
		wantErr(t, "a flag that reads do not know", err, cq.ErrInvalid, syscall.EINVAL)
		_, err = r.e.ReadErr(&cq.EventError{}, cq.FlagPeek|cq.FlagMore)
		wantErr(t, "such a flag of readerr", err, cq.ErrInvalid)
	})
	conformEQ(t, "the-same-among-writers", cq.EventOptions{Size: 256, MaxLanes: 4}, eqPeekTheSame)
	conformEQ(t, "alternating", o, eqPeekAlternating)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitYield, cq.WaitFD} {
		blocking := "blocking"
		o := cq.EventOptions{Wait: wait, Spin: -1}
		conformEQ(t, blocking+"/"+wait.String(), o, func(t *testing.T, r *eqRig) {
			for i, flags := range []cq.Flags{0, cq.FlagPeek, 0} {
				done := func() {}
				if i < 2 { // the last one finds what was peeked at
					done = later(func() { writeEvents(t, r.w, uint64(i), uint64(i+1)) })
				}
				var ev cq.Event
				if n, err := eqSread(r.e, &ev, tooLong, flags); n != cq.EventHeaderBytes || err != nil ||
					ev.Context != uint64(min(i, 1)) {
					t.Errorf("%d: %d, %v, %+v", i, n, err, ev)
				}
				done()
			}
		})
	}
}

// eqPeekTheSame peeks for longer than one writer's turn lasts, while two have more and write on.
func eqPeekTheSame(t *testing.T, r *eqRig) {
	ws := []eventWriter{r.w, r.near(t)}
	for i, w := range ws {
		writeEvents(t, w, uint64(i)*1000, uint64(i)*1000+5)
	}
	for len(ws) > 0 {
		var first, ev cq.Event
		shmtest.Got(r.e.Read(&first, cq.FlagPeek)).Or(t)
		for i := range 100 {
			if i%50 == 1 {
				writeEvents(t, ws[i/50], first.Context+2000, first.Context+2001)
			}
			if _, err := r.e.Read(&ev, cq.FlagPeek); err != nil || ev.Context != first.Context {
				t.Fatalf("peek %d: %d, %v; want %d again", i, ev.Context, err, first.Context)
			}
		}
		if _, err := r.e.Read(&ev, 0); err != nil || ev.Context != first.Context {
			t.Fatalf("read: %d, %v; want what was peeked at, %d", ev.Context, err, first.Context)
		}
		if first.Context%1000 == 4 {
			break
		}
	}
	_ = drainEvents(t, r.e)
}

func eqPeekAlternating(t *testing.T, r *eqRig) {
	fids := []cq.FID{r.e.FID(), fabric(3)}
	for i := range uint64(5) {
		n, err := r.w.Write(&cq.Event{Event: cq.EventNotify, FID: fids[i%2], Context: i, Data: ^i})
		if n != cq.EventHeaderBytes || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
	}
	for i := range uint64(10) {
		flags := cq.FlagPeek
		if i%2 == 1 {
			flags = 0
		}
		var ev cq.Event
		n, err := r.e.Read(&ev, flags)
		if n != cq.EventHeaderBytes || err != nil {
			t.Errorf("%d: %d, %v", i, n, err)
		}
		sameEvent(t, fmt.Sprint(i), ev,
			cq.Event{Event: cq.EventNotify, FID: fids[i/2%2], Context: i / 2, Data: ^(i / 2)})
	}
	_, err := r.e.Read(&cq.Event{}, 0)
	wantErr(t, "an eleventh", err, cq.ErrWouldBlock)
}

// TestConformanceEQSread is fi_eq_sread.
func TestConformanceEQSread(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 8, Spin: -1}
	conformEQ(t, "event", o, func(t *testing.T, r *eqRig) {
		want := cq.Event{Event: cq.EventNotify, FID: fabric(1), Context: 4, Data: 5}
		for _, timeout := range []time.Duration{tooLong, -1} {
			done := whenAsleep(t, r.e, func() { _, _ = r.w.Write(&want) })
			var got cq.Event
			if n, err := eqSread(r.e, &got, timeout); n != cq.EventHeaderBytes || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			sameEvent(t, "sread", got, want)
			done()
		}
	})
	conformEQ(t, "error", o, func(t *testing.T, r *eqRig) {
		defer whenAsleep(t, r.e, func() { _, _ = r.w.WriteErr(&cq.EventError{Err: cq.EOther}) })()
		_, err := eqSread(r.e, &cq.Event{}, tooLong)
		wantErr(t, "sread", err, cq.ErrAvail, cq.EAvail)
	})
	conformEQ(t, "timeout", o, func(t *testing.T, r *eqRig) {
		for _, timeout := range []time.Duration{0, 1, 20 * time.Millisecond} {
			begin := time.Now()
			_, err := eqSread(r.e, &cq.Event{}, timeout, cq.FlagPeek)
			wantErr(t, "speek", err, cq.ErrTimedOut)
			n, err := eqSread(r.e, &cq.Event{}, timeout)
			wantErr(t, "sread", err, cq.ErrTimedOut, syscall.EAGAIN, syscall.ETIMEDOUT,
				os.ErrDeadlineExceeded, context.DeadlineExceeded)
			if n != 0 || errors.Is(err, cq.ErrWouldBlock) {
				t.Errorf("%d bytes, or it is what a read is that does not wait", n)
			}
			if took := time.Since(begin); took < timeout {
				t.Errorf("%v was over after %v", timeout, took)
			}
		}
		writeEvents(t, r.w, 1, 2)
		var ev cq.Event
		if _, err := eqSread(r.e, &ev, tooLong); err != nil || ev.Context != 1 {
			t.Errorf("%+v, %v", ev, err)
		}
	})
}

// TestConformanceEQReadErr is fi_eq_readerr.
func TestConformanceEQReadErr(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 16}
	conformEQ(t, "no-error", o, func(t *testing.T, r *eqRig) {
		writeEvents(t, r.w, 0, 5)
		_, err := r.e.ReadErr(&cq.EventError{}, 0)
		wantErr(t, "an event is next", err, cq.ErrWouldBlock)
		_ = drainEvents(t, r.e)
		_, err = r.e.ReadErr(&cq.EventError{}, 0)
		wantErr(t, "nothing is there", err, cq.ErrWouldBlock, syscall.EAGAIN)
		_, err = r.e.ReadErr(&cq.EventError{}, cq.FlagPeek)
		wantErr(t, "nor to peek at", err, cq.ErrWouldBlock)
	})
	conformEQ(t, "every-field", o, func(t *testing.T, r *eqRig) {
		for _, kind := range []cq.FIDKind{cq.FIDMemory, cq.FIDAddresses, cq.FIDEndpoint} {
			want := cq.EventError{FID: cq.FID{Kind: kind, ID: 4, Generation: 1}, Context: 2, Data: 3,
				Err: cq.Errno(syscall.ECONNREFUSED), ProvErrno: -7, ErrData: []byte("no")}
			shmtest.Got(r.w.WriteErr(&want)).Or(t)
			got := cq.EventError{ErrData: make([]byte, 0, 8)}
			n, err := r.e.ReadErr(&got, 0)
			if n != cq.EventErrorBytes || err != nil {
				t.Errorf("%d, %v", n, err)
			}
			want.ErrDataBytes = 2
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
			wantErr(t, "entry", &got, syscall.ECONNREFUSED)
			if !strings.Contains(got.Error(), want.FID.String()) {
				t.Errorf("%v does not say what it is about", &got)
			}
		}
	})
	conformEQ(t, "eavail-until-taken", o, func(t *testing.T, r *eqRig) {
		shmtest.Got(r.w.WriteErr(&cq.EventError{Err: cq.EOther})).Or(t)
		writeEvents(t, r.w, 1, 2)
		for range 3 {
			_, err := r.e.Read(&cq.Event{}, 0)
			wantErr(t, "read", err, cq.ErrAvail)
			_, err = r.e.Read(&cq.Event{}, cq.FlagPeek)
			wantErr(t, "peek", err, cq.ErrAvail)
			shmtest.Got(r.e.ReadErr(&cq.EventError{}, cq.FlagPeek)).Or(t)
		}
		shmtest.Got(r.e.ReadErr(&cq.EventError{}, 0)).Or(t)
		wantContexts(t, "after it", drainEvents(t, r.e), 1)
	})
	conformEQ(t, "in-order", o, func(t *testing.T, r *eqRig) {
		for i := range uint64(6) {
			if i%3 == 1 {
				shmtest.Got(r.w.WriteErr(&cq.EventError{Context: i, Err: cq.EOther})).Or(t)
				continue
			}
			writeEvents(t, r.w, i, i+1)
		}
		wantContexts(t, "events and errors", drainEventsAnd(t, r.e), 0, 1, 2, 3, 4, 5)
	})
}

// TestConformanceEQControl is fi_control of an event queue.
func TestConformanceEQControl(t *testing.T) {
	t.Parallel()
	for wait := range natives {
		name := "getwait"
		o := cq.EventOptions{Wait: wait}
		conformEQ(t, name+"/"+wait.String(), o, func(t *testing.T, r *eqRig) {
			wantNative(t, r.e.Options().Wait, wait, r.e)
		})
	}
}

// TestConformanceEQInSet is an event queue that was opened with a wait set.
func TestConformanceEQInSet(t *testing.T) {
	t.Parallel()
	eachSite(t, "many", queueSites, manyInSet)
	conformOnce(t, "no-set", func(t *testing.T) {
		_, err := cq.CreateEvents(cq.Named(openDir(t), "none"), cq.EventOptions{Wait: cq.WaitInSet})
		wantErr(t, "create", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "WaitSet")
	})
	conformOnce(t, "set-ignored", func(t *testing.T) {
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		_, e := createEvents(t, cq.EventOptions{WaitSet: s, Write: true})
		wantErr(t, "it is no member", s.Remove(e), fs.ErrNotExist)
		writeEvents(t, e, 1, 2)
		if _, err := eqSread(e, &cq.Event{}, tooLong); err != nil {
			t.Error(err)
		}
		handled := shmtest.Got(cq.CreateEvents(cq.Unnamed("handled"),
			cq.EventOptions{Handler: func(*cq.Event, error) {}})).Or(t)
		wantErr(t, "one with a handler", s.Add(handled), cq.ErrHandled)
		must(t, handled.Close())
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
		wantErr(t, "it is a member", s.Add(rs[i].e), fs.ErrExist)
		_, err := eqSread(rs[i].e, &cq.Event{}, -1)
		wantErr(t, "sread", err, cq.ErrNoWait, syscall.ENOSYS)
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
