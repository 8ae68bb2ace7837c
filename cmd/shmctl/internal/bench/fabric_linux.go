package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

const (
	// fabricPosted is how many receives an endpoint has posted at a time.
	fabricPosted = 64
	// fabricSlots are those of a lane.
	fabricSlots = 256
	// fabricAhead is how many long messages are under way at most, and receives of them posted.
	fabricAhead = 4
	// smallTag is that of small messages. Long ones have 0.
	smallTag = 7
)

// messenger is one end of a pair of endpoints that send each other numbers of 8 bytes.
type messenger struct {
	dir   *shm.Dir
	queue *cq.Queue
	out   *cq.Writer
	end   *fabric.Endpoint
	to    cq.Addr
	bufs  [fabricPosted][8]byte
	num   [8]byte // what is sent, and can be changed at once
	dst   []cq.Msg
	sent  uint64
	got   uint64
	ended uint64 // sends, of long messages

	long    []byte // payload of these
	longBuf [fabricAhead][]byte
	ends    []cq.Entry
	lends   bool // receives are loans: nobody copies, and the receiver looks at each line
	seen    byte // what it saw
}

// openMessenger makes this role's end, and finds the other's. Reads look before they sleep, unless
// it is about sleeping. Messages of more than 0 bytes are long ones, whose sends complete. They lie
// in a pool if there is to be one.
func openMessenger(role int, sleeps bool, long, pool int, lends bool) (m *messenger, err error) {
	m = &messenger{dst: make([]cq.Msg, fabricPosted), long: written(make([]byte, long)),
		lends: lends}
	defer func() {
		if err != nil {
			_ = m.Close()
		}
	}()
	if m.dir, err = shm.OpenDir(""); err != nil {
		return nil, err
	}
	o := cq.Options{Format: cq.FormatMsg}
	if long > 0 {
		o.Format, m.ends = cq.FormatTagged, make([]cq.Entry, 2*fabricAhead)
	}
	if sleeps {
		o.Spin = -1
	}
	if m.queue, err = cq.Create(cq.Unnamed("bench"), o); err != nil {
		return nil, err
	}
	if m.out, err = m.queue.Writer(); err != nil {
		return nil, err
	}
	name := func(role int) string { return fmt.Sprintf("end%d", role) }
	of := fabric.Options{Receive: m.out, Slots: fabricSlots, Progress: []*cq.Queue{m.queue},
		Pool: pool}
	if long > 0 {
		of.Transmit = m.out
	}
	if m.end, err = fabric.Open(m.dir, name(role), of); err != nil {
		return nil, err
	}
	if long > 0 {
		err = m.openLong(long, pool)
	} else {
		err = m.openSmall()
	}
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		m.to, err = m.end.Resolve(name(1 - role))
		if !errors.Is(err, fabric.ErrNoPeer) || time.Now().After(until) {
			return m, err
		}
	}
}

// written is mem with something in it. Memory that nobody wrote to is one page of zeros, which is
// in the nearest cache of who copies it.
func written(mem []byte) []byte {
	for i := range mem {
		mem[i] = 1
	}
	return mem
}

// openLong takes memory for long messages, and posts receives of them.
func (m *messenger) openLong(long, pool int) (err error) {
	if pool > 0 {
		if m.long, err = m.end.Alloc(long); err != nil {
			return err
		}
		written(m.long)
	}
	for i := range m.longBuf {
		m.longBuf[i] = make([]byte, long)
		err = errors.Join(err, m.post(uint64(i)))
	}
	return err
}

// openSmall posts receives of small messages. Long ones would be compared with all of them.
func (m *messenger) openSmall() (err error) {
	for i := range m.bufs {
		err = errors.Join(err, m.end.TRecv(m.bufs[i][:], fabric.Anybody, smallTag, 0, uint64(i)))
	}
	return err
}

// post posts a receive of a long message.
func (m *messenger) post(context uint64) error {
	if !m.lends {
		return m.end.TRecv(m.longBuf[context], fabric.Anybody, 0, 0, context)
	}
	return m.end.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagTagged | cq.FlagFrame,
		Context: context})
}

// peruse looks at each line of a message that is lent, and gives it back.
func (m *messenger) peruse(c *cq.Entry) error {
	mem, err := m.end.Payload(c)
	if err != nil {
		return err
	}
	for i := 0; i < len(mem); i += 64 {
		m.seen += mem[i]
	}
	return m.end.Release(*c)
}

func (m *messenger) Close() error {
	closeAll(m.end, m.out, m.queue, m.dir)
	return nil
}

// send sends n numbers, on and on.
func (m *messenger) send(n int, pauses uint32) error {
	msg := fabric.Msg{Buf: m.num[:], Addr: m.to, Tag: smallTag,
		Flags: cq.FlagTagged | cq.FlagInjectCall}
	for ; n > 0; n-- {
		binary.LittleEndian.PutUint64(m.num[:], m.sent)
		err := m.end.SendMsg(&msg)
		for ; err == cq.ErrFull; err = m.end.SendMsg(&msg) {
			spin.Pause(pauses)
		}
		if err != nil {
			return err
		}
		m.sent++
	}
	return nil
}

// receive takes n messages, checks that none is missing, and posts their memory again.
func (m *messenger) receive(n int, pauses uint32, read func([]cq.Msg) (int, error)) error {
	for n > 0 {
		k, err := read(m.dst[:min(n, len(m.dst))])
		if err == cq.ErrWouldBlock {
			spin.Pause(pauses)
			continue
		}
		if err != nil {
			return err
		}
		for i := range m.dst[:k] {
			buf := m.bufs[m.dst[i].Context][:]
			if got := binary.LittleEndian.Uint64(buf); got != m.got {
				return fmt.Errorf("message %d came in place of %d", got, m.got)
			}
			m.got++
			if err := m.end.TRecv(buf, fabric.Anybody, smallTag, 0, m.dst[i].Context); err != nil {
				return err
			}
		}
		n -= k
	}
	return nil
}

func (m *messenger) look(dst []cq.Msg) (int, error) { return cq.Read(m.queue, dst) }

func (m *messenger) await(dst []cq.Msg) (int, error) {
	return cq.ReadContext(context.Background(), m.queue, dst, cq.ReadOptions{})
}

// fabricRunner is a round of both endpoints.
func (p *party) fabricRunner(c command) (func() (uint64, bool, error), error) {
	if !c.hasOption("send-1m", "pool", "loan") {
		return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
	}
	m, err := have(p, func() (*messenger, error) {
		long := map[string]int{"trip-4k": 4 << 10, "send-1m": 1 << 20}[c.verb]
		pool := map[bool]int{true: long}[c.option != ""]
		return openMessenger(p.role, c.sleeps(), long, pool, c.option == "loan")
	})
	if err != nil {
		return nil, err
	}
	play, counts := (func() error)(nil), 0
	switch c.verb {
	case "trip-4k":
		play = func() error { return m.longTrip(p.role, c) }
	case "send-1m":
		play = func() error { return m.longSend(p.role, c) }
	case "rate":
		play, counts = func() error { return m.rate(p.role, c) }, 1
	case "trip":
		play = func() error { return m.pingpong(p.role, c, func() {}, m.look) }
	case "sleep":
		play = func() error {
			return m.pingpong(p.role, c, func() { spinFor(thinkNs) }, m.await)
		}
	default:
		return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
	}
	return func() (uint64, bool, error) { return 0, p.role == counts, play() }, nil
}

func (m *messenger) rate(role int, c command) error {
	if role == 0 {
		return m.send(int(c.count), c.pauses)
	}
	return m.receive(int(c.count), c.pauses, m.look)
}

func (m *messenger) pingpong(role int, c command, think func(),
	read func([]cq.Msg) (int, error)) error {
	return inTurns(role, c.count, func() error {
		think()
		return m.send(1, c.pauses)
	}, func() error { return m.receive(1, c.pauses, read) })
}

// step sends a long message, unless as many are under way as there can be, and takes what has
// completed. It posts the memory of messages again.
func (m *messenger) step(sends bool, pauses uint32) error {
	if sends && m.sent-m.ended < fabricAhead {
		err := m.end.TSend(m.long, m.to, 0, 0)
		if err == nil {
			m.sent++
		} else if err != cq.ErrFull {
			return err
		}
	}
	n, err := cq.Read(m.queue, m.ends)
	if err == cq.ErrWouldBlock {
		spin.Pause(pauses)
		return nil
	}
	for i := range m.ends[:n] {
		e := &m.ends[i]
		if e.Flags&cq.FlagSend != 0 {
			m.ended++
			continue
		}
		if m.got++; e.Len != uint64(len(m.long)) {
			return fmt.Errorf("a message of %d bytes came as %d", len(m.long), e.Len)
		}
		if m.lends {
			err = m.peruse(e)
		}
		err = errors.Join(err, m.post(e.Context))
	}
	return err
}

// longTrip is there and back.
func (m *messenger) longTrip(role int, c command) (err error) {
	sent, got := m.sent, m.got
	for err == nil && (m.got-got < c.count || m.sent-sent < c.count || m.ended < m.sent) {
		turn := m.got-got > m.sent-sent
		if role == 0 {
			turn = m.got-got == m.sent-sent && m.got-got < c.count
		}
		err = m.step(turn, c.pauses)
	}
	return err
}

// longSend is one way, until the last message is examined.
func (m *messenger) longSend(role int, c command) (err error) {
	sent, got := m.sent, m.got
	if role == 0 {
		for err == nil && (m.sent-sent < c.count || m.ended < m.sent) {
			err = m.step(m.sent-sent < c.count, c.pauses)
		}
		return err
	}
	for err == nil && m.got-got < c.count {
		err = m.step(false, c.pauses)
	}
	return err
}
