package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
)

// Groups, beside the endpoints of the role: each process has a member of two groups, and sends
// numbers to both. In one all wait: whoever has got a number of a sender gets the next one. In the
// other some miss: what lies between two numbers is what its member is told to have missed. Who
// has left joins again with another endpoint, and begins anywhere.

// grouper is an endpoint in both groups.
type grouper struct {
	*child
	wire.Endpoint
	g    [2]*fabric.Group
	left [2]bool
	sent [2]uint64
	last map[groupLine]uint64
	miss map[uint64]uint64 // what was told since, by sender
	bufs [16][groupBytes]byte
}

const groupBytes = 24 // of a message: who sent it, the group, the number

// groupLine is what has an order: what one member sends to a group.
type groupLine struct{ from, group uint64 }

var groupOptions = [2]fabric.GroupOptions{{Members: 8}, {Members: 8, Misses: true}}

// group has a member for a while.
func (c *child) group(ctx context.Context, rnd *rand.Rand, n int) (err error) {
	e := &grouper{child: c, last: map[groupLine]uint64{}, miss: map[uint64]uint64{}}
	e.Endpoint, err = wire.OpenEndpoint(c.dir, fmt.Sprintf("member-%d-%d", c.pid, n), 64,
		fabric.Options{Peers: 16})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for i := range e.bufs {
		if err = e.Recv(e.bufs[i][:], uint64(i)); err != nil {
			return err
		}
	}
	for left := 1 + rnd.IntN(400); left > 0 && c.ledger.phase() == phaseRun; left-- {
		if e.left[0] && e.left[1] {
			break
		}
		if c.hushed() {
			nap(time.Millisecond)
		} else if err = e.turn(rnd); err != nil {
			return err
		}
		if err = e.take(); err != nil {
			return err
		}
		if rnd.IntN(20) == 0 { // it sleeps until there is something, or not
			some, stop := context.WithTimeout(ctx, time.Duration(rnd.IntN(2000))*time.Microsecond)
			_, _ = cq.ReadContext(some, e.Queue, []cq.Entry{}, cq.ReadOptions{Threshold: 1})
			stop()
		}
	}
	return nil
}

// turn joins a group, leaves it, or sends to it.
func (e *grouper) turn(rnd *rand.Rand) (err error) {
	i := rnd.IntN(2)
	g := e.g[i]
	switch {
	case e.left[i]:
		return nil
	case g == nil:
		name := fmt.Sprint("group-", i)
		if e.Step == crash.GroupMade.String() { // else it is there already
			name = fmt.Sprintf("group-%d-of-%d", i, e.pid)
		}
		if e.g[i], err = e.Join(name, groupOptions[i]); err != nil {
			return fmt.Errorf("join: %w", err)
		}
		return nil
	case rnd.IntN(40) == 0:
		e.left[i] = true
		return g.Close()
	}
	text := binary.LittleEndian.AppendUint64(nil, e.Address().Outbox)
	text = binary.LittleEndian.AppendUint64(text, uint64(i))
	text = binary.LittleEndian.AppendUint64(text, e.sent[i]+1)
	err = e.Inject(text, g.Addr())
	switch {
	case err == nil:
		e.sent[i]++
		e.ledger.talks()[endGrouped].Add(1)
	case errors.Is(err, cq.ErrFull), errors.Is(err, fabric.ErrPeers):
		// Somebody has no room; or of many that come and go the former have places yet.
		err = nil
	}
	return err
}

// take takes what has come.
func (e *grouper) take() error {
	for {
		var failed error
		empty, err := e.Take(func(dst []cq.Entry) (int, error) { return cq.Read(e.Queue, dst) },
			func(c *cq.ErrorEntry) {
				if c.Err != 0 {
					e.missed(c)
					return
				}
				e.came(c)
				failed = errors.Join(failed, e.Recv(e.bufs[c.Context][:], c.Context))
			})
		if err = errors.Join(err, failed); err != nil || empty {
			return err
		}
	}
}

// came looks at a message.
func (e *grouper) came(c *cq.ErrorEntry) {
	text := e.bufs[c.Context][:]
	from, i := binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:])
	n := binary.LittleEndian.Uint64(text[16:])
	if c.Len != groupBytes || c.Flags != cq.FlagRecv|cq.FlagMsg|cq.FlagMulticast || i > 1 ||
		from == e.Address().Outbox {
		e.tell(kindUnpublished, "to a group: %+v, %x", c, text)
		return
	}
	line := groupLine{from, i}
	last, known := e.last[line]
	want := last + 1
	if i == 1 {
		want += e.miss[from]
		delete(e.miss, from)
	}
	e.last[line] = n
	switch {
	case !known || e.left[i]: // some sends may not have noticed
	case n < want:
		e.tell(kindDuplicate, "%d to group %d came after %d", n, i, last)
	case n > want:
		e.tell(kindLost, "%d to group %d came after %d, and that others were missed was not told", n, i,
			last)
	}
}

// missed looks at what is told of that.
func (e *grouper) missed(c *cq.ErrorEntry) {
	a, err := fabric.ParseAddress(c.ErrData)
	if c.Err != cq.EOverrun || c.Data == 0 || err != nil {
		e.tell(kindBroken, "a member is told %+v", c)
	}
	e.miss[a.Outbox] += c.Data
	e.ledger.talks()[endMissed].Add(c.Data)
}
