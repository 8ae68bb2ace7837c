package netif

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// settleNs is how long routes may take to come back after the interface came up.
const settleNs = int64(500e6)

// asks is what is to be asked.
type asks struct {
	routes     []netip.Addr        // of destinations
	neighbours map[netip.Addr]bool // next hops
	solicit    []netip.Addr        // next hops
	dirty      bool                // routes have changed: ask for all again
	dirtyNs    int64
}

// askRoute queues the question for a destination's route.
func (t *Table) askRoute(d *destination) {
	if !d.asked {
		d.asked = true
		t.asks.routes = append(t.asks.routes, d.addr)
	}
}

// askNeighbours queues the question for all neighbours.
func (t *Table) askNeighbours() {
	for next := range t.neighbours {
		t.asks.neighbours[next] = true
	}
}

// solicit queues a solicitation of a next hop if the kernel does not know it, or only knows how it
// was some time ago.
func (t *Table) solicit(next netip.Addr) {
	if n := t.neighbours[next]; n.unresolved() || n != nil && n.State&unix.NUD_STALE != 0 {
		t.asks.solicit = append(t.asks.solicit, next)
	}
}

// unresolved reports whether a hardware address is needed that the kernel has not, and is not
// finding out either.
func (n *neighbour) unresolved() bool {
	return n != nil && n.known && n.State&(usable|unix.NUD_INCOMPLETE) == 0
}

// look asks all that is to be asked.
func (t *Table) look(now int64, ticked bool) error {
	if ticked {
		t.advance(now)
	}
	t.mu.Lock()
	switch a := &t.asks; {
	case !a.dirty:
	case now-a.dirtyNs < calm.Nanoseconds():
		t.later = true
	default:
		a.dirty, a.dirtyNs = false, now
		for _, d := range t.dests {
			t.askRoute(d)
		}
	}
	t.mu.Unlock()
	for {
		ask := t.question(now)
		if ask == nil {
			return nil
		}
		if err := ask(); err != nil {
			return err
		}
	}
}

// question returns the next one, nil if there is none.
func (t *Table) question(now int64) func() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &t.asks
	if t.fault != nil {
		return nil
	}
	if len(a.routes) > 0 {
		dst := a.routes[0]
		a.routes = a.routes[1:]
		return func() error { return t.putRoute(dst) }
	}
	for next := range a.neighbours {
		delete(a.neighbours, next)
		return func() error { return t.putNeighbour(next) }
	}
	for len(a.solicit) > 0 {
		next := a.solicit[0]
		a.solicit = a.solicit[1:]
		if t.mayUse(next, now) {
			return func() error { return t.use(next) }
		}
	}
	return nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// refusal returns the number by which the kernel refused to answer, as an error, and what keeps it
// from answering.
func refusal(err error) (refused, failed error) {
	var errno unix.Errno
	if errors.As(err, &errno) && !busy(err) {
		return errno, nil
	}
	return nil, err
}

func (t *Table) putRoute(dst netip.Addr) error {
	out := 0
	if dst.IsMulticast() || dst.IsLinkLocalUnicast() || dst == broadcast {
		out = t.index
	}
	r, err := t.k.Route(dst, out)
	t.mu.Lock()
	defer t.unlock()
	t.stats.RouteQuestions++
	refused, err := refusal(err)
	switch d := t.dests[dst]; {
	case d == nil:
		return nil
	case err != nil:
		t.asks.routes = append(t.asks.routes, dst)
		return err
	default:
		t.routeAnswered(d, r, refused)
		return nil
	}
}

func (t *Table) putNeighbour(next netip.Addr) error {
	is, err := t.k.Neighbour(next)
	t.mu.Lock()
	defer t.unlock()
	_, err = refusal(err) // it knows none then
	switch n := t.neighbours[next]; {
	case n == nil:
		return nil
	case err != nil:
		t.asks.neighbours[next] = true
		return err
	default:
		t.neighbourAnswered(next, n, is)
		return nil
	}
}

// mayUse reports whether the kernel is to resolve a next hop, and not if it was asked to a short
// time ago.
func (t *Table) mayUse(next netip.Addr, now int64) bool {
	n := t.neighbours[next]
	if n == nil || n.State&(usable&^unix.NUD_STALE) != 0 {
		return false
	}
	n.again = n.askedNs != 0 && now-n.askedNs < t.opt.Attempt.Nanoseconds()
	if !n.again {
		n.askedNs = now
	}
	return !n.again
}

// use has the kernel resolve a next hop.
func (t *Table) use(next netip.Addr) error {
	err := t.k.Use(next)
	t.mu.Lock()
	defer t.unlock()
	refused, err := refusal(err)
	n := t.neighbours[next]
	if n == nil {
		return nil
	}
	if err != nil {
		t.asks.solicit = append(t.asks.solicit, next)
		return err
	}
	t.stats.Solicits++
	if refused == unix.EPERM {
		n.refused = true
		for d := range n.users {
			t.compute(d)
		}
	}
	t.asks.neighbours[next] = true // not every state is told of unasked
	return nil
}

// advance does what is due once each TableOptions.Attempt.
func (t *Table) advance(now int64) {
	t.mu.Lock()
	defer t.unlock()
	tick := t.tick.Add(1)
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
			t.solicit(d.next)
		case idle <= 1 || t.postponed(d):
			if t.neighbours[d.next].unresolved() {
				t.solicit(d.next)
			}
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
