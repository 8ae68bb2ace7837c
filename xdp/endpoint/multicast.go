package endpoint

import (
	"errors"
	"net/netip"

	"github.com/shmring/shmring/cq"
)

type groupKey = netip.Addr

// membership is a group that was joined: the kernel keeps it as long as a socket does.
type membership struct {
	fd   int
	uses int
}

func (m *membership) close() error { return closeFD(m.fd) }

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
	fd, err := joinGroup(e.socket.FD(), index, group)
	if err != nil {
		return fault("join", err, "")
	}
	e.groups[group] = &membership{fd: fd, uses: 1}
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
	return errors.Join(m.close())
}
