package netif

import (
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/spin"
)

// message takes what the kernel says of anything but how the interface itself is.
func (t *Table) message(m message, ours bool) {
	switch m.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if n, ok := m.Neighbour(); ok && n.Index == t.index && !n.Proxy {
			t.neighbourChanged(n, m)
		}
	case unix.RTM_NEWROUTE:
		if q, ok := t.asks.routes[m.Seq]; ok && ours {
			if r, ok := m.Route(); ok {
				t.routeAnswered(m.Seq, q, r)
			}
			return
		}
		t.asks.dirty = true
	case unix.RTM_NEWLINK, unix.RTM_DELLINK, // routes follow any interface, not always with word of it
		unix.RTM_DELROUTE, unix.RTM_NEWADDR, unix.RTM_DELADDR, unix.RTM_NEWRULE,
		unix.RTM_DELRULE, unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		t.asks.dirty = true
	}
}

func (t *Table) linked(old *linkNews) {
	l := &t.link
	if l.Flags&^old.Flags&unix.IFF_UP != 0 && old.Index != 0 {
		t.upNs = spin.Now() // the kernel adds routes after it has told of the link
	}
	if old.Flags != l.Flags || old.MTU != l.MTU || old.MAC != l.MAC {
		t.computeAll()
	}
	if old.Index != 0 && (old.MAC != l.MAC || (old.Flags^l.Flags)&unix.IFF_UP != 0) {
		t.dump.wanted = true // the kernel drops neighbours at such times
	}
}

// neighbour returns what is known of a next hop, which may be nothing.
func (t *Table) neighbour(next netip.Addr) *neighbour {
	n := t.neighbours[next]
	if n == nil {
		n = &neighbour{users: map[*destination]struct{}{}}
		t.neighbours[next] = n
	}
	return n
}

func (t *Table) neighbourChanged(news neighbourNews, m message) {
	if news.State&unix.NUD_NOARP != 0 && news.Addr.IsMulticast() {
		return // the kernel's notes of groups, which are mapped here
	}
	if m.Type == unix.RTM_DELNEIGH || news.State == unix.NUD_NONE {
		if n := t.neighbours[news.Addr]; n != nil {
			t.neighbourGone(news.Addr, n)
		}
		return
	}
	n := t.neighbour(news.Addr)
	n.neighbourNews, n.refused = news, false
	n.dump = t.dump.seq
	t.neighbourUsers(n)
}

func (t *Table) neighbourUsers(n *neighbour) {
	for d := range n.users {
		t.compute(d)
		// Who failed just now is asked again when somebody looks once more.
		if n.State == 0 && t.inUse(d) && t.unresolved(d) {
			t.solicit(d)
		}
	}
}

func (t *Table) neighbourGone(a netip.Addr, n *neighbour) {
	n.neighbourNews = neighbourNews{}
	t.neighbourUsers(n)
	if len(n.users) == 0 {
		delete(t.neighbours, a)
	}
}

// dumped ends a dump: what was in none of its messages, and no news since it began, is not there.
func (t *Table) dumped(seq uint32) {
	for a, n := range t.neighbours {
		if n.State != 0 && n.dump != seq {
			t.neighbourGone(a, n)
		}
	}
}

func (t *Table) refused(seq uint32, errno unix.Errno) bool {
	if q, ok := t.asks.routes[seq]; ok {
		delete(t.asks.routes, seq)
		if d := t.dests[q.dst]; d != nil {
			d.asked, d.known = false, true
			t.setRoute(d, routeNews{}, t.noRoute(d.addr, errno))
		}
		return true
	}
	a, ok := t.asks.uses[seq]
	if ok && errno == unix.EPERM {
		n := t.neighbour(a)
		n.refused = true
		t.neighbourUsers(n)
	}
	return ok
}

// noRoute says why there is no way to a.
func (t *Table) noRoute(a netip.Addr, errno unix.Errno) error {
	e := &Error{Pkg: pkg, Op: "look up", Name: a.String(), Err: ErrNoRoute,
		Hint: "add a route by " + t.link.Name}
	if errno == unix.EINVAL || errno == unix.EHOSTUNREACH || errno == unix.EACCES {
		e.Err, e.Hint = &refusal{errno}, "see \"ip route get "+a.String()+"\""
	}
	return e
}

// refusal is ErrRefused with the number of the kind of route.
type refusal struct{ errno unix.Errno }

func (r *refusal) Error() string { return ErrRefused.Error() + ": " + r.errno.Error() }

func (r *refusal) Is(target error) bool {
	return target == ErrRefused || target == packet.ErrUnreachable || target == error(r.errno)
}

func (t *Table) routeAnswered(seq uint32, q question, r routeNews) {
	delete(t.asks.routes, seq)
	d := t.dests[q.dst]
	if d == nil {
		return
	}
	d.asked, d.known = false, true
	var err error
	switch r.Kind {
	case unix.RTN_BLACKHOLE:
		err = t.noRoute(d.addr, unix.EINVAL)
	case unix.RTN_UNREACHABLE:
		err = t.noRoute(d.addr, unix.EHOSTUNREACH)
	case unix.RTN_PROHIBIT:
		err = t.noRoute(d.addr, unix.EACCES)
	default:
		if r.Out != t.index {
			err = &Error{Pkg: pkg, Op: "look up", Name: d.addr.String(), Field: "interface",
				Got: r.Out, Want: t.index, Err: ErrWrongInterface, Hint: wrongHint(t, r)}
		}
	}
	t.setRoute(d, r, err)
}

func wrongHint(t *Table, r routeNews) string {
	if r.Kind == unix.RTN_LOCAL {
		return "the address is this host's own"
	}
	return "the route leaves by interface " + strconv.Itoa(r.Out) + ": add one by " + t.link.Name
}

// setRoute makes r, or the reason why there is none, the way to d.
func (t *Table) setRoute(d *destination, r routeNews, why error) {
	next := r.Gateway
	if !next.IsValid() && why == nil {
		next = d.addr
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
	t.solicit(d)
}

// leave ends the destination's use of its next hop.
func (t *Table) leave(d *destination) {
	n := t.neighbours[d.next]
	if n == nil {
		return
	}
	delete(n.users, d)
	if len(n.users) == 0 && n.State == 0 {
		delete(t.neighbours, d.next)
	}
	d.next = netip.Addr{}
}
