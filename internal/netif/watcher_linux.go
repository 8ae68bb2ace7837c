package netif

import (
	"errors"
	"maps"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp"
)

// Watcher tells what happens to one interface. All methods may be called from anywhere.
type Watcher struct {
	loop
	opt    WatchOptions
	is     State     // but for what loop says
	wanted bool      // the addresses are to be asked for
	told   State     // the worker's
	local  xdp.Local // that was told, and taken; the worker's
}

// Watch follows the interface of an index in the network namespace of the calling thread, until
// Close or until it is gone. It needs no privilege. Errors are xdp.ErrNoDevice, and what the kernel
// has against sockets.
func Watch(index int, o WatchOptions) (*Watcher, error) {
	k, err := openSystem(index, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
		unix.RTNLGRP_IPV6_IFADDR)
	if err == nil {
		if err = k.openProbes(); err != nil {
			err = errors.Join(err, k.Close())
		}
	}
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "watch", Err: err}
	}
	return watch(k, index, o)
}

func watch(k kernel, index int, o WatchOptions) (*Watcher, error) {
	w := newWatcher(k, index, o)
	if err := w.start(); err != nil {
		return nil, err
	}
	w.told = w.State()
	w.told.Addresses = maps.Clone(w.told.Addresses)
	if o.ProgramID != 0 {
		w.told.ProgramID = o.ProgramID
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	w.run(o.Poll)
	return w, nil
}

func newWatcher(k kernel, index int, o WatchOptions) *Watcher {
	w := &Watcher{loop: newLoop(k, index), opt: o, is: State{Index: index}, wanted: true,
		told: State{Removed: true}} // so that nothing is told yet
	w.f = w
	return w
}

// State returns how the interface is, which may be more than was told.
func (w *Watcher) State() State {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s, l := w.is, &w.link
	s.Name, s.Up, s.MTU, s.MAC, s.ProgramID = l.Name, l.Up(), l.MTU, l.MAC, l.ProgramID
	s.Removed, s.Moved = w.removed, w.moved
	return s
}

func (w *Watcher) heard(m syscall.NetlinkMessage) {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Data) >= unix.SizeofIfAddrmsg &&
			int(nl.DeserializeIfAddrmsg(m.Data).Index) == w.index {
			w.wanted = true
		}
	}
}

func (w *Watcher) lost()        { w.wanted = true }
func (w *Watcher) linked(*link) {}
func (w *Watcher) failed()      {}
func (w *Watcher) unlock()      { w.mu.Unlock() }

// look asks what is to be asked, and tells the differences.
func (w *Watcher) look(int64, bool) error {
	w.mu.Lock()
	ended, deaf := w.fault != nil, w.fault != nil && !w.removed
	wanted := w.wanted
	w.wanted = false
	w.mu.Unlock()
	if deaf { // nobody knows what is local any more
		w.tellLocal(&State{Removed: true})
		return nil
	}
	var err error
	if !ended {
		err = w.ask(wanted)
	}
	for w.tell() {
	}
	return err
}

// ask asks for the addresses, if they are wanted, and for what the kernel does not tell of: the
// queues and the groups.
func (w *Watcher) ask(wanted bool) error {
	var err, unread error
	var addresses map[netip.Prefix]bool
	var groups map[netip.Addr]bool
	if wanted {
		addresses, err = w.k.Addresses()
	}
	if w.opt.OnLocal != nil {
		groups, unread = w.k.Groups()
	}
	rx, tx, unsaid := w.k.Channels(w.State().Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.wanted = true
	case wanted:
		w.is.Addresses = addresses
	}
	if unread == nil {
		w.is.Groups = groups
	}
	if unsaid == nil { // that it has been removed, or renamed just now, is no change of the queues
		w.is.RxQueues, w.is.TxQueues = rx, tx
	}
	return err
}

// tell tells one difference, and reports whether there may be more.
func (w *Watcher) tell() bool {
	is := w.State()
	w.tellLocal(&is)
	e, ok := next(&w.told, &is)
	if !ok || w.opt.OnEvent == nil || !w.opt.OnEvent(e) {
		return false
	}
	w.told.tell(e)
	return true
}

// tellLocal tells what is local if that is another than was taken.
func (w *Watcher) tellLocal(is *State) {
	if w.opt.OnLocal == nil {
		return
	}
	if l := is.Local(); w.local == nil || !maps.Equal(l, w.local) {
		if w.local = nil; w.opt.OnLocal(maps.Clone(l)) {
			w.local = l
		}
	}
}
