package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

func wantText(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// TestRefusedCalls: what cannot be is an error of the call, and leaves nothing.
func TestRefusedCalls(t *testing.T) {
	a := opened(t, "a", fabric.Options{})
	_, err := openSized(shmtest.Dir(t), "a", 4, fabric.Options{})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("a name that is taken: %v", err)
	}
	wantText(t, err, `fabric: open "a": file exists; close what has this name, or take another `+
		`name`)
	if _, err := fabric.Open(nil, "a", fabric.Options{}); !errors.Is(err, cq.ErrInvalid) {
		t.Errorf("no directory: %v", err)
	}
	b := opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	if err := a.Inject(make([]byte, fabric.MaxInline+1), to); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("too long: %v", err)
	}
	if err := a.Send(nil, 99, 1); !errors.Is(err, fabric.ErrAddress) {
		t.Errorf("no such number: %v", err)
	}
	_, err = a.Resolve("nobody")
	if !errors.Is(err, fabric.ErrNoPeer) {
		t.Errorf("no such name: %v", err)
	}
	wantText(t, err, `fabric: resolve "nobody": no such endpoint; start the process that `+
		`has that name, or set SHMRING_DIR to its directory`)
	_, err = a.Alloc(8)
	wantText(t, err, `fabric: allocate "a": length is 8, want 1 or more, and no more than the 0 of `+
		`Options.Pool: message is too long`)
	address, err := fabric.ParseAddress(b.Address().Append(nil))
	if err != nil || address != b.Address() {
		t.Errorf("an address that came by: %v, %v", address, err)
	}
	for _, bad := range [][]byte{nil, make([]byte, 40), b.Address().Append(nil)[:39]} {
		if _, err := fabric.ParseAddress(bad); !errors.Is(err, fabric.ErrAddress) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	must(t, b.Close())
	if err := a.Send(nil, to, 1); !errors.Is(err, fabric.ErrNoPeer) {
		t.Errorf("closed: %v", err)
	}
	again := opened(t, "b", fabric.Options{})
	if err := a.Send(nil, to, 1); !errors.Is(err, fabric.ErrNoPeer) {
		t.Errorf("closed, and its name is another's: %v", err)
	}
	forged := again.Address()
	forged.UUID = address.UUID
	if to, err = a.Insert(forged); err != nil || !errors.Is(a.Send(nil, to, 1), fabric.ErrNoPeer) {
		t.Errorf("of the former one in the outbox of this one: %v", err)
	}
	if err := b.Send(nil, 0, 1); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("by a closed one: %v", err)
	}
	_, e1 := fabric.Open(a.d, "c", fabric.Options{Slots: 3})
	_, e2 := fabric.Open(a.d, "c", fabric.Options{Request: new(fabric.Request)})
	_, e3 := fabric.Open(a.d, "c", fabric.Options{Events: (*cq.EventQueue)(nil)})
	_, e4 := a.Join("group", fabric.GroupOptions{Events: (*cq.EventWriter)(nil)})
	_, e5 := fabric.ListenEvents(a.d, "c", nil)
	_, e6 := fabric.Open(a.d, "c", fabric.Options{Buffered: 1})
	for i, err := range []error{e1, e2, e3, e4, e5, e6} {
		field := "Events is"
		switch i {
		case 0:
			field = "Slots is"
		case 5:
			field = "Receive is"
		}
		if !errors.Is(err, cq.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%d: %v, want that of %s", i, err, field)
		}
	}
}

// TestGrant: a sender has as much unexamined and unmatched at its receiver as that grants. Beyond
// it the header alone goes, of so many messages as a lane has operations; as many wait here; then
// Inject is EAGAIN, and sleeps until a receive is posted. All come in order.
func TestGrant(t *testing.T) {
	const come, most = 64 + kind.FabricMostOps, 64 + 2*kind.FabricMostOps
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{Window: 4096})
	to := a.knows(t, "b")
	sent := 0
	for {
		err := a.Inject([]byte{byte(sent), byte(sent >> 8)}, to)
		if err == nil {
			sent++
			continue
		}
		if !errors.Is(err, syscall.EAGAIN) {
			t.Fatal(err)
		}
		if work, err := b.Progress(); work == 0 || err != nil {
			must(t, err)
			break
		}
	}
	if sent != most || b.Stats().Waiting != come {
		t.Errorf("%d messages were taken, %d wait", sent, b.Stats().Waiting)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		err := a.SendContext(ctx, &fabric.Msg{Buf: []byte{most & 255, most >> 8}, Addr: to,
			Flags: cq.FlagInjectCall})
		done <- errors.Join(err, a.moves(ctx))
	}()
	for i := range most + 1 {
		var buf [2]byte
		must(t, b.Recv(buf[:], uint64(i)))
		c := completes(t, b)
		if n := int(buf[0]) | int(buf[1])<<8; c.Context != uint64(i) || c.Len != 2 || n != i {
			t.Fatalf("message %d: %+v, %d", i, c, n)
		}
	}
	cancel()
	must(t, <-done)
}

// TestGrantBoth: two endpoints, or one with itself, which is a peer as others are, send as many
// messages as their queues have room for before they receive any.
func TestGrantBoth(t *testing.T) {
	const most = 2*kind.FabricMostOps + 1000
	for _, self := range []bool{false, true} {
		t.Run(fmt.Sprintf("self=%v", self), func(t *testing.T) {
			a := openedSized(t, "a", 4*most, fabric.Options{Window: 4096})
			ends, names := []*end{a}, []string{"a"}
			if !self {
				ends = []*end{a, openedSized(t, "b", 4*most, fabric.Options{Window: 4096})}
				names = []string{"b", "a"}
			}
			for i, e := range ends {
				to := shmtest.Got(e.Resolve(names[i])).Or(t)
				for n := range uint64(most) {
					m := fabric.Msg{Buf: []byte{byte(n), byte(n >> 8)}, Addr: to, Context: n}
					must(t, e.SendContext(t.Context(), &m))
					shmtest.Got(ends[len(ends)-1-i].Progress()).Or(t)
				}
			}
			bufs := [2][most][2]byte{}
			for n := range most {
				for i, e := range ends {
					must(t, e.Recv(bufs[i][n][:], uint64(n)))
				}
			}
			left := [2]int{2 * most, 2 * most * (len(ends) - 1)}
			for left != [2]int{} {
				for i, e := range ends {
					var dst [64]cq.Entry
					k, err := cq.Read(e.q, dst[:])
					if !errors.Is(err, cq.ErrWouldBlock) {
						must(t, err)
					}
					for _, c := range dst[:k] {
						if want := [2]byte{byte(c.Context), byte(c.Context >> 8)}; c.Flags&cq.FlagRecv != 0 &&
							bufs[i][c.Context] != want {
							t.Fatalf("%+v, %v", c, bufs[i][c.Context])
						}
					}
					left[i] -= k
				}
			}
		})
	}
}

// TestSendContextEnds: a wait for room ends with its context, and with its endpoint.
func TestSendContextEnds(t *testing.T) {
	for _, how := range []string{"context", "close"} {
		t.Run(how, func(t *testing.T) {
			a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
			to := a.knows(t, "b")
			var err error
			for err == nil {
				err = a.Inject(nil, to)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- a.SendContext(ctx, &fabric.Msg{Addr: to}) }()
			want := error(context.Canceled)
			if how == "context" {
				cancel()
			} else {
				must(t, a.Close())
				want = fs.ErrClosed
			}
			if err := <-done; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			cancel()
			_ = b
		})
	}
}

// TestSelf: an endpoint is a peer of its own. Who sleeps is woken, memory is reached and told of,
// and a close ends what waits for a receive. Nothing is left.
func TestSelf(t *testing.T) {
	other := opened(t, "other", fabric.Options{})
	a := opened(t, "a", fabric.Options{Window: 4096, Remote: 4096})
	to := a.knows(t, "a")
	buf := make([]byte, 8)
	must(t, a.TRecv(buf, to, 5, 0, 1))
	done := make(chan error)
	go func() {
		c, failed, err := a.next()
		if c.Context != 1 || c.Src.Addr() != to || string(buf) != "one\x00\x00\x00\x00\x00" {
			err = fmt.Errorf("%+v, %v, %w, %q", c, failed.Err, err, buf)
		}
		done <- err
	}()
	must(t, a.SendMsg(&fabric.Msg{Buf: []byte("one"), Addr: to, Tag: 5,
		Flags: cq.FlagTagged | cq.FlagInjectCall}))
	must(t, <-done)
	at := fabric.Remote{Key: shmtest.Got(a.Register(8, allAccess)).Or(t).Key()}
	must(t, a.WriteMsg(&fabric.Msg{Buf: []byte("12345678"), Addr: to, Context: 2, Data: 5,
		Flags: cq.FlagRemoteCQData}, at))
	must(t, a.Read(buf, to, at, 3))
	told := map[cq.Flags]uint64{}
	for range 3 {
		c := completes(t, a)
		told[c.Flags] = c.Context + c.Data
	}
	if told[toldFlags] != 5 || told[cq.FlagRMA|cq.FlagWrite] != 2 ||
		told[cq.FlagRMA|cq.FlagRead] != 3 || string(buf) != "12345678" {
		t.Errorf("%v, %q", told, buf)
	}
	must(t, a.Send(pattern(4097), to, 4))
	a.steps(t)
	must(t, a.Close())
	if _, failed, err := a.next(); err != nil || failed.Context != 4 ||
		failed.Err != cq.Errno(syscall.ECANCELED) {
		t.Errorf("a send that waits: %+v, %v", failed, err)
	}
	c := started(t, "idle") // nobody waits for what one that is killed has sent to itself
	must(t, other.Inject(nil, other.knows(t, "idle")))
	c.obeys(t, "self", "0")
	c.Kill()
	nothingLeft(t, other, "other")
}

// TestEcho: two processes, which sleep in turn.
func TestEcho(t *testing.T) {
	e := opened(t, "main", fabric.Options{})
	c := started(t, "echo")
	to := e.knows(t, "echo")
	for i := range 2000 {
		must(t, pingPong(e, to, i))
		if i%100 == 0 {
			time.Sleep(time.Millisecond) // both sleep
		}
	}
	c.Stop(t)
	nothingLeft(t, e, "main")
}

// nothingLeft waits until only these endpoints are in the directory, each with its outbox: what
// others had is removed by who sees them go.
func nothingLeft(t *testing.T, e *end, names ...string) {
	t.Helper()
	var left []string
	for range 12000 { // a minute, on a machine that is busy
		e.steps(t)
		all := shmtest.Got(e.d.List()).Or(t)
		if left = left[:0]; len(all) == 2*len(names) {
			return
		}
		for _, n := range all {
			left = append(left, n.Name())
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("left are %q", left)
}

// TestNoAllocation: a message that is expected, from its send to both completions, takes no memory
// of the heap.
func TestNoAllocation(t *testing.T) {
	if shmtest.Race {
		t.Skip("the race detector allocates")
	}
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	var buf, payload [8]byte
	var dst [4]cq.Entry
	if n := testing.AllocsPerRun(1000, func() {
		errs := [2]error{b.Recv(buf[:], 1), a.Send(payload[:], to, 2)}
		m, err1 := cq.Read(b.q, dst[:])
		n, err2 := cq.Read(a.q, dst[:])
		if m != 1 || n != 1 || errs[0] != nil || errs[1] != nil || err1 != nil || err2 != nil {
			t.Errorf("%d and %d completions: %v, %v, %v", m, n, errs, err1, err2)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
