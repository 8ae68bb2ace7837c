package route

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// Generation is another number after anything that a Lookup returned may have changed. It also
// moves once each Options.Refresh, so that users look up again what they use: what nobody looks up
// is not looked after.
//
// To miss nothing, load it before the lookup whose result is kept.
func (t *Table) Generation() uint64 { return t.gen.Load() }

// Lookup returns the way to dst, at once and without a system call; without allocation if dst was
// looked up before. An IPv6 zone must name the table's interface.
//
// Errors are packet.ErrResolving (EAGAIN) while the kernel is asked, packet.ErrUnreachable
// (EHOSTUNREACH) if nobody answered, which is tried again each Options.Attempt for as long as
// somebody asks; [ErrNoRoute], [ErrWrongInterface] and [ErrRefused], though not in the first
// moments after the interface came up; xdp.ErrLinkDown until it does, and xdp.ErrDeviceGone for
// good; [ErrAddress]; [ErrFull]; os.ErrClosed.
func (t *Table) Lookup(dst netip.Addr) (packet.Hop, error) {
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
func (t *Table) lookupNew(dst netip.Addr) (packet.Hop, error) {
	bad := func(err error, hint string) (packet.Hop, error) {
		return packet.Hop{}, &Error{Pkg: pkg, Op: "look up", Name: dst.String(), Err: err, Hint: hint}
	}
	if !dst.IsValid() || dst.IsUnspecified() {
		return bad(ErrAddress, "")
	}
	t.mu.Lock()
	defer t.unlock()
	if z := dst.Zone(); z != "" {
		if z != t.name && z != strconv.Itoa(t.index) {
			return bad(ErrWrongInterface, "the zone must be "+t.name)
		}
		dst = dst.WithZone("")
	}
	d := t.dests[dst]
	switch {
	case d != nil:
	case t.fault != nil:
		return packet.Hop{}, t.fault
	case len(t.dests) >= t.opt.MaxDestinations:
		return bad(ErrFull, "set Options.MaxDestinations, or Close tables that are not used")
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

// Resolve is Lookup that waits while the answer is packet.ErrResolving. It also returns the
// context's error, with its cause.
func (t *Table) Resolve(ctx context.Context, dst netip.Addr) (packet.Hop, error) {
	for {
		t.mu.RLock()
		change := t.change
		t.mu.RUnlock()
		hop, err := t.Lookup(dst)
		if err != packet.ErrResolving {
			return hop, err
		}
		select {
		case <-change:
		case <-time.After(t.opt.Attempt): // what nobody looks up is not asked for again
		case <-ctx.Done():
			return packet.Hop{}, &Error{Pkg: pkg, Op: "resolve", Name: dst.String(),
				Err: context.Cause(ctx)}
		}
	}
}

// Add makes mac the hardware address of dst, whatever the kernel says, until Remove. The route is
// still the kernel's; where there is none, the hop has no source address and the interface's MTU.
func (t *Table) Add(dst netip.Addr, mac [6]byte) {
	t.setStatic(dst, func(a netip.Addr) { t.static[a] = mac })
}

// Remove undoes Add.
func (t *Table) Remove(dst netip.Addr) {
	t.setStatic(dst, func(a netip.Addr) { delete(t.static, a) })
}

func (t *Table) setStatic(dst netip.Addr, set func(netip.Addr)) {
	dst = dst.Unmap().WithZone("")
	t.mu.Lock()
	set(dst)
	if d := t.dests[dst]; d != nil {
		t.compute(d)
		t.solicit(d)
	}
	t.unlock()
	t.wake()
}

// Learn notes that a packet from src came with this source hardware address. It is used for
// packets to src while the kernel does not know better, for up to Options.Refresh after the last
// packet: an answer need not wait for the kernel. It costs little when nothing is new.
//
// It is for networks whose members trust each other: anybody on the link who sends a packet with a
// false source address gets what is sent to that address, until the kernel has asked.
func (t *Table) Learn(src netip.Addr, mac [6]byte) {
	src = src.Unmap().WithZone("")
	now := t.tick.Load()
	t.mu.RLock()
	l := t.learnt[src]
	if l != nil && l.mac == mac {
		if l.tick.Load() != now {
			l.tick.Store(now)
		}
		t.mu.RUnlock()
		return
	}
	t.mu.RUnlock()
	if !src.IsValid() || src.IsUnspecified() || src.IsMulticast() || mac[0]&1 != 0 ||
		mac == [6]byte{} {
		return
	}
	t.mu.Lock()
	defer t.unlock()
	if len(t.learnt) >= t.opt.MaxDestinations && l == nil {
		return
	}
	l = &lesson{mac: mac}
	l.tick.Store(now)
	t.learnt[src] = l
	if d := t.dests[src]; d != nil {
		t.compute(d)
	}
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.stats
	s.Destinations, s.Neighbours = len(t.dests), len(t.neighbours)
	s.Learnt, s.Static = len(t.learnt), len(t.static)
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

func (t *Table) answer(d *destination) (packet.Hop, error) {
	mac, static := t.static[d.addr]
	switch {
	case t.fault != nil:
		return packet.Hop{}, t.fault
	case t.link.Flags&unix.IFF_UP == 0:
		return packet.Hop{}, xdp.ErrLinkDown
	case !d.known:
		return packet.Hop{}, packet.ErrResolving
	case d.refuse != nil && !static && t.upNs != 0:
		return packet.Hop{}, packet.ErrResolving
	case d.refuse != nil && !static:
		return packet.Hop{}, d.refuse
	}
	hop := packet.Hop{LocalMAC: t.link.MAC, NextMAC: mac, Source: d.source, MTU: t.link.MTU}
	if d.mtu != 0 {
		hop.MTU = min(hop.MTU, d.mtu)
	}
	if static {
		return hop, nil
	}
	var err error
	hop.NextMAC, err = t.nextMAC(d)
	if err != nil {
		return packet.Hop{}, err
	}
	return hop, nil
}

// nextMAC finds the hardware address for a destination with a route.
func (t *Table) nextMAC(d *destination) ([6]byte, error) {
	switch {
	case d.addr.IsMulticast():
		return multicastMAC(d.addr), nil
	case d.kind == unix.RTN_BROADCAST:
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, nil
	case t.link.Flags&unix.IFF_LOOPBACK != 0:
		return t.link.MAC, nil
	}
	n := t.neighbours[d.next]
	if n != nil && n.State&usable != 0 && n.HasMAC {
		return n.MAC, nil
	}
	if l := t.learnt[d.addr]; l != nil {
		return l.mac, nil
	}
	switch {
	case n != nil && n.refused:
		return [6]byte{}, ErrNotAllowed
	case n != nil && n.State&unix.NUD_FAILED != 0:
		return [6]byte{}, packet.ErrUnreachable
	}
	return [6]byte{}, packet.ErrResolving
}

// multicastMAC maps a group to its hardware address (RFC 1112, RFC 2464).
func multicastMAC(a netip.Addr) [6]byte {
	if a.Is4() {
		b := a.As4()
		return [6]byte{0x01, 0x00, 0x5e, b[1] & 0x7f, b[2], b[3]}
	}
	b := a.As16()
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
