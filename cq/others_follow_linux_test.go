package cq_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestFollow: what a dead reader left goes to its successor, in order, marked as far as it was
// handed out, and ahead of what is posted next. That one dies too.
func TestFollow(t *testing.T) {
	shmtest.Conforms(t)
	fds, maps := held(t)
	first := startReader(t, othersSite)
	w := first.attach()
	post(t, w, 0, 6)
	first.expect("read", 1, "0")
	first.expect("peek", 3, "1 2 3")
	first.expect("release", 1, "")
	post(t, w, 6, 8)
	must(t, w.Credits().Add(1))
	if left := w.Stats().Unread; left != 6 {
		t.Errorf("%d are left", left)
	}
	first.end(w)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrPeerGone)
	former := w.Stats().Reader

	second := startReader(t, othersSite)
	next := second.follow(w)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrClosed)
	must(t, w.Close())
	if next.Stats().Reader <= former || next.Stats().Unread != 6 || next.Credits().Len() != 1 {
		t.Errorf("generation %d after %d, %d left, %d credits", next.Stats().Reader, former,
			next.Stats().Unread, next.Credits().Len())
	}
	post(t, next, 8, 9)
	wantErr(t, "beyond the credit", next.Post(&cq.Entry{}), cq.ErrFull)
	must(t, next.Credits().Post(&cq.Entry{Context: 9}))
	second.expect("peek", 8, "2! 3!")
	second.expect("release", 1, "")
	second.end(next)

	third := startReader(t, othersSite)
	last := third.follow(next)
	third.expect("read", 1, "3!") // it was handed out twice
	third.expect("read", 9, "4 5 6 7 8 9")
	post(t, last, 10, 18)
	third.expect("read", 20, "10 11 12 13 14 15 16 17")
	must(t, last.Close())
	third.Kill()
	eventually(t, "nothing is left", func() bool {
		f, m := held(t)
		return f <= fds && m <= maps
	})
}

// TestFollowLiving: a reader that lives keeps its writers, whatever else becomes of it.
func TestFollowLiving(t *testing.T) {
	shmtest.Conforms(t)
	first, second := startReader(t, othersSite), startReader(t, othersSite)
	w := first.attach()
	defer w.Close()
	post(t, w, 0, 2)
	refused := func(what string) {
		t.Helper()
		_, err := w.Follow(soon(t), second.conn)
		wantErr(t, what, err, syscall.EBUSY)
		var busy *shm.BusyError
		if !errors.As(err, &busy) || busy.PID != first.Process.Pid {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("a living reader")
	first.Halt(t)
	time.Sleep(short)
	refused("a stopped reader")
	first.GoOn(t)
	first.expect("read", 2, "0 1")
	_, own := pair(t, cq.Options{})
	_, err := own.Follow(soon(t), second.conn)
	wantErr(t, "one user", err, errors.ErrUnsupported)
	first.expect("close", 0, "")
	_, err = w.Follow(soon(t), second.conn)
	wantErr(t, "a closed queue", err, cq.ErrClosed)
}

// TestFollowPoisoned: what a reader has given up goes to nobody, whether it lives or has left.
func TestFollowPoisoned(t *testing.T) {
	for name, leave := range map[string]func(*cq.Queue) error{
		"living": func(*cq.Queue) error { return nil }, "left": (*cq.Queue).Detach} {
		t.Run(name, func(t *testing.T) {
			q := anonymousOthers(t, cq.Options{Size: 8})
			w := join(t, q)
			w.StoreTail(100)
			cq.RingLane(w)
			_, err := cq.Read(q, make([]cq.Context, 1))
			var lane *cq.LaneError
			if !errors.As(err, &lane) {
				t.Fatalf("read: %v", err)
			}
			must(t, leave(q))
			a, b := shmtest.Connected(t, unix.SOCK_STREAM)
			defer a.Close()
			defer b.Close()
			if _, err := w.Follow(soon(t), b); !errors.As(err, &lane) {
				t.Errorf("follow: %v", err)
			}
		})
	}
}

// followTo has w go on with a queue of this process until the test ends.
func followTo(t testing.TB, w *cq.Writer, q *cq.Queue) *cq.Writer {
	t.Helper()
	a, b := shmtest.Connected(t, unix.SOCK_SEQPACKET)
	done := accept(soon(t), q, a)
	next, err := w.Follow(soon(t), b)
	must(t, errors.Join(err, <-done))
	return shmtest.Have(next, nil).In(t)
}

// wantRest checks what a queue has, as a told reader says it.
func wantRest(t testing.TB, q *cq.Queue, want string) {
	t.Helper()
	if got, err := readAll(q, 9); got != want || err != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// TestFollowDetached: a reader that detaches and lives leaves its writers what it did not release.
func TestFollowDetached(t *testing.T) {
	shmtest.Conforms(t)
	former, next := anonymousOthers(t, cq.Options{Size: 8}), anonymousOthers(t, cq.Options{Size: 8})
	w, idle := join(t, former), join(t, former)
	post(t, idle, 100, 101)
	post(t, w, 0, 5)
	if got := read(t, former, 1); len(got) != 1 {
		t.Fatal(got)
	}
	must(t, former.Detach())
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrPeerGone)
	<-idle.ReaderGone()
	var got []uint64
	for _, w := range []*cq.Writer{w, idle} {
		followTo(t, w, next)
		got = append(got, drain(t, next)...)
	}
	if !slices.Equal(got, []uint64{1, 2, 3, 4, 100}) && !slices.Equal(got, upTo(0, 5)) {
		t.Error(got)
	}
}

// refusedBy checks that a queue of this process does not take what w brings.
func refusedBy(t testing.TB, w *cq.Writer, q *cq.Queue, why error) error {
	t.Helper()
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	done := accept(soon(t), q, a)
	_, err := w.Follow(soon(t), b)
	wantErr(t, "follow", err, why)
	if err := <-done; err == nil {
		t.Error("accepted")
	}
	wantRest(t, q, "")
	return err
}

// TestFollowRefused: a successor that cannot have all of it gets nothing, and the next one all.
func TestFollowRefused(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	former := anonymousOthers(t, cq.Options{Size: 8})
	w := join(t, former)
	post(t, w, 0, 5)
	cq.StorePeeked(former, 1, 2)
	must(t, former.Detach())
	err := refusedBy(t, w, anonymousOthers(t, cq.Options{Size: 4}), cq.ErrInvalid)
	wantField(t, err, "Size")
	next := anonymousOthers(t, cq.Options{Size: 8})
	followTo(t, w, next)
	wantRest(t, next, "0! 1! 2 3 4")
}

// TestFollowOverrun: a lane that was overrun stays so.
func TestFollowOverrun(t *testing.T) {
	over := cq.Options{Size: 8, Overrun: cq.OverrunQueue}
	former := anonymousOthers(t, over)
	w := join(t, former)
	post(t, w, 0, 8)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrOverrun)
	must(t, former.Detach())
	_ = refusedBy(t, w, anonymousOthers(t, cq.Options{Size: 8}), cq.ErrOverrun)
	next := anonymousOthers(t, over)
	w = followTo(t, w, next)
	wantContexts(t, "what is left", overrun(t, next), upTo(0, 8)...)
	wantErr(t, "post", w.Post(&cq.Entry{}), cq.ErrOverrun)
}

// TestFollowImpossible: whatever a dead reader left for indices, nothing that was not released is
// lost, and what may have been handed out is marked.
func TestFollowImpossible(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	tests := []struct {
		what string
		at   int
		want string
	}{
		{"head", 9, "2! 3! 4!"}, // ahead
		{"head", 0, "2! 3! 4!"}, // behind
		{"peeked", 6, "2 3 4"},
		{"peeked", 1, "2 3 4"},
		{"peeked", 5, "2! 3! 4!"}, // all were handed out
		{"head", 5, ""},           // and released
	}
	dead := startReader(t, othersSite)
	var ws []*cq.Writer
	for i, tt := range tests {
		dead.expect("queue", i, "")
		w := dead.join()
		post(t, w, 0, 5)
		dead.expect("read", 2, "0 1")
		s := w.Stats()
		if free := w.Free(); free != s.Size-3 || s.Unread != 3 { // Free has seen that much
			t.Errorf("%d are free, %d unread", free, s.Unread)
		}
		dead.expect(tt.what, tt.at, "")
		ws = append(ws, w)
	}
	dead.Kill()
	for i, tt := range tests {
		<-ws[i].ReaderGone()
		next := anonymousOthers(t, cq.Options{Size: 8})
		followTo(t, ws[i], next)
		wantRest(t, next, tt.want)
	}
}

// TestFollowDecides: a rendezvous that broke while the reader's last word was due is decided by
// whether that came, for both sides.
func TestFollowDecides(t *testing.T) {
	shmtest.Conforms(t)
	done := cq.RendezvousMessage(cq.StepDone, 0, 0, 1, shm.UUID{})
	no := cq.RendezvousMessage(cq.StepDone, 1, 0, 1, shm.UUID{})
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
		for _, tt := range []struct {
			name  string
			sends []byte
			then  func(reader *net.UnixConn, writer *net.UnixConn)
			want  bool
		}{
			{"silent", nil, nil, false},
			{"done", done, nil, true},
			{"refused", no, nil, false},
			{"half", done[:32], nil, false},
			{"done and gone", done, func(r, _ *net.UnixConn) { _ = r.Close() }, true},
			{"gone", nil, func(r, _ *net.UnixConn) { _ = r.Close() }, false},
			{"done and gone without a look", done, func(r, w *net.UnixConn) {
				_, _ = w.Write([]byte("unread")) // the end of the reader is an error then
				_ = r.Close()
			}, true},
			{"closed here", nil, func(_, w *net.UnixConn) { _ = w.Close() }, false},
			{"done, and closed here", done, func(_, w *net.UnixConn) { _ = w.Close() }, true},
			{"done, gone, and closed here", done, func(r, w *net.UnixConn) {
				_, _ = r.Close(), w.Close()
			}, true},
		} {
			reader, writer := shmtest.Connected(t, kind)
			decide, end, err := cq.Decider(writer)
			must(t, err)
			if tt.sends != nil {
				must(t, shm.SendFDs(reader, tt.sends))
			}
			if tt.then != nil {
				tt.then(reader, writer)
			}
			_ = writer.SetDeadline(time.Unix(1, 0)) // the context has ended
			if got := decide(); got != tt.want {
				t.Errorf("%s: taken %v", tt.name, got)
			}
			err = shm.SendFDs(reader, done)
			if err == nil && !tt.want {
				t.Errorf("%s: the reader could say so later", tt.name)
			}
			if tt.name == "done" { // and both may say something else there
				must(t, err)
				must(t, writer.SetDeadline(time.Time{}))
				if n, err := writer.Read(make([]byte, 1000)); n != len(done) || err != nil {
					t.Errorf("the next message: %d bytes, %v", n, err)
				}
			}
			end()
		}
	}
}

// TestFollowDies: successors that break off at each point of a rendezvous get nothing, and the one
// after them gets everything.
func TestFollowDies(t *testing.T) {
	shmtest.Conforms(t)
	former := anonymousOthers(t, cq.Options{Size: 8})
	w := join(t, former)
	post(t, w, 0, 4)
	cq.StorePeeked(former, 1, 1)
	must(t, former.Detach())
	<-w.ReaderGone()
	fake := anonymousOthers(t, cq.Options{Size: 8})
	fds, maps := held(t)
	for step := range 4 {
		ctx, cancel := context.WithCancel(soon(t))
		reader, writer := shmtest.Connected(t, unix.SOCK_STREAM)
		took := make(chan error, 1)
		go func() {
			err := breakOff(t, fake, reader, step)
			if step == 3 { // not before it has the lane, however long that took
				cancel()
			}
			took <- err
		}()
		_, err := w.Follow(ctx, writer)
		if step == 3 {
			wantErr(t, "silent", err, context.Canceled)
			late := othersMessage(cq.StepDone, 0, 1, cq.QueueUUID(fake))
			wantErr(t, "too late", shm.SendFDs(reader, late), syscall.EPIPE)
		} else {
			wantErr(t, "hung up", err, cq.ErrPeerGone)
		}
		must(t, <-took)
		cancel()
		must(t, errors.Join(reader.Close(), writer.Close()))
		if w.Stats().Unread != 4 {
			t.Errorf("step %d: %d are left", step, w.Stats().Unread)
		}
	}
	eventually(t, "nothing is left of them", func() bool {
		f, m := held(t) // the first reader may have been let go of since
		return f <= fds && m <= maps
	})
	next := anonymousOthers(t, cq.Options{Size: 8})
	followTo(t, w, next)
	wantRest(t, next, "0! 1 2 3")
}

// TestAttachGivesUp: a writer whose context ends while the reader's last word is due is not
// taken by a reader that sends it late: it would have a row of the queue and not know.
func TestAttachGivesUp(t *testing.T) {
	t.Parallel()
	fake := anonymousOthers(t, cq.Options{Size: 8})
	reader, writer := shmtest.Connected(t, unix.SOCK_STREAM)
	ctx, cancel := context.WithCancel(soon(t))
	took := make(chan error, 1)
	go func() {
		err := breakOff(t, fake, reader, 3)
		cancel()
		took <- err
	}()
	_, err := cq.Attach(ctx, cq.Over(writer), cq.WriterOptions{Trust: cq.CrossUser})
	wantErr(t, "silent", err, context.Canceled)
	must(t, <-took)
	late := othersMessage(cq.StepDone, 0, 1, cq.QueueUUID(fake))
	wantErr(t, "too late", shm.SendFDs(reader, late), syscall.EPIPE)
}

// breakOff is a reader that goes so far: to the connection, to the writer's first message, to its
// lane, and to a silence before its last word.
func breakOff(t *testing.T, q *cq.Queue, c *net.UnixConn, step int) error {
	if step == 0 {
		return c.CloseWrite()
	}
	ask := make([]byte, 64)
	if _, err := c.Read(ask); err != nil || step == 1 {
		return errors.Join(err, c.CloseWrite())
	}
	fd, err := cq.ShareReader(q)
	if err != nil {
		return err
	}
	defer shm.CloseFDs([]int{fd})
	if err := shm.SendFDs(c, othersMessage(cq.StepOffer, cq.FDReader, 1, cq.QueueUUID(q)),
		fd); err != nil {
		return err
	}
	n, lanes := receive(t, c)
	shm.CloseFDs(lanes)
	if n != 64 || len(lanes) != 1 || step == 2 {
		return c.CloseWrite()
	}
	return nil // and says nothing
}

// TestFollowClosedMeanwhile: somebody closes the connection while the reader's last word is under
// way. Either that one could send it, and then the entries are its own, or it could not, and then
// they are still the writer's: never both.
func TestFollowClosedMeanwhile(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	fake := anonymousOthers(t, cq.Options{Size: 8})
	done := othersMessage(cq.StepDone, 0, 1, cq.QueueUUID(fake))
	told := 0
	for i := range 40 {
		former := anonymousOthers(t, cq.Options{Size: 8})
		w := join(t, former)
		post(t, w, 0, 3)
		must(t, former.Detach())
		<-w.ReaderGone()
		reader, writer := shmtest.Connected(t, []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}[i%2])
		sent := make(chan error, 1)
		go func() {
			err := breakOff(t, fake, reader, 3)
			if err == nil && i%4 < 2 {
				_ = writer.Close()
			}
			if err == nil {
				err = shm.SendFDs(reader, done)
			}
			_ = writer.Close()
			sent <- err
		}()
		next, err := w.Follow(soon(t), writer)
		if said := <-sent; (said == nil) != (err == nil) {
			t.Fatalf("round %d: the reader's last word: %v; Follow: %v", i, said, err)
		}
		if err == nil {
			told++
			must(t, next.Close())
		} else if w.Stats().Unread != 3 {
			t.Errorf("%d are left after %v", w.Stats().Unread, err)
		}
		must(t, errors.Join(w.Close(), reader.Close()))
	}
	t.Logf("%d of 40 were told", told)
}

// TestCloseThatFailsLosesNoReport closes an event queue all the time while a registration reports
// to it, which is refused and must not turn the report away.
func TestCloseThatFailsLosesNoReport(t *testing.T) {
	shmtest.Long(t)
	_, e := createEvents(t, cq.EventOptions{Size: 16})
	obj, at := payload(t, nil)
	for range 80 {
		r := shmtest.Got(cq.RegisterMemory(obj, cq.MemoryOptions{Offset: at, Length: 8,
			Access: cq.FlagRemoteRead, Events: e})).Or(t)
		var read atomic.Bool
		closing := make(chan struct{})
		go func() {
			defer close(closing)
			for !read.Load() {
				wantErr(t, "close", e.Close(), cq.ErrBusy, syscall.EBUSY)
			}
		}()
		_, err := eqSread(e, &cq.Event{}, time.Minute)
		read.Store(true)
		<-closing
		must(t, err)
		must(t, r.Close())
	}
}

// TestFollowEvents: an event queue between users is left and followed alike, with its records.
func TestFollowEvents(t *testing.T) {
	shmtest.Conforms(t)
	o := cq.EventOptions{Size: 8, Trust: cq.CrossUser, Allow: bothUsers(), DataMaxBytes: 100}
	open := func() *cq.EventQueue {
		return shmtest.Got(cq.CreateEvents(cq.Unnamed("events"), o)).Or(t)
	}
	former, next := open(), open()
	defer next.Close()
	a, b := shmtest.Connected(t, unix.SOCK_STREAM)
	done := accept(soon(t), former, a)
	w, err := cq.AttachEvents(soon(t), cq.Over(b), cq.WriterOptions{Trust: cq.CrossUser})
	must(t, errors.Join(err, <-done))
	reports := anonymous(t, cq.Options{})
	must(t, reports.BindEvents(w)) // it reserves room, which the successor has then
	for i := range uint64(4) {
		shmtest.Got(w.Write(&cq.Event{Event: cq.EventUser, Context: i, Payload: eventBytes(i)})).Or(t)
	}
	shmtest.Got(w.WriteErr(&cq.EventError{Context: 4, Err: cq.ETrunc, ErrData: eventBytes(4)})).Or(t)
	ev := cq.Event{Payload: make([]byte, 0, 100)}
	shmtest.Got(former.Read(&ev, 0)).Or(t)
	must(t, errors.Join(a.Close(), b.Close()))
	must(t, former.Detach())
	<-w.ReaderGone()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write", err, cq.ErrPeerGone)

	a, b = shmtest.Connected(t, unix.SOCK_STREAM)
	done = accept(soon(t), next, a)
	w2, err := w.Follow(soon(t), b)
	must(t, errors.Join(err, <-done))
	defer w2.Close()
	_, err = w.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "write to the former", err, cq.ErrClosed)
	shmtest.Got(w2.Write(&cq.Event{Event: cq.EventUser, Context: 5, Payload: eventBytes(5)})).Or(t)
	for _, i := range []uint64{1, 2, 3, 4, 5} {
		if i == 4 {
			bad := cq.EventError{ErrData: make([]byte, 0, 100)}
			_, err := next.ReadErr(&bad, 0)
			if err != nil || bad.Context != i || string(bad.ErrData) != string(eventBytes(i)) {
				t.Errorf("%v, %+v", err, bad)
			}
			continue
		}
		_, err := next.Read(&ev, 0)
		if err != nil || ev.Context != i || string(ev.Payload) != string(eventBytes(i)) {
			t.Errorf("%d: %v, %+v", i, err, ev)
		}
	}
	must(t, errors.Join(reports.BindEvents(w2), reports.BindEvents(nil)))
	writeEvents(t, w2, 0, 8)
}

func eventBytes(i uint64) []byte {
	b := make([]byte, 60+10*int(i)%40)
	for k := range b {
		b[k] = byte(i) + byte(k)
	}
	return b
}

// TestFollowTells: who follows hears of both readers through the event queue that it was bound to.
func TestFollowTells(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	eq := shmtest.Have(cq.CreateEvents(cq.Unnamed("deaths"), cq.EventOptions{})).In(t)
	first := startReader(t, othersSite)
	w := first.attach()
	must(t, w.BindEvents(eq))
	post(t, w, 0, 3)
	first.expect("read", 1, "0")
	former := w.Stats().Reader
	first.end(w)
	second := startReader(t, othersSite)
	next := second.follow(w)
	want := []struct {
		kind        cq.EventKind
		pid         int
		generation  uint64
		first, last uint64
	}{
		{cq.EventPeerDeath, first.Process.Pid, former, 1, 3},
		{cq.EventPeerNew, second.Process.Pid, next.Stats().Reader, 0, 2},
		{cq.EventPeerDeath, second.Process.Pid, next.Stats().Reader, 2, 2},
	}
	for i, tt := range want {
		if i == 2 {
			second.expect("read", 2, "1 2")
			second.end(next)
		}
		ev := cq.Event{Payload: make([]byte, 0, 128)}
		shmtest.Got(eq.ReadContext(soon(t), &ev, cq.ReadOptions{})).Or(t)
		p := shmtest.Got(cq.ParsePeerEntry(ev.Payload)).Or(t)
		if ev.Event != tt.kind || p.PID != tt.pid || p.Generation != tt.generation ||
			p.Role != cq.PeerReader || p.First != tt.first || p.End != tt.last {
			t.Errorf("event %d: %v %+v, want %+v", i, ev.Event, p, tt)
		}
	}
	must(t, next.Close())
}
