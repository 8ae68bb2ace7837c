//go:build shmring_steps

package cq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() {
	roles["halting writer"], roles["halting reader"] = childHaltingWriter, childHaltingReader
}

// A meeting here takes no longer than meetingShort, and who is stopped in its middle is so for four
// times as long.
const (
	meetingShort = 60 * time.Millisecond
	meetingStop  = 4 * meetingShort
)

const envStep = "SHMRING_TEST_STEP"

// haltAt stops this process at the step that it was given.
func haltAt() {
	name, nth, _ := strings.Cut(os.Getenv(envStep), ":")
	shmtest.HaltAt(name, shmtest.Needs(strconv.ParseUint(nth, 10, 64)), func() {})
}

// halting is how the two of a meeting know each other.
type halting string

const (
	sameUser  halting = "same user"
	otherUser halting = "other user"
	inherits  halting = "successor" // another user's, with what a former reader left
)

// haltingUsers are the test's and the other one's, for whichever asks.
var haltingUsers = &shm.AllowList{UIDs: []int{0, nobody}}

func (h halting) options() cq.Options {
	o := cq.Options{Size: 16, MaxLanes: 1, Spin: -1}
	if h != sameUser {
		o.Trust, o.Allow = cq.CrossUser, haltingUsers
	}
	return o
}

func (h halting) writerOptions() cq.WriterOptions {
	if h == sameUser {
		return cq.WriterOptions{}
	}
	return cq.WriterOptions{Trust: cq.CrossUser, Allow: haltingUsers}
}

// context bounds the n-th meeting for those who do not do so themselves, as Serve does. Each has
// more time than the one before: only the first is to end in the middle, whatever the machine does.
func (h halting) context(n int) (context.Context, context.CancelFunc) {
	if h == sameUser {
		return context.WithTimeout(context.Background(), meetingShort<<min(n, 8))
	}
	return context.WithTimeout(context.Background(), time.Minute)
}

// typed returns errors that a meeting may not end with, whoever was stopped in it.
func (h halting) typed(err error) error {
	for _, ok := range []error{cq.ErrTimedOut, cq.ErrPeerGone, syscall.ECONNREFUSED,
		context.DeadlineExceeded, cq.ErrLanes} {
		if err == nil || errors.Is(err, ok) {
			return nil
		}
	}
	return fmt.Errorf("a meeting ends with %w", err)
}

// What the writer posts: before a former reader left, if there was one, and after the meeting.
const (
	haltingLeft = 3
	haltingAll  = 6
)

// attach meets the reader at the ends of connections until it has a lane, and posts there.
func (h halting) attach(former *cq.Writer, connect func() (*net.UnixConn, error)) (*cq.Writer,
	error) {
	for n := 0; ; n++ {
		conn, err := connect()
		if err != nil {
			return nil, err
		}
		ctx, cancel := h.context(n)
		var w *cq.Writer
		if former != nil {
			w, err = former.Follow(ctx, conn)
		} else {
			w, err = cq.Attach(ctx, cq.Over(conn), h.writerOptions())
		}
		cancel()
		_ = conn.Close()
		if bad := h.typed(err); bad != nil {
			return nil, bad
		}
		if err != nil {
			continue
		}
		from := uint64(0)
		if former != nil {
			from = haltingLeft
		}
		for i := from; i < haltingAll; i++ {
			if err := w.Post(&cq.Entry{Context: i}); err != nil {
				return w, err
			}
		}
		return w, nil
	}
}

// accept meets writers at the ends of connections until there are none, and counts those that it
// has a lane of.
func (h halting) accept(q *cq.Queue, have *atomic.Int32,
	connect func() (*net.UnixConn, error)) error {
	for n := 0; ; n++ {
		conn, err := connect()
		if err != nil {
			return nil
		}
		ctx, cancel := h.context(n)
		err = q.Accept(ctx, conn)
		cancel()
		_ = conn.Close()
		if errors.Is(err, cq.ErrClosed) {
			return nil
		}
		if bad := h.typed(err); bad != nil {
			return bad
		}
		if err == nil {
			have.Add(1)
		}
	}
}

// read takes all that the writer posts, and whatever else comes in a while.
func (h halting) read(q *cq.Queue) error {
	var got []uint64
	dst := make([]cq.Context, 4)
	for end := time.Now().Add(time.Minute); ; {
		n, err := sread(q, dst, 10*time.Millisecond)
		if err != nil && !errors.Is(err, cq.ErrTimedOut) {
			return err
		}
		got = append(got, contexts(dst[:n])...)
		if n == 0 && len(got) >= haltingAll || time.Now().After(end) {
			break
		}
	}
	if !slices.Equal(got, upTo(0, haltingAll)) {
		return fmt.Errorf("read %d", got)
	}
	return nil
}

// childHaltingWriter is stopped in the middle of its meeting.
func childHaltingWriter() {
	h := halting(os.Getenv(envKind))
	var former *cq.Writer
	if h == inherits {
		for err := error(cq.ErrTimedOut); err != nil; { // the parent has no patience
			conn := dialParent()
			former, err = cq.Attach(context.Background(), cq.Over(conn), h.writerOptions())
			need(errors.Join(h.typed(err), conn.Close()))
		}
		for i := range uint64(haltingLeft) {
			need(former.Post(&cq.Entry{Context: i}))
		}
		say("posted")
		<-former.ReaderGone()
	}
	cq.ShortMeetings(meetingShort)
	haltAt()
	w := shmtest.Needs(h.attach(former, func() (*net.UnixConn, error) { return dialParent(), nil }))
	say("attached")
	untilTold()
	need(w.Close())
	nothingHeld()
}

// childHaltingReader is the other side.
func childHaltingReader() {
	h := halting(os.Getenv(envKind))
	q := shmtest.Needs(cq.Create(cq.Unnamed("halting"), h.options()))
	cq.ShortMeetings(meetingShort)
	haltAt()
	var have atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		need(h.accept(q, &have, func() (*net.UnixConn, error) {
			return net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
		}))
	}()
	need(h.read(q))
	say("read")
	untilTold()
	need(q.Close())
	<-done
	nothingHeld()
}

// nothingHeld says "nothing" when no object without a name is left in this process.
func nothingHeld() {
	for range 12_000 {
		held := shmtest.Needs(heldMemfds())
		if len(held) == 0 {
			say("nothing")
			return
		}
		time.Sleep(5 * time.Millisecond) // who watches a peer lets go late
	}
	held, _ := heldMemfds()
	need(fmt.Errorf("still held: %q", held))
}

// start starts the side that is stopped, and returns the listener that it connects to.
func (h halting) start(t *testing.T, role, step string) (*child, *net.UnixListener) {
	t.Helper()
	l := listen(t)
	must(t, l.SetDeadline(time.Now().Add(time.Minute))) // for a child that has ended
	cmd := shmtest.Child(t, role, "SOCKET="+l.Addr().String(), envKind+"="+string(h), envStep+"="+step)
	if h != sameUser {
		shmtest.AsOther(t, cmd)
	}
	return start(t, cmd), l
}

// staysStopped waits until the child has stopped itself, for longer than anybody waits for it.
func staysStopped(t *testing.T, c *child) {
	t.Helper()
	eventually(t, "the child stops", func() bool { return c.Halted() })
	time.Sleep(meetingStop)
	if !c.Halted() {
		t.Error("it goes on by itself")
	}
}

// writerStops has a writer stopped at a step.
func (h halting) writerStops(t *testing.T, step string) {
	c, l := h.start(t, "halting writer", step)
	q := shmtest.Have(cq.Create(cq.Unnamed("halting"), h.options())).In(t)
	if h == inherits {
		former, err := cq.Create(cq.Unnamed("former"), h.options())
		must(t, err)
		for err = cq.ErrTimedOut; err != nil; { // a busy machine takes longer than a short meeting
			conn := shmtest.Got(l.AcceptUnix()).Or(t)
			err = former.Accept(soon(t), conn)
			must(t, errors.Join(h.typed(err), conn.Close()))
		}
		c.Says(t, "posted")
		must(t, former.Detach())
	}
	var have atomic.Int32
	done := make(chan error, 1)
	go func() { done <- h.accept(q, &have, l.AcceptUnix) }()
	staysStopped(t, c)
	if have.Load() > 0 { // its lane is its own as long as it is stopped
		a, b := shmtest.Connected(t, unix.SOCK_STREAM)
		refused := accept(soon(t), q, a)
		_, err := cq.Attach(soon(t), cq.Over(b), h.writerOptions())
		wantErr(t, "beside a stopped writer", errors.Join(err, <-refused), cq.ErrLanes)
	}
	c.GoOn(t)
	must(t, h.read(q))
	must(t, l.Close())
	must(t, <-done)
	if got := c.Stop(t); got != "attached\nnothing" {
		t.Error(got)
	}
}

// readerStops has a reader stopped at a step.
func (h halting) readerStops(t *testing.T, step string) {
	var former *cq.Writer
	if h == inherits {
		q, err := cq.Create(cq.Unnamed("former"), h.options())
		must(t, err)
		for err = cq.ErrTimedOut; err != nil; { // a busy machine takes longer than a short meeting
			a, b := shmtest.Connected(t, unix.SOCK_STREAM)
			done := accept(soon(t), q, a)
			former, err = cq.Attach(soon(t), cq.Over(b), h.writerOptions())
			if err = errors.Join(err, <-done, a.Close(), b.Close()); err != nil && former != nil {
				must(t, former.Close())
			}
			must(t, h.typed(err))
			if errors.Is(err, cq.ErrLanes) {
				t.Fatal("a meeting that failed keeps the row:", err)
			}
		}
		defer func() { must(t, former.Close()) }()
		post(t, former, 0, haltingLeft)
		must(t, q.Detach())
		<-former.ReaderGone()
	}
	c, l := h.start(t, "halting reader", step)
	type attached struct {
		w   *cq.Writer
		err error
	}
	done := make(chan attached, 1)
	go func() {
		w, err := h.attach(former, l.AcceptUnix)
		done <- attached{w, err}
	}()
	staysStopped(t, c)
	c.GoOn(t)
	got := <-done
	if got.w != nil {
		defer func() { must(t, got.w.Close()) }()
	}
	must(t, got.err)
	c.Says(t, "read")
	must(t, l.Close())
	if said := c.Stop(t); said != "nothing" {
		t.Error(said)
	}
}

// TestStoppedAtStepOfMeeting: one side is stopped in the middle of a rendezvous for longer than the
// other one, or itself, waits for anything. Each then has a lane that works or an error that says
// why, and the next rendezvous works: what a writer published since it has a lane, and what a
// former reader left to it, is read once.
func TestStoppedAtStepOfMeeting(t *testing.T) {
	defer cq.ShortMeetings(meetingShort)()
	t.Run("all", func(t *testing.T) {
		for _, h := range []halting{sameUser, otherUser, inherits} {
			for _, step := range []string{"meet-sent:1", "meet-received:1", "meet-sent:2",
				"meet-received:2", "attach-claimed:1"} {
				t.Run(fmt.Sprintf("%s/writer at %s", h, step), func(t *testing.T) {
					t.Parallel()
					h.writerStops(t, step)
				})
			}
			for _, step := range []string{"meet-received:1", "meet-sent:1", "meet-received:2",
				"meet-sending:2", "meet-sent:2"} {
				t.Run(fmt.Sprintf("%s/reader at %s", h, step), func(t *testing.T) {
					t.Parallel()
					h.readerStops(t, step)
				})
			}
		}
	})
	noMemfds(t)
}
