package endpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/endpoint"
)

// newPosted is a pair of which b receives into posted buffers.
func newPosted(t testing.TB, change func(c *endpoint.Config)) (a, b *side) {
	t.Helper()
	return newPostedOf(t, 0, change)
}

// newPostedOf is newPosted with queues of that size.
func newPostedOf(t testing.TB, size int, change func(c *endpoint.Config)) (a, b *side) {
	t.Helper()
	return newPair(t, func(o *options) {
		if o.self != addrB {
			return
		}
		o.queue.Size = size
		o.config = func(c *endpoint.Config) {
			if c.Posted = true; change != nil {
				change(c)
			}
		}
	})
}

func (s *side) say(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		must(t, s.Inject([]byte(w), s.peer))
	}
}

func TestPostedInOrder(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPosted(t, nil)
	bufs := make([][]byte, 10)
	for i := range bufs {
		bufs[i] = make([]byte, 16)
		must(t, b.Recv(bufs[i], uint64(i)))
	}
	for i := range 12 {
		a.say(t, fmt.Sprintf("message %d", i))
	}
	b.drive(t)
	for i, e := range b.read(t) {
		want := fmt.Sprintf("message %d", i)
		if e.Context != uint64(i) || e.Flags != cq.FlagRecv|cq.FlagMsg || e.Src.Addr() != b.peer ||
			string(bufs[i][:e.Len]) != want {
			t.Errorf("%+v with %q, want %q", e, bufs[i][:e.Len], want)
		}
	}
	// Two wait for buffers; nothing was dropped.
	if s := b.Stats(); s.Received != 10 || s.NoBuffer == 0 {
		t.Errorf("%+v", s)
	}
	must(t, b.Recv(bufs[0], 10))
	must(t, b.Recv(bufs[1], 11))
	b.drive(t)
	if es := b.read(t); len(es) != 2 || string(bufs[1][:10]) != "message 11" {
		t.Errorf("%+v, %q", es, bufs[1])
	}
}

func TestPostedScatter(t *testing.T) {
	a, b := newPosted(t, nil)
	iov := [][]byte{make([]byte, 2), nil, make([]byte, 1), make([]byte, 9)}
	first := make([]byte, 3)
	must(t, b.RecvMsg(&endpoint.Msg{Buf: first, Iov: iov}))
	a.say(t, "abcdefgh")
	if e := b.one(t); e.Len != 8 {
		t.Errorf("%+v", e)
	}
	got := string(first) + "|" + string(bytes.Join(iov, []byte("|")))
	if got != "abc|de||f|gh\x00\x00\x00\x00\x00\x00\x00" {
		t.Errorf("%q", got)
	}
	if err := b.RecvMsg(&endpoint.Msg{Iov: make([][]byte, 9)}); err != endpoint.ErrPieces {
		t.Errorf("nine pieces: %v", err)
	}
}

func TestPostedTruncation(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPosted(t, nil)
	small, large := make([]byte, 4), make([]byte, 40)
	must(t, b.Recv(small, 1))
	must(t, b.Recv(nil, 2))
	must(t, b.Recv(large, 3))
	a.say(t, "too long", "x", "fits")
	b.drive(t)
	e := b.readErr(t)
	if e.Context != 1 || e.Err != cq.ETrunc || e.Len != 4 || e.OverrunBytes != 4 ||
		e.Flags&cq.FlagRecv == 0 || e.Src.Addr() != b.peer || string(small) != "too " {
		t.Errorf("%+v, %q", e, small)
	}
	if e := b.readErr(t); e.Context != 2 || e.Len != 0 || e.OverrunBytes != 1 {
		t.Errorf("%+v", e)
	}
	if es := b.read(t); len(es) != 1 || es[0].Context != 3 || string(large[:4]) != "fits" {
		t.Errorf("%+v, %q", es, large)
	}
}

// TestMultiRecv: several messages into one buffer, in both styles.
func TestMultiRecv(t *testing.T) {
	shmtest.Conforms(t)
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone=%v", alone), func(t *testing.T) {
			a, b := newPosted(t, func(c *endpoint.Config) {
				c.ReleaseAlone, c.MinMultiRecv = alone, 10
			})
			const base = 7000
			bufs := [2][]byte{make([]byte, 40), make([]byte, 40)}
			for i := range bufs {
				must(t, b.RecvMsg(&endpoint.Msg{Buf: bufs[i], Context: uint64(i), Base: base,
					Flags: cq.FlagMultiRecv}))
			}
			a.say(t, strings.Repeat("a", 15), strings.Repeat("b", 16), "c")
			b.drive(t)
			var got []string
			for _, e := range b.read(t) {
				at := uint64(e.Buf) - base
				got = append(got, fmt.Sprintf("%d %v %s", e.Context, e.Flags,
					bufs[e.Context][at:at+e.Len]))
			}
			want := []string{"0 MSG|RECV aaaaaaaaaaaaaaa",
				"0 MSG|RECV|MULTI_RECV bbbbbbbbbbbbbbbb", "1 MSG|RECV c"}
			if alone {
				want = []string{want[0], "0 MSG|RECV bbbbbbbbbbbbbbbb", "0 MULTI_RECV ", want[2]}
			}
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// TestMultiRecvRest: a message that does not fit the rest of a buffer goes to the next one; one
// that fits no buffer is truncated.
func TestMultiRecvRest(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPosted(t, func(c *endpoint.Config) { c.MinMultiRecv = 4 })
	one, two := make([]byte, 20), make([]byte, 20)
	multi := func(buf []byte, context uint64) {
		must(t, b.RecvMsg(&endpoint.Msg{Buf: buf, Context: context, Flags: cq.FlagMultiRecv}))
	}
	multi(one, 1)
	a.say(t, "0123456789", "abcdefghijkl")
	b.drive(t)
	es := b.read(t)
	if len(es) != 2 || es[1].Flags != cq.FlagMultiRecv || es[1].Context != 1 || es[1].Len != 0 {
		t.Fatalf("%+v", es)
	}
	multi(two, 2) // what did not fit has waited
	a.say(t, strings.Repeat("z", 30))
	multi(one, 3)
	b.drive(t)
	es = b.read(t)
	if len(es) != 2 || es[0].Context != 2 || string(two[:12]) != "abcdefghijkl" ||
		es[1].Flags != cq.FlagMultiRecv || es[1].Context != 2 {
		t.Fatalf("%+v, %q", es, two)
	}
	e := b.readErr(t)
	if e.Context != 3 || e.Err != cq.ETrunc || e.Len != 20 || e.OverrunBytes != 10 ||
		e.Flags&cq.FlagMultiRecv == 0 {
		t.Errorf("%+v", e)
	}
	for _, m := range []endpoint.Msg{{Buf: make([]byte, 3)}, {Buf: one, Iov: [][]byte{two}}} {
		m.Flags = cq.FlagMultiRecv
		if err := b.RecvMsg(&m); err != endpoint.ErrFlags {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// TestMultiRecvRoom: messages wait when the queue is full, and the release always has room.
func TestMultiRecvRoom(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPostedOf(t, 4, nil)
	buf := make([]byte, 64+10*8)
	must(t, b.RecvMsg(&endpoint.Msg{Buf: buf, Context: 1, Flags: cq.FlagMultiRecv}))
	for range 11 {
		a.say(t, "12345678")
	}
	got, released := 0, false
	for range 20 {
		shmtest.Got(b.Progress()).Or(t)
		for _, e := range b.read(t) {
			got++
			released = released || e.Flags&cq.FlagMultiRecv != 0
		}
		if got == 0 {
			t.Fatal("nothing comes")
		}
	}
	if got != 11 || !released || b.Stats().RxBlocked == 0 {
		t.Errorf("%d messages, released %v: %+v", got, released, b.Stats())
	}
}

// TestMultiRecvNeverStuck: posting all that the queue takes leaves room for messages.
func TestMultiRecvNeverStuck(t *testing.T) {
	a, b := newPostedOf(t, 8, nil)
	var err error
	for i := uint64(0); err == nil; i++ {
		err = b.RecvMsg(&endpoint.Msg{Buf: make([]byte, 1000), Context: i,
			Flags: cq.FlagMultiRecv * cq.Flags(i&1)})
	}
	if err != cq.ErrFull || b.rx.Credits().Len() != 7 {
		t.Errorf("%v after %d", err, b.rx.Credits().Len())
	}
	for range 20 {
		a.say(t, "message")
	}
	got := 0
	for range 40 {
		shmtest.Got(b.Progress()).Or(t)
		got += len(b.read(t))
	}
	if got != 20 {
		t.Errorf("%d of 20 came", got)
	}
}

func TestCancel(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPosted(t, nil)
	buf := make([]byte, 200)
	for i := range uint64(3) {
		must(t, b.Recv(buf, i))
	}
	must(t, b.RecvMsg(&endpoint.Msg{Buf: buf, Context: 3, Flags: cq.FlagMultiRecv}))
	must(t, b.Cancel(1))
	if err := b.Cancel(1); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("twice: %v", err)
	}
	e := b.readErr(t)
	if e.Context != 1 || !errors.Is(&e, syscall.ECANCELED) || e.Flags&cq.FlagRecv == 0 {
		t.Errorf("%+v", e)
	}
	a.say(t, "x", "y", "z")
	b.drive(t)
	es := b.read(t)
	if len(es) != 3 || es[0].Context != 0 || es[1].Context != 2 || es[2].Context != 3 {
		t.Errorf("%+v", es)
	}
	must(t, b.Cancel(3))
	if e := b.readErr(t); e.Context != 3 || e.Flags&cq.FlagMultiRecv == 0 {
		t.Errorf("%+v", e)
	}
	if b.rx.Credits().Len() != 0 {
		t.Errorf("%d credits are left", b.rx.Credits().Len())
	}
}

// TestPostedClose: every buffer is answered, oldest first.
func TestPostedClose(t *testing.T) {
	a, b := newPosted(t, nil)
	for i := range uint64(40) {
		must(t, b.Recv(make([]byte, 8), i))
	}
	a.say(t, "x", "y")
	b.drive(t)
	must(t, b.Close())
	if es := b.read(t); len(es) != 2 {
		t.Fatalf("%+v", es)
	}
	for i := range uint64(38) {
		if e := b.readErr(t); e.Context != i+2 || e.Err != cq.Errno(syscall.ECANCELED) {
			t.Fatalf("%+v", e)
		}
	}
	if err := b.Recv(nil, 1); !errors.Is(err, syscall.EBADF) && err == nil {
		t.Errorf("after Close: %v", err)
	}
}

// TestPostedCredits: buffers are refused when their completions would find no room.
func TestPostedCredits(t *testing.T) {
	shmtest.Conforms(t)
	a, b := newPostedOf(t, 8, nil)
	buf := make([]byte, 8)
	for i := range uint64(8) {
		must(t, b.Recv(buf, i))
	}
	if err := b.Recv(buf, 8); err != cq.ErrFull {
		t.Errorf("a ninth: %v", err)
	}
	a.say(t, "1", "2", "3", "4", "5", "6", "7", "8", "9")
	b.drive(t)
	if err := b.Recv(buf, 8); err != cq.ErrFull {
		t.Errorf("before anything was read: %v", err)
	}
	if es := b.read(t); len(es) != 8 {
		t.Errorf("%d completions", len(es))
	}
	must(t, b.Recv(buf, 8))
	if e := b.one(t); e.Context != 8 {
		t.Errorf("%+v", e)
	}
}

func TestPostedSelective(t *testing.T) {
	shmtest.Conforms(t)
	counter := shmtest.Have(cq.CreateCounter(cq.Unnamed("received"), cq.CounterOptions{})).In(t)
	a, b := newPosted(t, func(c *endpoint.Config) {
		c.Selective = cq.FlagRecv
		c.Counters = map[*cq.Counter]cq.Flags{counter: cq.FlagRecv}
	})
	buf := make([]byte, 4)
	must(t, b.Recv(buf, 1))
	must(t, b.RecvMsg(&endpoint.Msg{Buf: buf, Context: 2, Flags: cq.FlagCompletion}))
	must(t, b.Recv(buf, 3))
	a.say(t, "a", "b", "long one")
	b.drive(t)
	if es := b.read(t); len(es) != 1 || es[0].Context != 2 {
		t.Errorf("%+v", es)
	}
	if e := b.readErr(t); e.Context != 3 || e.Err != cq.ETrunc {
		t.Errorf("%+v", e)
	}
	n, _ := counter.Read()
	failed, _ := counter.ReadErr()
	if n != 2 || failed != 1 {
		t.Errorf("counted %d and %d", n, failed)
	}
}

func TestPostedUnsupported(t *testing.T) {
	a, b := newPosted(t, nil)
	if err := a.Recv(nil, 0); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("without Posted: %v", err)
	}
	if err := b.RecvMsg(&endpoint.Msg{Flags: cq.FlagPeek}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an unknown flag: %v", err)
	}
}
