package netif

import (
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/xdp"
)

// Table knows the ways from one interface. All methods may be called from anywhere.
type Table struct {
	loop
	gen  atomic.Uint64 // moved by what holds mu, after everything that it tells of is in place
	tick atomic.Int64  // the time, in attempts, for lookups to note
	opt  TableOptions

	upNs        int64 // when the interface came up, while routes may not all be back; else 0
	dests       map[netip.Addr]*destination
	neighbours  map[netip.Addr]*neighbour // by next hop
	asks        asks
	changed     bool // since gen moved
	stats       TableStats
	refreshedNs int64
}

// destination is an address that was looked up.
type destination struct {
	addr netip.Addr
	hop  xdp.Hop
	err  error
	used atomic.Int64 // the tick of the last lookup

	asked  bool // for the route: it is queued or sent
	known  bool // the rest is what the kernel said
	refuse error
	kind   int        // RTN_*
	next   netip.Addr // invalid if packets need no neighbour's hardware address
	source netip.Addr
	mtu    int
}

// neighbour is what the kernel has of a next hop, and who needs it.
type neighbour struct {
	neighbourState
	known   bool // the kernel has answered
	users   map[*destination]struct{}
	askedNs int64 // when it was last solicited; 0 if never
	again   bool  // it is to be once more, when that is long enough ago
	refused bool  // the kernel would not
}

// OpenTable makes the table of the interface of an index in the network namespace of the calling
// thread, and follows it there until Close. It needs no privilege; see the package about
// CAP_NET_ADMIN. Errors are xdp.ErrNoDevice, and what the kernel has against a socket.
func OpenTable(index int, o TableOptions) (*Table, error) {
	k, err := openSystem(index, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "open", Err: err}
	}
	t := newTable(k, index, o)
	if err := t.start(); err != nil {
		return nil, err
	}
	t.run(t.opt.Attempt)
	return t, nil
}

func newTable(k kernel, index int, o TableOptions) *Table {
	t := &Table{loop: newLoop(k, index), opt: o.resolve(), dests: map[netip.Addr]*destination{},
		neighbours: map[netip.Addr]*neighbour{}, refreshedNs: spin.Now()}
	t.f = t
	t.asks.neighbours = map[netip.Addr]bool{}
	t.gen.Store(1)
	t.tick.Store(1)
	return t
}

// unlock ends a change: if anything is different from before, users learn of it.
func (t *Table) unlock() {
	if t.changed {
		t.changed = false
		t.gen.Add(1)
	}
	t.mu.Unlock()
}

func (t *Table) failed() { t.computeAll() }

// Generation is another number after anything that a Lookup returned may have changed. It also
// moves once each TableOptions.Refresh, so that users look up again what they use: what nobody
// looks up is not looked after.
//
// To miss nothing, load it before the lookup whose result is kept.
func (t *Table) Generation() uint64 { return t.gen.Load() }

// Lookup returns the way to dst, at once and without a system call; without allocation if dst was
// looked up before. An IPv6 zone must name the table's interface.
//
// Errors are packet.ErrResolving (EAGAIN) while the kernel is asked, packet.ErrUnreachable
// (EHOSTUNREACH) if nobody answered, which is tried again each TableOptions.Attempt for as long as
// somebody asks; [ErrNoRoute], [ErrWrongInterface] and [ErrRefused], though not in the first
// moments after the interface came up; xdp.ErrLinkDown until it does, and xdp.ErrDeviceGone for
// good; [ErrAddress]; [ErrFull]; os.ErrClosed.
func (t *Table) Lookup(dst netip.Addr) (xdp.Hop, error) {
	dst = dst.Unmap()
	if dst.Zone() == "" {
		t.mu.RLock()
		if d := t.dests[dst]; d != nil {
			hop, err := d.hop, d.err
			if now := t.tick.Load(); d.used.Load() != now {
				d.used.Store(now)
			}
			t.mu.RUnlock()
			return hop, err
		}
		t.mu.RUnlock()
	}
	return t.lookupNew(dst)
}

// lookupNew is Lookup of what is not in the map as it stands.
func (t *Table) lookupNew(dst netip.Addr) (xdp.Hop, error) {
	bad := func(err error, hint string) (xdp.Hop, error) {
		return xdp.Hop{}, &Error{Pkg: pkg, Op: "look up", Name: dst.String(), Err: err, Hint: hint}
	}
	if !dst.IsValid() || dst.IsUnspecified() {
		return bad(ErrAddress, "")
	}
	t.mu.Lock()
	defer t.unlock()
	if z := dst.Zone(); z != "" {
		if z != t.link.Name && z != strconv.Itoa(t.index) {
			return bad(ErrWrongInterface, "the zone must be "+t.link.Name)
		}
		dst = dst.WithZone("")
	}
	d := t.dests[dst]
	switch {
	case d != nil:
	case t.fault != nil:
		return xdp.Hop{}, t.fault
	case len(t.dests) >= t.opt.MaxDestinations:
		return bad(ErrFull, "set TableOptions.MaxDestinations, or Close tables that are not used")
	default:
		d = &destination{addr: dst}
		t.dests[dst] = d
		d.hop, d.err = t.answer(d) // no news to those who know others
		t.askRoute(d)
		t.wake()
	}
	d.used.Store(t.tick.Load())
	return d.hop, d.err
}

// Stats returns the counters.
func (t *Table) Stats() TableStats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.stats
	s.Destinations, s.Neighbours = len(t.dests), len(t.neighbours)
	s.Resyncs = t.resyncs
	return s
}

const usable = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE |
	unix.NUD_PERMANENT | unix.NUD_NOARP

// computeAll works all hops out anew.
func (t *Table) computeAll() {
	for _, d := range t.dests {
		t.compute(d)
	}
}

// compute works a hop out from what is known, and notes whether it differs.
func (t *Table) compute(d *destination) {
	hop, err := t.answer(d)
	hop.Generation = d.hop.Generation
	if hop == d.hop && err == d.err {
		return
	}
	hop.Generation = t.gen.Load() + 1
	d.hop, d.err = hop, err
	t.changed = true
}

func (t *Table) answer(d *destination) (xdp.Hop, error) {
	switch {
	case t.fault != nil:
		return xdp.Hop{}, t.fault
	case t.link.Flags&unix.IFF_UP == 0:
		return xdp.Hop{}, xdp.ErrLinkDown
	case !d.known:
		return xdp.Hop{}, packet.ErrResolving
	case d.refuse != nil && t.upNs != 0:
		return xdp.Hop{}, packet.ErrResolving
	case d.refuse != nil:
		return xdp.Hop{}, d.refuse
	}
	hop := xdp.Hop{LocalMAC: t.link.MAC, Source: d.source, MTU: t.link.MTU}
	if d.mtu != 0 {
		hop.MTU = min(hop.MTU, d.mtu)
	}
	var err error
	hop.NextMAC, err = t.nextMAC(d)
	if err != nil {
		return xdp.Hop{}, err
	}
	return hop, nil
}

// nextMAC finds the hardware address for a destination with a route.
func (t *Table) nextMAC(d *destination) ([6]byte, error) {
	switch {
	case d.addr.IsMulticast():
		mac, _ := packet.MulticastMAC(d.addr)
		return mac, nil
	case d.kind == unix.RTN_BROADCAST:
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil
	case t.link.Flags&unix.IFF_LOOPBACK != 0:
		return t.link.MAC, nil
	}
	switch n := t.neighbours[d.next]; {
	case n.State&usable != 0 && n.HasMAC:
		return n.MAC, nil
	case n.refused:
		return [6]byte{}, ErrNotAllowed
	case n.State&unix.NUD_FAILED != 0:
		return [6]byte{}, packet.ErrUnreachable
	}
	return [6]byte{}, packet.ErrResolving
}

// heard takes news of anything: routes follow any interface, not always with word of it.
func (t *Table) heard(m syscall.NetlinkMessage) {
	switch m.Header.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(m.Data) < unix.SizeofNdMsg || int(number(m.Data[4:])) != t.index {
			return
		}
		next := address(attributes(m.Data[unix.SizeofNdMsg:])[unix.NDA_DST])
		if t.neighbours[next] != nil {
			t.asks.neighbours[next] = true
		}
	default:
		t.asks.dirty = true
	}
}

func (t *Table) linked(old *link) {
	l := &t.link
	if l.Flags&^old.Flags&unix.IFF_UP != 0 && old.Name != "" {
		t.upNs = spin.Now() // the kernel adds routes after it has told of the link
	}
	if old.Flags != l.Flags || old.MTU != l.MTU || old.MAC != l.MAC {
		t.computeAll()
	}
	if old.MAC != l.MAC || (old.Flags^l.Flags)&unix.IFF_UP != 0 {
		t.askNeighbours() // the kernel drops some at such times
	}
}

func (t *Table) lost() {
	t.asks.dirty = true
	t.askNeighbours()
}

// noRoute says why there is no way to a.
func (t *Table) noRoute(a netip.Addr, errno error) error {
	e := &Error{Pkg: pkg, Op: "look up", Name: a.String(), Err: ErrNoRoute,
		Hint: "add a route by " + t.link.Name}
	if errno == unix.EINVAL || errno == unix.EHOSTUNREACH || errno == unix.EACCES {
		e.Err, e.Hint = fmt.Errorf("%w: %w", ErrRefused, errno), "see \"ip route get "+a.String()+"\""
	}
	return e
}

// routeAnswered takes the kernel's answer, or why there is none, as the way to d.
func (t *Table) routeAnswered(d *destination, r route, errno error) {
	d.asked, d.known = false, true
	var err error
	switch {
	case errno != nil:
		err = t.noRoute(d.addr, errno)
	case r.Kind == unix.RTN_BLACKHOLE:
		err = t.noRoute(d.addr, unix.EINVAL)
	case r.Kind == unix.RTN_UNREACHABLE:
		err = t.noRoute(d.addr, unix.EHOSTUNREACH)
	case r.Kind == unix.RTN_PROHIBIT:
		err = t.noRoute(d.addr, unix.EACCES)
	case r.Out != t.index:
		err = &Error{Pkg: pkg, Op: "look up", Name: d.addr.String(), Field: "interface",
			Got: r.Out, Want: t.index, Err: ErrWrongInterface, Hint: wrongHint(t, r)}
	}
	t.setRoute(d, r, err)
}

func wrongHint(t *Table, r route) string {
	if r.Kind == unix.RTN_LOCAL {
		return "the address is this host's own"
	}
	return "the route leaves by interface " + strconv.Itoa(r.Out) + ": add one by " + t.link.Name
}

// setRoute makes r, or the reason why there is none, the way to d.
func (t *Table) setRoute(d *destination, r route, why error) {
	next := netip.Addr{}
	if why == nil && !d.addr.IsMulticast() && r.Kind != unix.RTN_BROADCAST &&
		t.link.Flags&unix.IFF_LOOPBACK == 0 {
		if next = r.Gateway; !next.IsValid() {
			next = d.addr
		}
	}
	if next != d.next {
		t.leave(d)
		d.next = next
		if next.IsValid() {
			t.neighbour(next).users[d] = struct{}{}
		}
	}
	// The same reason keeps its error, lest everybody take it for news.
	if why == nil || d.refuse == nil || why.Error() != d.refuse.Error() {
		d.refuse = why
	}
	d.kind, d.source, d.mtu = r.Kind, r.Source, r.MTU
	t.compute(d)
	t.solicit(d.next)
}

// neighbour returns what is known of a next hop, and has the kernel asked if that is nothing.
func (t *Table) neighbour(next netip.Addr) *neighbour {
	n := t.neighbours[next]
	if n == nil {
		n = &neighbour{users: map[*destination]struct{}{}}
		t.neighbours[next] = n
		t.asks.neighbours[next] = true
	}
	return n
}

// leave ends the destination's use of its next hop.
func (t *Table) leave(d *destination) {
	if n := t.neighbours[d.next]; n != nil {
		delete(n.users, d)
		if len(n.users) == 0 {
			delete(t.neighbours, d.next)
		}
	}
	d.next = netip.Addr{}
}

// neighbourAnswered takes the kernel's answer.
func (t *Table) neighbourAnswered(next netip.Addr, n *neighbour, is neighbourState) {
	wanted := !n.known
	n.neighbourState, n.known = is, true
	n.refused = n.refused && is.State == 0
	for d := range n.users {
		t.compute(d)
		wanted = wanted || is.State == 0 && t.inUse(d)
	}
	if wanted {
		t.solicit(next)
	}
}
