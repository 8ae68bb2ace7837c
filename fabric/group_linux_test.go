package fabric_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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

// joins makes an endpoint a member.
func joins(t testing.TB, e *end, o fabric.GroupOptions) *fabric.Group {
	t.Helper()
	g := shmtest.Got(e.Join("group", o)).Or(t)
	return g
}

var (
	receivesOnly = fabric.GroupOptions{Access: cq.FlagRecv}
	missing      = fabric.GroupOptions{Misses: true}
)

// member is one in a process, which does what it is told.
func member() {
	o := fabric.Options{Datagram: os.Getenv("GROUP") == "datagrams"}
	e, err := open(os.Getenv("MEMBER"), o)
	need(err)
	var g *fabric.Group
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		what, text, _ := strings.Cut(lines.Text(), " ")
		said := "done"
		switch what {
		case "join":
			g, err = e.Join("group", fabric.GroupOptions{Misses: os.Getenv("GROUP") != ""})
		case "leave":
			err = g.Close()
		case "send":
			err = e.SendContext(context.Background(), &fabric.Msg{Buf: []byte(text), Addr: g.Addr()})
		case "progress":
			_, err = e.Progress()
		case "receive": // and says what came
			var buf [longBytes]byte
			need(e.Recv(buf[:], 7))
			for {
				c, failed, err := e.next()
				need(err)
				if failed.Err != 0 {
					said = fmt.Sprintf("missed %d (%v), ", failed.Data, failed.Flags)
					continue
				}
				if c.Flags&cq.FlagRecv != 0 {
					said = fmt.Sprintf("%s%d %v %d", strings.TrimPrefix(said, "done"), c.Len, c.Flags,
						sum(buf[:c.Len]))
					break
				}
			}
		}
		need(err)
		fmt.Println(said)
	}
	need(e.close())
}

func sum(b []byte) (n int) {
	for i := range b {
		n = 31*n + int(b[i])
	}
	return n
}

// TestGroup: a message to a group comes to each member once, whatever its length, its way and its
// level, and its send has one completion, when that is so of all.
func TestGroup(t *testing.T) {
	shmtest.Conforms(t)
	const members = 3
	eq := events(t, 0)
	e := opened(t, "main", fabric.Options{Pool: longBytes})
	g := joins(t, e, fabric.GroupOptions{Events: eq, Context: 77, Access: cq.FlagSend})
	var ev cq.Event
	_, err := eq.ReadContext(t.Context(), &ev, cq.ReadOptions{})
	if err != nil || ev.Event != cq.EventJoinComplete || ev.FID != g.FID() || ev.Context != 77 ||
		ev.FID.Kind != cq.FIDGroup {
		t.Fatalf("%+v, %v", ev, err)
	}
	must(t, e.Send(nil, g.Addr(), 1)) // nobody is there
	if c := completes(t, e); c.Context != 1 || c.Flags != cq.FlagSend|cq.FlagMsg|cq.FlagMulticast {
		t.Errorf("%+v", c)
	}
	var all []*child
	for i := range members {
		c := started(t, "member", fmt.Sprint("MEMBER=m", i))
		c.obeys(t, "join", "done")
		all = append(all, c)
	}
	for _, n := range []int{0, 8, fabric.MaxInline + 1, chunk + 1, longBytes, -chunk} {
		for _, flags := range []cq.Flags{0, cq.FlagMatchComplete, cq.FlagFence, cq.FlagInject,
			cq.FlagMulticast} {
			if flags == cq.FlagInject && (n < 0 || n > fabric.MaxInline) {
				continue
			}
			m := fabric.Msg{Addr: g.Addr(), Context: 2, Flags: flags}
			if n < 0 {
				m.Buf = allocated(t, e, -n)
			} else {
				m.Buf = pattern(n)
			}
			must(t, e.SendMsg(&m))
			ctx, stop := context.WithCancel(t.Context())
			moved := make(chan int)
			go func() { // the segments of long ones
				for k := 0; ; k++ {
					if _, err := e.Progress(); err != nil || ctx.Err() != nil {
						moved <- k
						return
					}
					time.Sleep(100 * time.Microsecond)
				}
			}()
			for i, c := range all {
				if i == len(all)-1 { // who has not called in
					moves(t, e)
					if c := e.completions(t); len(c) > 0 {
						t.Errorf("%d bytes, %v: %+v before the last has it", n, flags, c)
					}
				}
				c.obeys(t, "receive", fmt.Sprintf("%d %v %d", len(m.Buf),
					cq.FlagRecv|cq.FlagMsg|cq.FlagMulticast, sum(pattern(len(m.Buf)))))
			}
			for _, c := range all[1:] {
				c.obeys(t, "progress", "done")
			}
			if c := completes(t, e); c.Context != 2 || int(c.Len) != len(m.Buf) {
				t.Errorf("%d bytes, %v: %+v", n, flags, c)
			}
			stop()
			<-moved
			if n < 0 {
				must(t, e.Free(m.Buf))
			}
		}
	}
	if c := e.completions(t); len(c) > 0 {
		t.Errorf("and more: %+v", c)
	}
	if s := e.Stats(); s.Abandoned > 0 {
		t.Errorf("%+v", s)
	}
	account(t, e, 8, 0, 0)
	poolAccount(t, e, longBytes, 0, 0)
	all[0].obeys(t, "send hello", "done") // members send too, but not to themselves
	for _, c := range all[1:] {
		c.obeys(t, "receive", fmt.Sprintf("5 %v %d", cq.FlagRecv|cq.FlagMsg|cq.FlagMulticast,
			sum([]byte("hello"))))
	}
	must(t, g.Close())
	if err := e.Send(nil, g.Addr(), 1); !errors.Is(err, fabric.ErrNoPeer) {
		t.Errorf("to a group that was left: %v", err)
	}
	for _, c := range all {
		c.Stop(t)
	}
	moves(t, e)
	nothingLeft(t, e, "main")
}

// groupEnd is a member here, with the group.
type groupEnd struct {
	*end
	g *fabric.Group
}

func members(t testing.TB, o fabric.Options, g fabric.GroupOptions,
	names ...string) (all []groupEnd) {
	t.Helper()
	for _, name := range names {
		e := opened(t, name, o)
		all = append(all, groupEnd{e, joins(t, e, g)})
	}
	return all
}

// numbers receives numbers that there are, which have the context of their receive.
func (e groupEnd) got(t *testing.T) (all []uint64) {
	t.Helper()
	for {
		var buf [8]byte
		must(t, e.Recv(buf[:], 5))
		moves(t, e.end)
		c := e.completions(t)
		if len(c) == 0 {
			must(t, e.Cancel(5))
			fails(t, e.end)
			return all
		}
		all = append(all, binary.LittleEndian.Uint64(buf[:]))
	}
}

func number(i uint64) []byte { return binary.LittleEndian.AppendUint64(nil, i) }

// TestGroupWaits: without room at one member nobody gets the message, and none gets it twice when
// it is sent again. Who waits goes on when that member has room, leaves, closes, or is dead.
func TestGroupWaits(t *testing.T) {
	shmtest.Conforms(t)
	for _, how := range []string{"moves", "leaves", "closes", "dies"} {
		t.Run(how, func(t *testing.T) {
			ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
			a, b := ends[0], ends[1]
			c := started(t, "member", "MEMBER=slow")
			c.obeys(t, "join", "done")
			sent, want := uint64(0), []uint64(nil)
			var err error
			for ; err == nil; sent++ {
				if err = a.Inject(number(sent), a.g.Addr()); err == nil {
					want = append(want, sent)
				}
				moves(t, b.end)
			}
			if !errors.Is(err, cq.ErrFull) || len(want) != 7 {
				t.Fatalf("%v after %d", err, len(want))
			}
			if got := b.got(t); !slices.Equal(got, want) {
				t.Errorf("%v came, want %v", got, want)
			}
			done := make(chan error)
			go func() {
				done <- a.SendContext(t.Context(), &fabric.Msg{Buf: number(100), Addr: a.g.Addr(),
					Flags: cq.FlagInjectCall})
			}()
			select {
			case err := <-done:
				t.Fatalf("it did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			switch how {
			case "moves":
				c.obeys(t, "progress", "done")
			case "leaves":
				c.obeys(t, "leave", "done")
			case "closes":
				c.Stop(t)
			case "dies":
				c.Kill()
			}
			must(t, <-done)
			if got := b.got(t); !slices.Equal(got, []uint64{100}) {
				t.Errorf("%v came afterwards", got)
			}
			moves(t, a.end)
			must(t, a.Send(number(101), a.g.Addr(), 9))
			if how == "moves" {
				c.obeys(t, "progress", "done")
			}
			if got := b.got(t); !slices.Equal(got, []uint64{101}) {
				t.Errorf("%v came in the end", got)
			}
			if e := completes(t, a.end); e.Context != 9 {
				t.Errorf("%+v", e)
			}
			if c.ProcessState == nil {
				c.Stop(t)
			}
			must(t, errors.Join(a.g.Close(), b.g.Close()))
			nothingLeft(t, a.end, "a", "b")
		})
	}
}

// TestGroupFull: who waits for a member that has as many headers as it can have, takes none, and
// has as many waiting for it, goes on when it leaves.
func TestGroupFull(t *testing.T) {
	ends := members(t, fabric.Options{Window: 4096}, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	n := 0
	for ; n < 64+2*kind.FabricMostOps; n++ {
		err := a.Inject(number(1), a.g.Addr())
		if errors.Is(err, cq.ErrFull) {
			moves(t, b.end)
			err = a.Inject(number(1), a.g.Addr())
		}
		must(t, err)
	}
	moves(t, b.end, a.end)
	if err := a.Inject(number(1), a.g.Addr()); !errors.Is(err, cq.ErrFull) {
		t.Fatalf("%v after %d", err, n)
	}
	done := make(chan error)
	go func() {
		done <- a.SendContext(t.Context(), &fabric.Msg{Addr: a.g.Addr(), Flags: cq.FlagInjectCall})
	}()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	must(t, b.g.Close())
	must(t, <-done)
}

// TestGroupClosed: a send to a group that has not ended when its endpoint closes fails once.
func TestGroupClosed(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b", "c")
	a := ends[0]
	for i, flags := range []cq.Flags{cq.FlagMatchComplete, cq.FlagFence} { // the second waits
		must(t, a.SendMsg(&fabric.Msg{Buf: number(1), Addr: a.g.Addr(), Context: uint64(i),
			Flags: flags}))
	}
	must(t, ends[1].Recv(make([]byte, 8), 1))
	moves(t, ends[1].end, ends[2].end, a.end)
	must(t, a.Close())
	for i := range uint64(2) {
		if f := fails(t, a.end); f.Context != i || !errors.Is(&f, syscall.ECANCELED) ||
			f.Flags != cq.FlagSend|cq.FlagMsg|cq.FlagMulticast {
			t.Errorf("%+v", f)
		}
	}
	if c := a.completions(t); len(c) > 0 {
		t.Errorf("and more: %+v", c)
	}
}

// TestGroupFence: no message to a group overtakes those that wait behind a fence. It is missed.
func TestGroupFence(t *testing.T) {
	ends := members(t, fabric.Options{}, missing, "a", "b")
	a, b := ends[0], ends[1]
	to := a.knows(t, "b")
	must(t, errors.Join(a.Send(pattern(longBytes), to, 1),
		a.SendMsg(&fabric.Msg{Buf: number(1), Addr: to, Context: 2, Flags: cq.FlagFence}),
		a.Inject(number(2), a.g.Addr())))
	buf := make([]byte, longBytes)
	must(t, b.Recv(buf, 3))
	moves(t, a.end, b.end)
	completes(t, b.end)
	if got := b.got(t); !slices.Equal(got, []uint64{1}) {
		t.Errorf("%v came behind the fence", got)
	}
	moves(t, a.end)
	must(t, errors.Join(a.Inject(number(3), a.g.Addr()), b.Recv(buf, 4)))
	if f := fails(t, b.end); f.Data != 1 || f.Err != cq.EOverrun {
		t.Errorf("%+v", f)
	} else if from, err := fabric.ParseAddress(f.ErrData); err != nil || from != a.Address() {
		t.Errorf("missed of %v, %v", from, err)
	}
	completes(t, b.end)
}

// TestGroupRemoved: who joins while the last member leaves is in the group that others join.
func TestGroupRemoved(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{}, "a", "b")
	a, b := ends[0], ends[1]
	must(t, b.g.Close())
	for i := range uint64(500) {
		left := make(chan error)
		go func(g *fabric.Group) { left <- g.Close() }(a.g)
		b.g = joins(t, b.end, fabric.GroupOptions{})
		must(t, <-left)
		a.g = joins(t, a.end, fabric.GroupOptions{})
		must(t, a.Inject(number(i), a.g.Addr()))
		if got := b.got(t); !slices.Equal(got, []uint64{i}) {
			t.Fatalf("%v came to the other, want %d", got, i)
		}
		must(t, b.g.Close())
		moves(t, a.end)
	}
}

// TestGroupMisses: nobody waits for a slow member. It misses messages, and is told how many before
// the next one; others get all.
func TestGroupMisses(t *testing.T) {
	shmtest.Conforms(t)
	for _, of := range []string{"datagrams", "reliable"} {
		t.Run(of, func(t *testing.T) {
			o := fabric.Options{Datagram: of == "datagrams", Slots: 8}
			ends := members(t, o, missing, "a", "b")
			a, b := ends[0], ends[1]
			c := started(t, "member", "MEMBER=slow", "GROUP="+of)
			c.obeys(t, "join", "done")
			var want []uint64
			for i := range uint64(50) {
				must(t, a.Send(number(i), a.g.Addr(), i))
				if c := a.completions(t); len(c) != 1 || c[0].Context != i ||
					c[0].Flags != cq.FlagSend|cq.FlagMsg|cq.FlagMulticast {
					t.Fatalf("%+v", c)
				}
				want = append(want, i)
				moves(t, b.end)
			}
			if got := b.got(t); !slices.Equal(got, want) {
				t.Errorf("%v came", got)
			}
			flags := cq.FlagRecv | cq.FlagMsg | cq.FlagMulticast
			c.obeys(t, "progress", "done")
			moves(t, a.end)
			must(t, a.Inject(number(50), a.g.Addr()))
			c.obeys(t, "progress", "done") // it has no receive yet, as those before it
			for i := range uint64(7) {
				c.obeys(t, "receive", fmt.Sprintf("8 %v %d", flags, sum(number(i))))
			}
			c.obeys(t, "receive", fmt.Sprintf("missed 43 (%v), 8 %v %d", flags|cq.FlagNoContext, flags,
				sum(number(50))))
			must(t, a.Inject(number(51), a.g.Addr()))
			c.obeys(t, "receive", fmt.Sprintf("8 %v %d", flags, sum(number(51))))
			if s := a.Stats(); s.Dropped != 43 || s.Sent != 51+1+8+1 {
				t.Errorf("%+v", s)
			}
			for _, m := range []fabric.Msg{
				{Buf: make([]byte, fabric.MaxDatagram+1)}, {Flags: cq.FlagMatchComplete}} {
				if m.Addr = a.g.Addr(); a.SendMsg(&m) == nil {
					t.Errorf("sent: %d bytes, %v", len(m.Buf), m.Flags)
				}
			}
			c.Stop(t)
		})
	}
}

// TestGroupMissesUntold: without room in the queue a member is told later, of all.
func TestGroupMissesUntold(t *testing.T) {
	a := members(t, fabric.Options{}, missing, "a")[0]
	e := openedSized(t, "small", 1, fabric.Options{})
	small := groupEnd{e, joins(t, e, missing)}
	must(t, small.Recv(make([]byte, 8), 1)) // it has the room
	for range 3 {
		for range 10 {
			must(t, a.Inject(number(1), a.g.Addr()))
		}
		moves(t, small.end, a.end)
	}
	if s := small.Stats(); s.Missed != 6 || s.Stored != 20 {
		t.Errorf("%+v", s)
	}
	got, missed := 0, uint64(0)
	for got < 21 || missed < 6 {
		moves(t, small.end)
		if got > 0 { // the first has its receive
			if err := small.Recv(make([]byte, 8), 1); err != nil && !errors.Is(err, cq.ErrFull) {
				t.Fatal(err)
			}
		}
		_, failed, err := small.next()
		must(t, err)
		if failed.Err == 0 {
			got++
		} else if missed += failed.Data; failed.Err != cq.EOverrun || got < 7 {
			t.Errorf("%+v after %d", failed, got)
		}
	}
	if got != 21 || missed != 6 {
		t.Errorf("%d came, and %d were missed", got, missed)
	}
}

// TestGroupMembers: who joins or leaves is seen by the next send, whoever makes the group; it goes
// with its last member.
func TestGroupMembers(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{Members: 4}, "a", "b", "c")
	a, b, c := ends[0], ends[1], ends[2]
	to := func(what string, who groupEnd, want ...groupEnd) {
		t.Helper()
		must(t, who.Inject(number(1), who.g.Addr()))
		for _, e := range ends {
			n := 0
			if slices.Contains(want, e) {
				n = 1
			}
			if got := e.got(t); len(got) != n {
				t.Errorf("%s: %d came, want %d", what, len(got), n)
			}
		}
	}
	to("all", a, b, c)
	to("all", c, a, b)
	must(t, b.g.Close())
	must(t, b.g.Close())
	to("one left", a, c)
	only := opened(t, "only", fabric.Options{})
	group := joins(t, only, receivesOnly)
	to("one is not looked at here", c, a)
	if err := only.Inject(nil, group.Addr()); !errors.Is(err, fabric.ErrNotSupported) {
		t.Errorf("a send of who receives: %v", err)
	}
	b.g = joins(t, b.end, fabric.GroupOptions{Access: cq.FlagSend})
	to("who sends only", b, a, c)
	to("who sends only", a, c)
	last := opened(t, "last", fabric.Options{})
	if _, err := last.Join("group", fabric.GroupOptions{}); !errors.Is(err, fabric.ErrPeers) {
		t.Errorf("a fifth of four: %v", err)
	}
	must(t, only.Close()) // it leaves
	joins(t, last, fabric.GroupOptions{})
	gram := opened(t, "gram", datagrams)
	for name, err := range map[string]error{
		"again":     second(a.Join("group", fabric.GroupOptions{})),
		"type":      second(gram.Join("group", missing)),
		"waits":     second(gram.Join("group", fabric.GroupOptions{})),
		"misses":    second(opened(t, "d", fabric.Options{}).Join("group", missing)),
		"kind":      second(a.Join("b", fabric.GroupOptions{})),
		"access":    second(a.Join("x", fabric.GroupOptions{Access: cq.FlagRead})),
		"many":      second(a.Join("x", fabric.GroupOptions{Members: 1 << 11})),
		"no room":   second(a.Join("x", fabric.GroupOptions{Events: fullEvents(t)})),
		"name":      second(a.Join("x/y", fabric.GroupOptions{})),
		"rma":       a.Write(nil, a.g.Addr(), fabric.Remote{}, 1),
		"receive":   a.TRecv(nil, a.g.Addr(), 1, 0, 1),
		"no lookup": second(a.Lookup(a.g.Addr())),
		"closed":    second(only.Join("group", fabric.GroupOptions{})),
	} {
		want := map[string]error{"again": syscall.EALREADY, "type": fabric.ErrType,
			"waits": cq.ErrInvalid, "misses": cq.ErrInvalid, "kind": shm.ErrKind,
			"access": cq.ErrInvalid, "many": cq.ErrInvalid, "no room": cq.ErrFull,
			"name": shm.ErrName, "rma": fabric.ErrNotSupported, "receive": fabric.ErrAddress,
			"no lookup": fabric.ErrAddress, "closed": os.ErrClosed}[name]
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if _, err := a.d.Open("x", shm.Inspect); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that nobody could join: %v", err)
	}
	must(t, errors.Join(a.g.Close(), b.g.Close(), c.g.Close(), last.Close()))
	if _, err := a.d.Open("group", shm.Inspect); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody is in the group: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

// fullEvents is an event queue without room.
func fullEvents(t *testing.T) *cq.EventQueue {
	eq := events(t, 1)
	for {
		if _, err := eq.Write(&cq.Event{Event: cq.EventUser}); err != nil {
			return eq
		}
	}
}
