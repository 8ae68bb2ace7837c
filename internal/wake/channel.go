package wake

import (
	"os"
	"sync"

	"github.com/shmring/shmring/internal/crash"
)

// Channel is a completion channel: one-shot events of many queues, of which each goes to exactly
// one goroutine. Every method may be called from anywhere, with one exception: a queue that was
// not shared before is used by its own goroutine alone until Add has returned. From then on
// its bell takes its lock, since those who get events look at the queue.
type Channel struct {
	watcher                  // the mask has the queues that the channel is armed for
	members []*channelMember // under Domain.mu
	lowers  sync.Mutex       // held while the descriptor is reset; before Domain.mu
}

// channelMember is what the channel knows of one queue, under Domain.mu. As long as an event
// is in here the queue is on the list.
type channelMember struct {
	bell   *Bell
	events [4]uint32 // made when the queue was armed again, by mode and solicited
	dummy  uint32    // injected
}

// ChannelEvent says which queue has an event, and why.
type ChannelEvent struct {
	Bit       int
	Solicited bool // a solicited entry or an error has come since the arming
	Mode      int  // what the queue was armed for
	Dummy     bool // it was injected, and no arming was used up
}

func (m *channelMember) add(e ChannelEvent) {
	k := 2 * (e.Mode - 1)
	if e.Solicited {
		k++
	}
	m.events[k]++
}

// take returns one of the events that wait for a getter.
func (m *channelMember) take(bit int) (ChannelEvent, bool) {
	for k := range m.events {
		if m.events[k] > 0 {
			m.events[k]--
			return ChannelEvent{Bit: bit, Mode: k/2 + 1, Solicited: k%2 == 1}, true
		}
	}
	if m.dummy > 0 {
		m.dummy--
		return ChannelEvent{Bit: bit, Dummy: true}, true
	}
	return ChannelEvent{}, false
}

func (m *channelMember) waits() bool { return m.events != [4]uint32{} || m.dummy > 0 }

// NewChannel returns a channel without queues.
func (d *Domain) NewChannel() *Channel {
	c := new(Channel)
	d.watch(&c.watcher)
	return c
}

// Add attaches a queue that owns the given bit of the domain. A queue is on one channel at most.
func (c *Channel) Add(bit int, b *Bell) {
	c.d.member.Lock()
	defer c.d.member.Unlock()
	b.SetDomain(c.d, bit)
	b.joinChannel()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.closed {
		return
	}
	for len(c.members) <= bit {
		c.members = append(c.members, nil)
	}
	c.members[bit] = &channelMember{bell: b}
}

// Delete detaches a queue. Its arming ends, and its events that nobody fetched are gone.
func (c *Channel) Delete(bit int) {
	c.d.member.Lock()
	defer c.d.member.Unlock()
	c.drop(bit)
}

func (c *Channel) drop(bit int) {
	m := c.member(bit)
	if m == nil {
		return
	}
	m.bell.leaveChannel()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.members[bit] = nil
	c.mask.clear(bit)
	c.todo.clear(bit)
}

func (c *Channel) member(bit int) *channelMember {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if uint(bit) >= uint(len(c.members)) {
		return nil
	}
	return c.members[bit]
}

// Arm asks for one event of a queue (req_notify): for entries that come from now on, those that
// are there already being the caller's to read. If the queue was armed already and that event is
// due, it will be delivered as well; if not, the two armings become one, for the greater mode.
// NotifyNone changes nothing. os.ErrClosed says that the queue is not on the channel.
func (c *Channel) Arm(bit, mode int) error {
	m := c.member(bit)
	if m == nil {
		return os.ErrClosed
	}
	b := m.bell
	b.Lock()
	defer b.Unlock()
	if b.notes == nil {
		return os.ErrClosed
	}
	if mode = min(mode, NotifyAny); mode <= NotifyNone {
		return nil
	}
	b.Take() // N1
	if _, err := b.Park(); err != nil {
		return err
	}
	e, due := b.fire() // N2
	c.d.mu.Lock()
	c.mask.set(bit)
	waiting := false
	if due {
		m.add(e)
		c.put(bit/64, 1<<(bit%64))
		waiting = c.d.nw > 0
	}
	c.d.mu.Unlock()
	b.notify(max(mode, notifyOf(b.armed()))) // N3
	crash.At(crash.NotifyArmed)
	b.rebase() // N4
	if waiting {
		c.d.Kick()
	}
	return nil
}

// Inject makes a dummy event of a queue, whether it is armed or not. One that is not on the channel
// has none.
func (c *Channel) Inject(bit int) {
	c.d.mu.Lock()
	known := uint(bit) < uint(len(c.members)) && c.members[bit] != nil
	if known {
		c.members[bit].dummy++
		c.put(bit/64, 1<<(bit%64))
	}
	waiting := known && c.d.nw > 0
	c.d.mu.Unlock()
	if waiting {
		c.d.Kick()
	}
}

// Get waits for an event and returns it; none at the deadline, or when Stop says so. With a
// negative deadline it looks once. Queues take turns. os.ErrClosed says that the channel was
// closed.
func (c *Channel) Get(w Wait) (ChannelEvent, bool, error) {
	p := patience{w: w}
	for {
		e, ok, err := c.tryGet()
		if ok || err != nil || p.over() {
			return e, ok, err
		}
		p.sleep(&c.watcher)
	}
}

// tryGet is one look.
func (c *Channel) tryGet() (ChannelEvent, bool, error) {
	passAll()
	c.d.mu.Lock()
	c.d.takeLocked() // C1
	closed, described := c.closed, c.desc != nil
	c.d.mu.Unlock()
	if closed {
		return ChannelEvent{}, false, os.ErrClosed
	}
	e, ok := c.get()
	if described {
		c.settle()
	}
	return e, ok, nil
}

// get is C2: the queue leaves the list before it is decided on, and goes back as long as
// events of it wait.
func (c *Channel) get() (ChannelEvent, bool) {
	for {
		c.d.mu.Lock()
		bit := c.pick(c.next, c.d.bits)
		if bit < 0 {
			bit = c.pick(0, c.d.bits)
		}
		if bit < 0 {
			c.d.mu.Unlock()
			return ChannelEvent{}, false
		}
		c.next = bit + 1
		m := c.members[bit]
		e, ok := m.take(bit)
		if ok && (m.waits() || c.mask.has(bit)) {
			c.put(bit/64, 1<<(bit%64))
		}
		c.d.mu.Unlock()
		if !ok {
			e, ok = c.decide(bit, m.bell)
		}
		if ok {
			return e, true
		}
	}
}

// decide is called under the queue's lock, so once per arming and for one getter. A queue that was
// taken off the channel since it was picked is not looked at: its words may be gone.
func (c *Channel) decide(bit int, b *Bell) (ChannelEvent, bool) {
	b.Lock()
	defer b.Unlock()
	if b.notes == nil {
		return ChannelEvent{}, false
	}
	b.Take()
	e, due := b.fire()
	if due {
		e.Bit = bit
		c.d.mu.Lock()
		c.mask.clear(bit)
		c.d.mu.Unlock()
	}
	return e, due
}

// Face returns the channel's descriptor, making it at the first call. It is readable while events
// may be there, belongs to the channel, and may be used edge-triggered, with one get for each edge.
func (c *Channel) Face() (*Face, error) {
	face, err := c.d.describe(&c.watcher)
	if err == nil {
		c.settle()
	}
	return face, err
}

// settle makes the descriptor agree with the list. Where something is left it is set once more, for
// the sake of edges. Otherwise it is reset, and set again if something came meanwhile.
func (c *Channel) settle() {
	c.d.mu.Lock()
	if c.desc == nil || c.lowered {
		c.d.mu.Unlock()
		return
	}
	if c.d.busy(&c.watcher) {
		c.desc.Set()
		c.d.mu.Unlock()
		return
	}
	c.d.mu.Unlock()
	c.lowers.Lock()
	defer c.lowers.Unlock()
	c.d.mu.Lock()
	face := c.desc
	c.d.mu.Unlock()
	if face == nil || face.Reset() != nil {
		return // it stays readable, which costs time but loses nothing
	}
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if c.d.takeLocked(); c.d.busy(&c.watcher) {
		c.desc.Set()
	} else {
		c.lowered = true
	}
}

// Close takes the channel out of the domain. Those who wait for an event return os.ErrClosed;
// armings end, events that nobody fetched are gone, and the descriptor is closed.
func (c *Channel) Close() {
	c.d.leave(&c.watcher)
	c.d.member.Lock()
	defer c.d.member.Unlock()
	for bit := range c.members {
		c.drop(bit)
	}
	c.lowers.Lock()
	defer c.lowers.Unlock()
	c.d.undescribe(&c.watcher)
}

// What a completion channel is armed for. A later arming before the event can only ask for more.
const (
	NotifyNone      = iota
	NotifySolicited // entries whose poster asked for an event, and errors
	NotifyAny
)

func notifyOf(armed uint64) int {
	return min(int(armed&armNotify>>armNotifyShift), NotifyAny)
}

// notes say since when a channel waits: which entries came after its arming. They are under the
// lock of the queue's bell.
type notes struct {
	base  []uint64 // index at the arming, of the lanes in the set below
	lanes bitset
}

func (n *notes) note(bit int, at uint64) {
	n.base[bit] = at
	n.lanes.set(bit)
}

// forget is harmless on nil.
func (n *notes) forget(bit int) {
	if n != nil {
		n.lanes.clear(bit)
	}
}

// joinChannel makes the lock real, for good: the goroutines that wait on a channel look at the
// queue beside the one that reads it.
func (b *Bell) joinChannel() {
	if !b.shared {
		b.shared = true
	}
	b.Lock()
	b.notes = &notes{base: make([]uint64, len(b.lanes)), lanes: newBitset(len(b.lanes))}
	b.Unlock()
}

func (b *Bell) leaveChannel() {
	b.Lock()
	b.notify(NotifyNone)
	b.notes = nil
	b.Unlock()
}

// due tells whether the arming has its event. Entries are compared with the index at the arming,
// never with what was read: one that was polled before the event was fetched still has it. The
// index of solicited entries is not compared with the tail: the producer may have raised it for a
// batch that it publishes next, and then it hides the one before, whose event is due already.
func (b *Bell) due() (solicited, due bool) {
	mode := notifyOf(b.armed())
	if mode == NotifyNone || b.notes == nil {
		return false, false
	}
	for bit := b.notes.lanes.next(0); bit >= 0; bit = b.notes.lanes.next(bit + 1) {
		src := b.lanes[bit].Source
		if _, tail := src.Level(); tail > b.notes.base[bit] {
			due = true
			solicited = solicited || src.Solicited() > b.notes.base[bit]
		}
	}
	return solicited, due && (solicited || mode == NotifyAny)
}

// fire ends the arming if its event is due, and returns it: once per arming, for the caller alone.
func (b *Bell) fire() (e ChannelEvent, due bool) {
	e.Mode = notifyOf(b.armed())
	if e.Solicited, due = b.due(); due {
		b.notify(NotifyNone)
		crash.At(crash.NotifyFired)
	}
	return e, due
}

// notify stores what the channel waits for, and ends or begins the notes with it.
func (b *Bell) notify(mode int) {
	b.alter(armNotify, uint64(mode)<<armNotifyShift)
	if mode == NotifyNone && b.notes != nil {
		clear(b.notes.lanes)
	}
}

// rebase is N4: what was published so far is the reader's, who drains after the arming. A lane that
// is no candidate is parked and empty, and is noted when it is marked.
func (b *Bell) rebase() {
	clear(b.notes.lanes)
	for bit := b.cand.next(0); bit >= 0; bit = b.cand.next(bit + 1) {
		_, tail := b.lanes[bit].Source.Level()
		b.notes.note(bit, tail)
	}
}
