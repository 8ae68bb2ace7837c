package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// pair is two endpoints, and the numbers that they have for each other.
func pair(t testing.TB, o fabric.Options) (a, b *end, to, from cq.Addr) {
	t.Helper()
	a, b = opened(t, "a", fabric.Options{}), opened(t, "b", o)
	to = a.knows(t, "b")
	from = shmtest.Got(b.Insert(a.Address())).Or(t)
	return a, b, to, from
}

// says sends a message with a tag, of which nobody hears again, and has it examined.
func (e *end) says(t testing.TB, to *end, addr cq.Addr, tag uint64, text string) {
	t.Helper()
	must(t, e.SendMsg(&fabric.Msg{Buf: []byte(text), Addr: addr, Tag: tag,
		Flags: cq.FlagTagged | cq.FlagInjectCall}))
	to.steps(t)
}

// fails waits for an error entry.
func fails(t testing.TB, e *end) cq.ErrorEntry {
	t.Helper()
	c, failed, err := e.next()
	if err != nil || failed.Err == 0 {
		t.Fatalf("no error entry: %+v, %v", c, err)
	}
	return failed
}

// TestTagged: a message gets the receive that its tag and its sender are for, expected or not, and
// both sides are told of tag and data.
func TestTagged(t *testing.T) {
	shmtest.Conforms(t)
	const tag = 0xfedcba9876543210
	for _, c := range []struct {
		name        string
		tag, ignore uint64
		anybody     bool
		matches     bool
	}{
		{"exact", tag, 0, false, true},
		{"from anybody", tag, 0, true, true},
		{"some bits", tag ^ 0xff00, 0xff00, false, true},
		{"any tag", 7, ^uint64(0), true, true},
		{"another", tag ^ 1<<63, 0, true, false},
		{"another bit", tag ^ 0x1ff00, 0xff00, false, false},
	} {
		for _, expected := range []bool{true, false} {
			for _, data := range []cq.Flags{0, cq.FlagRemoteCQData} {
				t.Run(fmt.Sprintf("%s/%v/%v", c.name, expected, data != 0), func(t *testing.T) {
					a, b, to, from := pair(t, fabric.Options{})
					var plain, buf [8]byte
					must(t, b.Recv(plain[:], 1)) // has no tag, and gets nothing
					src := from
					if c.anybody {
						src = fabric.Anybody
					}
					post := func() { must(t, b.TRecv(buf[:], src, c.tag, c.ignore, 2)) }
					if expected {
						post()
					}
					must(t, a.SendMsg(&fabric.Msg{Iov: [][]byte{[]byte("te"), nil, []byte("xt")},
						Addr: to, Tag: tag, Context: 3, Data: 5, Flags: cq.FlagTagged | data}))
					b.steps(t)
					if !expected {
						post()
					}
					if s := completes(t, a); s.Context != 3 || s.Flags != cq.FlagSend|cq.FlagTagged ||
						s.Len != 4 {
						t.Errorf("sent %+v", s)
					}
					if !c.matches {
						if s := b.Stats(); s.Waiting != 1 || s.Received != 0 {
							t.Errorf("%+v", s)
						}
						return
					}
					r := completes(t, b)
					if r.Context != 2 || r.Flags != cq.FlagRecv|cq.FlagTagged|data || r.Tag != tag ||
						r.Data != uint64(data/cq.FlagRemoteCQData*5) || r.Src.Addr() != from ||
						string(buf[:r.Len]) != "text" {
						t.Errorf("received %+v, %q", r, buf)
					}
				})
			}
		}
	}
}

// TestOtherTagFirst: a receiver that wants what was sent last gets it, though all that was sent
// before has no receive.
func TestOtherTagFirst(t *testing.T) {
	shmtest.Conforms(t)
	a, b, to, _ := pair(t, fabric.Options{})
	done := make(chan error)
	go func() {
		var errs [65]error
		for i := range errs {
			errs[i] = a.SendContext(t.Context(), &fabric.Msg{Buf: []byte{byte(i)}, Addr: to,
				Tag: 1 + uint64(i/64), Flags: cq.FlagTagged | cq.FlagInjectCall})
		}
		done <- errors.Join(errs[:]...)
	}()
	var buf [1]byte
	must(t, b.TRecv(buf[:], fabric.Anybody, 2, 0, 7))
	if c := completes(t, b); c.Context != 7 || buf[0] != 64 {
		t.Errorf("%+v, %v", c, buf)
	}
	must(t, <-done)
	for i := range byte(64) {
		must(t, b.TRecv(buf[:], fabric.Anybody, 1, 0, uint64(i)))
		if c := completes(t, b); c.Context != uint64(i) || buf[0] != i {
			t.Errorf("message %d: %+v, %v", i, c, buf)
		}
	}
}

// TestSentBeforeKnown: what was sent before the receiver had looked at its sender for the first
// time is there under its tag, though that has ended, and under the name that it gets later.
func TestSentBeforeKnown(t *testing.T) {
	a, b := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	for tag := range uint64(3) {
		must(t, a.SendMsg(&fabric.Msg{Buf: []byte{byte(tag)}, Addr: to, Tag: tag,
			Flags: cq.FlagTagged | cq.FlagInjectCall}))
	}
	address := a.Address()
	must(t, a.close())
	b.steps(t)
	from := shmtest.Got(b.Insert(address)).Or(t)
	for _, tag := range []uint64{2, 0, 1} {
		var buf [1]byte
		must(t, b.TRecv(buf[:], from, tag, 0, tag))
		if c := completes(t, b); c.Context != tag || buf[0] != byte(tag) || c.Src.Addr() != from {
			t.Errorf("tag %d: %+v, %v", tag, c, buf)
		}
	}
}

// TestPeek: a message is looked for, kept for one receive, or dropped.
func TestPeek(t *testing.T) {
	shmtest.Conforms(t)
	a, b, to, from := pair(t, fabric.Options{})
	const tagged = cq.FlagTagged
	look := func(flags cq.Flags, tag uint64) error {
		return b.RecvMsg(&fabric.Msg{Addr: from, Tag: tag, Context: tag, Flags: tagged | flags})
	}
	none := func(flags cq.Flags, tag uint64) {
		t.Helper()
		must(t, look(flags, tag))
		if e := fails(t, b); e.Err != cq.Errno(syscall.ENOMSG) || e.Tag != tag || e.Context != tag ||
			e.Flags != cq.FlagRecv|tagged {
			t.Errorf("%v: %+v", flags, e)
		}
	}
	found := func(flags cq.Flags, tag uint64) {
		t.Helper()
		must(t, look(flags, tag))
		if c := completes(t, b); c.Len != tag || c.Tag != tag || c.Src.Addr() != from ||
			c.Context != tag || c.Flags != cq.FlagRecv|tagged {
			t.Errorf("%v: %+v", flags, c)
		}
	}
	received := func(flags cq.Flags, tag uint64) {
		t.Helper()
		buf := make([]byte, 32)
		must(t, b.RecvMsg(&fabric.Msg{Buf: buf, Addr: from, Tag: tag, Context: tag,
			Flags: tagged | flags}))
		want := strings.Repeat("x", int(tag))
		if c := completes(t, b); string(buf[:c.Len]) != want || c.Tag != tag ||
			c.Flags != cq.FlagRecv|tagged {
			t.Errorf("%+v, %q", c, buf[:c.Len])
		}
	}
	none(cq.FlagPeek, 1)
	none(cq.FlagPeek|cq.FlagClaim, 1)
	none(cq.FlagPeek|cq.FlagDiscard, 1)
	for tag := uint64(1); tag <= 10; tag++ { // not examined: that is the peek's part
		must(t, a.SendContext(t.Context(), &fabric.Msg{Addr: to, Tag: tag,
			Buf: []byte(strings.Repeat("x", int(tag))), Flags: tagged | cq.FlagInjectCall}))
		if tag == 5 {
			found(cq.FlagPeek, 5)
		}
	}
	found(cq.FlagPeek, 1)
	received(0, 1)
	found(cq.FlagPeek|cq.FlagClaim, 2)
	none(cq.FlagPeek, 2) // only its claim gets it
	received(cq.FlagClaim, 2)
	if err := look(cq.FlagClaim, 2); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("claimed twice: %v", err)
	}
	found(cq.FlagPeek|cq.FlagDiscard, 3)
	none(cq.FlagPeek, 3)
	found(cq.FlagPeek|cq.FlagClaim, 4)
	found(cq.FlagClaim|cq.FlagDiscard, 4)
	if err := look(cq.FlagClaim|cq.FlagDiscard, 4); !errors.Is(err, fabric.ErrNotFound) {
		t.Errorf("dropped twice: %v", err)
	}
	for _, tag := range []uint64{5, 6, 10, 9, 8, 7} {
		received(0, tag)
	}
	if s := b.Stats(); s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

// TestDropped: what is dropped or claimed makes room for its sender when it goes, and not before.
func TestDropped(t *testing.T) {
	a, b, to, _ := pair(t, fabric.Options{Window: 4096})
	any := fabric.Msg{Addr: fabric.Anybody, Ignore: ^uint64(0), Flags: cq.FlagTagged}
	for range 1000 {
		a.says(t, b, to, 1, "message")
		for _, flags := range []cq.Flags{cq.FlagPeek | cq.FlagClaim, cq.FlagClaim | cq.FlagDiscard} {
			any.Flags = cq.FlagTagged | flags
			must(t, b.RecvMsg(&any))
			completes(t, b)
		}
	}
}

// TestClaimNoAllocation: a message that is claimed takes no memory that is not the next one's.
func TestClaimNoAllocation(t *testing.T) {
	if shmtest.Race {
		t.Skip("the race detector allocates")
	}
	a, b, to, _ := pair(t, fabric.Options{})
	m := fabric.Msg{Addr: fabric.Anybody}
	var dst [4]cq.Entry
	if n := testing.AllocsPerRun(1000, func() {
		errs := [3]error{a.Inject(nil, to)}
		m.Flags = cq.FlagPeek | cq.FlagClaim
		errs[1] = b.RecvMsg(&m)
		m.Flags = cq.FlagClaim
		errs[2] = b.RecvMsg(&m)
		if n, err := cq.Read(b.q, dst[:]); n != 2 || err != nil || errs != [3]error{} {
			t.Errorf("%d completions: %v, %v", n, errs, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}

// TestReceiveFlags: what cannot be is an error of the call, and reserves nothing.
func TestReceiveFlags(t *testing.T) {
	_, b, _, _ := pair(t, fabric.Options{})
	buf := make([]byte, 64)
	for _, m := range []fabric.Msg{
		{Flags: cq.FlagFence},
		{Flags: cq.FlagDiscard},
		{Flags: cq.FlagPeek | cq.FlagClaim | cq.FlagDiscard},
		{Flags: cq.FlagPeek | cq.FlagMultiRecv, Buf: buf},
		{Flags: cq.FlagMultiRecv, Buf: buf[:63]},
		{Flags: cq.FlagMultiRecv, Buf: buf, Iov: [][]byte{buf}},
	} {
		if err := b.RecvMsg(&m); !errors.Is(err, fabric.ErrFlags) {
			t.Errorf("%v: %v", m.Flags, err)
		}
	}
	if err := b.TRecv(buf, 99, 1, 0, 1); !errors.Is(err, fabric.ErrAddress) {
		t.Errorf("no such number: %v", err)
	}
	if err := b.SendMsg(&fabric.Msg{Flags: cq.FlagPeek}); !errors.Is(err, fabric.ErrFlags) {
		t.Errorf("a send that peeks: %v", err)
	}
	for _, level := range []cq.Flags{cq.FlagCommitComplete} {
		err := b.SendMsg(&fabric.Msg{Flags: level})
		if !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%v: %v", level, err)
		}
	}
	if n := b.w.Credits().Len(); n != 0 {
		t.Errorf("%d credits", n)
	}
}

// TestCancel: a receive that has no message ends with ECANCELED, once, and its successor gets what
// comes; one that has one is not there.
func TestCancel(t *testing.T) {
	shmtest.Conforms(t)
	a, b, to, from := pair(t, fabric.Options{})
	var buf [3][8]byte
	for i := range buf {
		must(t, b.TRecv(buf[i][:], from, 5, 0, uint64(i)))
	}
	must(t, b.Cancel(0))
	if err := b.Cancel(0); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("twice: %v", err)
	}
	if e := fails(t, b); e.Context != 0 || !errors.Is(&e, syscall.ECANCELED) ||
		e.Flags != cq.FlagRecv|cq.FlagTagged || e.Tag != 5 {
		t.Errorf("%+v", e)
	}
	a.says(t, b, to, 5, "message")
	if err := b.Cancel(1); !errors.Is(err, fabric.ErrNotFound) {
		t.Errorf("matched, and not read: %v", err)
	}
	if c := completes(t, b); c.Context != 1 || string(buf[1][:c.Len]) != "message" {
		t.Errorf("%+v", c)
	}
	must(t, b.Cancel(2))
	fails(t, b)
	if n := b.w.Credits().Len(); n != 0 {
		t.Errorf("%d credits are left", n)
	}
}

// TestMultiRecv: one buffer takes messages until it is full, waits when there is no room to tell of
// them, and is given back behind the last, in both styles.
func TestMultiRecv(t *testing.T) {
	shmtest.Conforms(t)
	for _, alone := range []bool{false, true} {
		for _, tagged := range []cq.Flags{0, cq.FlagTagged} {
			for _, expected := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%v/%v", alone, tagged, expected), func(t *testing.T) {
					a, b, to, from := pair(t, fabric.Options{ReleaseAlone: alone, MinMultiRecv: 10})
					const base, n = 7000, 5
					buf := make([]byte, n*12)
					post := func() {
						must(t, b.RecvMsg(&fabric.Msg{Buf: buf, Addr: from, Context: 9, Base: base,
							Ignore: ^uint64(0), Flags: tagged | cq.FlagMultiRecv}))
					}
					if expected {
						post()
					}
					for i := range n + 1 {
						must(t, a.SendContext(t.Context(), &fabric.Msg{Addr: to, Tag: uint64(i),
							Buf: fmt.Appendf(nil, "message %4d", i), Flags: tagged | cq.FlagInjectCall}))
						b.steps(t)
					}
					if !expected {
						post()
					}
					for i := range n {
						c := completes(t, b)
						at := uint64(c.Buf) - base
						if c.Context != 9 || at != uint64(12*i) ||
							string(buf[at:at+c.Len]) != fmt.Sprintf("message %4d", i) ||
							c.Flags&cq.FlagMultiRecv != 0 != (!alone && i == n-1) {
							t.Errorf("message %d: %+v", i, c)
						}
					}
					if alone {
						if c := completes(t, b); c.Flags != cq.FlagMultiRecv || c.Context != 9 {
							t.Errorf("%+v", c)
						}
					}
					if s := b.Stats(); s.Waiting != 1 || b.w.Credits().Len() != 0 {
						t.Errorf("%+v, %d credits", s, b.w.Credits().Len())
					}
				})
			}
		}
	}
}

// TestSelective: receives that succeed complete if they ask, and are counted.
func TestSelective(t *testing.T) {
	a, b, to, from := pair(t, fabric.Options{Selective: cq.FlagRecv | cq.FlagTransmit})
	var buf [8]byte
	for i := range uint64(4) {
		must(t, b.RecvMsg(&fabric.Msg{Buf: buf[:], Addr: from, Tag: i, Context: i,
			Flags: cq.FlagTagged | cq.FlagCompletion*cq.Flags(i&1)}))
		a.says(t, b, to, i, "x")
	}
	for _, want := range []uint64{1, 3} {
		if c := completes(t, b); c.Context != want {
			t.Errorf("%+v", c)
		}
	}
	must(t, b.TSend(nil, from, 1, 7))
	must(t, b.SendMsg(&fabric.Msg{Addr: from, Context: 8, Flags: cq.FlagTransmitComplete}))
	a.steps(t)
	if c := completes(t, b); c.Context != 8 {
		t.Errorf("%+v", c)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := cq.ReadContext(ctx, b.q, make([]cq.Entry, 1), cq.ReadOptions{}); n != 0 {
		t.Errorf("%d more, %v", n, err)
	}
	if s := b.Stats(); s.Received != 4 {
		t.Errorf("%+v", s)
	}
}

// TestBuffered: messages without a receive are told of, in order, as far as there is room; their
// beginning is there, and they wait for a claim, or are dropped by one. Others are not, and no
// receive of theirs says that it claimed.
func TestBuffered(t *testing.T) {
	shmtest.Conforms(t)
	const limit = 10
	texts := []string{"short", "0123456789", "longer than that", "", "the fifth", "the sixth"}
	send := func(t *testing.T, o fabric.Options) *end {
		a, b := opened(t, "a", fabric.Options{}), openedSized(t, "b", 4, o)
		to := a.knows(t, "b")
		for _, text := range texts {
			must(t, a.Inject([]byte(text), to))
		}
		b.steps(t)
		return b
	}
	t.Run("told", func(t *testing.T) {
		b := send(t, fabric.Options{Buffered: limit, Selective: cq.FlagRecv})
		told := make([]uint64, len(texts))
		for i, text := range texts {
			c := completes(t, b)
			more := cq.FlagMore
			if len(text) <= limit {
				more = 0
			}
			if c.Flags != cq.FlagRecv|cq.FlagMsg|more || c.Len != uint64(len(text)) {
				t.Errorf("%+v of %q", c, text)
			}
			here, err := b.Buffered(c.Context)
			if err != nil || string(here) != text[:min(len(text), limit)] {
				t.Errorf("%q, %v of %q", here, err, text)
			}
			told[i] = c.Context
		}
		for i := len(told) - 1; i >= 0; i-- { // in any order
			var buf [32]byte
			m := fabric.Msg{Buf: buf[:], Message: told[i], Context: 77,
				Flags: cq.FlagClaim | cq.FlagCompletion}
			want := texts[i]
			if i%2 == 1 {
				m.Flags |= cq.FlagDiscard
				want = ""
			}
			must(t, b.RecvMsg(&m))
			c := completes(t, b)
			if c.Flags != cq.FlagRecv|cq.FlagMsg|cq.FlagClaim || c.Context != 77 ||
				c.Len != uint64(len(texts[i])) || string(buf[:len(want)]) != want {
				t.Errorf("%+v, %q of %q", c, buf, texts[i])
			}
			if err := b.RecvMsg(&m); !errors.Is(err, fabric.ErrNotFound) {
				t.Errorf("again: %v", err)
			}
			if _, err := b.Buffered(told[i]); !errors.Is(err, fabric.ErrNotFound) {
				t.Errorf("its bytes: %v", err)
			}
		}
	})
	t.Run("beside a buffer for several", func(t *testing.T) { // whose messages take all the room
		a := opened(t, "a", fabric.Options{Slots: 16})
		b := openedSized(t, "b", 4, fabric.Options{Buffered: limit, ReleaseAlone: true})
		to := a.knows(t, "b")
		must(t, b.RecvMsg(&fabric.Msg{Buf: make([]byte, 64), Addr: fabric.Anybody, Context: 9,
			Flags: cq.FlagTagged | cq.FlagMultiRecv}))
		for range 3 {
			must(t, a.SendMsg(&fabric.Msg{Addr: to, Flags: cq.FlagTagged | cq.FlagInjectCall}))
		}
		must(t, a.Inject(nil, to))
		for _, want := range []uint64{9, 9, 9, 1} {
			if c := completes(t, b); c.Context != want {
				t.Errorf("%+v, want %d", c, want)
			}
		}
	})
	t.Run("long", func(t *testing.T) {
		a, b, to, _ := pair(t, fabric.Options{Buffered: limit})
		want := strings.Repeat("0123456789", 10000)
		must(t, a.Send([]byte(want), to, 1))
		c := completes(t, b) // of the header: none of the bytes are here
		if here, err := b.Buffered(c.Context); err != nil || len(here) != 0 ||
			c.Len != uint64(len(want)) || c.Flags != cq.FlagRecv|cq.FlagMsg|cq.FlagMore {
			t.Errorf("%q, %v of %+v", here, err, c)
		}
		buf := make([]byte, len(want))
		must(t, b.RecvMsg(&fabric.Msg{Buf: buf, Message: c.Context, Flags: cq.FlagClaim}))
		done := make(chan cq.Entry)
		go func() {
			c, _, _ := a.next()
			done <- c
		}()
		if c := completes(t, b); c.Flags != cq.FlagRecv|cq.FlagMsg|cq.FlagClaim ||
			string(buf) != want {
			t.Errorf("%+v, %q", c, buf)
		}
		if c := <-done; c.Context != 1 {
			t.Errorf("%+v", c)
		}
	})
	t.Run("not-told", func(t *testing.T) {
		b := send(t, fabric.Options{})
		for i, text := range texts {
			var buf [32]byte
			must(t, b.Recv(buf[:], uint64(i)))
			if c := completes(t, b); c.Context != uint64(i) || c.Flags != cq.FlagRecv|cq.FlagMsg ||
				string(buf[:c.Len]) != text {
				t.Errorf("%+v, %q", c, buf)
			}
		}
	})
}

// TestLevels: a send completes when its receiver has examined it, whoever receives it, and no
// earlier; the receiver's completion says that the data is there, whatever the sender asked for.
func TestLevels(t *testing.T) {
	shmtest.Conforms(t)
	for _, level := range []cq.Flags{0, cq.FlagInjectComplete, cq.FlagTransmitComplete} {
		t.Run(level.String(), func(t *testing.T) {
			a, b, to, _ := pair(t, fabric.Options{})
			payload := []byte("payload")
			must(t, a.SendMsg(&fabric.Msg{Buf: payload, Addr: to, Flags: level}))
			copy(payload, "another") // a short one was copied
			var dst [1]cq.Entry
			if n, err := cq.Read(a.q, dst[:]); n != 0 || err != cq.ErrWouldBlock {
				t.Errorf("before: %d, %v", n, err)
			}
			b.steps(t)
			completes(t, a)
			var buf [8]byte
			must(t, b.Recv(buf[:], 1))
			if c := completes(t, b); string(buf[:c.Len]) != "payload" {
				t.Errorf("%+v, %q", c, buf)
			}
		})
	}
}
