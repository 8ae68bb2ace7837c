package netif

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	// maxAsked bounds how many answers can be under way, so that they fit the socket's buffer.
	maxAsked = 64
	// settleNs is how long routes may take to come back after the interface came up.
	settleNs = int64(500e6)
	// patienceNs is how long an answer may take. It is there when the request has been sent; only
	// a full buffer loses it.
	patienceNs = int64(2e9)
)

// question is a request for a route that has no answer yet.
type question struct {
	dst    netip.Addr
	sentNs int64
}

// asks is what is to be asked, and what was.
type asks struct {
	wait    []netip.Addr        // destinations, to be asked for
	routes  map[uint32]question // asked
	solicit []netip.Addr        // next hops, to be solicited
	uses    map[uint32]netip.Addr
	dirty   bool // routes have changed: ask for all again
	dirtyNs int64
}

func (t *Table) askAgain() {
	for seq, q := range t.asks.routes {
		delete(t.asks.routes, seq)
		if d := t.dests[q.dst]; d != nil {
			d.asked = false
		}
	}
	clear(t.asks.uses)
	t.asks.dirty, t.asks.dirtyNs = true, 0
}

func (t *Table) appendDump(b []byte, seq uint32) []byte {
	return appendDumpNeighbours(b, seq, t.index)
}

// askRoute queues the question for a destination's route.
func (t *Table) askRoute(d *destination) {
	if !d.asked {
		d.asked = true
		t.asks.wait = append(t.asks.wait, d.addr)
	}
}

// solicit queues a solicitation of the destination's next hop if the kernel does not know it, or
// only knows how it was some time ago.
func (t *Table) solicit(d *destination) {
	n := t.neighbours[d.next]
	if t.unresolved(d) || n != nil && n.State&unix.NUD_STALE != 0 {
		t.asks.solicit = append(t.asks.solicit, d.next)
	}
}

// unresolved reports whether the destination needs a hardware address that the kernel has not, and
// is not finding out either.
func (t *Table) unresolved(d *destination) bool {
	if !d.known || d.refuse != nil || !d.next.IsValid() || d.addr.IsMulticast() ||
		d.kind == unix.RTN_BROADCAST || t.link.Flags&unix.IFF_LOOPBACK != 0 {
		return false
	}
	n := t.neighbours[d.next]
	return n == nil || n.State&(usable|unix.NUD_INCOMPLETE) == 0
}

// appendQuestions appends as much as answers can be under way for.
func (t *Table) appendQuestions(b []byte, now int64) []byte {
	a := &t.asks
	switch {
	case !a.dirty:
	case now-a.dirtyNs < calm.Nanoseconds():
		t.later = true
	default:
		a.dirty, a.dirtyNs = false, now
		for _, d := range t.dests {
			t.askRoute(d)
		}
	}
	for len(a.wait) > 0 && len(a.routes) < maxAsked {
		b = t.appendRoute(b, a.wait[0], now)
		a.wait = a.wait[1:]
	}
	for len(a.solicit) > 0 && len(b) < bufferBytes/8 {
		b = t.appendSolicit(b, a.solicit[0], now)
		a.solicit = a.solicit[1:]
	}
	return b
}

func (t *Table) appendRoute(b []byte, dst netip.Addr, now int64) []byte {
	if t.dests[dst] == nil {
		return b
	}
	out := 0
	if dst.IsMulticast() || dst.IsLinkLocalUnicast() || dst == broadcast {
		out = t.index
	}
	seq := t.next()
	t.asks.routes[seq] = question{dst, now}
	t.stats.RouteQuestions++
	return appendGetRoute(b, seq, dst, out)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// appendSolicit has the kernel resolve a next hop, unless it did so a short time ago.
func (t *Table) appendSolicit(b []byte, next netip.Addr, now int64) []byte {
	n := t.neighbour(next)
	if n.State&(usable&^unix.NUD_STALE) != 0 {
		return b
	}
	if n.askedNs != 0 && now-n.askedNs < t.opt.Attempt.Nanoseconds() {
		n.again = true
		return b
	}
	n.askedNs, n.again = now, false
	seq := t.next()
	t.asks.uses[seq] = next
	t.stats.Solicits++
	b = appendUse(b, seq, t.index, next)
	// Not every state is told of unasked. What comes last also says that there was no error.
	return appendGetNeighbour(b, seq, t.index, next)
}

// advance does what is due once each TableOptions.Attempt.
func (t *Table) advance(now int64) {
	t.mu.Lock()
	defer t.unlock()
	tick := t.tick.Add(1)
	for seq, q := range t.asks.routes {
		if now-q.sentNs < patienceNs {
			continue
		}
		delete(t.asks.routes, seq)
		t.stats.Unanswered++
		if d := t.dests[q.dst]; d != nil {
			d.asked = false
			t.askRoute(d)
		}
	}
	clear(t.asks.uses) // answered or lost
	if t.upNs != 0 && now-t.upNs >= settleNs {
		t.upNs = 0
		t.computeAll()
	}
	refresh := now-t.refreshedNs >= t.opt.Refresh.Nanoseconds()
	for _, d := range t.dests {
		idle := tick - d.used.Load()
		switch {
		case idle > idleRefreshes*t.perRefresh():
			t.forget(d)
		case refresh && t.inUse(d):
			t.askRoute(d)
			t.solicit(d)
		case (idle <= 1 || t.postponed(d)) && t.unresolved(d):
			t.solicit(d)
		}
	}
	if refresh {
		t.refreshedNs = now
		t.changed = true // so that users tell what they use
	}
}

// perRefresh is how many ticks a refresh is.
func (t *Table) perRefresh() int64 { return int64(t.opt.Refresh/t.opt.Attempt) + 1 }

// inUse reports whether somebody looked the destination up since the last refresh, when all were
// made to.
func (t *Table) inUse(d *destination) bool {
	return t.tick.Load()-d.used.Load() <= t.perRefresh()+1
}

// postponed reports whether a solicitation came too early after another.
func (t *Table) postponed(d *destination) bool {
	n := t.neighbours[d.next]
	return n != nil && n.again
}

// Forget gives up what is known of dst: the next Lookup asks the kernel again. It is for those who
// bound what others have the table remember; unused destinations are forgotten without.
func (t *Table) Forget(dst netip.Addr) {
	t.mu.Lock()
	defer t.unlock()
	if d := t.dests[dst.Unmap().WithZone("")]; d != nil {
		t.forget(d)
	}
}

func (t *Table) forget(d *destination) {
	delete(t.dests, d.addr)
	t.leave(d)
}
