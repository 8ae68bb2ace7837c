package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
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
)

// messenger is one end of a pair of endpoints that send each other numbers of 8 bytes.
type messenger struct {
	dir   *shm.Dir
	queue *cq.Queue
	out   *cq.Writer
	end   *fabric.Endpoint
	to    cq.Addr
	bufs  [fabricPosted][8]byte
	dst   []cq.Msg
	sent  uint64
	got   uint64
}

// openMessenger makes this role's end, and finds the other's. Reads look before they sleep, unless
// it is about sleeping.
func openMessenger(role int, sleeps bool) (m *messenger, err error) {
	m = &messenger{dst: make([]cq.Msg, fabricPosted)}
	defer func() {
		if err != nil {
			_ = m.Close()
		}
	}()
	if m.dir, err = shm.OpenDir(""); err != nil {
		return nil, err
	}
	o := cq.Options{Format: cq.FormatMsg}
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
	m.end, err = fabric.Open(m.dir, name(role), fabric.Options{Receive: m.out, Slots: fabricSlots,
		Progress: []*cq.Queue{m.queue}})
	if err != nil {
		return nil, err
	}
	for i := range m.bufs {
		if err := m.end.Recv(m.bufs[i][:], uint64(i)); err != nil {
			return nil, err
		}
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		m.to, err = m.end.Resolve(name(1 - role))
		if !errors.Is(err, fabric.ErrNoPeer) || time.Now().After(until) {
			return m, err
		}
	}
}

func (m *messenger) Close() error {
	if m == nil {
		return nil
	}
	closeAll(m.end, m.out, m.queue, m.dir)
	return nil
}

// send sends n numbers, on and on.
func (m *messenger) send(n int, pauses uint32) error {
	var payload [8]byte
	for ; n > 0; n-- {
		binary.LittleEndian.PutUint64(payload[:], m.sent)
		err := m.end.Inject(payload[:], m.to)
		for ; err == cq.ErrFull; err = m.end.Inject(payload[:], m.to) {
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
			if err := m.end.Recv(buf, m.dst[i].Context); err != nil {
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
func (p *party) fabricRunner(c command) (_ func() (uint64, bool, error), err error) {
	if p.messenger == nil {
		if p.messenger, err = openMessenger(p.role, c.sleeps()); err != nil {
			return nil, err
		}
	}
	m, n := p.messenger, int(c.count)
	switch strings.TrimPrefix(c.name, fabricPrefix) {
	case "rate":
		return func() (uint64, bool, error) {
			if p.role == 0 {
				return 0, false, m.send(n, c.pauses)
			}
			return 0, true, m.receive(n, c.pauses, m.look)
		}, nil
	case "trip":
		return func() (uint64, bool, error) {
			return 0, p.role == 0, m.pingpong(p.role, c, func() {}, m.look)
		}, nil
	case "sleep":
		return func() (uint64, bool, error) {
			return 0, p.role == 0, m.pingpong(p.role, c, func() { spinFor(thinkNs) }, m.await)
		}, nil
	}
	return nil, fmt.Errorf("no such command: %w", unix.EINVAL)
}

func (m *messenger) pingpong(role int, c command, think func(),
	read func([]cq.Msg) (int, error),
) (err error) {
	for range c.count {
		for turn := range 2 {
			if turn == role {
				think()
				err = m.send(1, c.pauses)
			} else {
				err = m.receive(1, c.pauses, read)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
