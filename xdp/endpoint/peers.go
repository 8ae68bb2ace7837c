package endpoint

import (
	"bytes"
	"errors"
	"io"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/xdp"
)

// directKey is a peer that is in no address vector, and whom it sees datagrams come from.
type directKey struct{ dest, from netip.AddrPort }

// maxDirect is how many peers that are in no address vector are remembered.
const maxDirect = 4096

// peer is whom datagrams go to, with the headers of all of them.
type peer struct {
	dest     netip.AddrPort
	from     netip.AddrPort // instead of Config.Local, if it is valid
	raw      []byte         // as the address vector has it
	template *packet.Template
	header   int     // bytes in front of the payload
	max      int     // the longest payload
	hop      xdp.Hop // that the template was made from
	mtu      int     // of the interface, likewise
	round    uint64  // when the hop was last asked for
	seen     uint64  // the resolver's generation when it answered
}

// errNoWay: no packet can be made for the destination now.
var errNoWay = errors.New("endpoint: no way to the destination")

// peerOf returns whom a message goes to, with a template that is up to date.
func (e *Endpoint) peerOf(m *Msg) (p *peer, err error) {
	if m.Dest.IsValid() {
		p, err = e.unlisted(directKey{m.Dest, m.From})
	} else {
		p, err = e.listed(m.To)
	}
	if err != nil {
		return nil, err
	}
	if m.Flags&cq.FlagMulticast != 0 && !p.dest.Addr().IsMulticast() {
		return nil, ErrAddress
	}
	// The socket may have been told of another MTU since, for another peer.
	if p.round != e.round || p.mtu != e.limits.MTU {
		if err := e.refresh(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// listed returns the peer of an address vector's index. The vector is looked at once in each batch:
// its owner, which may be another process, can give the index to somebody else.
func (e *Endpoint) listed(a cq.Addr) (*peer, error) {
	if uint64(a) < uint64(len(e.peers)) {
		if p := e.peers[a]; p != nil && p.round == e.round {
			return p, nil
		}
	}
	if e.cfg.Addresses == nil || uint64(a) >= uint64(e.cfg.Addresses.Options().Count) {
		return nil, ErrAddress
	}
	n, err := e.cfg.Addresses.Lookup(a, e.raw[:])
	if err != nil || n > len(e.raw) {
		return nil, ErrAddress
	}
	if uint64(a) < uint64(len(e.peers)) {
		if p := e.peers[a]; p != nil && bytes.Equal(p.raw, e.raw[:n]) {
			return p, nil
		}
	}
	dest, ok := cq.ParseSockaddr(e.raw[:n])
	if !ok {
		return nil, ErrAddress
	}
	for uint64(len(e.peers)) <= uint64(a) {
		e.peers = append(e.peers, nil)
	}
	p := &peer{dest: dest, raw: bytes.Clone(e.raw[:n])}
	e.peers[a] = p
	return p, nil
}

// unlisted returns a peer that is in no address vector. Packets go in runs to one of them.
func (e *Endpoint) unlisted(key directKey) (p *peer, err error) {
	if e.lastKey == key {
		return e.lastPeer, nil
	}
	if p = e.direct[key]; p == nil {
		if p, err = e.newDirect(key.dest, key.from); err != nil {
			return nil, err
		}
	}
	e.lastKey, e.lastPeer = key, p
	return p, nil
}

func (e *Endpoint) newDirect(dest, from netip.AddrPort) (*peer, error) {
	ip := dest.Addr().Unmap()
	if dest.Port() == 0 || ip.IsUnspecified() {
		return nil, ErrAddress
	}
	if len(e.direct) >= maxDirect {
		clear(e.direct) // rare, and they are made again as they are needed
	}
	p := &peer{dest: netip.AddrPortFrom(ip, dest.Port()), from: from}
	e.direct[directKey{dest, from}] = p
	return p, nil
}

// refresh asks for the way and makes the template again if it changed.
func (e *Endpoint) refresh(p *peer) error {
	var seen uint64
	if e.generation != nil {
		if seen = e.generation.Generation(); p.template != nil && p.seen == seen &&
			p.mtu == e.mtu() {
			p.round = e.round
			return nil
		}
	}
	h, err := e.hopTo(p.dest.Addr())
	switch {
	case err == nil:
	case errors.Is(err, ErrResolving):
		e.stats.Resolving++
		return ErrResolving
	case !errors.Is(err, xdp.ErrLinkDown):
		return errNoWay
	case p.template == nil:
		return xdp.ErrLinkDown
	default:
		h = p.hop // packets wait for the link, and most often it comes back as it was
	}
	if p.template == nil || p.hop != h || p.mtu != e.mtu() {
		if err := e.header(p, h); err != nil {
			return err
		}
	}
	p.round = e.round
	if err == nil {
		p.seen = seen
	}
	return nil
}

func (e *Endpoint) hopTo(dst netip.Addr) (xdp.Hop, error) {
	h, err := xdp.Hop{}, ErrUnreachable
	if e.cfg.Resolver != nil {
		h, err = e.cfg.Resolver.Lookup(dst)
	}
	if !dst.IsMulticast() || errors.Is(err, ErrResolving) {
		return h, err
	}
	if err != nil {
		h = xdp.Hop{LocalMAC: e.cfg.LocalMAC}
		if h.LocalMAC == [6]byte{} {
			return h, ErrUnreachable
		}
	}
	h.NextMAC, _ = packet.MulticastMAC(dst)
	return h, nil
}

// header makes a peer's template.
func (e *Endpoint) header(p *peer, h xdp.Hop) error {
	local := e.cfg.Local
	if p.from.IsValid() {
		local = p.from
	}
	source := local.Addr()
	if !source.IsValid() || source.IsUnspecified() {
		source = h.Source
	}
	source = source.Unmap()
	if !source.IsValid() || source.Is4() != p.dest.Addr().Is4() {
		return ErrAddress // of the other family, say
	}
	t, err := packet.Path{LocalMAC: h.LocalMAC, NextMAC: h.NextMAC, Tags: e.cfg.tags(),
		Src: netip.AddrPortFrom(source, local.Port()), Dst: p.dest,
		HopLimit: e.cfg.HopLimit, TrafficClass: e.cfg.TrafficClass}.Template()
	if err != nil {
		return ErrAddress
	}
	mtu := e.mtu()
	p.mtu = mtu
	if h.MTU > 0 {
		mtu = min(mtu, h.MTU)
	}
	p.template, p.hop, p.header = t, h, t.HeaderLen()
	// A chunk, or the longest chain of them, may be smaller than the MTU.
	p.max = min(t.MaxPayload(mtu), e.limits.ChainBytes-p.header)
	if e.cfg.RemoteData {
		p.max -= ShimBytes
	}
	return nil
}

type groupKey = netip.Addr

// membership is a group that was joined: the kernel keeps it as long as a socket does.
type membership struct {
	io.Closer
	uses int
}

// Join makes the network deliver a multicast group's datagrams to the interface, and the interface
// take them (fi_join): the kernel reports the membership by IGMP or MLD and sets the filter of the
// device. The steering program decides which of them come to this endpoint, by port as ever; their
// completions have FlagMulticast. To send to a group needs no join. A group that was joined twice
// is left at the second Leave. It is done when it returns; Events gets cq.EventJoinComplete all the
// same, with Config.Context, for those who wait for it there.
//
// Errors: [ErrAddress] for an address that is no group; those of the kernel.
func (e *Endpoint) Join(group netip.Addr) error {
	group = group.Unmap()
	e.lock()
	defer e.unlock()
	if err := e.usable(); err != nil {
		return err
	}
	if !group.IsMulticast() {
		return fault("join", ErrAddress, "a multicast address is needed")
	}
	if m := e.groups[group]; m != nil {
		m.uses++
		e.tellJoined()
		return nil
	}
	index := e.socket.Info().Index
	member, err := joinGroup(e.socket.FD(), index, group)
	if err != nil {
		return fault("join", err, "")
	}
	e.groups[group] = &membership{member, 1}
	e.tellJoined()
	return nil
}

// tellJoined is for whoever follows the page. A full event queue loses nothing that the caller of
// Join does not know.
func (e *Endpoint) tellJoined() {
	if e.cfg.Events != nil {
		_, _ = e.cfg.Events.Write(&cq.Event{Event: cq.EventJoinComplete, FID: e.FID(),
			Context: e.cfg.Context})
	}
}

// Leave undoes a Join. [ErrNotFound] says that there was none.
func (e *Endpoint) Leave(group netip.Addr) error {
	group = group.Unmap()
	e.lock()
	defer e.unlock()
	m := e.groups[group]
	switch {
	case m == nil:
		return fault("leave", ErrNotFound, "")
	case m.uses > 1:
		m.uses--
		return nil
	}
	delete(e.groups, group)
	return m.Close()
}
