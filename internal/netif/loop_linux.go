package netif

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/xdp"
)

// follower is what stands on a loop. The lock is held in heard, linked, failed and unlock.
type follower interface {
	heard(m syscall.NetlinkMessage)    // news of anything but the interface itself
	linked(old *link)                  // loop.link is another than old
	lost()                             // news were lost: ask for all again
	failed()                           // loop.fault is set, and nothing more will be asked
	unlock()                           // ends a change, and releases the lock
	look(now int64, ticked bool) error // the worker's turn: asks what is to be asked
}

// calm is how long the worker waits before it asks again what was refused, or what changes in
// storms: one round of questions serves many changes.
const calm = 10 * time.Millisecond

// loop follows an interface: a goroutine hears of what the kernel may be asked, and a worker asks.
type loop struct {
	k     kernel
	f     follower
	index int

	// mu is never held while anybody waits.
	mu         sync.RWMutex
	link       link
	removed    bool
	moved      bool  // removed, to another namespace
	fault      error // why nothing is followed any more
	linkWanted bool
	goneNs     int64 // since when there is no such interface, and no word of that; else 0
	later      bool  // something is to be asked, but not yet
	resyncs    uint64

	kick      chan struct{}
	stop      chan struct{}
	end       sync.Once
	listening sync.WaitGroup
	working   sync.WaitGroup
	endErr    error
}

func newLoop(k kernel, index int) loop {
	return loop{k: k, index: index, linkWanted: true, kick: make(chan struct{}, 1),
		stop: make(chan struct{})}
}

// start asks how everything is. It closes the sockets if it fails.
func (l *loop) start() (err error) {
	for end := spin.Now() + patience.Nanoseconds(); ; time.Sleep(calm) {
		if err = l.look(false); !busy(err) || spin.Now() > end {
			break
		}
	}
	if err == nil {
		return nil
	}
	return &Error{Pkg: pkg, Op: "open", Name: l.link.Name, Field: "interface", Got: l.index,
		Err: errors.Join(err, l.k.Close())}
}

// run begins to follow, with a tick for the follower each time that every has passed, if it is not
// negative.
func (l *loop) run(every time.Duration) {
	l.listening.Go(l.listen)
	l.working.Go(func() { l.work(every) })
	l.wake()
}

// listen takes what the kernel tells, until the socket is closed.
func (l *loop) listen() {
	for {
		news, from, err := l.k.Receive()
		switch {
		case err == unix.ENOBUFS: // messages were lost
			l.mu.Lock()
			l.resyncs++
			l.linkWanted = true
			l.f.lost()
			l.f.unlock()
			l.wake()
		case err != nil:
			l.deaf(err)
			return
		case from.Pid == nl.PidKernel:
			l.hear(news)
		}
	}
}

func (l *loop) hear(news []syscall.NetlinkMessage) {
	l.mu.Lock()
	for _, m := range news {
		l.heard(m)
	}
	l.f.unlock()
	l.wake()
}

// heard takes news. They say where to look: how things are is what the kernel answers then, since
// news are old when they are read. Only that the interface was removed is true for good.
func (l *loop) heard(m syscall.NetlinkMessage) {
	kind := m.Header.Type
	if kind == unix.RTM_NEWLINK || kind == unix.RTM_DELLINK {
		if len(m.Data) < unix.SizeofIfInfomsg {
			return
		}
		head := nl.DeserializeIfInfomsg(m.Data)
		switch {
		case head.Family != unix.AF_UNSPEC: // a port of a bridge, which stays an interface
			return
		case int(head.Index) != l.index:
		case kind == unix.RTM_DELLINK:
			is := attributes(m.Data[unix.SizeofIfInfomsg:])
			l.gone(is[unix.IFLA_NEW_NETNSID] != nil || is[unix.IFLA_NEW_IFINDEX] != nil)
		default:
			l.linkWanted = true
		}
	}
	l.f.heard(m)
}

func (l *loop) gone(moved bool) {
	if l.fault == nil {
		l.removed, l.moved = true, moved
		l.fault = &Error{Pkg: pkg, Op: "follow", Name: l.link.Name, Err: xdp.ErrDeviceGone}
		l.f.failed()
	}
}

// look asks how the interface is, and has the follower ask. With each tick it also asks what the
// kernel does not tell of.
func (l *loop) look(ticked bool) error {
	l.mu.Lock()
	wanted := (l.linkWanted || ticked) && l.fault == nil
	l.linkWanted = false
	l.mu.Unlock()
	if wanted {
		if err := l.lookAtLink(); err != nil {
			return err
		}
	}
	return l.f.look(spin.Now(), ticked)
}

func (l *loop) lookAtLink() error {
	is, err := l.k.Link()
	now := spin.Now()
	l.mu.Lock()
	defer l.f.unlock()
	switch {
	case l.fault != nil:
		return nil
	case err == nil:
		old := l.link
		l.link, l.goneNs = is, 0
		l.f.linked(&old)
		return nil
	case err != xdp.ErrNoDevice || l.link.Name == "":
	case l.goneNs == 0:
		l.goneNs = now
		err = unix.EAGAIN // the news of it, which say whether it moved, are on their way
	case now-l.goneNs < patience.Nanoseconds():
		err = unix.EAGAIN
	default:
		l.gone(false)
		return nil
	}
	l.linkWanted = true
	return err
}

// work asks the kernel what is to be asked, and keeps the time.
func (l *loop) work(every time.Duration) {
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		ticked := false
		select {
		case <-l.stop:
			return
		case <-l.kick:
		case <-tick:
			ticked = true
		}
		err := l.look(ticked)
		if err != nil && !busy(err) {
			l.deaf(err)
		}
		l.mu.Lock()
		later := l.later || busy(err)
		l.later = false
		l.mu.Unlock()
		if later { // changes that come in storms gather meanwhile
			select {
			case <-l.stop:
				return
			case <-time.After(calm):
				l.wake()
			}
		}
	}
}

// wake has the worker look for something to do.
func (l *loop) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// deaf ends what is known, since the kernel is not heard any more, be it because of Close.
func (l *loop) deaf(err error) {
	select {
	case <-l.stop:
	default:
		l.fail(err)
		l.wake()
	}
}

func (l *loop) fail(err error) {
	l.mu.Lock()
	l.fault = &Error{Pkg: pkg, Op: "follow", Name: l.link.Name, Err: err}
	l.f.failed()
	l.f.unlock()
}

// Close ends what follows the interface, and waits for its goroutines. Closing twice is harmless.
func (l *loop) Close() error {
	l.end.Do(func() {
		close(l.stop)
		l.working.Wait()
		l.endErr = l.k.Close()
		l.listening.Wait()
		l.fail(os.ErrClosed)
	})
	return l.endErr
}
