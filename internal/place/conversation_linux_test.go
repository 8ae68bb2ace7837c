package place

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

var errWrong, errNo = errors.New("wrong"), errors.New("no")

// spoken is a protocol of three steps, of which the second one brings as many descriptors as its
// body says, and at most two.
var spoken = Protocol{Pkg: "place", Op: "talk", Magic: "spoken\r\n", Version: 3, Bytes: 24,
	Steps: []string{"", "ask", "bring", "done"}, MostFDs: 3, Wrong: errWrong,
	Count: func(step uint16, b []byte) (int, bool) {
		return int(b[16]), b[16] == 0 || step == 2 && b[16] <= 2
	},
	No: func(status uint32, _ []byte) error {
		if status == 7 {
			return errNo
		}
		return syscall.ECONNREFUSED
	}}

// say is a message with so many descriptors in its words.
func say(step uint16, status uint32, fds byte) []byte {
	b := spoken.Message(step, status)
	b[16] = fds
	return b
}

// with is a message with one byte changed.
func with(b []byte, at int, to byte) []byte {
	b = bytes.Clone(b)
	b[at] = to
	return b
}

// TestHostileConversation: whatever a peer says in place of a message of the second step, on either
// kind of socket, is that message or a typed error, and no descriptor stays open. The connection
// has no deadline afterwards.
func TestHostileConversation(t *testing.T) {
	shmtest.Conforms(t)
	silence := errors.New("silence")
	good := say(2, 0, 1)
	for name, tt := range map[string]struct {
		says   [][]byte
		fds    int
		closes bool
		want   error
		stream error // on a stream, if that is another one
	}{
		"one":      {says: [][]byte{good}, fds: 1},
		"two":      {says: [][]byte{say(2, 0, 2)}, fds: 2},
		"none":     {says: [][]byte{say(2, 0, 0)}},
		"nothing":  {want: silence},
		"hangs up": {closes: true, want: io.EOF},
		"half":     {says: [][]byte{good[:20]}, fds: 1, want: errWrong, stream: silence},
		"half, hangs up": {says: [][]byte{good[:20]}, fds: 1, closes: true, want: errWrong,
			stream: io.EOF},
		"a byte":         {says: [][]byte{{1}}, want: errWrong, stream: silence},
		"too long":       {says: [][]byte{append(say(2, 0, 0), 1)}, want: shm.ErrTruncated},
		"magic":          {says: [][]byte{with(good, 0, 'S')}, fds: 1, want: errWrong},
		"zeros":          {says: [][]byte{make([]byte, 24)}, want: errWrong},
		"version":        {says: [][]byte{with(good, 8, 9)}, fds: 1, want: shm.ErrVersion},
		"step 0":         {says: [][]byte{with(good, 10, 0)}, fds: 1, want: errWrong},
		"step 4":         {says: [][]byte{with(good, 10, 4)}, fds: 1, want: errWrong},
		"step 256":       {says: [][]byte{with(good, 11, 1)}, fds: 1, want: errWrong},
		"another step":   {says: [][]byte{say(3, 0, 0)}, want: errWrong},
		"a no":           {says: [][]byte{say(2, 7, 0)}, want: errNo},
		"a no elsewhere": {says: [][]byte{say(3, 7, 0)}, want: errNo},
		"a no of later":  {says: [][]byte{say(2, 1<<31, 0)}, want: syscall.ECONNREFUSED},
		"a no that brings": {says: [][]byte{say(2, 7, 1)}, fds: 1,
			want: errWrong},
		"fewer":           {says: [][]byte{say(2, 0, 2)}, fds: 1, want: errWrong},
		"fewer by all":    {says: [][]byte{good}, want: errWrong},
		"more":            {says: [][]byte{good}, fds: 2, want: errWrong},
		"more than any":   {says: [][]byte{good}, fds: 4, want: shm.ErrTruncated},
		"of no step":      {says: [][]byte{say(2, 0, 3)}, fds: 3, want: errWrong},
		"of another step": {says: [][]byte{say(3, 0, 1)}, fds: 1, want: errWrong},
		"in pieces":       {says: [][]byte{good[:1], good[1:23], good[23:]}, fds: 1, want: errWrong},
	} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			want := tt.want
			if kind == unix.SOCK_STREAM {
				switch {
				case tt.stream != nil:
					want = tt.stream
				case name == "in pieces", name == "too long": // of what follows nothing is read
					want = nil
				}
			}
			ours, theirs := shmtest.Connected(t, kind)
			before := len(shmtest.Descriptors())
			fds := make([]int, tt.fds)
			for _, b := range tt.says {
				must(t, shm.SendFDs(theirs, b, fds...))
				fds = nil
			}
			if tt.closes {
				_ = theirs.CloseWrite()
			}
			c := spoken.Begin(t.Context(), ours)
			switch {
			case errors.Is(want, silence):
				c.Limit(20*time.Millisecond, silence)
			default:
				c.Limit(time.Minute, errors.New("it waits"))
			}
			b, got, err := c.Receive(2)
			c.End()
			if !errors.Is(err, want) || want == nil && (err != nil || b[10] != 2 || len(got) != tt.fds) {
				t.Errorf("%s, socket of kind %d: %x, %v, %v, want %v", name, kind, b, got, err, want)
			}
			shm.CloseFDs(got)
			if n := len(shmtest.Descriptors()); n > before { // others may close theirs late
				t.Errorf("%s, socket of kind %d: %d descriptors are open, %d were", name, kind, n, before)
			}
			noDeadline(t, name, ours)
		}
	}
}

// noDeadline finds one that is past.
func noDeadline(t *testing.T, what string, c *net.UnixConn) {
	t.Helper()
	if err := shm.SendFDs(c, []byte{1}); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: a deadline stays", what)
	}
}

// TestSilentPeerOfConversation: a peer that says nothing costs what the side that waits allows, in
// whichever of its calls that is, and the error says what ended it.
func TestSilentPeerOfConversation(t *testing.T) {
	shmtest.Conforms(t)
	enough, ended := errors.New("enough"), errors.New("ended")
	calls := map[string]func(c *Conversation) error{
		"receive": func(c *Conversation) error { _, _, err := c.Receive(1); return err },
		"peek":    func(c *Conversation) error { _, err := c.Peek(); return err },
		"send":    func(c *Conversation) error { return c.Send(say(1, 0, 0)) },
	}
	ends := map[string]func(c *Conversation, cancel context.CancelCauseFunc) error{
		"limit": func(c *Conversation, _ context.CancelCauseFunc) error {
			c.Limit(time.Hour, ended)
			c.Limit(10*time.Millisecond, enough)
			return enough
		},
		"context": func(c *Conversation, cancel context.CancelCauseFunc) error {
			c.Limit(time.Hour, ended)
			cancel(enough)
			return enough
		},
		"paused": func(c *Conversation, cancel context.CancelCauseFunc) error {
			c.Limit(10*time.Millisecond, ended)
			c.Pause()
			time.AfterFunc(50*time.Millisecond, func() { cancel(enough) })
			return enough
		},
		"by another goroutine": func(c *Conversation, _ context.CancelCauseFunc) error {
			go c.Cancel(enough)
			return enough
		},
	}
	for call, wait := range calls {
		for how, end := range ends {
			ours, _ := shmtest.Connected(t, unix.SOCK_SEQPACKET)
			ctx, cancel := context.WithCancelCause(t.Context())
			c := spoken.Begin(ctx, ours)
			var full error
			for call == "send" && full == nil {
				full = c.SendNow(say(1, 0, 0))
			}
			if full != nil && full != syscall.EAGAIN {
				t.Errorf("what there is no room for: %v", full)
			}
			want := end(c, cancel)
			if err := wait(c); err != want {
				t.Errorf("%s, %s: %v", call, how, err)
			}
			// A no needs no time. It is said although this one's is over.
			if err := c.SendNow(say(1, 7, 0)); err != full {
				t.Errorf("%s, %s: no: %v", call, how, err)
			}
			c.End()
			if full == nil {
				noDeadline(t, call, ours)
			}
			cancel(nil)
		}
	}
}

// TestLastWords: a no that was said before the other end hung up is heard, also by a side whose own
// words were not read, and behind messages of another protocol.
func TestLastWords(t *testing.T) {
	shmtest.Conforms(t)
	for name, tt := range map[string]struct {
		before [][]byte
		last   func(c *Conversation) error
		kind   int
	}{
		"receive": {last: func(c *Conversation) error { _, _, err := c.Receive(2); return err },
			kind: unix.SOCK_SEQPACKET},
		"receive from a stream": {kind: unix.SOCK_STREAM,
			last: func(c *Conversation) error { _, _, err := c.Receive(2); return err }},
		"peek, then receive": {kind: unix.SOCK_SEQPACKET, last: func(c *Conversation) error {
			if ours, err := c.Peek(); err != nil || !ours {
				return err
			}
			_, _, err := c.Receive(2)
			return err
		}},
		"send": {before: [][]byte{make([]byte, 64), say(2, 0, 0)}, kind: unix.SOCK_SEQPACKET,
			last: func(c *Conversation) error {
				if err := c.Send(say(1, 0, 0)); !HungUp(err) {
					return err
				}
				return c.LastWord(4, 1)
			}},
	} {
		ours, theirs := shmtest.Connected(t, tt.kind)
		c := spoken.Begin(t.Context(), ours)
		c.Limit(time.Minute, errors.New("it waits"))
		if err := c.Send(say(1, 0, 0)); err != nil { // which stays unread
			t.Fatal(err)
		}
		for _, b := range append(tt.before, say(2, 7, 0)) {
			must(t, shm.SendFDs(theirs, b))
		}
		_ = theirs.Close()
		if err := tt.last(c); !errors.Is(err, errNo) {
			t.Errorf("%s: %v", name, err)
		}
		if err := c.LastWord(4, 1); err != nil {
			t.Errorf("%s: a no that was not said: %v", name, err)
		}
		c.End()
	}
}
