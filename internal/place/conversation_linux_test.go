package place

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
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

func talkers(t *testing.T, kind int) (a, b *net.UnixConn) {
	t.Helper()
	a, b, err := shmtest.Sockets(kind)
	return shmtest.Have(a, err).In(t), shmtest.Have(b, err).In(t)
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
			ours, theirs := talkers(t, kind)
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
			ours, _ := talkers(t, unix.SOCK_SEQPACKET)
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
		ours, theirs := talkers(t, tt.kind)
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

func dialParent() *net.UnixConn {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
	if err != nil {
		os.Exit(3)
	}
	return c
}

// childPeer connects, hangs up when it is told to, and ends when it is told to.
func childPeer() {
	c := dialParent()
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		os.Exit(4)
	}
	_ = c.Close()
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// childHolder connects, gives its end to a process that outlives it, and ends.
func childHolder() {
	f, err := dialParent().File()
	if err != nil {
		os.Exit(3)
	}
	p, err := os.StartProcess("/bin/cat", []string{"cat"},
		&os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, f}})
	if err != nil {
		os.Exit(4)
	}
	_ = p.Release()
}

// meetChild starts a child that connects to us.
func meetChild(t *testing.T, role string) (stdin *os.File, p *Peer, changes chan struct{}) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l := shmtest.Have(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})).In(t)
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { w.Close() })
	cmd := shmtest.Child(t, role, "SOCKET="+path)
	cmd.Stdin = r
	must(t, cmd.Start())
	must(t, r.Close())
	go func() { _ = cmd.Wait() }()
	must(t, l.SetDeadline(time.Now().Add(time.Minute)))
	c := shmtest.Got(l.AcceptUnix()).Or(t)
	p = shmtest.Got(MeetPeer(c, nil)).Or(t)
	must(t, c.Close()) // the peer is watched all the same
	t.Cleanup(p.Close)
	if p.PID != cmd.Process.Pid || p.UID != os.Geteuid() || p.GID != os.Getegid() {
		t.Errorf("%+v is not %d", p, cmd.Process.Pid)
	}
	changes = make(chan struct{}, 2)
	p.Watch(func() { changes <- struct{}{} })
	return w, p, changes
}

var must = shmtest.Must

// TestPeerHangsUp: the end of a connection is no death; with the end of the process it is.
func TestPeerHangsUp(t *testing.T) {
	stdin, p, changes := meetChild(t, "peer")
	if p.HungUp() || p.Gone() {
		t.Error("gone at once")
	}
	shmtest.Got(stdin.Write([]byte{1})).Or(t)
	<-changes
	if !p.HungUp() || p.Gone() {
		t.Errorf("after it hung up: %v, gone %v", p.HungUp(), p.Gone())
	}
	shmtest.Got(stdin.Write([]byte{1})).Or(t)
	<-changes
	if !p.Gone() {
		t.Error("not gone after it ended")
	}
}

// TestPeerLeavesConnection: nor is the end of a process whose connection somebody else holds now,
// until that one lets go of it.
func TestPeerLeavesConnection(t *testing.T) {
	shmtest.Conforms(t)
	stdin, p, changes := meetChild(t, "holder")
	<-changes
	if p.HungUp() || p.Gone() {
		t.Errorf("after it ended: hung up %v, gone %v", p.HungUp(), p.Gone())
	}
	must(t, stdin.Close()) // which ends that one
	<-changes
	if !p.Gone() {
		t.Error("not gone")
	}
}

// TestPeerBytes: watching takes no bytes.
func TestPeerBytes(t *testing.T) {
	here, there := talkers(t, unix.SOCK_STREAM)
	p := shmtest.Got(MeetPeer(here, &shm.AllowList{GIDs: []int{os.Getegid()}})).Or(t)
	changes := make(chan struct{}, 2)
	p.Watch(func() { changes <- struct{}{} })
	for range 100 {
		shmtest.Got(there.Write([]byte("abc"))).Or(t)
	}
	buf := make([]byte, 300)
	for n := 0; n < len(buf); {
		k := shmtest.Got(here.Read(buf[n:])).Or(t)
		n += k
	}
	must(t, there.Close())
	<-changes
	if !p.HungUp() || p.Gone() { // it is this process
		t.Errorf("hung up %v, gone %v", p.HungUp(), p.Gone())
	}
	p.Close()
	p.Close()
}

// TestAllowList: who is on a list, and that nobody but this user is on none.
func TestAllowList(t *testing.T) {
	me := os.Geteuid()
	for _, tt := range []struct {
		list   *shm.AllowList
		uid    int
		gid    int
		groups []int
		want   bool
	}{
		{nil, me, 5, nil, true},
		{nil, me + 1, 5, nil, false},
		{&shm.AllowList{}, me, 5, nil, true},
		{&shm.AllowList{}, me + 1, 0, nil, false},
		{&shm.AllowList{UIDs: []int{7}}, 7, 0, nil, true},
		{&shm.AllowList{UIDs: []int{7}}, me, 7, []int{7}, false},
		{&shm.AllowList{GIDs: []int{7}}, 7, 6, []int{8}, false},
		{&shm.AllowList{GIDs: []int{7}}, 1, 7, nil, true},
		{&shm.AllowList{GIDs: []int{7}}, 1, 6, []int{8, 7}, true},
	} {
		if got := Allows(tt.list, tt.uid, tt.gid, tt.groups); got != tt.want {
			t.Errorf("%+v allows %d %d %v: %v", tt.list, tt.uid, tt.gid, tt.groups, got)
		}
	}
}

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"peer": childPeer, "holder": childHolder})
}

// TestDescriptorOf: a descriptor comes from the very process that is meant.
func TestDescriptorOf(t *testing.T) {
	me := shm.Self()
	fd := shmtest.Got(descriptorOf(me, 0)).Or(t)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	must(t, unix.Close(fd))
	if _, err := descriptorOf(me, 9999); !errors.Is(err, unix.EBADF) {
		t.Errorf("no such descriptor: %v", err)
	}
	former := me
	former.StartTicks++
	if _, err := descriptorOf(former, 0); !errors.Is(err, shm.ErrStale) {
		t.Errorf("another process had the number: %v", err)
	}
	elsewhere := me
	elsewhere.PIDNS++
	if _, err := descriptorOf(elsewhere, 0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another namespace: %v", err)
	}
}
