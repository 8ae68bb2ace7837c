package device

import (
	"container/list"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// account is a line of the allow-list with what is in use of it. Server.mu guards it.
type account struct {
	Allow
	frames, sends, rules, apps int
	lanes                      uint64 // bytes in queues of applications
	ways                       *ways  // the engine's
}

// room is how many bytes of queues are left.
func (c *account) room() uint64 { return uint64(c.MemoryMiB)<<20 - c.lanes }

// meetings is how many connections one user may begin at a time. They have the places of others as
// long as they are silent.
func (c *account) meetings(maxApps int) int {
	const most = 8
	return max(1, min(most, c.Apps/2, maxApps/2))
}

// book takes so much of an account, or says of what there is too little.
func (c *account) book(frames, sends, rules int) error {
	for _, b := range []struct {
		what              string
		used, more, limit int
	}{{"frames", c.frames, frames, c.Frames}, {"sends", c.sends, sends, c.Sends},
		{"rules", c.rules, rules, c.Rules}} {
		if b.more > b.limit-b.used {
			return fmt.Errorf("%w: %d %s wanted, %d of %d left", ErrBudget, b.more, b.what,
				b.limit-b.used, b.limit)
		}
	}
	c.frames, c.sends, c.rules = c.frames+frames, c.sends+sends, c.rules+rules
	return nil
}

func (c *account) unbook(frames, sends, rules int) {
	c.frames, c.sends, c.rules = c.frames-frames, c.sends-sends, c.rules-rules
}

// permits reports whether the port is in the account's range.
func (c *account) permits(port uint16) error {
	if port < c.First || port > c.Last || port == 0 {
		return fmt.Errorf("%w: port %d, allowed are %d to %d", ErrRefused, port, c.First, c.Last)
	}
	return nil
}

// forgetter is a Resolver that can be told that nobody needs a destination, as *netif.Table can.
type forgetter interface{ Forget(dst netip.Addr) }

// maxAsking bounds for how many hardware addresses one line of the allow-list waits at a time: the
// kernel is asked for one after the other, so other lines wait behind those.
const maxAsking = 256

// holders says how many lines of the allow-list use a destination. The engine's goroutine alone
// uses it, and ways.
type holders struct {
	resolver xdp.Resolver
	forgets  forgetter // nil if it is none
	uses     map[netip.Addr]int
}

func newHolders(r xdp.Resolver) *holders {
	h := &holders{resolver: r, uses: map[netip.Addr]int{}}
	h.forgets, _ = r.(forgetter)
	return h
}

// ways are the destinations that one line of the allow-list has the resolver remember. What it
// remembers is bounded, and remembered for minutes: so that nobody fills it for everybody, a line
// that wants one too many has its own oldest one forgotten.
type ways struct {
	all    *holders
	limit  int
	held   map[netip.Addr]*list.Element // of *way
	recent list.List                    // used last first
	asking int
}

type way struct {
	to     netip.Addr
	asking bool // there is no answer yet
}

func newWays(all *holders, limit int) *ways {
	return &ways{all: all, limit: limit, held: map[netip.Addr]*list.Element{}}
}

// lookup is Resolver.Lookup within the bounds of the line. packet.ErrResolving also says that there
// are too many questions already.
func (w *ways) lookup(to netip.Addr) (xdp.Hop, error) {
	if w.all.forgets == nil {
		return w.all.resolver.Lookup(to)
	}
	el := w.held[to]
	if el == nil {
		if w.asking >= min(maxAsking, w.limit) {
			return xdp.Hop{}, packet.ErrResolving
		}
		for len(w.held) >= w.limit {
			w.drop(w.recent.Back())
		}
		el = w.recent.PushFront(&way{to: to})
		w.held[to] = el
		w.all.uses[to]++
	} else if el != w.recent.Front() {
		w.recent.MoveToFront(el)
	}
	hop, err := w.all.resolver.Lookup(to)
	w.ask(el.Value.(*way), err != nil && errors.Is(err, packet.ErrResolving))
	return hop, err
}

func (w *ways) ask(one *way, asking bool) {
	if one.asking == asking {
		return
	}
	if one.asking = asking; asking {
		w.asking++
	} else {
		w.asking--
	}
}

// giveUp ends the wait for an answer.
func (w *ways) giveUp(to netip.Addr) {
	if el := w.held[to]; el != nil && el.Value.(*way).asking {
		w.drop(el)
	}
}

func (w *ways) drop(el *list.Element) {
	one := w.recent.Remove(el).(*way)
	w.ask(one, false)
	delete(w.held, one.to)
	if w.all.uses[one.to]--; w.all.uses[one.to] == 0 {
		delete(w.all.uses, one.to)
		w.all.forgets.Forget(one.to)
	}
}

// parked is what waits for hardware addresses, of one application. It is kept by destination:
// nothing overtakes what waits for the same one, and looking whether something does costs the same
// however much waits. The zero value is empty.
type parked struct {
	ways    map[netip.Addr]*parkedWay
	turn    []*parkedWay // all of ways
	at      int          // in turn: who is tried next
	round   int          // of turn: how many were tried since the last pause
	count   int          // sends
	retryAt int64
}

type parkedWay struct {
	to    netip.Addr
	place int // in turn
	sends []parkedSend
}

type parkedSend struct {
	e     cq.Entry
	until int64
}

// holds reports whether a send to this destination waits.
func (p *parked) holds(to netip.Addr) bool { return p.ways[to] != nil }

func (p *parked) add(e *cq.Entry, until int64) {
	to := targetOf(e).to.Addr()
	w := p.ways[to]
	if w == nil {
		if p.ways == nil {
			p.ways = map[netip.Addr]*parkedWay{}
		}
		w = &parkedWay{to: to, place: len(p.turn)}
		p.ways[to] = w
		p.turn = append(p.turn, w)
	}
	w.sends = append(w.sends, parkedSend{*e, until})
	p.count++
}

// pop removes the first send of a destination.
func (p *parked) pop(w *parkedWay) {
	p.count--
	if w.sends = w.sends[1:]; len(w.sends) > 0 {
		return
	}
	last := len(p.turn) - 1
	p.turn[w.place] = p.turn[last]
	p.turn[w.place].place = w.place
	p.turn[last] = nil
	p.turn = p.turn[:last]
	delete(p.ways, w.to)
}

// pausePerWayNs spaces tries out where many destinations wait, so that an application that waits
// for thousands of them is not what the server is busy with.
const pausePerWayNs = 10e3

// retry tries again what waits for a hardware address, in order for each destination, and no more
// of it than commands are taken in one turn.
func (a *app) retry(en *engine) {
	p := &a.parked
	if p.count == 0 || en.now < p.retryAt {
		return
	}
	for range en.s.c.TxBatch {
		if p.round >= len(p.turn) {
			p.round, p.retryAt = 0, en.now+max(1e6, pausePerWayNs*int64(len(p.turn)))
			return
		}
		p.at %= len(p.turn)
		w := p.turn[p.at]
		first := &w.sends[0]
		why, state := a.send(en, &first.e, targetOf(&first.e))
		switch {
		case state == sendWaits: // for a frame, as any other would
			p.retryAt = en.now + 1e6
			return
		case state == sendParked && en.now < first.until:
			p.at++
			p.round++
			continue
		case state == sendParked:
			why, state = cq.Errno(syscall.EHOSTUNREACH), sendFailed
		}
		if state == sendFailed {
			// Also of a send that failed before it asked again: nobody may be left who waits for the
			// answer. Those who are ask anew.
			a.account.ways.giveUp(w.to)
			a.underWay--
			a.fail(&first.e, why)
		}
		a.worked++
		p.pop(w)
	}
}

// forsake ends the wait for destinations, of an application that is gone.
func (a *app) forsake() {
	for to := range a.parked.ways {
		a.account.ways.giveUp(to)
	}
	a.parked = parked{}
}
