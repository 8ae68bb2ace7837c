package fabric_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// said is a message of a connection, as docs/fabric.md has it.
type said struct {
	tag, data uint64
	payload   []byte
}

// intruder is an endpoint of another program, which may say what it likes.
type intruder struct {
	*end
	to     cq.Addr
	number uint64 // that its victim gave a connection, 0 if there is none
	heard  uint64 // the first word that its victim said last
}

// say sends a message. What fits into a slot has no completion.
func (e *intruder) say(m said, token uint64) error {
	msg := fabric.Msg{Buf: m.payload, Addr: e.to, Tag: m.tag, Data: m.data, Context: token,
		Flags: cq.FlagTagged | cq.FlagRemoteCQData}
	if m.tag != 1 {
		msg.Tag |= e.number
	}
	if len(m.payload) <= fabric.MaxInline && token == 0 {
		msg.Flags |= cq.FlagInjectCall
	}
	return e.SendContext(context.Background(), &msg)
}

// await returns how an operation ended.
func (e *intruder) await(t testing.TB, token uint64) (cq.Entry, error) {
	t.Helper()
	for {
		c, failed, err := e.next()
		switch {
		case err != nil:
			t.Fatal(err)
		case failed.Err != 0 && failed.Context == token:
			return c, failed.Err
		case failed.Err == 0 && c.Context == token:
			return c, nil
		}
	}
}

// drain reads a connection until it fails, and says how many bytes came.
func drain(c net.Conn) (n int, err error) {
	b := make([]byte, 8<<10)
	for err == nil {
		var more int
		more, err = c.Read(b)
		n += more
	}
	return n, err
}

// TestConnHostile: who writes what cannot be is cut off, as a client or as who was dialed. Its own
// connections are reset, when what may be read was read. Those of others go on, and new ones begin.
func TestConnHostile(t *testing.T) {
	const (
		mine    = 1 << 32 // a number of the intruder's own
		theirs  = 1 << 8  // that of the connection between the others, at both ends
		inChunk = 32 << 10
	)
	d := directory(t)
	l := listens(t, d, "server")
	c := dials(t, d, "server")
	s := accepts(t, l)
	window := []byte{0, 16, 0, 0, 0, 0, 0, 0}
	beyond := []byte{1, 0, 0, 64, 0, 0, 0, 0} // the most that is believed
	full := slices.Repeat([]said{{5, 0, make([]byte, inChunk)}}, 256<<10/inChunk)
	messages := func(all ...[]said) []said { return slices.Concat(all...) }
	open := []said{{4, 0, nil}}
	for i, row := range []struct {
		name     string
		is       string // what the intruder is: the client or who is dialed, or nothing yet
		messages []said
		reads    int   // bytes, by its victim, who has an open connection
		ends     error // that connection; nil is none
	}{
		{"no such number", "", []said{{5 | 7<<8, 0, nil}}, 0, nil},
		{"the number of others", "", []said{{5 | theirs, 0, []byte("forged")}}, 0, nil},
		{"the end of others", "", []said{{8 | theirs, 0, nil}}, 0, nil},
		{"a kind that is not there", "client", []said{{9, 0, nil}}, 0, nil},
		{"asks without a window", "", []said{{1, mine, nil}}, 0, nil},
		{"asks for no window", "", []said{{1, mine, make([]byte, 8)}}, 0, nil},
		{"asks for too much window", "", []said{{1, mine, beyond}}, 0, nil},
		{"asks by a number", "", []said{{1 | theirs, mine, window}}, 0, nil},
		{"asks with a number that cannot be", "", []said{{1, mine | 5, window}}, 0, nil},
		{"asks and hears nothing", "", slices.Repeat([]said{{1, mine, window}}, 33000), 0, nil},
		{"accepts what it asked for", "client", []said{{2, mine, window}}, 0, nil},
		{"rejects what it asked for", "client", []said{{3, 0, nil}}, 0, nil},
		{"bytes before it is opened", "client", []said{{5, 0, []byte("early")}}, 0, nil},
		{"end before it is opened", "client", []said{{6, 0, nil}}, 0, nil},
		{"credit before it is opened", "client", []said{{7, 4096, nil}}, 0, nil},
		{"opened twice", "client", messages(open, open), 0, nil},
		{"ended twice", "client", messages(open, []said{{6, 0, nil}, {6, 0, nil}}), 0, io.EOF},
		{"bytes after the end", "client", messages(open, []said{{5, 0, []byte("on time")},
			{6, 0, nil}, {5, 0, []byte("late")}}), 7, io.EOF},
		{"closed twice", "client", []said{{8, 0, nil}, {8, 0, nil}}, 0, nil},
		{"opens a former one", "client", []said{{8, 0, nil}, {1, mine, window}, {4, 0, nil}}, 0,
			nil},
		{"more credit than a window", "client", messages(open, []said{{7, 4097, nil}}), 0, nil},
		{"less credit than there was", "client", messages(open, []said{{7, 4095, nil}}), 0, nil},
		{"bytes beyond a window", "client", messages(open, full, []said{{5, 0, []byte{1}}}),
			256 << 10, syscall.ECONNRESET},
		{"accepts twice", "dialed", []said{{2, mine, window}, {2, mine, window}}, 0,
			syscall.ECONNRESET},
		{"accepts with a number that cannot be", "dialed", []said{{2, mine | 5, window}}, 0,
			syscall.ECONNREFUSED},
		{"accepts without a window", "dialed", []said{{2, mine, nil}}, 0, syscall.ECONNREFUSED},
		{"rejects what it accepted", "dialed", []said{{2, mine, window}, {3, 0, nil}}, 0,
			syscall.ECONNRESET},
		{"opens what others asked for", "dialed", []said{{4, 0, nil}}, 0, syscall.ECONNREFUSED},
		{"bytes before it accepts", "dialed", []said{{5, 0, []byte("early")}}, 0,
			syscall.ECONNREFUSED},
		{"closes before it accepts", "dialed", []said{{8, 0, nil}}, 0, syscall.ECONNREFUSED},
	} {
		t.Run(row.name, func(t *testing.T) {
			name := fmt.Sprint("intruder-", i)
			e := &intruder{end: opened(t, name, fabric.Options{Window: 4096, Chunks: 32})}
			must(t, e.RecvMsg(&fabric.Msg{Buf: make([]byte, 8), Addr: fabric.Anybody, Context: 1,
				Flags: cq.FlagTagged, Ignore: ^uint64(0)}))
			to, victim := "server", make(chan error, 1)
			if row.is == "dialed" {
				to = c.LocalAddr().String()
				scribble(t, e.end, name).page.Accepts.Store(1)
				go func() {
					c, err := fabric.Dial(context.Background(), d, name)
					if err == nil {
						_, err = drain(c)
						_ = c.Close()
					}
					victim <- err
				}()
			}
			var err error
			e.to = shmtest.Got(e.Resolve(to)).Or(t)
			if row.is == "client" {
				must(t, e.say(said{1, mine, window}, 0))
			}
			if row.is != "" {
				first := shmtest.Got(e.await(t, 1)).Or(t)
				e.number = first.Data
			}
			for _, m := range row.messages {
				if err = e.say(m, 0); err != nil {
					break
				}
			}
			if err == nil { // what is right, to learn whether all before it was
				if err = e.say(said{1, 7 << 32, window}, 2); err == nil {
					_, err = e.await(t, 2)
				}
			}
			if !errors.Is(err, syscall.ECONNABORTED) {
				t.Fatalf("it was not refused: %v", err)
			}
			switch {
			case row.is == "dialed":
				failsWith(t, "of who dialed", <-victim, row.ends)
			case row.ends != nil:
				n, err := drain(accepts(t, l))
				if failsWith(t, "of the server", err, row.ends); n != row.reads {
					t.Errorf("%d bytes were read, want %d", n, row.reads)
				}
			}
			writes(t, c, "as before")
			reads(t, s, "as before")
			writes(t, s, "and back")
			reads(t, c, "and back")
			c2 := dials(t, d, "server")
			s2 := accepts(t, l)
			writes(t, c2, "a new one")
			reads(t, s2, "a new one")
		})
	}
}

// askedBy has somebody dial an endpoint that listens in name only, and returns what was asked. The
// endpoint can answer.
func askedBy(t *testing.T, dial func(d *shm.Dir) error) (e *intruder, asked cq.Entry,
	done chan error) {
	t.Helper()
	e = &intruder{end: opened(t, "slow", fabric.Options{})}
	s := scribble(t, e.end, "slow")
	s.page.Accepts.Store(1)
	done = make(chan error, 1)
	go func() { done <- dial(e.d) }()
	asked = e.hears(t)
	id := uint64(0)
	for row := range s.claims {
		id = max(id, s.claims[row].Load())
	}
	id, _ = kind.FabricLaneOf(id)
	box := shmtest.Got(e.d.Open(kind.FabricOutboxName(id), shm.ReadOnly)).Or(t)
	must(t, box.Close())
	e.to = shmtest.Got(e.Resolve(box.Header().Name)).Or(t)
	return e, asked, done
}

// TestDialGivenUp: a connection that is accepted when its dial has ended, since its context did or
// for want of a descriptor, is closed, not opened.
func TestDialGivenUp(t *testing.T) {
	for _, want := range []error{context.Canceled, syscall.EMFILE} {
		t.Run(want.Error(), func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			e, asked, done := askedBy(t, func(d *shm.Dir) error {
				_, err := fabric.Dial(ctx, d, "slow")
				return err
			})
			const mine = 5 << 32
			must(t, e.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Context: 2, Flags: cq.FlagTagged,
				Tag: mine, Ignore: 0xff}))
			answer := said{2 | asked.Data, mine, []byte{0, 16, 0, 0, 0, 0, 0, 0}}
			if want == context.Canceled {
				cancel()
				failsWith(t, "dial", <-done, want)
				must(t, e.say(answer, 0))
			} else {
				shmtest.Eventually(t, "the end of others", func() bool {
					names := shmtest.Got(e.d.List()).Or(t)
					return len(names) == 4 // of two ends
				})
				restore := shmtest.LimitFiles(0)
				must(t, e.say(answer, 0))
				err := <-done
				restore()
				failsWith(t, "dial", err, want)
			}
			if c, err := e.await(t, 2); err != nil || c.Tag != 8|mine {
				t.Errorf("it answers with %#x, %v", c.Tag, err)
			}
			must(t, e.say(said{8 | asked.Data, 0, nil}, 0))
		})
	}
}

// TestDialUnheard: a dial says so whose answers are to come by a lane that cannot be, and so does
// the event of an endpoint that connects.
func TestDialUnheard(t *testing.T) {
	dialUnheard(t, fabric.ErrCorrupt, func(d *shm.Dir) error {
		_, err := fabric.Dial(t.Context(), d, "slow")
		return err
	})
	dialUnheard(t, syscall.EBADMSG, func(d *shm.Dir) error {
		eq := events(t, 0)
		caller := opened(t, "caller", fabric.Options{Events: eq})
		must(t, caller.Connect("slow", nil))
		_, err := eq.ReadContext(t.Context(), &cq.Event{}, cq.ReadOptions{})
		var failed cq.EventError
		if _, e := eq.ReadErr(&failed, 0); e != nil || !errors.Is(&failed, syscall.ECONNREFUSED) {
			return errors.Join(err, e, &failed)
		}
		return syscall.Errno(failed.ProvErrno)
	})
}

func dialUnheard(t *testing.T, want error, dial func(d *shm.Dir) error) {
	t.Helper()
	e, _, done := askedBy(t, dial)
	a := shmtest.Got(e.Lookup(e.to)).Or(t)
	name := shmtest.Got(e.d.Open(kind.FabricOutboxName(a.Outbox), shm.ReadOnly)).Or(t)
	must(t, name.Close())
	s := scribbleOn(t, e.end, name.Header().Name, a)
	row, id := 0, kind.FabricLaneID(e.Address().Outbox, 3, 1)
	for !s.claims[row].CompareAndSwap(0, id) {
		row++
	}
	s.ring(row)
	if err := <-done; !errors.Is(err, want) {
		t.Errorf("dial: %v, want %v", err, want)
	}
	must(t, e.Close())
}

// TestConnMost: a peer can have 4096 connections, and one more for each that ends.
func TestConnMost(t *testing.T) {
	d := directory(t)
	l := listens(t, d, "server")
	dial := func() (net.Conn, error) {
		c, err := fabric.Dial(context.Background(), d, "server")
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			accepts(t, l)
		}
		return c, err
	}
	first, err := dial()
	n := 0
	for ; err == nil && n < 4200; n++ {
		_, err = dial()
	}
	if failsWith(t, "dial", err, syscall.ECONNREFUSED); n != 4096 {
		t.Errorf("%d connections of a peer", n)
	}
	must(t, first.Close())
	for _, err = dial(); errors.Is(err, syscall.ECONNREFUSED); _, err = dial() { // until it is heard
	}
	must(t, err)
}

// streamed is how much the ends of a kill write: more than a lane holds, less than a window.
const streamed = 100 << 10

// streamEnd does what it is told with a listener and a connection.
type streamEnd struct {
	d *shm.Dir
	l net.Listener
	c net.Conn
}

func (s *streamEnd) do(what string) (err error) {
	switch what {
	case "listen":
		s.l, err = fabric.Listen(s.d, "server")
	case "dial":
		s.c, err = fabric.Dial(context.Background(), s.d, "server")
	case "accept":
		s.c, err = s.l.Accept()
	case "write":
		_, err = s.c.Write(pattern(streamed))
	case "shut":
		err = s.c.(halfCloser).CloseWrite()
	case "close":
		err = s.c.Close()
	case "count":
		n, _ := drain(s.c)
		fmt.Println(n)
	case "unlisten":
		err = s.l.Close()
	case "become":
		cmd := shmtest.Needs(shmtest.Command(context.Background(), "another"))
		err = syscall.Exec(cmd.Path, cmd.Args, cmd.Environ())
	}
	return err
}

// streamer is an end that waits to be killed.
func streamer() {
	d := shmtest.Needs(shm.OpenDir(""))
	s := streamEnd{d: d}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		need(s.do(lines.Text()))
		fmt.Println("done")
	}
}

// does has a streamer do something, and expects what it says of that.
func (c *child) does(t testing.TB, what string, says ...string) {
	t.Helper()
	shmtest.Got(fmt.Fprintln(c.In, what)).Or(t)
	for _, line := range append(says, "done") {
		c.Says(t, line)
	}
}

// another is what a process has become that was another program.
func another() {
	fmt.Println("done")
	untilTold()
}

// TestDialAnother: a process that has become another program is as one that has ended to who begins
// to talk to it.
func TestDialAnother(t *testing.T) {
	c := started(t, "streamer")
	c.does(t, "listen")
	c.does(t, "become")
	e := opened(t, "main", fabric.Options{})
	to := e.knows(t, "server")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := fabric.Dial(ctx, e.d, "server")
	failsWith(t, "dial", err, syscall.ECONNREFUSED)
	if err = e.Send(nil, to, 1); err == nil {
		_, failed, _ := e.next()
		err = failed.Err
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, fabric.ErrNoPeer) {
		t.Errorf("send: %v", err)
	}
	nothingLeft(t, e, "main")
	c.Stop(t)
}

// TestConnLastWords: who hears that its peer has gone, and has not examined all yet that this one
// had sent, reads that first.
func TestConnLastWords(t *testing.T) {
	server := started(t, "streamer")
	server.does(t, "listen")
	e := &intruder{end: opened(t, "client", fabric.Options{Slots: 64})}
	must(t, e.RecvMsg(&fabric.Msg{Buf: make([]byte, 8), Addr: fabric.Anybody, Context: 1,
		Flags: cq.FlagTagged, Ignore: ^uint64(0)}))
	to := e.knows(t, "server")
	e.to = to
	must(t, e.say(said{1, 1 << 32, []byte{0, 16, 0, 0, 0, 0, 0, 0}}, 0))
	accepted := shmtest.Got(e.await(t, 1)).Or(t)
	e.number = accepted.Data
	must(t, e.say(said{4, 0, nil}, 0))
	server.does(t, "accept")
	server.Halt(t)
	for range 60 { // more than are examined at once
		must(t, e.say(said{5, 0, make([]byte, 100)}, 0))
	}
	must(t, e.Endpoint.Close())
	server.GoOn(t)
	server.does(t, "count", "6000")
	server.does(t, "close")
	server.does(t, "unlisten")
	server.Stop(t)
}

// TestConnKilled: one end is killed in each state of a connection. The other reads what was written
// and then the end, if that was said, or ECONNRESET; what it writes fails; its listener goes on, or
// the name of the dead one is free; and nothing is left, without any gc.
func TestConnKilled(t *testing.T) {
	for _, row := range []struct {
		name   string
		script string // what the one that is killed does begins with a bar
		reads  int
		read   error // nil is no connection
		write  error
	}{
		{"client, in the backlog", "listen |dial", 0, nil, nil},
		{"client, accepted", "listen |dial accept", 0, syscall.ECONNRESET, syscall.ECONNRESET},
		{"client, has written", "listen |dial accept |write", streamed, syscall.ECONNRESET,
			syscall.ECONNRESET},
		{"client, has been written to", "listen |dial accept write", 0, syscall.ECONNRESET,
			syscall.ECONNRESET},
		{"client, has ended", "listen |dial accept |write |shut", streamed, io.EOF,
			syscall.ECONNRESET},
		{"client, was told the end", "listen |dial accept shut", 0, syscall.ECONNRESET, syscall.EPIPE},
		{"client, listener closed", "listen |dial accept unlisten |write", streamed,
			syscall.ECONNRESET, syscall.ECONNRESET},
		{"server, has not accepted", "|listen dial", 0, syscall.ECONNRESET, syscall.ECONNRESET},
		{"server, has accepted", "|listen dial |accept", 0, syscall.ECONNRESET, syscall.ECONNRESET},
		{"server, has written", "|listen dial |accept |write", streamed, syscall.ECONNRESET,
			syscall.ECONNRESET},
		{"server, has been written to", "|listen dial write |accept", 0, syscall.ECONNRESET,
			syscall.ECONNRESET},
		{"server, has ended", "|listen dial |accept |write |shut", streamed, io.EOF,
			syscall.ECONNRESET},
		{"server, listens no more", "|listen dial |accept |unlisten |write", streamed,
			syscall.ECONNRESET, syscall.ECONNRESET},
	} {
		for _, calls := range []string{"later", "blocked"} {
			t.Run(row.name+"/"+calls, func(t *testing.T) {
				s := &streamEnd{d: directory(t)}
				other := started(t, "streamer")
				for _, what := range strings.Fields(row.script) {
					if what, is := strings.CutPrefix(what, "|"); is {
						other.does(t, what)
					} else {
						must(t, s.do(what))
					}
				}
				n, read, wrote := 0, make(chan error, 1), make(chan error, 1)
				begin := func() {
					go func() {
						var err error
						n, err = drain(s.c)
						read <- err
					}()
					go func() {
						_, err := s.c.Write(make([]byte, 1<<20))
						wrote <- err
					}()
				}
				if row.read != nil && calls == "blocked" {
					begin()
				}
				other.Kill()
				if row.read != nil {
					if calls == "later" {
						begin()
					}
					failsWith(t, "read", <-read, row.read)
					failsWith(t, "write", <-wrote, row.write)
					if n != row.reads {
						t.Errorf("%d bytes were read, want %d", n, row.reads)
					}
					must(t, s.c.Close())
				}
				if s.l == nil || strings.Contains(row.script, "unlisten") {
					must(t, s.do("listen"))
				}
				c := dials(t, s.d, "server")
				writes(t, c, "a new one")
				for got := ""; got == ""; { // the dead one may be handed out first
					conn := accepts(t, s.l)
					b := make([]byte, 16)
					k, err := conn.Read(b)
					if got = string(b[:k]); got != "a new one" {
						failsWith(t, "read of the dead", err, syscall.ECONNRESET)
					}
					must(t, conn.Close())
				}
				must(t, c.Close())
				must(t, s.l.Close())
				all, err := s.d.List()
				if must(t, err); len(all) > 0 {
					t.Errorf("left are %v", all)
				}
			})
		}
	}
}
