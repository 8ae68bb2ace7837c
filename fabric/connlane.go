package fabric

import (
	"bytes"
	"encoding/binary"
	"slices"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
)

// What a message of a connection does: the lowest byte of its tag. The rest is the receiver's
// number of the connection.
const (
	connAsk = 1 + iota // for a connection: data is the sender's number, the payload its window,
	// or what an endpoint says of itself
	connAccept // likewise, of who was asked
	connReject // nobody listens, or too many wait
	connOpened // who asked has it: it may be handed out
	connData
	connEnd    // no more data comes
	connCredit // data: how many bytes may have been sent in all
	connClose  // the last message of this side, which reads no more
	connLeave  // who asked waits no more, data: its number; it gets an answer all the same
)

// connWhat are the bits of a number that are 0, or what a message does. The rest of it is never
// given again.
const connWhat = 0xff

const (
	// connWindow is how many bytes a peer may send beyond what was read.
	connWindow = 256 << 10
	// mostConnWindow is the most that is believed of a peer's.
	mostConnWindow = 1 << 30
	// mostConns is how many connections one peer can have here, with those whose end is under way.
	mostConns = 1 << 12
	// mostBacklog is how many connections wait for Accept.
	mostBacklog = 128
	// mostOwed is how many messages wait for room in a lane, of which a connection has a few.
	mostOwed = 8 * mostConns
)

// line is what there is of one peer: its connections, and messages to it for which the lane had no
// room. What came later waits behind them.
type line struct {
	conns map[*conn]bool
	owed  []connMessage
	waits time.Duration // for a lane
}

type connMessage struct {
	tag, data uint64
	payload   []byte
}

// stream publishes a message of a connection, with as much of the payload as fits now. It is false
// if there is no room.
func (l *outLane) stream(tag, data uint64, payload []byte) (n int, ok bool) {
	if l.err != nil || !l.hasSlot() {
		return 0, false
	}
	if n = l.next(len(payload)); n < 0 || l.bytes+charge(n) > l.granted {
		return 0, false
	}
	l.offer(payload[:n], &sendOp{flags: cq.FlagTagged | cq.FlagRemoteCQData, tag: tag, data: data})
	return n, true
}

// streamed takes a message of a connection. It reports whether there can be such.
func (l *inLane) streamed(m *mux, s *kind.FabricSlot, head uint64) (ok bool) {
	const says = kind.FabricMessage | kind.FabricTagged | kind.FabricWithData
	if head&0xffff&^kind.FabricInPool != says || head>>16&0xffff != 0 {
		return false
	}
	here, ok := l.payload(s, head)
	n := charge(len(here))
	if !ok || l.bytes+n > l.matched+uint64(l.p.e.opt.Window) {
		return false
	}
	l.bytes += n
	l.match(len(here)) // it is copied before the call returns
	return m.take(l.p, s.Tag.Load(), s.Data.Load(), here)
}

// take is what every message ends in: it changes its connection, and wakes who waits for that.
func (m *mux) take(p *peer, tag, data uint64, here []byte) (ok bool) {
	switch tag & connWhat {
	case connAsk:
		return tag == connAsk && m.asked(p, data, here)
	case connLeave:
		return tag == connLeave && m.withdrawn(p, data)
	}
	c := m.conns[tag&^connWhat]
	if c == nil || c.p != p {
		return false
	}
	what := tag & connWhat
	if c.link != nil && (what == connData || what == connEnd || what == connCredit) {
		return false // messages of endpoints go elsewhere
	}
	switch what {
	case connAccept:
		return c.accepted(data, here)
	case connReject:
		if c.is != connAsking {
			return false
		}
		if c.link != nil {
			c.link.data = bytes.Clone(here[:min(len(here), MaxConnData)])
		}
		c.fail(syscall.ECONNREFUSED)
	case connOpened:
		return c.opened()
	case connData:
		return c.arrived(here)
	case connEnd:
		if c.eof || c.is < connReady {
			return false
		}
		c.eof = true
		m.e.wake(&c.reader)
	case connCredit:
		if c.is < connReady || data < c.allowed || data > c.wrote+c.window {
			return false
		}
		c.allowed = data
		m.e.wake(&c.writer)
	case connClose:
		return c.hung()
	default:
		return false
	}
	return true
}

// asked answers who wants a connection.
func (m *mux) asked(p *peer, number uint64, here []byte) (ok bool) {
	here = bytes.Clone(here)
	window, stream := windowOf(here)
	if !stream && !asksLink(here) || number&connWhat != 0 {
		return false
	}
	if !m.hears(p) {
		return true
	}
	l := m.listener
	full := func() bool { return len(l.waits()) >= mostBacklog }
	refused := l == nil || len(p.conns) >= mostConns || stream != (l.news == nil)
	if !refused && full() {
		l.yield(p)
		refused = full()
	}
	if refused {
		crash.At(crash.ConnRefusing)
		return m.say(p, connReject|number, 0, nil)
	}
	c := m.newConn(p, connOffered)
	c.to, c.window, c.allowed = number, window, window
	l.waiting = append(l.waiting, c)
	if !stream {
		l.requested(c, here)
		return true
	}
	crash.At(crash.ConnOffered)
	return m.say(p, connAccept|number, c.number, windowBytes())
}

// hears has a lane lead to who asks, and reports whether it hears anything, soon at least: without
// a place here, or a row there, for that lane what is said waits.
func (m *mux) hears(p *peer) bool {
	if p.out == nil {
		switch _, err := m.e.attach(p); {
		case isAny(err, ErrNoPeer, ErrPeerDied):
			return false
		case err != nil:
			m.e.later.Want()
		}
	}
	return true
}

// unheard ends dials whose answers come by a lane that cannot be mapped, for good or just now.
func (e *Endpoint) unheard(id uint64, why error, ever bool) {
	box, _ := kind.FabricLaneOf(id)
	for _, p := range e.peers {
		if p.addr.Outbox != box {
			continue
		}
		for c := range p.conns {
			switch {
			case c.is != connAsking:
			case ever:
				c.fail(why)
			case c.link == nil:
				c.mute = why
				e.wake(&c.reader)
			}
		}
	}
}

// answerAgain looks for lanes to those who wait for an answer. Who has waited for long is refused,
// so that its dials end.
func (m *mux) answerAgain(pause time.Duration) {
	for _, p := range m.e.peers {
		if len(p.owed) == 0 || p.out != nil || !m.hears(p) {
			continue
		}
		if p.waits += pause; p.out != nil {
			m.roomy(p)
		} else if p.waits > 10*m.patience {
			p.in.refuse()
		}
	}
}

// waits are those that their clients have not opened yet, or that wait for an answer, or for
// Accept.
func (l *listener) waits() []*conn {
	l.waiting = slices.DeleteFunc(l.waiting, func(c *conn) bool {
		return c.closed || c.link != nil || c.is < connReady && l.m.conns[c.number] != c
	})
	return l.waiting
}

// yield closes a connection that the peer with most of them has not opened, if p has fewer: one
// that is stopped, or never opens any, keeps nobody else out.
func (l *listener) yield(p *peer) {
	var most *conn
	offered := map[*peer]int{}
	for _, c := range l.waiting {
		if c.is != connOffered {
			continue
		}
		if offered[c.p]++; most == nil || offered[c.p] > offered[most.p] {
			most = c
		}
	}
	if most != nil && offered[most.p] > offered[p]+1 {
		most.close()
	}
}

func windowOf(here []byte) (n uint64, ok bool) {
	if len(here) != 8 {
		return 0, false
	}
	n = binary.LittleEndian.Uint64(here)
	return n, n > 0 && n <= mostConnWindow
}

func windowBytes() []byte { return binary.LittleEndian.AppendUint64(nil, connWindow) }

// say sends a message of at most MaxInline bytes, or has it wait for room. It reports false if too
// many do.
func (m *mux) say(p *peer, tag, data uint64, payload []byte) (ok bool) {
	if p.outEnded() || p.out == nil && (p.in == nil || p.in.refused) {
		return true // nobody hears it
	}
	msg := connMessage{tag, data, payload}
	if len(p.owed) > 0 || p.out == nil || !p.out.says(msg) {
		msg.payload = bytes.Clone(payload) // which may be the program's
		p.owed = append(p.owed, msg)
		m.owing++
	}
	return len(p.owed) <= mostOwed
}

func (l *outLane) says(m connMessage) (ok bool) {
	_, ok = l.stream(m.tag, m.data, m.payload)
	return ok
}

// grant has a peer learn how much it may have sent in all. Of what waits for room the last one
// counts: one that hears nothing, and sends on, has nobody remember more and more.
func (m *mux) grant(c *conn, all uint64) {
	for i := range c.p.owed {
		if owed := &c.p.owed[i]; owed.tag == connCredit|c.to {
			owed.data = all
			return
		}
	}
	m.say(c.p, connCredit|c.to, all, nil)
}

// unanswered counts dials that were given up, of which the peer has not said anything.
func (p *peer) unanswered() (n int) {
	for c := range p.conns {
		if c.closed && c.is == connAsking {
			n++
		}
	}
	return n
}

// roomy says what was owed to a peer, in whose lane there may be room.
func (m *mux) roomy(p *peer) {
	if len(p.owed) == 0 || p.out == nil {
		return
	}
	done := 0
	for done < len(p.owed) && p.out.says(p.owed[done]) {
		done++
	}
	p.owed = append(p.owed[:0], p.owed[done:]...)
	m.owing -= done
	m.settle()
}

// lost ends all connections with a peer from whom nothing more comes; or, if it stays, nothing more
// by its lane: it had no use for that, and answers who asks by another one. If there are none the
// mux may have no endpoint yet: a meeting has failed.
func (m *mux) lost(p *peer, stays bool) {
	if len(p.owed)+len(p.conns) == 0 {
		return
	}
	if !stays {
		m.owing -= len(p.owed)
		p.owed = nil
	}
	crash.At(crash.ConnLost)
	for c := range p.conns {
		if stays && c.is == connAsking {
			continue
		}
		switch c.is {
		case connAsking:
			c.fail(syscall.ECONNREFUSED)
		case connAsked:
			c.fail(syscall.ECONNABORTED)
		default:
			c.fail(syscall.ECONNRESET)
		}
	}
	m.e.makeRoom()
	m.settle()
}

// deaf takes notice that a peer examines nothing more. What it has sent is read before its
// connections end, unless it lives.
func (m *mux) deaf(p *peer, why error) {
	if p.in == nil || why != ErrPeerDied && why != ErrPeerClosed {
		m.lost(p, false)
		return
	}
	crash.At(crash.ConnLost)
	for c := range p.conns {
		m.e.wake(&c.writer)
	}
}

// outEnded reports that the lane to a peer has ended: it examines nothing more.
func (p *peer) outEnded() bool { return p.out != nil && p.out.err != nil }
