package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// matcher is a receiver, and a plain list of what it must have done.
type matcher struct {
	t        *testing.T
	r        *rand.Rand
	e        *end
	from     []*end
	to       []cq.Addr // it, as its senders know it
	addr     []cq.Addr // they, as it knows them
	posted   []*posting
	stored   []message
	claimed  map[uint64]message
	want     []string
	got      []string
	contexts uint64
	late     bool // what happens may be reported later, and in another order
	most     int  // bytes of a message
	messages int
	bufs     map[uint64][]byte // by context
	looks    map[uint64]bool   // those that receive nothing
	ended    map[uint64]bool   // those that were given back
	pool     int               // of senders: some messages go by reference, and some are lent
	loans    []cq.Entry
}

type message struct {
	fabric.Msg // Addr: whom it is from, as the receiver has it
	id         int
}

type posting struct {
	fabric.Msg
	used int
}

// takes says by the words of the manual whether a message is for a receive.
func (p *posting) takes(m *message) bool {
	if p.Addr != fabric.Anybody && p.Addr != m.Addr || (p.Flags^m.Flags)&cq.FlagTagged != 0 {
		return false
	}
	return p.Flags&cq.FlagTagged == 0 || p.Tag|p.Ignore == m.Tag|p.Ignore
}

func (m *matcher) expect(format string, args ...any) {
	m.want = append(m.want, fmt.Sprintf(format, args...))
}

// give is what happens to a message that meets a receive. It reports whether that took it, and
// whether it is over.
func (m *matcher) give(p *posting, msg *message) (taken, over bool) {
	left := len(p.Buf) - p.used
	if p.Flags&cq.FlagFrame != 0 {
		left = len(msg.Buf)
	}
	multi := p.Flags&cq.FlagMultiRecv != 0
	if len(msg.Buf) > left && p.used > 0 {
		m.expect("%d released", p.Context)
		return false, true
	}
	over = !multi || left-min(left, len(msg.Buf)) < 16
	flags := msg.Flags&(cq.FlagTagged|cq.FlagRemoteCQData) | cq.FlagRecv
	if flags&cq.FlagTagged == 0 {
		flags |= cq.FlagMsg
	}
	flags |= p.Flags & cq.FlagFrame
	if multi && over && !m.late {
		flags |= cq.FlagMultiRecv
	}
	if len(msg.Buf) > left {
		m.expect("%d truncated %v %d", p.Context, flags, left)
	} else {
		m.expect("%d %v %d from %v at %d: %d", p.Context, flags, len(msg.Buf), msg.Addr, p.used, msg.id)
	}
	if multi && over && m.late { // it is told with the message that is the last to end
		m.expect("%d released", p.Context)
	}
	p.used += len(msg.Buf)
	return true, over
}

// arrives is a message in the model.
func (m *matcher) arrives(msg message) {
	for i := 0; i < len(m.posted); {
		p := m.posted[i]
		if !p.takes(&msg) {
			i++
			continue
		}
		taken, over := m.give(p, &msg)
		if over {
			m.posted = slices.Delete(m.posted, i, i+1)
		}
		if taken {
			return
		}
	}
	m.stored = append(m.stored, msg)
}

// takes is a receive in the model.
func (m *matcher) takes(p *posting) {
	for i := 0; i < len(m.stored); {
		if !p.takes(&m.stored[i]) {
			i++
			continue
		}
		taken, over := m.give(p, &m.stored[i])
		if taken {
			m.stored = slices.Delete(m.stored, i, i+1)
		}
		if over {
			return
		}
	}
	m.posted = append(m.posted, p)
}

func (m *matcher) send() {
	from := m.r.IntN(len(m.from))
	msg := message{id: m.messages, Msg: fabric.Msg{Addr: m.to[from], Tag: m.r.Uint64N(4),
		Data: m.r.Uint64N(9), Buf: make([]byte, 4+m.r.IntN(m.most-4)),
		Flags: cq.FlagTagged*cq.Flags(m.r.IntN(2)) | cq.FlagRemoteCQData*cq.Flags(m.r.IntN(2))}}
	binary.LittleEndian.PutUint32(msg.Buf, uint32(msg.id))
	of, private := m.from[from], msg.Buf
	if m.pool > 0 && m.r.IntN(2) == 0 {
		if mem, err := of.Alloc(len(private)); err == nil {
			copy(mem, private)
			msg.Buf = mem
			defer func() { must(m.t, of.Free(mem)) }()
		}
	}
	for {
		err := of.SendMsg(&msg.Msg)
		m.progress()
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EAGAIN) {
			m.t.Fatal(err)
		}
		m.read()
	}
	m.messages++
	msg.Addr, msg.Buf = m.addr[from], private
	m.arrives(msg)
}

// progress moves the receiver, and what senders have to do for that.
func (m *matcher) progress() {
	shmtest.Got(m.e.Progress()).Or(m.t)
	var dst [8]cq.Entry
	for _, e := range m.from {
		if _, err := cq.Read(e.q, dst[:]); err != nil && err != cq.ErrWouldBlock {
			m.t.Fatal(err)
		}
	}
}

// recv posts a receive, or asks for a message and does with it what flags say.
func (m *matcher) recv(flags cq.Flags) {
	p := &posting{Msg: fabric.Msg{Addr: fabric.Anybody, Context: m.contexts, Tag: m.r.Uint64N(4),
		Flags: flags | cq.FlagTagged*cq.Flags(m.r.IntN(2))}}
	if i := m.r.IntN(2 * len(m.addr)); i < len(m.addr) {
		p.Addr = m.addr[i]
	}
	if m.r.IntN(3) == 0 {
		p.Ignore = m.r.Uint64N(4)
	}
	if flags&cq.FlagPeek == 0 {
		p.Buf = make([]byte, 8+m.r.IntN(m.most))
	}
	if flags&cq.FlagMultiRecv != 0 {
		p.Buf = make([]byte, 16+m.r.IntN(3*m.most))
	}
	if flags == 0 && m.pool > 0 && m.r.IntN(3) == 0 {
		p.Buf, p.Flags = nil, p.Flags|cq.FlagFrame
	}
	m.bufs[p.Context], m.looks[p.Context] = p.Buf, flags&cq.FlagPeek != 0
	err := m.e.RecvMsg(&p.Msg)
	if err == cq.ErrFull {
		m.read()
		return
	}
	must(m.t, err)
	m.contexts++
	if flags&cq.FlagPeek == 0 {
		m.takes(p)
		return
	}
	i := slices.IndexFunc(m.stored, func(msg message) bool { return p.takes(&msg) })
	if i < 0 {
		m.expect("%d no message", p.Context)
		return
	}
	msg := m.stored[i]
	m.expect("%d found %d from %v", p.Context, len(msg.Buf), msg.Addr)
	if flags&(cq.FlagClaim|cq.FlagDiscard) != 0 {
		m.stored = slices.Delete(m.stored, i, i+1)
	}
	if flags&cq.FlagClaim != 0 {
		m.claimed[p.Context] = msg
	}
}

// claim gets or drops a message that was claimed.
func (m *matcher) claim() {
	m.read() // a context stands for two operations
	for context, msg := range m.claimed {
		p := posting{Msg: fabric.Msg{Buf: make([]byte, m.most), Context: context,
			Flags: cq.FlagClaim | msg.Flags&cq.FlagTagged}}
		if m.r.IntN(2) == 0 {
			p.Flags |= cq.FlagDiscard
			p.Buf = nil
		}
		m.bufs[context], m.looks[context] = p.Buf, p.Buf == nil
		err := m.e.RecvMsg(&p.Msg)
		if err == cq.ErrFull {
			m.read()
			return
		}
		must(m.t, err)
		delete(m.claimed, context)
		if p.Flags&cq.FlagDiscard != 0 {
			m.expect("%d found %d from %v", context, len(msg.Buf), msg.Addr)
		} else {
			m.give(&p, &msg)
		}
		return
	}
}

func (m *matcher) cancel() {
	if m.contexts == 0 {
		return
	}
	context := m.r.Uint64N(m.contexts)
	if n := len(m.posted); n > 0 && m.r.IntN(2) == 0 {
		context = m.posted[m.r.IntN(n)].Context
	}
	i := slices.IndexFunc(m.posted, func(p *posting) bool { return p.Context == context })
	err := m.e.Cancel(context)
	switch {
	case i < 0 && !errors.Is(err, fabric.ErrNotFound), i >= 0 && err != nil:
		m.t.Fatalf("cancel of %d, which is in place %d: %v", context, i, err)
	case i >= 0:
		m.expect("%d cancelled %v", context, m.posted[i].Flags&cq.FlagMultiRecv)
		m.posted = slices.Delete(m.posted, i, i+1)
	}
}

// read takes all that was reported, and says it as the model does.
func (m *matcher) read() {
	var dst [8]cq.Entry
	var failed cq.ErrorEntry
	for idle := 0; idle < 3; idle++ {
		n, err := cq.Read(m.e.q, dst[:])
		for _, c := range dst[:n] {
			idle = 0
			c.Flags = m.end(c.Context, c.Flags)
			switch at := int(c.Buf); {
			case c.Flags == cq.FlagMultiRecv:
				m.say("%d released", c.Context)
			case m.looks[c.Context]:
				m.say("%d found %d from %v", c.Context, c.Len, c.Src)
			case c.Flags&cq.FlagFrame != 0:
				mem := shmtest.Got(m.e.Payload(&c)).Or(m.t)
				id := binary.LittleEndian.Uint32(mem)
				m.say("%d %v %d from %v at %d: %d", c.Context, c.Flags, c.Len, c.Src, 0, id)
				m.loans = append(m.loans, c)
			default:
				id := binary.LittleEndian.Uint32(m.bufs[c.Context][at:])
				m.say("%d %v %d from %v at %d: %d", c.Context, c.Flags, c.Len, c.Src, at, id)
			}
		}
		if err == cq.ErrAvail {
			idle = 0
			must(m.t, m.e.q.ReadErr(&failed))
			if failed.Err != cq.Errno(syscall.ECANCELED) {
				failed.Flags = m.end(failed.Context, failed.Flags)
			}
			switch failed.Err {
			case cq.ETrunc:
				m.say("%d truncated %v %d", failed.Context, failed.Flags&^cq.FlagRedelivered, failed.Len)
			case cq.Errno(syscall.ECANCELED):
				m.say("%d cancelled %v", failed.Context, failed.Flags&cq.FlagMultiRecv)
			case cq.Errno(syscall.ENOMSG):
				m.say("%d no message", failed.Context)
			}
		}
		if n := len(m.loans); n > 0 && m.r.IntN(3) == 0 {
			k := 1 + m.r.IntN(n)
			must(m.t, m.e.Release(m.loans[:k]...))
			m.loans = m.loans[k:]
		}
		m.progress()
	}
}

// end notes that a buffer for several messages was given back, after which nothing may be told of
// it. What is late has that as a line of its own.
func (m *matcher) end(context uint64, flags cq.Flags) cq.Flags {
	if m.ended[context] {
		m.t.Fatalf("%d is told of, %v, after it was given back", context, flags)
	}
	m.ended[context] = flags&cq.FlagMultiRecv != 0
	const message = cq.FlagRecv | cq.FlagMultiRecv
	if m.late && flags&message == message {
		m.say("%d released", context)
		flags &^= cq.FlagMultiRecv
	}
	return flags
}

func (m *matcher) say(format string, args ...any) {
	m.got = append(m.got, fmt.Sprintf(format, args...))
}

// newMatcher is a receiver with some senders.
func newMatcher(t *testing.T, seed uint64, size, most, pool int) *matcher {
	m := &matcher{t: t, most: most, pool: pool, late: size == 4 || most > fabric.MaxInline,
		r: rand.New(rand.NewPCG(seed, 7)), claimed: map[uint64]message{}, ended: map[uint64]bool{},
		bufs: map[uint64][]byte{}, looks: map[uint64]bool{}}
	m.e = openedSized(t, "receiver", size, fabric.Options{MinMultiRecv: 16})
	for i := range 3 {
		e := opened(t, fmt.Sprint("sender", i), fabric.Options{Pool: pool})
		to := e.knows(t, "receiver")
		addr := shmtest.Got(m.e.Insert(e.Address())).Or(t)
		m.from, m.to, m.addr = append(m.from, e), append(m.to, to), append(m.addr, addr)
	}
	return m
}

// TestMatchingModel: whatever is sent, posted, looked for, claimed and cancelled, in any order, a
// message gets the receive that a search through plain lists finds, and a receive ends once. The
// same happens, but later, with a queue that runs out of room, and with messages whose header goes
// alone. The same happens to messages by reference, and by loans; then all memory comes back.
func TestMatchingModel(t *testing.T) {
	shmtest.Conforms(t)
	seeds := uint64(10)
	if testing.Short() {
		seeds = 3
	}
	for _, c := range []struct{ size, most, pool int }{{1024, 24, 0}, {4, 24, 0}, {1024, 600, 0},
		{1024, 600, 2 * chunk}} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%d/%d/%d/%d", c.size, c.most, c.pool, seed), func(t *testing.T) {
				m := newMatcher(t, seed, c.size, c.most, c.pool)
				for range 1500 {
					switch op := m.r.IntN(20); {
					case op < 8:
						m.send()
					case op < 13:
						m.recv(0)
					case op < 15:
						m.recv(cq.FlagMultiRecv)
					case c.size == 4: // what is late can be found, or cancelled
					case op < 17:
						then := [...]cq.Flags{0, cq.FlagClaim, cq.FlagDiscard}
						m.recv(cq.FlagPeek | then[m.r.IntN(3)])
					case op < 18:
						m.claim()
					case op < 19:
						m.cancel()
					}
					if !m.late || m.r.IntN(4) == 0 {
						m.read()
					}
					if !m.late {
						m.compare()
					}
				}
				for settled := -1; settled < len(m.got); {
					settled = len(m.got)
					m.read()
				}
				m.compare()
				m.returns()
			})
		}
	}
}

// returns ends the receiver, and fails if a sender's memory is not all free then.
func (m *matcher) returns() {
	m.t.Helper()
	must(m.t, errors.Join(m.e.Close(), m.e.Release(m.loans...)))
	for _, e := range m.from {
		shmtest.Got(e.Progress()).Or(m.t)
		account(m.t, e, 8, 0, 0)
		poolAccount(m.t, e, m.pool, 0, 0)
	}
}

// compare ends the test if what was reported is not what the model says.
func (m *matcher) compare() {
	m.t.Helper()
	want, got := m.want, m.got
	if m.late {
		want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	}
	if slices.Equal(want, got) {
		return
	}
	for i := range want {
		if i == len(got) || want[i] != got[i] {
			m.t.Fatalf("of %d and %d, after %q: got %q, want %q", len(got), len(want),
				want[max(0, i-3):i], got[i:min(i+3, len(got))], want[i:min(i+3, len(want))])
		}
	}
	m.t.Fatalf("more than is true: %q", got[len(want):])
}

// TestMatchingLedger: of senders that run at once, and beyond their window, each message is
// received once, however it is asked for; and those of a sender and a tag get receives in the order
// of their sends, though those of which the header went alone end later.
func TestMatchingLedger(t *testing.T) {
	shmtest.Conforms(t)
	const senders, tags, each = 3, 3, 400
	r := opened(t, "receiver", fabric.Options{Window: 4096})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range senders {
		e := opened(t, fmt.Sprint("sender", i), fabric.Options{})
		to := e.knows(t, "receiver")
		_, err := r.Insert(e.Address()) // i
		must(t, err)
		wg.Go(func() {
			for k := range tags * each {
				msg := fabric.Msg{Addr: to, Tag: uint64(k % tags), Flags: cq.FlagTagged |
					cq.FlagInjectCall, Buf: binary.LittleEndian.AppendUint32(nil, uint32(k/tags))}
				if err := e.SendContext(ctx, &msg); err != nil {
					t.Error(err)
					return
				}
			}
			if err := e.moves(ctx); err != nil { // what it has sent by header needs it until the end
				t.Error(err)
			}
		})
	}
	var got [senders][tags][each]uint64 // the number of the receive
	rnd := rand.New(rand.NewPCG(1, 1))
	bufs := map[uint64][]byte{}
	for received, context := 0, uint64(1); received < senders*tags*each; {
		if len(bufs) == 20 { // it may be for what will not come
			for old := range bufs {
				if err := r.Cancel(old); err != nil && !errors.Is(err, fabric.ErrNotFound) {
					t.Fatal(err)
				}
				break
			}
		} else {
			m := fabric.Msg{Buf: make([]byte, 4), Addr: fabric.Anybody, Context: context,
				Tag: rnd.Uint64N(tags), Flags: cq.FlagTagged}
			if rnd.IntN(2) == 0 {
				m.Addr = cq.Addr(rnd.IntN(senders))
			}
			if rnd.IntN(2) == 0 {
				m.Ignore = ^uint64(0)
			}
			must(t, r.RecvMsg(&m))
			bufs[context] = m.Buf
			context++
		}
		var dst [32]cq.Entry
		n, err := cq.Read(r.q, dst[:])
		for _, c := range dst[:n] {
			buf, src := bufs[c.Context], c.Src.Addr()
			delete(bufs, c.Context)
			k := binary.LittleEndian.Uint32(buf)
			if got[src][c.Tag][k] != 0 {
				t.Fatalf("%+v: message %d came twice", c, k)
			}
			got[src][c.Tag][k] = c.Context
			received++
		}
		var failed cq.ErrorEntry
		if err == cq.ErrAvail && r.q.ReadErr(&failed) == nil {
			if bufs[failed.Context] == nil || failed.Err != cq.Errno(syscall.ECANCELED) {
				t.Fatalf("%+v", failed)
			}
			delete(bufs, failed.Context)
		}
	}
	for src := range got {
		for tag := range got[src] {
			if !slices.IsSorted(got[src][tag][:]) {
				t.Errorf("sender %d, tag %d: %v", src, tag, got[src][tag])
			}
		}
	}
	if s := r.Stats(); s.Waiting != 0 || s.Received != senders*tags*each {
		t.Errorf("%+v", s)
	}
}
