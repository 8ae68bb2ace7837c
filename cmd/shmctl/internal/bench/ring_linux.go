package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// command is what the parent asks of both processes of a side for one round.
type command struct {
	name string
	// The name is KIND-VERB+OPTION. A command on a ring has no kind, and most have no option.
	kind, verb, option string

	batch        int
	pauses       uint32 // between two looks at an empty ring
	count, start uint64
	settle       time.Duration // both spin so long before the round
}

// named is the command of a name.
func named(name string) (c command) {
	kind, rest, _ := strings.Cut(name, "-")
	if runners[kind] == nil {
		kind, rest = "", name
	}
	c.name, c.kind = name, kind
	c.verb, c.option, _ = strings.Cut(rest, "+")
	return c
}

// hasOption reports that the command has no option, or is one that may have this.
func (c command) hasOption(verb string, options ...string) bool {
	return c.option == "" || c.verb == verb && slices.Contains(options, c.option)
}

// readerPays reports which way of paying for order the command measures: the default, in which
// producers publish with release stores, or the other.
func (c command) readerPays() bool {
	return c.kind == "" && c.verb != "spsc-xchg" && c.verb != "spsc-nobell" && c.verb != "spsc-single"
}

// runners prepare a round of a command, by its kind; those of no kind are on a ring and its bell.
// What one returns is what is measured. That returns the checksum of what this process read and
// whether its time is the one that counts.
var runners = map[string]func(*party, command) (func() (uint64, bool, error), error){
	"": (*party).ringRunner, queueKind: (*party).queueRunner, goKind: (*party).goRunner,
	fabricKind: (*party).fabricRunner, scaleKind: (*party).scaleRunner,
	socketKind: (*party).wireRunner, udpConnKind: (*party).wireRunner,
	endpointKind: (*party).wireRunner, deviceKind: (*party).wireRunner}

// sleepers are commands in which every message must find its reader asleep, whatever their options.
var sleepers = []string{"futex", "eventfd", "cq-sread", "go-unix", "go-pipe", "go-conn",
	"fabric-sleep"}

func (c command) sleeps() bool {
	name, _, _ := strings.Cut(c.name, "+")
	return slices.Contains(sleepers, name)
}

// outlet is the writing end of one direction, with its bell.
type outlet struct {
	ring *ring.Producer[slot]
	bell *doorbell.Ringer
}

// inlet is the reading end of one direction, with its bell. It is its own bell's only lane.
type inlet struct {
	ring *ring.Consumer[slot]
	bell *doorbell.Bell
	// pauses is how long to wait between two looks.
	pauses uint32
	// await blocks until a look is worth while.
	await func(*inlet) error
}

// level tells the bell, when it parks the lane, whether it is empty.
func (in *inlet) level() (head, tail uint64) { return in.ring.Head(), in.ring.Tail() }

// words is the memory of one direction.
type words struct {
	tail, head *ring.Index
	slots      []slot
	bell       *doorbell.Words
}

func (p *party) words(direction int) (w words, err error) {
	mem := p.mem[ring0:ring1]
	if direction == 1 {
		mem = p.mem[ring1:]
	}
	if w.tail, err = ring.IndexAt(mem, ringTail); err != nil {
		return w, err
	}
	if w.head, err = ring.IndexAt(mem, ringHead); err != nil {
		return w, err
	}
	if w.slots, err = ring.Slots[slot](mem[ringSlots:][:capacity*slotWords*8]); err != nil {
		return w, err
	}
	w.bell, err = doorbell.Map(mem[ringBell:ringSlots], 1)
	return w, err
}

// reset makes both directions new: empty, and parked as a lane is born. Role 0 does it.
func (p *party) reset(start uint64) error {
	p.done.Store(0)
	for direction := range 2 {
		w, err := p.words(direction)
		if err != nil {
			return err
		}
		w.tail.Store(start)
		w.head.Store(start)
		w.bell.Init()
	}
	return nil
}

func (p *party) outlet(c command) (*outlet, error) {
	w, err := p.words(p.role)
	if err != nil {
		return nil, err
	}
	order := ring.Release
	if c.name == "spsc-xchg" {
		order = ring.SeqCst
	}
	o := &outlet{ring: ring.NewProducer(w.tail, w.head, w.slots, c.start, order)}
	ringer := doorbell.RingerOptions{Descriptor: func(uint16) int {
		fd := p.peerFD
		p.peerFD = -1
		return fd
	}}
	if c.readerPays() {
		ringer.Fence = o.ring.Republish
	}
	o.bell, err = doorbell.NewRinger(w.bell, 0, ringer)
	return o, err
}

func (p *party) inlet(c command) (*inlet, error) {
	w, err := p.words(1 - p.role)
	if err != nil {
		return nil, err
	}
	in := &inlet{ring: ring.NewConsumer(w.tail, w.head, w.slots, c.start), pauses: c.pauses}
	in.bell, err = doorbell.NewBell(w.bell, doorbell.Options{Generation: 1,
		Levels:        []func() (head, tail uint64){in.level},
		ReleaseStores: c.readerPays(), Descriptor: c.name == "eventfd"})
	if err != nil {
		return nil, err
	}
	in.bell.Look()
	in.await = (*inlet).spinThenSleep
	switch c.name {
	case "futex":
		in.await = (*inlet).sleep
	case "eventfd":
		in.await = (*inlet).poll
		err = p.swap(in.bell.EventFD())
	}
	return in, err
}

func (p *party) ringRunner(c command) (func() (uint64, bool, error), error) {
	out, err := p.outlet(c)
	if err != nil {
		return nil, err
	}
	in, err := p.inlet(c)
	if err != nil {
		return nil, err
	}
	n := int(c.count)
	switch {
	case strings.HasPrefix(c.name, "spsc"):
		produce, consume := (*outlet).produce, (*inlet).consume
		if c.name == "spsc-nobell" {
			produce, consume = (*outlet).bare, (*inlet).bare
		}
		if c.name == "spsc-single" {
			in.await = (*inlet).spin
			return func() (uint64, bool, error) {
				if p.role == 0 {
					return 0, false, out.single(n)
				}
				sum, err := in.singles(n)
				return sum, true, err
			}, nil
		}
		return func() (uint64, bool, error) {
			if p.role == 0 {
				return 0, false, produce(out, c.batch, n)
			}
			sum, err := consume(in, c.batch, n)
			return sum, true, err
		}, nil
	case c.name == "oneway" || c.sleeps():
		think := func() {}
		if c.sleeps() {
			think = func() { spinFor(thinkNs) }
		}
		return func() (uint64, bool, error) {
			sum, err := p.pingpong(out, in, n, think)
			out.bell.Close()
			in.bell.Close()
			return sum, p.role == 0, err
		}, nil
	}
	return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
}

func (p *party) pingpong(out *outlet, in *inlet, n int, think func()) (sum uint64, err error) {
	for range n {
		for turn := range 2 {
			if turn == p.role {
				think()
				err = out.produce(1, 1)
			} else {
				var got uint64
				got, err = in.consume(1, 1)
				sum += got
			}
			if err != nil {
				return sum, err
			}
		}
	}
	return sum, nil
}

// swap gives this process's eventfd to the other.
func (p *party) swap(eventfd int) error {
	socket := socketFD + p.role
	rights := unix.UnixRights(eventfd)
	if err := unix.Sendmsg(socket, []byte{0}, rights, nil, 0); err != nil {
		return fmt.Errorf("send the eventfd: %w", err)
	}
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("receive the other's eventfd: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d control messages with the eventfd: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("%d descriptors with the eventfd: %w", len(fds), err)
	}
	if p.peerFD >= 0 {
		unix.Close(p.peerFD)
	}
	p.peerFD = fds[0]
	return nil
}

// produce sends n messages and looks at the bell, if there is one, after every commit.
func (o *outlet) produce(batch, n int) error {
	for n > 0 {
		want := min(batch, n)
		a, b := o.ring.Reserve(want)
		if len(a)+len(b) < want {
			if err := o.ring.Err(); err != nil {
				return err
			}
			continue
		}
		s := o.ring.Tail()
		fill(a, s)
		fill(b, s+uint64(len(a)))
		o.ring.Commit(want)
		o.bell.Published(o.ring.Tail())
		n -= want
	}
	return nil
}

// bare is produce without a bell. Its loop is one of its own, since what a program without a bell
// has in its registers is faster by a tenth and more.
func (o *outlet) bare(batch, n int) error {
	for n > 0 {
		want := min(batch, n)
		a, b := o.ring.Reserve(want)
		if len(a)+len(b) < want {
			if err := o.ring.Err(); err != nil {
				return err
			}
			continue
		}
		s := o.ring.Tail()
		fill(a, s)
		fill(b, s+uint64(len(a)))
		o.ring.Commit(want)
		n -= want
	}
	return nil
}

// consume reads n messages; it spins and then sleeps when there is none.
func (in *inlet) consume(batch, n int) (total uint64, err error) {
	for n > 0 {
		a, b := in.ring.Peek(min(batch, n))
		got := len(a) + len(b)
		if got == 0 {
			if err := in.await(in); err != nil {
				return total, err
			}
			continue
		}
		total += sum(a) + sum(b)
		in.ring.Release(got)
		n -= got
	}
	return total, nil
}

// bare is consume without a bell: it looks again after a moment, for ever.
func (in *inlet) bare(batch, n int) (total uint64, err error) {
	for n > 0 {
		a, b := in.ring.Peek(min(batch, n))
		got := len(a) + len(b)
		if got == 0 {
			if err := in.ring.Err(); err != nil {
				return total, err
			}
			spin.Pause(in.pauses)
			continue
		}
		total += sum(a) + sum(b)
		in.ring.Release(got)
		n -= got
	}
	return total, nil
}

// single sends n messages one by one, with calls that are inlined, and looks at no bell.
func (o *outlet) single(n int) error {
	for p := o.ring; n > 0; {
		m := p.Next(0)
		if m == nil {
			if p.Free() == 0 {
				if err := p.Err(); err != nil {
					return err
				}
			}
			continue
		}
		fillSlot(m, p.Tail())
		p.Commit(1)
		n--
	}
	return nil
}

// singles reads n messages as single sends them.
func (in *inlet) singles(n int) (total uint64, err error) {
	for c := in.ring; n > 0; {
		m := c.Front()
		if m == nil {
			if c.Len() == 0 {
				if err := in.spin(); err != nil {
					return total, err
				}
			}
			continue
		}
		total += sumSlot(m)
		c.Release(1)
		n--
	}
	return total, nil
}

// spin looks again after a moment, for ever: there is no bell.
func (in *inlet) spin() error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	spin.Pause(in.pauses)
	return nil
}

// spinThenSleep is a blocking read that looks for the default budget before it sleeps.
func (in *inlet) spinThenSleep() error {
	until := int64(0)
	for {
		for range 8 { // the clock costs as much as some looks
			spin.Pause(in.pauses)
			if in.ring.Len() != 0 {
				in.warm()
				return nil
			}
		}
		switch now := spin.Now(); {
		case until == 0:
			until = now + int64(spin.Default)
		case now >= until:
			return in.sleep()
		}
	}
}

// warm is R1 and R2, as every read begins: a lane that had nothing was left parked.
func (in *inlet) warm() {
	if in.bell.Only() != 0 {
		in.bell.Look()
	}
}

// sleep is R3 to R9 and then R1, R2: the lane was found empty.
func (in *inlet) sleep() error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	return in.bell.Wait(0)
}

// poll is sleep for a user who waits on the descriptor.
func (in *inlet) poll() error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	ready, _, err := in.bell.TryWait()
	if err != nil {
		return err
	}
	if !ready {
		var events [1]unix.EpollEvent
		if _, err := unix.EpollWait(in.bell.FD(), events[:], -1); err != nil && err != unix.EINTR {
			return err
		}
	}
	in.bell.Look()
	return nil
}
