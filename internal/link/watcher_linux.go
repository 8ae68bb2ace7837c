package link

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/rtnetlink"
	"github.com/shmring/shmring/xdp"
)

// kernel is who is asked and tells of changes. A test plays it.
type kernel interface {
	Port() uint32
	Send(requests []byte) error
	Receive(buf []byte) (int, error)
	// Channels returns how many queues the interface uses. Not every driver says.
	Channels(name string) (rx, tx int, err error)
	// Groups returns those that are joined on an interface; none if the kernel does not say.
	Groups(index int) map[netip.Addr]bool
	Close() error
}

// Watcher follows one interface. All methods may be called from anywhere.
type Watcher struct {
	opt Options
	k   kernel

	mu       sync.Mutex
	is       State
	dump     map[netip.Prefix]bool // of the addresses, under way
	dumpSeq  uint32
	broken   bool // the dump under way is of two states, or news were lost meanwhile
	wanted   bool // a dump could not be had
	retrying bool // for the addresses, without polls
	missed   bool // messages were lost: the answer to what was asked then may be among them
	started  bool // what cannot be had now is asked for by the next poll
	seq      uint32
	failure  error // the kernel is not heard any more

	told    State     // the teller's
	local   xdp.Local // that was told, the teller's
	events  chan Event
	kick    chan struct{}
	stop    chan struct{}
	end     sync.Once
	running sync.WaitGroup
	endErr  error
}

var groups = rtnetlink.Join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)

// Watch follows an interface in the network namespace of the calling thread, until Close or until
// it is gone. It needs no privilege. Errors are xdp.ErrNoDevice, and what the kernel has against
// sockets.
func Watch(ifname string, o Options) (*Watcher, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "watch", Name: ifname, Err: xdp.ErrNoDevice,
			Hint: "see \"ip link\" for the interfaces of this network namespace"}
	}
	return WatchIndex(i.Index, o)
}

// WatchIndex is Watch by the number of the interface.
func WatchIndex(index int, o Options) (*Watcher, error) {
	k, err := openSystem()
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "watch", Err: err}
	}
	return watch(k, index, o)
}

func watch(k kernel, index int, o Options) (*Watcher, error) {
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	w := &Watcher{opt: o, k: k, events: make(chan Event), kick: make(chan struct{}, 1),
		stop: make(chan struct{})}
	w.is = State{Index: index, Addresses: map[netip.Prefix]bool{}}
	buf := make([]byte, rtnetlink.BufferBytes)
	err := w.resync()
	for err == nil && !w.is.Removed && (w.is.Name == "" || w.dumpSeq != 0) {
		err = w.receive(buf)
	}
	if w.is.Removed {
		err = xdp.ErrNoDevice
	}
	if err != nil {
		return nil, &Error{Pkg: pkg, Op: "watch", Name: w.is.Name, Field: "interface", Got: index,
			Err: errors.Join(err, k.Close())}
	}
	w.begin()
	w.look()
	w.told = w.State()
	if o.ProgramID != 0 {
		w.told.ProgramID = o.ProgramID
	}
	w.tellLocal(&w.told)
	w.running.Go(func() { w.listen(buf) })
	w.running.Go(w.teller)
	return w, nil
}

// Events returns the channel on which differences are told. It is closed after Removed, by Close,
// and if the kernel cannot be heard any more, which Err explains. With Options.OnEvent nothing
// comes.
func (w *Watcher) Events() <-chan Event { return w.events }

// State returns how the interface is, which may be more than was told.
func (w *Watcher) State() State {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.is
	s.Addresses = maps.Clone(s.Addresses)
	return s
}

// Err returns why nothing is heard of the interface any more, although it may still be there.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failure
}

// Close ends the watcher and waits for its goroutines. Closing twice is harmless.
func (w *Watcher) Close() error {
	w.end.Do(func() {
		close(w.stop)
		w.endErr = w.k.Close()
		w.running.Wait()
	})
	return w.endErr
}

// listen takes what the kernel says until the socket is closed.
func (w *Watcher) listen(buf []byte) {
	for {
		err := w.receive(buf)
		select {
		case <-w.stop:
			return
		default:
		}
		if err != nil {
			w.fail(err)
			return
		}
		w.wake()
	}
}

func (w *Watcher) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *Watcher) fail(err error) {
	w.mu.Lock()
	w.failure = &Error{Pkg: pkg, Op: "watch", Name: w.is.Name, Err: err, Hint: "watch again"}
	w.mu.Unlock()
	w.wake()
}

// receive takes one datagram.
func (w *Watcher) receive(buf []byte) error {
	n, err := w.k.Receive(buf)
	if errors.Is(err, rtnetlink.ErrLost) {
		w.mu.Lock()
		w.missed = true
		w.mu.Unlock()
		return w.resync()
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	again := false
	for m := range rtnetlink.Messages(buf[:n]) {
		again = w.message(m) || again
	}
	if again {
		return w.ask(true)
	}
	if w.missed && w.dumpSeq == 0 { // an answer to a dump is never lost, one about a link may be
		w.missed = false
		return w.ask(false)
	}
	return nil
}

// retryAfter is how long a watcher that does not poll waits before it asks again for addresses that
// it was refused.
const retryAfter = 10 * time.Millisecond

// want notes that a dump could not be had. The next poll asks again, or without polls a timer. The
// lock is held.
func (w *Watcher) want() {
	w.dumpSeq, w.wanted = 0, true
	if !w.started || w.opt.Poll >= 0 || w.retrying {
		return
	}
	w.retrying = true
	time.AfterFunc(retryAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.retrying = false
		select {
		case <-w.stop:
			return
		default:
		}
		if w.wanted && w.dumpSeq == 0 && !w.is.Removed {
			if w.ask(true) != nil {
				w.want()
			}
		}
	})
}

// begin says that what cannot be had from here on is asked for again.
func (w *Watcher) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = true
	if w.wanted {
		w.want()
	}
}

// resync asks how everything is: messages were lost, or there were none yet.
func (w *Watcher) resync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ask(true)
}

// ask asks how the interface is, and which addresses it has. While a dump is under way the kernel
// would refuse another one, and might lose the refusal: so the end of that one asks again.
func (w *Watcher) ask(addresses bool) error {
	w.seq++
	b := rtnetlink.AppendGetLink(nil, w.seq, w.is.Index)
	if addresses && w.dumpSeq != 0 {
		w.broken, addresses = true, false
	}
	if addresses {
		w.seq++
		w.broken, w.wanted = false, false
		w.dumpSeq, w.dump = w.seq, map[netip.Prefix]bool{}
		b = rtnetlink.AppendDumpAddresses(b, w.dumpSeq)
	}
	err := w.k.Send(b)
	if w.started && (errors.Is(err, rtnetlink.ErrBusy) || errors.Is(err, os.ErrClosed)) {
		if addresses {
			w.want()
		}
		return nil
	}
	return err
}

// message takes one message and reports whether everything must be asked for again.
func (w *Watcher) message(m rtnetlink.Message) (again bool) {
	ours := m.Port == w.k.Port()
	switch m.Type {
	case unix.NLMSG_ERROR:
		errno, ok := m.Errno()
		if ok && ours && (errno == unix.ENODEV || w.is.Name == "" && m.Seq != w.dumpSeq) {
			w.is.Removed = true
		}
		if ok && ours && m.Seq == w.dumpSeq && errno != 0 {
			w.want()
		}
	case unix.NLMSG_DONE:
		switch {
		case !ours || m.Seq != w.dumpSeq || m.Seq == 0:
		case w.broken || m.Flags&unix.NLM_F_DUMP_INTR != 0:
			w.dumpSeq, again = 0, true
		default:
			w.dumpSeq, w.is.Addresses, w.dump = 0, w.dump, nil
		}
	case unix.RTM_NEWLINK:
		if l, ok := m.Link(); ok && l.Index == w.is.Index && !l.PortLink {
			w.is.Name, w.is.Up, w.is.MTU = l.Name, l.Up(), l.MTU
			w.is.MAC, w.is.ProgramID = l.MAC, l.ProgramID
		}
	case unix.RTM_DELLINK:
		if l, ok := m.Link(); ok && l.Index == w.is.Index && !l.PortLink {
			w.is.Removed, w.is.Moved = true, l.Moved
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.addressMessage(m, ours)
	}
	return again
}

// addressMessage takes news of an address into what is, and into a dump that is under way, which
// will replace that. An answer to a dump is only for the dump: half of a new state is no state.
func (w *Watcher) addressMessage(m rtnetlink.Message, ours bool) {
	if ours && m.Seq != w.dumpSeq {
		return // of a dump that was given up
	}
	if ours && m.Flags&unix.NLM_F_DUMP_INTR != 0 {
		w.broken = true
	}
	a, ok := m.Address()
	if !ok || a.Index != w.is.Index {
		return
	}
	sets := []map[netip.Prefix]bool{w.dump, w.is.Addresses}
	if ours {
		sets = sets[:1]
	}
	there := m.Type == unix.RTM_NEWADDR && !a.Tentative
	for _, set := range sets {
		switch {
		case set == nil:
		case there:
			set[a.Prefix] = true
		default:
			delete(set, a.Prefix)
		}
	}
}

// teller tells differences, and looks at what the kernel does not tell of.
func (w *Watcher) teller() {
	defer close(w.events)
	defer func() {
		if w.Err() != nil { // nobody knows what is local any more
			w.tellLocal(&State{Removed: true})
		}
	}()
	var poll <-chan time.Time
	if w.opt.Poll > 0 {
		t := time.NewTicker(w.opt.Poll)
		defer t.Stop()
		poll = t.C
	}
	for !w.told.Removed && w.Err() == nil {
		is := w.State()
		w.tellLocal(&is)
		e, ok := next(&w.told, &is)
		var to chan<- Event
		switch {
		case ok && w.opt.OnEvent == nil:
			to = w.events
		case ok && w.opt.OnEvent(e):
			w.told.tell(e)
			continue
		}
		select {
		case <-w.stop:
			return
		case to <- e:
			w.told.tell(e)
		case <-w.kick:
			w.look()
		case <-poll:
			w.look()
			if err := w.pollKernel(); err != nil {
				w.fail(err)
			}
		}
	}
}

// tellLocal tells what is local if that is another than was told. It is for the teller.
func (w *Watcher) tellLocal(is *State) {
	if w.opt.OnLocal == nil {
		return
	}
	if l := is.Local(); w.local == nil || !maps.Equal(l, w.local) {
		w.local = l
		w.opt.OnLocal(maps.Clone(l))
	}
}

// look counts the queues, and looks at the groups.
func (w *Watcher) look() {
	name := w.State().Name
	if w.opt.OnLocal != nil {
		groups := w.k.Groups(w.is.Index) // which never changes
		w.mu.Lock()
		w.is.Groups = groups
		w.mu.Unlock()
	}
	rx, tx, err := w.k.Channels(name)
	if err != nil {
		return // that it has been removed, or renamed just now, is no change of the queues
	}
	w.mu.Lock()
	w.is.RxQueues, w.is.TxQueues = rx, tx
	w.mu.Unlock()
}

func (w *Watcher) pollKernel() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.is.Removed {
		return nil
	}
	return w.ask(w.wanted)
}
