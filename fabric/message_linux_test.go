package fabric_test

import (
	"bytes"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// lengths are those at which a message goes another way, and one that takes many steps. The first
// are of every way.
var lengths = []int{0, fabric.MaxInline, fabric.MaxInline + 1, chunk + 1, 2 * chunk, 1,
	fabric.MaxInline - 1, chunk - 1, chunk, 2*chunk - 1, longest}

const (
	chunk   = 32 << 10
	longest = 4 << 20
)

// pattern is what a message of n bytes holds.
func pattern(n int) []byte {
	p := make([]byte, n)
	first := p[:min(n, 1<<16)]
	for i := range first {
		p[i] = byte(i ^ i>>8 ^ n)
	}
	for at := len(first); at < n; at += len(first) { // byte by byte it takes long
		subtle.XORBytes(p[at:], first[:min(len(first), n-at)],
			bytes.Repeat([]byte{byte(at >> 16)}, len(first)))
	}
	return p
}

// reporter is an endpoint that says to a queue or to a counter that operations have ended.
type reporter struct {
	*end
	counter *cq.Counter
	counted uint64              // before the message at hand
	seen    map[uint64]cq.Entry // of that, by context
}

func reporting(t *testing.T, name, to string, pool int) *reporter {
	t.Helper()
	if to == "queue" {
		return &reporter{end: opened(t, name, fabric.Options{Pool: pool})}
	}
	c := shmtest.Got(cq.CreateCounter(cq.Unnamed("c"), cq.CounterOptions{})).Or(t)
	d := shmtest.Got(shm.OpenDir(shmtest.Dir(t))).Or(t)
	e := shmtest.Got(fabric.Open(d, name, fabric.Options{Pool: pool,
		Counters: map[*cq.Counter]cq.Flags{c: cq.FlagSend | cq.FlagRecv}})).Or(t)
	t.Cleanup(func() { must(t, errors.Join(e.Close(), c.Close(), d.Close())) })
	return &reporter{end: &end{Endpoint: e, d: d}, counter: c}
}

// begins has nothing seen of the next message.
func (r *reporter) begins(t *testing.T) {
	t.Helper()
	if r.counter == nil {
		r.seen = map[uint64]cq.Entry{}
		return
	}
	r.counted = shmtest.Got(r.counter.Read()).Or(t)
}

// ended moves the endpoint, and reports whether so many operations have ended.
func (r *reporter) ended(t *testing.T, n int) bool {
	t.Helper()
	if r.counter != nil {
		r.steps(t)
		v := shmtest.Got(r.counter.Read()).Or(t)
		return v >= r.counted+uint64(n)
	}
	var dst [1]cq.Entry
	if k, err := cq.Read(r.q, dst[:]); k == 1 {
		r.seen[dst[0].Context] = dst[0]
	} else if !errors.Is(err, cq.ErrWouldBlock) {
		t.Fatalf("an operation: %v", err)
	}
	return len(r.seen) >= n
}

// TestLengths: messages of all lengths arrive whole, expected or not, whoever is told, sent by
// either call, from any memory or the pool, to a buffer or as a loan, between endpoints of one
// process and of two, and from one to itself: as the first one between two, and as a later one.
// After each nothing is used of chunks and pool.
func TestLengths(t *testing.T) {
	calls := []string{"send", "inject", "reference", "loan", "both"}
	for _, where := range []string{"here", "a", "mirror", "lender"} {
		var c *child
		if where != "here" && where != "a" {
			c = started(t, where)
		}
		for _, to := range []string{"queue", "counter"} {
			for i, n := range shmtest.Some(5, lengths) {
				t.Run(fmt.Sprintf("%s/%s/%d", where, to, n), func(t *testing.T) {
					p := newCourse(t, where, to, n)
					for k := range calls {
						call := calls[(i+k)%len(calls)]
						if call == "inject" && n > fabric.MaxInline || call == "reference" && n == 0 ||
							call == "both" && n == 0 || isLoan(call) && to == "counter" {
							continue
						}
						for _, expected := range []bool{i%2 == 0, i%2 != 0} {
							t.Run(fmt.Sprintf("%s/expected=%v", call, expected),
								func(t *testing.T) { p.message(t, expected, call) })
						}
					}
				})
			}
		}
		if c != nil {
			c.Stop(t)
		}
	}
}

func isLoan(call string) bool { return call == "loan" || call == "both" }

// course has messages of n bytes go from a to b, which is a if that or a process sends them there.
type course struct {
	a, b *reporter
	addr cq.Addr
	to   string
	n    int
}

func newCourse(t *testing.T, where, to string, n int) *course {
	p := &course{a: reporting(t, "a", to, n), to: to, n: n}
	p.b = p.a
	if where == "here" {
		p.b, where = reporting(t, "b", to, 0), "b"
	}
	p.addr = p.a.knows(t, where)
	return p
}

func (p *course) message(t *testing.T, expected bool, call string) {
	a, b, n := p.a, p.b, p.n
	a.begins(t)
	b.begins(t)
	sends, receives := 1, 1
	if call == "inject" && p.to == "queue" {
		sends = 0
	}
	if a == b {
		receives += sends
	}
	want, buf := pattern(n), make([]byte, n)
	payload := bytes.Clone(want)
	pooled := call == "reference" || call == "both"
	if pooled {
		payload = shmtest.Got(a.Alloc(n)).Or(t)
		copy(payload, want)
	}
	recv := func() {
		m := fabric.Msg{Buf: buf, Addr: fabric.Anybody, Context: 7}
		if isLoan(call) {
			m.Buf, m.Flags = nil, cq.FlagFrame
		}
		must(t, b.RecvMsg(&m))
	}
	if expected {
		recv()
	}
	stored := b.Stats().Stored
	if call == "inject" {
		must(t, a.Inject(payload, p.addr))
		clear(payload)
	} else {
		must(t, a.Send(payload, p.addr, 9))
	}
	for !expected && b.Stats().Stored == stored {
		_, err1 := a.Progress()
		_, err2 := b.Progress()
		must(t, errors.Join(err1, err2))
	}
	if !expected {
		recv()
	}
	for _, has := b.seen[7]; isLoan(call) && !has; _, has = b.seen[7] {
		_, _ = b.ended(t, receives), a.ended(t, sends)
	}
	flags := cq.FlagRecv | cq.FlagMsg
	if isLoan(call) {
		flags |= cq.FlagFrame
		c := b.seen[7]
		mem := shmtest.Got(b.Payload(&c)).Or(t)
		buf = bytes.Clone(mem)
		must(t, b.Release(c))
	}
	for !b.ended(t, receives) || !a.ended(t, sends) {
		_ = a.ended(t, sends)
	}
	if !bytes.Equal(buf, want) {
		t.Errorf("other bytes came")
	}
	account(t, a.end, 8, 0, 0)
	if pooled {
		poolAccount(t, a.end, n, pieces(n), 0)
		must(t, a.Free(payload))
	}
	poolAccount(t, a.end, n, 0, 0)
	if p.to == "counter" {
		return
	}
	if c := b.seen[7]; c.Len != uint64(n) || c.Flags != flags {
		t.Errorf("received %+v", c)
	}
	if c := a.seen[9]; call != "inject" && (c.Len != uint64(n) || c.Flags != cq.FlagSend|cq.FlagMsg) {
		t.Errorf("sent %+v", c)
	}
}

// lender sends back what comes from "a": it borrows the message, and sends it from its pool.
func lender() {
	e := shmtest.Needs(open("lender", fabric.Options{Pool: 2 * longest}))
	borrow := func() {
		need(e.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagFrame, Context: 1}))
	}
	borrow()
	fmt.Println("ready")
	ctx := told()
	var dst [1]cq.Entry
	for {
		_, err := cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
		switch {
		case ctx.Err() != nil:
			need(e.close())
			return
		case err == cq.ErrAvail:
			var failed cq.ErrorEntry
			need(e.q.ReadErr(&failed))
			continue
		}
		need(err)
		if dst[0].Context != 1 {
			continue
		}
		from := shmtest.Needs(e.Payload(&dst[0]))
		mem := shmtest.Needs(e.Alloc(max(len(from), 1)))
		copy(mem, from)
		borrow()
		need(e.Release(dst[0]))
		to := shmtest.Needs(e.Resolve("a"))
		need(e.SendContext(ctx, &fabric.Msg{Buf: mem[:len(from)], Addr: to, Context: 2}))
		need(e.Free(mem))
	}
}

// mirror sends back what comes from "a".
func mirror() {
	e := shmtest.Needs(open("mirror", fabric.Options{}))
	buf := make([]byte, longest)
	need(e.Recv(buf, 1))
	fmt.Println("ready")
	ctx := told()
	var dst [1]cq.Entry
	for {
		_, err := cq.ReadContext(ctx, e.q, dst[:], cq.ReadOptions{})
		switch {
		case ctx.Err() != nil:
			need(e.close())
			return
		case err == cq.ErrAvail: // the last one has closed, and did not wait
			var failed cq.ErrorEntry
			need(e.q.ReadErr(&failed))
			need(e.Recv(buf, 1))
			continue
		}
		need(err)
		if dst[0].Context != 1 {
			need(e.Recv(buf, 1))
			continue
		}
		to := shmtest.Needs(e.Resolve("a"))
		need(e.SendContext(ctx, &fabric.Msg{Buf: buf[:dst[0].Len], Addr: to, Context: 2}))
	}
}

// between is a pair of endpoints here, with a message from a to b under way: b has a part of it.
func between(t *testing.T, payload, buf []byte) (a, b *end) {
	t.Helper()
	a, b = opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	must(t, b.Recv(buf, 7))
	must(t, a.Send(payload, to, 9))
	for _, e := range []*end{b, a, b} { // asks, sends, places
		e.steps(t)
	}
	return a, b
}

// TestCloseInside: an endpoint closes in the middle of a long message. Its own operation is
// cancelled, the other's fails, and a receive says how much came.
func TestCloseInside(t *testing.T) {
	const n = 1 << 20
	for _, who := range []string{"sender", "receiver"} {
		t.Run(who, func(t *testing.T) {
			buf := make([]byte, n)
			a, b := between(t, pattern(n), buf)
			first, second := a, b
			if who == "receiver" {
				first, second = b, a
			}
			must(t, first.Close())
			for _, e := range []*end{first, second} {
				want, context, length := syscall.ECANCELED, uint64(7), uint64(0)
				if e == second {
					want = syscall.EPIPE
				}
				if e == a {
					context = 9
				}
				_, failed, err := e.next()
				if e == b {
					length = failed.Len
				}
				if err != nil || failed.Err != cq.Errno(want) || failed.Context != context ||
					failed.Len != length || failed.OverrunBytes != 0 {
					t.Errorf("%+v, %v", failed, err)
				}
				if e == b && (length == 0 || length >= n ||
					!bytes.Equal(buf[:length], pattern(n)[:length])) {
					t.Errorf("%d bytes, or others", length)
				}
			}
		})
	}
}

// TestTruncated: a message that is longer than its buffer fails the receive, and not the send,
// however it came: so much of it is there as fits.
func TestTruncated(t *testing.T) {
	for _, c := range []struct {
		bytes, fits int
		pool        bool
	}{{8, 4, false}, {1 << 20, 0, false}, {1 << 20, 1, false}, {1 << 20, 1000, false},
		{1 << 20, 100_000, false}, {chunk, 1000, true}} {
		a, b, to := poolPair(t)
		payload, buf := pattern(c.bytes), make([]byte, c.fits)
		if c.pool {
			payload = allocated(t, a, c.bytes)
		}
		must(t, errors.Join(b.Recv(buf, 7), a.Send(payload, to, 9)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan cq.ErrorEntry)
		go func() {
			_, failed, _ := b.next()
			done <- failed
			_ = b.moves(ctx)
		}()
		if s := completes(t, a); s.Len != uint64(c.bytes) {
			t.Errorf("sent %+v", s)
		}
		if f := <-done; f.Err != cq.ETrunc || f.Len != uint64(c.fits) ||
			f.OverrunBytes != uint64(c.bytes-c.fits) || !bytes.Equal(buf, pattern(c.bytes)[:c.fits]) {
			t.Errorf("%+v: %+v", c, f)
		}
		cancel()
		must(t, errors.Join(a.close(), b.close()))
	}
}

// account fails if an endpoint's chunks are not all somewhere, or not so many are used and lost.
func account(t *testing.T, e *end, all, used, lost uint64) {
	t.Helper()
	s := e.Stats()
	if s.FreeChunks+s.UsedChunks+s.LostChunks != all || s.UsedChunks != used || s.LostChunks != lost {
		t.Errorf("%d chunks are free, %d used, %d lost: want %d, of which %d and %d are so",
			s.FreeChunks, s.UsedChunks, s.LostChunks, all, used, lost)
	}
}

// TestChunksOfStanding: a peer that examines nothing has half of the chunks at most. They come back
// when it has examined what is in them, and when it is dead, but not while it may read them.
func TestChunksOfStanding(t *testing.T) {
	for _, how := range []string{"examines", "dies", "is cut off"} {
		t.Run(how, func(t *testing.T) {
			e, c, to := besideIdle(t)
			for range 6 {
				must(t, e.Send(pattern(680), to, 1))
			}
			account(t, e, 8, 4, 0)
			switch how {
			case "examines":
				shmtest.Got(c.In.Write([]byte("progress\n"))).Or(t)
				c.Says(t, "6")
				for range 4 {
					completes(t, e)
				}
				account(t, e, 8, 0, 0)
				c.Stop(t)
				return
			case "is cut off":
				of := scribble(t, e, "idle")
				of.rows[0].Owner.Store(of.claims[0].Load())
				of.rows[0].Head.Store(1 << 40)
				of.rows[0].Rev.Add(1)
				e.steps(t)
				account(t, e, 8, 0, 4)
			}
			c.Kill()
			for range 6 {
				_, failed, err := e.next()
				if err != nil || failed.Err == 0 {
					t.Errorf("%+v, %v", failed, err)
				}
			}
			for e.Stats().LostChunks > 0 { // until the death is noticed
				time.Sleep(time.Millisecond)
				e.steps(t)
			}
			for _, name := range []string{"b", "c"} {
				opened(t, name, fabric.Options{})
				to := e.knows(t, name)
				for range 4 {
					must(t, e.Send(pattern(680), to, 1))
				}
			}
			account(t, e, 8, 6, 0)
		})
	}
}

// TestLongChunks: a receiver tells of each long chunk before it copies the next one, so that both
// copy at a time, and its sender fills the one that was read longest ago.
func TestLongChunks(t *testing.T) {
	a, b := opened(t, "a", fabric.Options{Slots: 16}), opened(t, "b", fabric.Options{})
	rows, slots := scribble(t, b, "b").rows, scribble(t, a, "a").slots
	to := a.knows(t, "b")
	want, got := pattern(8*chunk), make([]byte, 8*chunk)
	must(t, b.Recv(got, 1))
	must(t, a.Send(want, to, 2))
	b.steps(t) // the header
	var filled []uint64
	for sent := 1; len(filled) < 8; sent += 4 {
		a.steps(t)
		for i := range 4 {
			filled = append(filled, slots[sent+i].More[1].Load())
		}
		told := rows[0].Rev.Load()
		b.steps(t)
		if told = rows[0].Rev.Load() - told; told != 4 {
			t.Errorf("of 4 chunks it tells %d times", told)
		}
	}
	slices.Sort(filled)
	if n := len(slices.Compact(filled)); n != 8 {
		t.Errorf("%d chunks of 8 were filled", n)
	}
	completes(t, a)
	completes(t, b)
	if !bytes.Equal(want, got) {
		t.Error("another message came")
	}
}

// TestManyAsked: a receiver asks for more messages at once than a control ring has room for.
func TestManyAsked(t *testing.T) {
	var err error
	a, b := opened(t, "a", fabric.Options{Chunks: -1}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	const most = 3 * kind.FabricControls
	for i := range most {
		for err = syscall.EAGAIN; errors.Is(err, syscall.EAGAIN); {
			if err = a.Send(pattern(300+i), to, uint64(i)); err != nil {
				_, _ = b.Progress()
			}
		}
		must(t, err)
	}
	bufs := make([][400]byte, most)
	for i := range bufs {
		must(t, b.Recv(bufs[i][:], uint64(i)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.moves(ctx) }()
	for range most {
		c := completes(t, b)
		if c.Len != 300+c.Context || !bytes.Equal(bufs[c.Context][:c.Len], pattern(int(c.Len))) {
			t.Errorf("%+v", c)
		}
	}
	cancel()
	must(t, <-done)
}

const floods = 5000

// TestBothSendFirst: two processes each send more than a window of messages before they receive.
func TestBothSendFirst(t *testing.T) {
	e := opened(t, "main", fabric.Options{})
	c := started(t, "flood")
	shmtest.Got(c.In.Write([]byte("\n"))).Or(t)
	must(t, e.floods("flood"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.moves(ctx) }()
	c.Says(t, "done")
	cancel()
	must(t, <-done)
	c.Stop(t)
}

func flood() {
	e := shmtest.Needs(open("flood", fabric.Options{}))
	fmt.Println("ready")
	var line string
	_, _ = fmt.Scanln(&line)
	need(e.floods("main"))
	fmt.Println("done")
	ctx := told()
	need(e.moves(ctx))
	need(e.close())
}

// floods sends messages, and receives as many afterwards.
func (e *end) floods(other string) error {
	to, err := e.Resolve(other)
	if err != nil {
		return err
	}
	for i := range floods {
		text := fmt.Appendf(nil, "message %d", i)
		for err = e.Inject(text, to); errors.Is(err, syscall.EAGAIN); err = e.Inject(text, to) {
			_, _ = e.Progress()
		}
		if err != nil {
			return err
		}
	}
	for i := range floods {
		var buf [32]byte
		if err := e.Recv(buf[:], uint64(i)); err != nil {
			return err
		}
		c, failed, err := e.next()
		if want := fmt.Sprintf("message %d", i); err != nil || failed.Err != 0 ||
			string(buf[:c.Len]) != want {
			return fmt.Errorf("%q came in place of %q: %v, %w", buf[:c.Len], want, failed.Err, err)
		}
	}
	return nil
}
