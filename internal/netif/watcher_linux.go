package netif

import (
	"maps"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/xdp"
)

// prober is a kernel that is also asked what it does not tell of.
type prober interface {
	kernel
	// Channels returns how many queues the interface uses. Not every driver says.
	Channels(name string) (rx, tx int, err error)
	// Groups returns those that are joined on an interface; none if the kernel does not say.
	Groups(index int) (map[netip.Addr]bool, error)
}

// Watcher tells what happens to one interface. All methods may be called from anywhere.
type Watcher struct {
	loop
	opt    WatchOptions
	sys    prober
	is     State               // but for the addresses, and what loop.link says
	have   map[ownAddress]bool // the addresses
	answer map[ownAddress]bool // of a dump of these, under way
	told   State               // the worker's
	local  xdp.Local           // that was told, and taken; the worker's
}

// ownAddress is what the kernel tells addresses apart by: an interface can have one for several
// peers.
type ownAddress struct {
	netip.Prefix
	peer netip.Addr
}

// Watch follows the interface of an index in the network namespace of the calling thread, until
// Close or until it is gone. It needs no privilege. Errors are xdp.ErrNoDevice, and what the kernel
// has against sockets.
func Watch(index int, o WatchOptions) (*Watcher, error) {
	k, err := openSystem()
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "watch", Err: err}
	}
	return watch(k, index, o)
}

func watch(k prober, index int, o WatchOptions) (*Watcher, error) {
	w := newWatcher(k, index, o)
	if err := w.start(); err != nil {
		return nil, err
	}
	w.look()
	w.told = w.State()
	if o.ProgramID != 0 {
		w.told.ProgramID = o.ProgramID
	}
	w.tellLocal(&w.told)
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	w.run(o.Poll)
	return w, nil
}

func newWatcher(k prober, index int, o WatchOptions) *Watcher {
	w := &Watcher{loop: newLoop(k, index), opt: o, sys: k,
		is: State{Index: index}, have: map[ownAddress]bool{}}
	w.f = w
	if o.patience > 0 {
		w.patienceNs = o.patience.Nanoseconds()
	}
	return w
}

// State returns how the interface is, which may be more than was told.
func (w *Watcher) State() State {
	w.mu.RLock()
	defer w.mu.RUnlock()
	s, l := w.is, &w.link
	s.Addresses = map[netip.Prefix]bool{}
	for a := range w.have {
		s.Addresses[a.Prefix] = true
	}
	s.Name, s.Up, s.MTU, s.MAC, s.ProgramID = l.Name, l.Up(), l.MTU, l.MAC, l.ProgramID
	s.Removed, s.Moved = w.removed, w.removed && l.Moved
	return s
}

func (w *Watcher) appendDump(b []byte, seq uint32) []byte {
	w.answer = map[ownAddress]bool{}
	return appendDumpAddresses(b, seq)
}

func (w *Watcher) dumped(uint32) { w.have, w.answer = w.answer, nil }

// message takes news of an address into what is, and into a dump that is under way, which will
// replace that. An answer to a dump is only for the dump: half of a new state is no state.
func (w *Watcher) message(m message, ours bool) {
	a, ok := m.Address()
	if !ok || a.Index != w.index {
		return
	}
	sets := []map[ownAddress]bool{w.answer, w.have}
	if ours {
		sets = sets[:1]
	}
	one := ownAddress{a.Prefix, a.Peer}
	there := m.Type == unix.RTM_NEWADDR && !a.Tentative
	for _, set := range sets {
		switch {
		case set == nil:
		case there:
			set[one] = true
		default:
			delete(set, one)
		}
	}
}

func (w *Watcher) linked(*linkNews)                         {}
func (w *Watcher) refused(uint32, unix.Errno) bool          { return false }
func (w *Watcher) askAgain()                                {}
func (w *Watcher) appendQuestions(b []byte, _ int64) []byte { return b }
func (w *Watcher) failed()                                  {}
func (w *Watcher) unlock()                                  { w.mu.Unlock() }

// round looks at what the kernel does not tell of, and tells the differences.
func (w *Watcher) round(_ int64, ticked bool) {
	w.mu.Lock()
	w.linkWanted = w.linkWanted || ticked
	ended, deaf := w.fault != nil, w.fault != nil && !w.removed
	w.mu.Unlock()
	if deaf { // nobody knows what is local any more
		w.tellLocal(&State{Removed: true})
		return
	}
	if !ended {
		w.look()
	}
	for w.tell() {
	}
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

// look counts the queues, and looks at the groups.
func (w *Watcher) look() {
	var groups map[netip.Addr]bool
	unread := error(nil)
	if w.opt.OnLocal != nil {
		groups, unread = w.sys.Groups(w.index)
	}
	rx, tx, err := w.sys.Channels(w.State().Name)
	w.mu.Lock()
	defer w.mu.Unlock()
	if unread == nil {
		w.is.Groups = groups
	}
	if err == nil { // that it has been removed, or renamed just now, is no change of the queues
		w.is.RxQueues, w.is.TxQueues = rx, tx
	}
}
