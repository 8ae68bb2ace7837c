package fabric_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// msgEnd is an endpoint with an event queue, or will be.
type msgEnd struct {
	*end
	eq *cq.EventQueue
}

func openEvents(size int) (*cq.EventQueue, error) {
	return cq.CreateEvents(cq.Unnamed("eq"), cq.EventOptions{Size: size, Write: true, Shared: true})
}

func events(t testing.TB, size int) *cq.EventQueue {
	t.Helper()
	eq := shmtest.Got(openEvents(size)).Or(t)
	t.Cleanup(func() { must(t, eq.Close()) })
	return eq
}

// nextEvent waits for an event, which it gives in words too.
func nextEvent(eq *cq.EventQueue) (ev cq.Event, said string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	ev.Payload = make([]byte, 0, 256)
	_, err = eq.ReadContext(ctx, &ev, cq.ReadOptions{})
	if errors.Is(err, cq.ErrAvail) {
		failed := cq.EventError{ErrData: make([]byte, 0, 256)}
		_, err = eq.ReadErr(&failed, 0)
		ev.FID = failed.FID
		return ev, strings.TrimSpace(fmt.Sprintf("%v %s", syscall.Errno(failed.Err), failed.ErrData)), err
	}
	if err != nil {
		return ev, "", err
	}
	c, err := cq.ParseCMEntry(ev.Payload)
	return ev, strings.TrimSpace(fmt.Sprintf("%v %s", ev.Event, c.Data)), err
}

// hears waits for an event about an object.
func hears(t testing.TB, eq *cq.EventQueue, of cq.FID, want string) cq.Event {
	t.Helper()
	ev, said, err := nextEvent(eq)
	if err != nil || said != want || ev.FID != of {
		t.Fatalf("%q of %v, %v: want %q of %v", said, ev.FID, err, want, of)
	}
	return ev
}

// calls runs a caller that connects to a new passive endpoint, and returns its request.
type called struct {
	*child
	p  *fabric.Passive
	r  *fabric.Request
	eq *cq.EventQueue
}

func calls(t testing.TB, data string) *called {
	t.Helper()
	a := &called{eq: events(t, 0)}
	a.p = shmtest.Got(fabric.ListenEvents(directory(t), "passive", a.eq)).Or(t)
	t.Cleanup(func() { must(t, a.p.Close()) })
	a.child = start(t, "caller")
	a.Says(t, "ready")
	a.obeys(t, "connect "+data, "done")
	a.r = a.request(t, data)
	return a
}

func (a *called) request(t testing.TB, data string) *fabric.Request {
	t.Helper()
	ev := hears(t, a.eq, a.p.FID(), strings.TrimSpace("connection request "+data))
	r := shmtest.Got(a.p.Request(&ev)).Or(t)
	return r
}

// obeys has the caller do something, which must have that result.
func (c *child) obeys(t testing.TB, what, want string) {
	t.Helper()
	shmtest.Got(fmt.Fprintln(c.In, what)).Or(t)
	c.Says(t, want)
}

// accepted opens an endpoint for the request.
func (a *called) accepted(t testing.TB, data string) *msgEnd {
	t.Helper()
	e := &msgEnd{opened(t, "server", fabric.Options{Events: a.eq, Request: a.r}), a.eq}
	must(t, e.Accept([]byte(data)))
	return e
}

// connects is all of it.
func connects(t testing.TB) (*called, *msgEnd) {
	t.Helper()
	a := calls(t, "")
	e := a.accepted(t, "")
	hears(t, e.eq, e.FID(), "connected")
	a.obeys(t, "event", "connected")
	return a, e
}

// caller is an endpoint that does what it is told.
func caller() {
	eq, err := openEvents(0)
	need(err)
	o := fabric.Options{Events: eq, Window: 8192}
	e := shmtest.Needs(open("caller", o))
	var bufs [8][64]byte
	var crowd []*end
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		what, text, _ := strings.Cut(lines.Text(), " ")
		said := "done"
		switch what {
		case "connect":
			err = e.Connect("passive", []byte(text))
		case "crowd": // as many more of them
			for i := range count(text) {
				one := shmtest.Needs(open(fmt.Sprint("caller-", i), o))
				need(one.Connect("passive", nil))
				crowd = append(crowd, one)
			}
		case "answers": // which are the same
			for range count(text) {
				_, answer, err := nextEvent(eq)
				need(err)
				if said != "done" && said != answer {
					answer = said + ", then " + answer
				}
				said = answer
			}
		case "event":
			var ev cq.Event
			if ev, said, err = nextEvent(eq); ev.FID != e.FID() {
				err = fmt.Errorf("an event of %v", ev.FID)
			}
		case "send":
			err = e.Send([]byte(text), 0, 0)
		case "receive":
			err = e.Recv(bufs[0][:], 1)
		case "completion":
			c, failed, failure := e.next()
			err, said = failure, fmt.Sprintf("%d %s", c.Context, bufs[0][:c.Len])
			if c.Flags&cq.FlagSend != 0 {
				said = "sent"
			}
			if failed.Err != 0 {
				said = fmt.Sprintf("%d %v", failed.Context, syscall.Errno(failed.Err))
			}
		case "shutdown":
			err = e.Shutdown()
		case "close":
			need(e.close())
		case "again":
			e, err = open("caller", o)
		}
		if err != nil {
			said, err = err.Error(), nil
		}
		fmt.Println(said)
	}
	for _, one := range crowd {
		need(one.close())
	}
	need(errors.Join(e.close(), eq.Close()))
}

func count(text string) int {
	n := shmtest.Needs(strconv.Atoi(text))
	return n
}

// TestLink: a connection between two processes, from the request to its end, by events.
func TestLink(t *testing.T) {
	t.Run("accepted", func(t *testing.T) {
		shmtest.Conforms(t)
		a := calls(t, "who is there")
		if a.r.Window != 8192 || string(a.r.Data) != "who is there" {
			t.Errorf("request %+v", a.r)
		}
		e := a.accepted(t, "a server")
		if e.Accept(nil) == nil || a.r.Reject(nil) == nil {
			t.Error("a request has two answers")
		}
		ev := hears(t, a.eq, e.FID(), "connected")
		if c, _ := cq.ParseCMEntry(ev.Payload); len(c.Data) != 0 {
			t.Errorf("the listening side has %q", c.Data)
		}
		a.obeys(t, "event", "connected a server")
		from := shmtest.Got(e.Lookup(0)).Or(t)
		if from != a.r.From {
			t.Errorf("the peer is %v, the request was from %v", from, a.r.From)
		}
		var buf [64]byte
		must(t, e.Recv(buf[:], 7))
		a.obeys(t, "send hello", "done")
		if c := completes(t, e.end); c.Context != 7 || string(buf[:c.Len]) != "hello" {
			t.Fatalf("%+v with %q", c, buf[:c.Len])
		}
		a.obeys(t, "receive", "done")
		must(t, e.Send([]byte("answer"), 0, 8))
		a.obeys(t, "completion", "sent")
		a.obeys(t, "completion", "1 answer")
		a.Stop(t)
		hears(t, a.eq, e.FID(), "shutdown")
	})
	t.Run("rejected", func(t *testing.T) {
		shmtest.Conforms(t)
		a := calls(t, "may I")
		must(t, a.r.Reject([]byte("no, later")))
		a.obeys(t, "event", "connection refused no, later")
		if err := a.r.Reject(nil); !errors.Is(err, fabric.ErrNotFound) {
			t.Errorf("rejected again: %v", err)
		}
		a.obeys(t, "connect now", "done")
		a.r = a.request(t, "now")
		e := a.accepted(t, "")
		hears(t, a.eq, e.FID(), "connected")
		a.obeys(t, "event", "connected")
		a.Stop(t)
		hears(t, a.eq, e.FID(), "shutdown")
	})
	t.Run("rejected without room", func(t *testing.T) {
		const more = 20 // answers than a lane has slots
		a := calls(t, "")
		a.obeys(t, fmt.Sprint("crowd ", more), "done")
		requests := []*fabric.Request{a.r}
		for range more {
			requests = append(requests, a.request(t, ""))
		}
		a.Halt(t)
		why := []byte("no, later")
		for _, r := range requests {
			must(t, r.Reject(why))
		}
		copy(why, "is reused")
		a.GoOn(t)
		a.obeys(t, fmt.Sprint("answers ", 1+more), "connection refused no, later")
		a.Stop(t)
	})
}

// TestLinkEnds: each side has one SHUTDOWN, whoever ends it and however, and receives that wait end
// with ECANCELED, after what had been sent.
func TestLinkEnds(t *testing.T) {
	shmtest.Conforms(t)
	closes := func(t *testing.T, a *called, e *msgEnd) {
		hears(t, a.eq, e.FID(), "shutdown")
		if err := e.Send(nil, 0, 0); !errors.Is(err, fabric.ErrNotConnected) {
			t.Errorf("a send after the end: %v", err)
		}
	}
	for _, c := range []struct {
		name string
		end  func(t *testing.T, a *called, e *msgEnd)
	}{
		{"theirs", func(t *testing.T, a *called, e *msgEnd) {
			a.obeys(t, "shutdown", "done")
			closes(t, a, e)
			a.obeys(t, "event", "shutdown")
		}},
		{"ours", func(t *testing.T, a *called, e *msgEnd) {
			must(t, e.Shutdown())
			closes(t, a, e)
			a.obeys(t, "event", "shutdown")
		}},
		{"both", func(t *testing.T, a *called, e *msgEnd) {
			a.Halt(t)
			_, err := fmt.Fprintln(a.In, "shutdown") // it has not heard of ours
			must(t, err)
			must(t, e.Shutdown())
			a.GoOn(t)
			line, _ := a.Out.ReadString('\n')
			if line != "done\n" && !strings.Contains(line, "not connected") { // or it has
				t.Errorf("the caller's shutdown: %q", line)
			}
			closes(t, a, e)
			a.obeys(t, "event", "shutdown")
		}},
		{"closed", func(t *testing.T, a *called, e *msgEnd) {
			a.obeys(t, "close", "done")
			closes(t, a, e)
			a.obeys(t, "again", "done")
		}},
		{"killed", func(t *testing.T, a *called, e *msgEnd) {
			a.Kill()
			closes(t, a, e)
			for e.Stats().Died == 0 { // and it is collected
				e.steps(t)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, e := connects(t)
			var bufs [3][64]byte
			for i := range bufs {
				must(t, e.Recv(bufs[i][:], uint64(i)))
			}
			a.obeys(t, "send last", "done")
			c.end(t, a, e)
			if got := completes(t, e.end); got.Context != 0 || string(bufs[0][:got.Len]) != "last" {
				t.Errorf("%+v with %q", got, bufs[0][:4])
			}
			for i := 1; i < len(bufs); i++ {
				_, failed, err := e.next()
				if err != nil || failed.Err != cq.Errno(syscall.ECANCELED) || failed.Context != uint64(i) {
					t.Errorf("receive %d: %+v, %v", i, failed, err)
				}
			}
			must(t, e.Recv(bufs[0][:], 5))
			if _, failed, err := e.next(); err != nil || failed.Context != 5 {
				t.Errorf("a receive after the end: %+v, %v", failed, err)
			}
			if err := e.Shutdown(); !errors.Is(err, fabric.ErrNotConnected) {
				t.Errorf("shutdown after the end: %v", err)
			}
			if _, err := a.eq.Read(&cq.Event{}, 0); !errors.Is(err, syscall.EAGAIN) {
				t.Errorf("one more event, %v", err)
			}
			if c.name != "killed" {
				a.Stop(t)
			}
		})
	}
}

// TestLinkGone: whoever asked and has gone is not accepted.
func TestLinkGone(t *testing.T) {
	for _, how := range []string{"close", "kill"} {
		t.Run(how, func(t *testing.T) {
			a := calls(t, "")
			if how == "close" {
				a.obeys(t, "close", "done")
			} else {
				a.Kill()
			}
			e := opened(t, "server", fabric.Options{Events: a.eq, Request: a.r})
			err := e.Accept(nil)
			if err == nil && how == "kill" { // that is not known at once
				hears(t, a.eq, e.FID(), "software caused connection abort")
			} else if !errors.Is(err, syscall.ECONNABORTED) {
				t.Fatalf("accept: %v", err)
			}
			if err = e.Accept(nil); err == nil {
				t.Error("it has two answers")
			}
			if how == "kill" {
				all, err := e.d.List() // nobody has known the caller's endpoint
				must(t, err)
				for _, n := range all {
					_ = collect.Remove(e.d, n.Name(), collect.Options{}) // or it lives, or is removed
				}
				return
			}
			a.obeys(t, "again", "done")
			a.obeys(t, "connect", "done")
			a.request(t, "") // closed with the Passive
			must(t, a.p.Close())
			a.obeys(t, "event", "connection refused")
			a.Stop(t)
		})
	}
}

// TestLinkEarly: messages that come before CONNECTED could be queued wait, with or without a
// receive.
func TestLinkEarly(t *testing.T) {
	a := calls(t, "")
	e := &msgEnd{opened(t, "server", fabric.Options{Events: a.eq, Request: a.r}), a.eq}
	var bufs [2][64]byte
	must(t, e.Recv(bufs[0][:], 0))
	filled := 0
	for user := (cq.Event{Event: cq.EventUser}); ; filled++ {
		if _, err := a.eq.Write(&user); err != nil {
			break
		}
	}
	must(t, e.Accept(nil))
	if err := e.Send(nil, 0, 0); !errors.Is(err, fabric.ErrNotConnected) {
		t.Errorf("an early send: %v", err)
	}
	a.obeys(t, "event", "connected")
	a.obeys(t, "send one", "done")
	a.obeys(t, "send two", "done")
	for e.Stats().Stored < 2 {
		e.steps(t)
	}
	if n, err := cq.Read(e.q, make([]cq.Entry, 1)); n > 0 {
		t.Errorf("%d receives are over before CONNECTED, %v", n, err)
	}
	for range filled {
		shmtest.Got(a.eq.Read(&cq.Event{}, 0)).Or(t)
	}
	hears(t, a.eq, e.FID(), "connected")
	must(t, e.Recv(bufs[1][:], 1))
	for i, want := range []string{"one", "two"} {
		if c := completes(t, e.end); c.Context != uint64(i) || string(bufs[i][:c.Len]) != want {
			t.Errorf("%+v with %q, want %q", c, bufs[i][:c.Len], want)
		}
	}
	a.Stop(t)
	hears(t, a.eq, e.FID(), "shutdown")
}

// TestLinkRefused: who is refused, and what.
func TestLinkRefused(t *testing.T) {
	d, eq, theirs := directory(t), events(t, 0), events(t, 0)
	o := fabric.Options{Events: theirs, Peers: 1, Chunks: -1}
	caller := opened(t, "caller", o)
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	is("connect to nobody", caller.Connect("passive", nil), syscall.ECONNREFUSED)
	p := shmtest.Got(fabric.ListenEvents(d, "passive", eq)).Or(t)
	_, err := fabric.ListenEvents(d, "passive", eq)
	is("a name in use", err, syscall.EADDRINUSE)
	_, err = fabric.Dial(context.Background(), d, "passive")
	is("a stream to a passive endpoint", err, syscall.ECONNREFUSED)
	listens(t, d, "streams")
	must(t, caller.Connect("streams", nil))
	hears(t, theirs, caller.FID(), "connection refused")
	is("long data", caller.Connect("passive", make([]byte, fabric.MaxConnData+1)), fabric.ErrTooLong)
	must(t, caller.Connect("passive", make([]byte, fabric.MaxConnData)))
	is("connect twice", caller.Connect("passive", nil), syscall.EISCONN)
	is("a bound event queue", eq.Close(), syscall.EBUSY)
	is("a bound event queue", theirs.Close(), syscall.EBUSY)
	_, err = caller.Resolve("passive")
	is("a second peer", err, fabric.ErrNotSupported)

	ev, _, err := nextEvent(eq)
	must(t, err)
	r := shmtest.Got(p.Request(&ev)).Or(t)
	server := opened(t, "server", fabric.Options{Events: eq, Request: r})
	must(t, server.Accept(make([]byte, fabric.MaxConnData)))
	for _, e := range []*end{server, caller} {
		q := map[*end]*cq.EventQueue{server: eq, caller: theirs}[e]
		if ev, _, err = nextEvent(q); err != nil || ev.Event != cq.EventConnected {
			t.Fatalf("%v, %v", ev.Event, err)
		}
	}
	stranger := opened(t, "stranger", fabric.Options{})
	to := stranger.knows(t, "server")
	must(t, stranger.Send(nil, to, 0))
	for server.Stats().Refused == 0 {
		server.steps(t)
	}
	if _, failed, err := stranger.next(); err != nil || failed.Err != cq.Errno(syscall.ECONNABORTED) {
		t.Errorf("a stranger's message: %v, %v", failed.Err, err)
	}
	must(t, stranger.Endpoint.Close())
	_, err = server.d.Open(kind.FabricOutboxName(stranger.Address().Outbox), shm.ReadOnly)
	shmtest.WantErr(t, "what a stranger leaves", err, fs.ErrNotExist)

	for i := range 129 { // of which 128 wait
		must(t, opened(t, fmt.Sprint("c", i), o).Connect("passive", nil))
	}
	_, said, err := nextEvent(theirs)
	if err != nil || said != "connection refused" {
		t.Fatalf("a full backlog: %q, %v", said, err)
	}
	must(t, p.Close())
	for range 128 {
		if _, said, err = nextEvent(theirs); err != nil || said != "connection refused" {
			t.Fatalf("a closed passive endpoint: %q, %v", said, err)
		}
	}
}

// TestLinkDownWakes: who waits for room at a peer that is stopped learns that the connection ends.
func TestLinkDownWakes(t *testing.T) {
	a, e := connects(t)
	err := error(nil)
	for err == nil {
		err = e.Inject(nil, 0)
	}
	a.Halt(t)
	sent := make(chan error, 1)
	go func() { sent <- e.SendContext(t.Context(), &fabric.Msg{}) }()
	sleeps(t, e.Bell())
	must(t, e.Shutdown())
	shmtest.WantErr(t, "who waits", <-sent, fabric.ErrNotConnected)
	a.GoOn(t)
	a.Stop(t)
}
