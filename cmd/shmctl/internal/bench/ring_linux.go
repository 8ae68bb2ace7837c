package bench

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/ring"
)

// command is what the parent asks of both processes of a side for one round.
type command struct {
	name         string
	batch        int
	pauses       uint32 // between two looks at an empty ring
	count, start uint64
	settle       time.Duration // both spin so long before the round
}

// readerPays reports which way of paying for order the command measures: the default, in which
// producers publish with release stores, or the other.
func (c command) readerPays() bool {
	return c.name != "spsc-xchg" && c.name != "spsc-nobell" &&
		c.name != "spsc-single" && c.subject() == nil
}

// subject returns what prepares a round of a command on more than a ring and its bell, by what the
// command begins with; nil for those on a ring.
func (c command) subject() func(*party, command) (func() (uint64, bool, error), error) {
	prefix, _, _ := strings.Cut(c.name, "-")
	switch prefix + "-" {
	case queuePrefix:
		return (*party).queueRunner
	case scalePrefix:
		return (*party).scaleRunner
	case goPrefix:
		return (*party).goRunner
	case fabricPrefix:
		return (*party).fabricRunner
	}
	if isWire(c.name) {
		return (*party).wireRunner
	}
	return nil
}

// isQueue reports whether the command is one on a whole queue.
func (c command) isQueue() bool { return strings.HasPrefix(c.name, queuePrefix) }

// sleeps reports whether every message must find its reader asleep.
func (c command) sleeps() bool {
	return c.name == "futex" || c.name == "eventfd" || strings.HasPrefix(c.name, "cq-sread") ||
		c.name == goPrefix+"unix" || c.name == goPrefix+"pipe" || c.name == goPrefix+"conn" ||
		c.name == fabricPrefix+"sleep"
}

// outlet is the writing end of one direction, with its bell.
type outlet struct {
	ring  *ring.Producer[slot]
	slots []slot
	bell  *doorbell.Ringer
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

// Level tells the bell, when it parks the lane, whether it is empty.
func (in *inlet) Level() (head, tail uint64) { return in.ring.Head(), in.ring.Tail() }

// Solicited implements doorbell.Source.
func (in *inlet) Solicited() uint64 { return 0 }

// words is the memory of one direction.
type words struct {
	tail, head *ring.Index
	slots      []slot
	row        *doorbell.Row
	arm        *doorbell.Arm
	hints      *doorbell.Hints
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
	w.row = kind.Overlay[doorbell.Row](mem[ringRow:])
	w.arm = kind.Overlay[doorbell.Arm](mem[ringArm:])
	w.hints, err = doorbell.MapHints(mem[ringHints:ringSlots], 1)
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
		mem := p.mem[ring0:]
		if direction == 1 {
			mem = p.mem[ring1:]
		}
		clear(mem[ringRow:ringSlots])
		w.tail.Store(start)
		w.head.Store(start)
		w.row.Parked.Store(doorbell.Parked)
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
	o := &outlet{slots: w.slots, ring: ring.NewProducer(w.tail, w.head, w.slots, c.start, order)}
	cfg := doorbell.RingerConfig{Row: w.row, Arm: w.arm, Hints: w.hints,
		Face: func(uint16) int { return p.peerFD }}
	if c.readerPays() {
		cfg.Fence = o.ring.Republish
	}
	o.bell = doorbell.NewRinger(cfg)
	return o, nil
}

func (p *party) inlet(c command) (*inlet, error) {
	w, err := p.words(1 - p.role)
	if err != nil {
		return nil, err
	}
	in := &inlet{ring: ring.NewConsumer(w.tail, w.head, w.slots, c.start), pauses: c.pauses}
	in.bell = doorbell.NewBell(doorbell.Config{Arm: w.arm, Hints: w.hints, Lanes: 1, Generation: 1,
		Face: p.face, Open: func(int) (doorbell.LaneConfig, bool) {
			return doorbell.LaneConfig{}, false
		}})
	in.bell.Add(0, doorbell.LaneConfig{Row: w.row, Source: in, Capacity: capacity,
		ReaderPays: c.readerPays()})
	in.bell.Heat()
	in.await = (*inlet).spinThenSleep
	switch c.name {
	case "futex":
		in.await = (*inlet).sleep
	case "eventfd":
		in.await = p.poll
	}
	return in, nil
}

// runner prepares a round; the function it returns is what is measured. It returns the checksum of
// what this process read and whether its time is the one that counts.
func (p *party) runner(c command) (func() (uint64, bool, error), error) {
	if c.isTail() {
		return p.tailRunner(c)
	}
	if run := c.subject(); run != nil {
		return run(p, c)
	}
	if c.name == "eventfd" && p.face == nil {
		if err := p.swapFaces(); err != nil {
			return nil, err
		}
	}
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
		if c.name == "spsc-nobell" {
			out.bell, in.await = nil, (*inlet).spin
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
				return 0, false, out.produce(c.batch, n)
			}
			sum, err := in.consume(c.batch, n)
			return sum, true, err
		}, nil
	case c.name == "oneway" || c.sleeps():
		think := func() {}
		if c.sleeps() {
			think = func() { spinFor(thinkNs) }
		}
		return func() (uint64, bool, error) {
			sum, err := p.pingpong(out, in, n, think)
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

// swapFaces makes this process's descriptor and gives its eventfd to the other.
func (p *party) swapFaces() (err error) {
	if p.face, err = doorbell.NewFace(-1); err != nil {
		return err
	}
	socket := socketFD + p.role
	rights := unix.UnixRights(p.face.EventFD())
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
	p.peerFD = fds[0]
	return nil
}

var _ doorbell.Source = (*inlet)(nil)

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
		if o.bell != nil {
			o.bell.Published(o.ring.Tail(), 0)
		}
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

// single sends n messages one by one, with calls that are inlined, and looks at no bell.
func (o *outlet) single(n int) error {
	for p := o.ring; n > 0; {
		if p.Next(0) == nil {
			if p.Free() == 0 {
				if err := p.Err(); err != nil {
					return err
				}
			}
			continue
		}
		at := p.Tail()
		fill(o.slots[at%capacity:][:1], at)
		p.Commit(1)
		n--
	}
	return nil
}

// singles reads n messages as single sends them.
func (in *inlet) singles(n int) (total uint64, err error) {
	for c := in.ring; n > 0; {
		m := c.Span(1)
		if len(m) == 0 {
			if c.Len() == 0 {
				if err := in.spin(); err != nil {
					return total, err
				}
			}
			continue
		}
		total += sum(m)
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
		in.bell.Take()
		in.bell.Heat()
	}
}

// sleep is R3 to R9 and then R1, R2: the lane was found empty.
func (in *inlet) sleep() error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	more, err := in.bell.Park()
	if err != nil {
		return err
	}
	if !more {
		in.bell.Sleep(doorbell.Wait{})
		in.bell.Take()
	}
	in.bell.Heat()
	return nil
}

// poll is sleep for a user who waits on the descriptor.
func (p *party) poll(in *inlet) error {
	if err := in.ring.Err(); err != nil {
		return err
	}
	ready, _, err := in.bell.TryWait()
	if err != nil {
		return err
	}
	if !ready {
		var events [1]unix.EpollEvent
		if _, err := unix.EpollWait(p.face.FD(), events[:], -1); err != nil && err != unix.EINTR {
			return err
		}
	}
	in.bell.Take()
	return nil
}
