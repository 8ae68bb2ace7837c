package netif

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/xdp"
)

// kernel is who is asked and tells of changes. A test plays it.
type kernel interface {
	Port() uint32
	Send(requests []byte) error
	Receive(buf []byte) (int, error)
	Close() error
}

// follower is what stands on a loop. The lock is held in all of them but round.
type follower interface {
	appendDump(b []byte, seq uint32) []byte // the question for all that there is
	dumped(seq uint32)                      // all answers came, and they are of one state
	linked(old *linkNews)                   // loop.link is another than old
	message(m message, ours bool)           // any other news; ours: an answer to this socket
	refused(seq uint32, errno unix.Errno) bool
	askAgain() // its own questions may have lost their answers
	appendQuestions(b []byte, now int64) []byte
	failed()                      // loop.fault is set, and nothing more will be heard
	unlock()                      // ends a change, and releases the lock
	round(now int64, ticked bool) // the worker's turn, before what is to be asked is sent
}

// calm is how long the worker waits before it asks again what was refused, or what changes in
// storms: one round of questions serves many changes.
const calm = 10 * time.Millisecond

// loop follows an interface by one socket: a goroutine hears what the kernel says, and a worker
// asks what is to be asked.
type loop struct {
	k          kernel
	f          follower
	index      int
	patienceNs int64 // patienceNs; tests change it

	// mu is never held while anybody waits.
	mu         sync.RWMutex
	link       linkNews // zero until the kernel has told
	removed    bool     // link.Moved says whether to another namespace
	fault      error    // why nothing is heard any more
	seq        uint32
	linkWanted bool
	dump       dump
	lost       bool  // messages were: the answer about the link may be among them
	hold       bool  // a request was refused: ask nothing for a moment
	heldNs     int64 // nothing is asked before
	later      bool  // something is to be asked, but not yet
	resyncs    uint64

	kick    chan struct{}
	stop    chan struct{}
	end     sync.Once
	running sync.WaitGroup
	endErr  error
}

// dump is the question for all that there is. A socket has one at a time: the kernel refuses
// another one, so what is wanted meanwhile is asked for when that is over. Its answers are never
// lost, since the kernel makes them as they find room. That it is refused can be: then it is asked
// for again after a while in which nothing of it came.
type dump struct {
	wanted  bool
	seq     uint32 // of the one under way; 0 if none is
	broken  bool   // it is of two states, or news were lost meanwhile
	heardNs int64  // when it was asked for, or something of it came
}

func newLoop(k kernel, index int) loop {
	return loop{k: k, index: index, patienceNs: patienceNs, kick: make(chan struct{}, 1),
		stop: make(chan struct{})}
}

// start asks how everything is, and waits for the answers. It closes the socket if it fails.
func (l *loop) start() error {
	l.mu.Lock()
	l.askAll()
	l.mu.Unlock()
	buf := make([]byte, bufferBytes)
	var err error
	over := make(chan struct{})
	defer l.running.Wait()
	defer close(over)
	l.running.Go(func() { l.repeat(over) })
	for err == nil && l.starting() {
		if err = l.pump(spin.Now()); err == nil {
			err = l.receive(buf)
		}
	}
	if l.fault != nil {
		err = xdp.ErrNoDevice
	}
	if err != nil {
		return &Error{Pkg: pkg, Op: "open", Name: l.link.Name, Field: "interface", Got: l.index,
			Err: errors.Join(err, l.k.Close())}
	}
	return nil
}

// starting reports whether the first answers are not all there. A refused dump is not waited for.
func (l *loop) starting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fault == nil && (l.link.Name == "" || l.dump.seq != 0 || l.dump.wanted && !l.hold)
}

// repeat asks again what was not answered, until it is over: nothing is heard of what is lost.
func (l *loop) repeat(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(calm):
			_ = l.pump(spin.Now()) // what was not taken is tried once more
		}
	}
}

// run begins to follow, with a tick for the follower each time that every has passed, if it is not
// negative.
func (l *loop) run(every time.Duration) {
	l.running.Go(l.listen)
	l.running.Go(func() { l.work(every) })
	l.wake()
}

// listen takes what the kernel says, until the socket is closed.
func (l *loop) listen() {
	buf := make([]byte, bufferBytes)
	for {
		if err := l.receive(buf); err != nil {
			l.deaf(err)
			return
		}
	}
}

// receive takes one datagram.
func (l *loop) receive(buf []byte) error {
	n, err := l.k.Receive(buf)
	if errors.Is(err, errLost) {
		l.resync()
		return nil
	}
	if err == nil {
		l.handle(buf[:n])
	}
	return err
}

// resync asks for everything again, since messages were lost.
func (l *loop) resync() {
	l.mu.Lock()
	l.lost = true
	l.resyncs++
	l.askAll()
	l.f.unlock()
	l.wake()
}

func (l *loop) askAll() {
	l.linkWanted, l.dump.wanted, l.dump.broken = true, true, true
	l.f.askAgain()
}

// handle takes a datagram of the kernel's.
func (l *loop) handle(datagram []byte) {
	l.mu.Lock()
	for m := range messages(datagram) {
		l.take(m)
	}
	// An answer to a dump is never lost, one about the link may be.
	if l.lost && l.dump.seq == 0 && !l.dump.wanted {
		l.lost, l.linkWanted = false, true
	}
	l.f.unlock()
	l.wake()
}

func (l *loop) take(m message) {
	ours := m.Port == l.k.Port()
	switch m.Type {
	case unix.NLMSG_ERROR:
		if errno, ok := m.Errno(); ok && ours && errno != 0 {
			l.refused(m.Seq, errno)
		}
		return
	case unix.NLMSG_DONE:
		if ours && m.Seq == l.dump.seq && m.Seq != 0 {
			l.dumped(m.Flags)
		}
		return
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		k, ok := m.Link()
		if !ok || k.PortLink {
			return
		}
		l.linkChanged(k, m.Type == unix.RTM_DELLINK)
	}
	if ours && m.Seq == l.dump.seq {
		l.dump.heardNs = spin.Now()
		l.dump.broken = l.dump.broken || m.Flags&unix.NLM_F_DUMP_INTR != 0
	}
	l.f.message(m, ours)
}

func (l *loop) linkChanged(k linkNews, removed bool) {
	switch {
	case k.Index != l.index || l.fault != nil:
	case removed:
		l.link.Moved, l.removed = k.Moved, true
		l.fault = &Error{Pkg: pkg, Op: "follow", Name: l.link.Name, Err: xdp.ErrDeviceGone}
		l.f.failed()
	default:
		old := l.link
		l.link = k
		l.f.linked(&old)
	}
}

func (l *loop) dumped(flags uint16) {
	seq, broken := l.dump.seq, l.dump.broken || flags&unix.NLM_F_DUMP_INTR != 0
	l.dump.seq = 0
	if broken {
		l.dump.wanted = true
		return
	}
	l.f.dumped(seq)
}

// refused takes the kernel's no to a request. One that belongs to nobody is about the link.
func (l *loop) refused(seq uint32, errno unix.Errno) {
	switch {
	case seq == l.dump.seq && seq != 0:
		l.dump.seq, l.dump.wanted, l.hold = 0, true, true
	case l.f.refused(seq, errno):
	case errno == unix.ENODEV || l.link.Name == "":
		l.linkChanged(linkNews{Index: l.index}, true)
	}
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
		l.f.round(spin.Now(), ticked)
		if err := l.pump(spin.Now()); err != nil {
			l.again(err)
		}
		if !l.pause() {
			return
		}
	}
}

// pump sends what is to be asked.
func (l *loop) pump(now int64) error {
	for {
		l.mu.Lock()
		before := l.dump.seq
		b := l.requests(now)
		l.mu.Unlock()
		if len(b) == 0 {
			return nil
		}
		if err := l.k.Send(b); err != nil {
			l.mu.Lock()
			if before == 0 { // the dump was not begun
				l.dump.seq = 0
			}
			l.mu.Unlock()
			return err
		}
	}
}

// requests makes the next datagram of requests, or none if there is nothing to ask yet.
func (l *loop) requests(now int64) (b []byte) {
	if l.hold {
		l.hold, l.heldNs = false, now+calm.Nanoseconds()
	}
	switch {
	case l.fault != nil:
		return nil
	case now < l.heldNs:
		l.later = true
		return nil
	}
	if l.linkWanted {
		l.linkWanted = false
		b = appendGetLink(b, l.next(), l.index)
	}
	if l.dump.wanted && l.dump.seq != 0 {
		if now-l.dump.heardNs < l.patienceNs {
			l.later = true
		} else {
			l.dump.seq = 0
		}
	}
	if l.dump.wanted && l.dump.seq == 0 {
		l.dump = dump{seq: l.next(), heardNs: now}
		b = l.f.appendDump(b, l.dump.seq)
	}
	return l.f.appendQuestions(b, now)
}

// next returns a number for a request.
func (l *loop) next() uint32 {
	l.seq++
	if l.seq == 0 { // the kernel's own
		l.seq++
	}
	return l.seq
}

// again takes care of requests that were not taken: they come again after a moment, if the kernel
// had no memory for them.
func (l *loop) again(err error) {
	if !errors.Is(err, errBusy) {
		l.deaf(err)
		return
	}
	l.mu.Lock()
	l.hold, l.later = true, true
	l.askAll()
	l.f.unlock()
}

// pause lets changes that come in storms gather. It reports whether to go on.
func (l *loop) pause() bool {
	l.mu.Lock()
	later := l.later
	l.later = false
	l.mu.Unlock()
	if !later {
		return true
	}
	select {
	case <-l.stop:
		return false
	case <-time.After(calm):
		l.wake()
		return true
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
		l.endErr = l.k.Close()
		l.running.Wait()
		l.fail(os.ErrClosed)
	})
	return l.endErr
}
