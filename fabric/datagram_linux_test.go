package fabric_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

var datagrams = fabric.Options{Datagram: true}

// deaf has an endpoint for datagrams, and does what it is told.
func deaf() { obeys("deaf", fabric.Options{Datagram: true, Window: 4096}) }

// TestDatagrams: what has room arrives as from every endpoint; its send has completed when the call
// returns, at the level of transmission, and nothing moves for that.
func TestDatagrams(t *testing.T) {
	shmtest.Conforms(t)
	for _, n := range []int{0, 1, fabric.MaxInline, fabric.MaxInline + 1, fabric.MaxDatagram} {
		for _, call := range []string{"send", "tagged", "inject", "fenced"} {
			for _, expected := range []bool{true, false} {
				if call == "inject" && n > fabric.MaxInline {
					continue
				}
				t.Run(fmt.Sprint(n, "/", call, "/expected=", expected), func(t *testing.T) {
					a, b := opened(t, "a", datagrams), opened(t, "b", datagrams)
					to := a.knows(t, "b")
					m := fabric.Msg{Buf: pattern(n), Addr: to, Context: 1, Data: 5,
						Flags: cq.FlagTransmitComplete | cq.FlagRemoteCQData}
					r := fabric.Msg{Buf: make([]byte, n), Addr: fabric.Anybody, Context: 2}
					switch call {
					case "tagged":
						m.Flags, m.Tag = m.Flags|cq.FlagTagged, 7
						r.Flags, r.Tag = cq.FlagTagged, 7
					case "inject":
						m.Flags |= cq.FlagInjectCall
					case "fenced":
						m.Flags |= cq.FlagFence
					}
					if expected {
						must(t, b.RecvMsg(&r))
					}
					must(t, a.SendMsg(&m))
					clear(m.Buf) // it is the caller's again
					if call != "inject" {
						if c := a.contexts(t); len(c) != 1 || c[0] != 1 {
							t.Errorf("completed: %v", c)
						}
					}
					moves(t, b)
					if !expected {
						must(t, b.RecvMsg(&r))
					}
					if c := completes(t, b); c.Context != 2 || c.Data != 5 || int(c.Len) != n ||
						!bytes.Equal(r.Buf, pattern(n)) {
						t.Errorf("%+v, or other bytes", c)
					}
					if s := a.Stats(); s.Dropped != 0 || s.Sent != 1 {
						t.Errorf("%+v", s)
					}
				})
			}
		}
	}
}

// TestDatagramsDropped: no send waits for a receiver, or fails for its want of room. What found
// none is counted, and later ones arrive.
func TestDatagramsDropped(t *testing.T) {
	for _, c := range []struct {
		name      string
		o         fabric.Options
		n, sends  int
		examines  bool // the receiver, after each
		published uint64
	}{
		{name: "slots", n: 8, sends: 100, published: 7},
		{name: "chunks", o: fabric.Options{Slots: 64}, n: 1000, sends: 100, published: 4},
		{name: "store", o: fabric.Options{Window: 4096}, n: 8, sends: 100, examines: true,
			published: 64},
		{name: "store of long ones", o: fabric.Options{Window: 4096}, n: 1500, sends: 100,
			examines: true, published: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Datagram = true
			a, b := opened(t, "a", c.o), opened(t, "b", c.o)
			to := a.knows(t, "b")
			number := func(i int) []byte {
				return append(binary.LittleEndian.AppendUint64(nil, uint64(i)), make([]byte, c.n-8)...)
			}
			for i := range c.sends {
				must(t, a.SendContext(t.Context(), &fabric.Msg{Buf: number(i), Addr: to}))
				if done := a.completions(t); len(done) != 1 {
					t.Fatalf("send %d: %v", i, done)
				}
				if c.examines {
					moves(t, b)
				}
			}
			if s := a.Stats(); s.Sent != c.published || s.Dropped != uint64(c.sends)-c.published {
				t.Errorf("%+v", s)
			}
			must(t, errors.Join(a.Send(number(c.sends), to, 0)))
			a.completions(t)
			for i := range c.published {
				buf := make([]byte, c.n)
				must(t, b.Recv(buf, i))
				if e := completes(t, b); e.Context != i || !bytes.Equal(buf, number(int(i))) {
					t.Errorf("message %d: %+v, or other bytes", i, e)
				}
			}
			buf := make([]byte, c.n)
			moves(t, a, b)
			must(t, errors.Join(b.Recv(buf, 99), a.Inject([]byte("last"), to)))
			if e := completes(t, b); e.Context != 99 || string(buf[:e.Len]) != "last" {
				t.Errorf("%+v, %q", e, buf)
			}
		})
	}
}

// TestDatagramErrors: what can never arrive is refused at the call, and completes nowhere.
func TestDatagramErrors(t *testing.T) {
	a, b := opened(t, "a", datagrams), opened(t, "b", datagrams)
	small := opened(t, "small", fabric.Options{Datagram: true, Chunks: -1})
	opened(t, "rdm", fabric.Options{})
	rdm := opened(t, "rdm2", fabric.Options{})
	at := func(e *end, name string) cq.Addr {
		to := e.knows(t, name)
		return to
	}
	send := func(e *end, to string, n int) func() error {
		return func() error { return e.Send(pattern(n), at(e, to), 1) }
	}
	level := func(f cq.Flags) func() error {
		return func() error { return a.SendMsg(&fabric.Msg{Addr: at(a, "b"), Flags: f}) }
	}
	bad := func(o fabric.Options) func() error {
		return func() error {
			o.Datagram = true
			_, err := fabric.Open(a.d, "bad", o)
			return err
		}
	}
	for name, c := range map[string]struct {
		do   func() error
		want error
	}{
		"too long":       {send(a, "b", fabric.MaxDatagram+1), fabric.ErrTooLong},
		"without chunks": {send(small, "b", fabric.MaxInline+1), fabric.ErrTooLong},
		"inject": {func() error { return a.Inject(pattern(fabric.MaxInline+1), at(a, "b")) },
			fabric.ErrTooLong},
		"delivery": {level(cq.FlagDeliveryComplete), fabric.ErrNotSupported},
		"match":    {level(cq.FlagMatchComplete), fabric.ErrNotSupported},
		"commit":   {level(cq.FlagCommitComplete), fabric.ErrNotSupported},
		"read": {func() error { return a.Read(nil, at(a, "b"), fabric.Remote{}, 1) },
			fabric.ErrNotSupported},
		"to the reliable": {send(a, "rdm", 0), fabric.ErrType},
		"from it":         {send(rdm, "b", 0), syscall.EPROTOTYPE},
		"number":          {func() error { return a.Send(nil, 77, 1) }, fabric.ErrAddress},
		"pool":            {bad(fabric.Options{Pool: 4096}), cq.ErrInvalid},
		"regions":         {bad(fabric.Options{Remote: 4096}), cq.ErrInvalid},
		"events":          {bad(fabric.Options{Events: events(t, 0)}), cq.ErrInvalid},
		"default level":   {bad(fabric.Options{TransmitFlags: cq.FlagMatchComplete}), cq.ErrInvalid},
	} {
		if err := c.do(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if c := append(a.completions(t), rdm.completions(t)...); len(c) > 0 {
		t.Errorf("%+v", c)
	}
	full := openedSized(t, "full", 1, datagrams) // room in its own queue is a sender's affair
	must(t, full.Send(nil, at(full, "b"), 1))
	if err := full.Send(nil, at(full, "b"), 2); !errors.Is(err, cq.ErrFull) {
		t.Errorf("without room in the queue: %v", err)
	}
	moves(t, b)
	if s := b.Stats(); s.Stored != 1 || s.Corrupt+s.Refused > 0 {
		t.Errorf("%+v", s)
	}
}

// TestDatagramsKilled: who is killed costs the other end no error but at its next call. What a dead
// receiver had not examined counts as dropped, and what a dead sender had published arrives.
func TestDatagramsKilled(t *testing.T) {
	e := opened(t, "main", datagrams)
	c := started(t, "deaf")
	to := e.knows(t, "deaf")
	for i := range 5 {
		must(t, e.Send(pattern(1000*(i%2)), to, uint64(i)))
		if i == 1 {
			c.obeys(t, "progress", "2")
		}
	}
	must(t, e.Recv(make([]byte, longBytes), 9))
	c.Kill()
	for e.Stats().Died == 0 {
		moves(t, e)
	}
	if err := e.Send(nil, to, 5); !errors.Is(err, fabric.ErrPeerDied) {
		t.Errorf("to a dead one: %v", err)
	}
	e.completions(t) // none is an error
	if s := e.Stats(); s.Dropped != 3 || s.Died != 1 || s.UsedChunks+s.LostChunks > 0 {
		t.Errorf("%+v", s)
	}
	nothingLeft(t, e, "main")
	c = start(t, "flooder", "FLOOD=20")
	c.Says(t, "dropped 13")
	c.Kill()
	for i := range 7 {
		if i > 0 {
			must(t, e.Recv(make([]byte, 8), 9))
		}
		completes(t, e)
	}
	nothingLeft(t, e, "main")
}

// flooder sends numbers to main, and says how many it dropped.
func flooder() {
	e := shmtest.Needs(open("flooder", fabric.Options{Datagram: true, Slots: 8}))
	to := shmtest.Needs(e.Resolve("main"))
	n := shmtest.Needs(strconv.Atoi(os.Getenv("FLOOD")))
	for i := range n {
		need(e.Inject(binary.LittleEndian.AppendUint64(nil, uint64(i)), to))
	}
	fmt.Println("dropped", e.Stats().Dropped)
	untilTold()
	need(e.close())
}

// TestDatagramLedger: of all that a process sends to one that is slower each datagram is received
// once, and in order, or is counted as dropped by who sent it.
func TestDatagramLedger(t *testing.T) {
	shmtest.Conforms(t)
	n := 200_000
	if testing.Short() {
		n = 20_000
	}
	e := opened(t, "main", fabric.Options{Datagram: true, Window: 4096})
	bufs := make([][8]byte, 16)
	for i := range bufs {
		must(t, e.Recv(bufs[i][:], uint64(i)))
	}
	c := start(t, "flooder", fmt.Sprint("FLOOD=", n))
	said := make(chan string)
	go func() {
		line, _ := c.Out.ReadString('\n')
		must(t, c.In.Close())
		_ = c.Wait()
		said <- strings.TrimSpace(line)
	}()
	dropped, received, next := -1, 0, uint64(0)
	for dropped < 0 || received < n-dropped {
		if dropped < 0 {
			select {
			case line := <-said:
				shmtest.Got(fmt.Sscanf(line, "dropped %d", &dropped)).Or(t)
			default:
			}
		}
		work := shmtest.Got(e.Progress()).Or(t)
		for _, r := range e.completions(t) {
			got := binary.LittleEndian.Uint64(bufs[r.Context][:])
			if got < next {
				t.Fatalf("%d after %d", got, next-1)
			}
			next = got + 1
			received++
			must(t, e.Recv(bufs[r.Context][:], r.Context))
		}
		if dropped >= 0 && work == 0 && e.Stats().Waiting == 0 && received < n-dropped {
			t.Fatalf("%d received and %d dropped of %d", received, dropped, n)
		}
	}
	t.Logf("%d of %d were dropped", dropped, n)
	if s := e.Stats(); received != n-dropped || s.Corrupt > 0 || s.Dropped > 0 {
		t.Errorf("%d received and %d dropped of %d; %+v", received, dropped, n, s)
	}
}

// TestHostileDatagrams: who takes an endpoint for one of another type, or sends one a header alone,
// is refused or cut off.
func TestHostileDatagrams(t *testing.T) {
	t.Run("type", func(t *testing.T) {
		for _, of := range []fabric.Options{datagrams, {}} {
			a, b := opened(t, "a", of), opened(t, "b", fabric.Options{Datagram: !of.Datagram})
			s := scribble(t, a, "a")
			to := b.knows(t, "a")
			was := s.page.Type.Swap(s.page.Type.Load() ^ 1)
			must(t, b.Inject(nil, to))
			s.page.Type.Store(was)
			moves(t, a, b)
			if err := b.Inject(nil, to); !errors.Is(err, fabric.ErrRefused) {
				t.Errorf("datagrams %v: %v", of.Datagram, err)
			}
			if s := a.Stats(); s.Refused != 1 || s.Stored != 0 {
				t.Errorf("%+v", s)
			}
			must(t, errors.Join(a.close(), b.close()))
		}
	})
	t.Run("header", func(t *testing.T) {
		a, b := opened(t, "a", datagrams), opened(t, "b", datagrams)
		to := b.knows(t, "a")
		must(t, b.Inject(nil, to))
		scribble(t, b, "b").slots[0].Head.Store(kind.FabricRTS | 5<<32)
		moves(t, a, b)
		if s := a.Stats(); s.Corrupt != 1 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
		if err := b.Inject(nil, to); !errors.Is(err, fabric.ErrRefused) {
			t.Errorf("its next send: %v", err)
		}
	})
}

// TestGroupDropped: messages for a member that ends before it looks count as dropped, of whatever
// type the endpoints are, and nothing else does.
func TestGroupDropped(t *testing.T) {
	for name, o := range map[string]fabric.Options{"datagrams": {Datagram: true}, "misses": {}} {
		t.Run(name, func(t *testing.T) {
			ends := members(t, o, missing, "a", "b")
			a, b := ends[0], ends[1]
			must(t, a.Inject(number(1), a.g.Addr()))
			moves(t, b.end, a.end)
			must(t, b.Close())
			moves(t, a.end)
			c := started(t, "member", "MEMBER=c", "GROUP="+name)
			c.obeys(t, "join", "done")
			for i := range uint64(3) {
				must(t, a.Send(number(i), a.g.Addr(), i))
			}
			c.Kill()
			for a.Stats().Died == 0 {
				a.steps(t)
			}
			if s := a.Stats(); s.Dropped != 3 {
				t.Errorf("%+v", s)
			}
		})
	}
}
