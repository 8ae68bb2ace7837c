package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/shmring/shmring/xdp/device"
)

// newcomersFirst is the number under which the first visit of a newcomer posts. Each visit has the
// next one: order is promised for one lane.
const newcomersFirst = 1 << 20

// fewestVisits is how often somebody new has to come during an attack.
const fewestVisits = 3

// visitor is what a newcomer comes to be, once it was let in.
type visitor interface {
	use(rnd *rand.Rand) error // and have done with all of it
	close() error
}

// newcomers come, are used, and leave, until the run ends. enter tries once to get in as the one
// with a number.
func (c *child) newcomers(enter func(ctx context.Context, who uint64) (visitor, error)) error {
	c.ready()
	for who := uint64(newcomersFirst); c.ctx.Err() == nil; who++ {
		v := c.letIn(who, enter)
		if v == nil {
			continue
		}
		if err := errors.Join(v.use(c.rnd), v.close()); err != nil {
			c.broken(keptOut, "newcomer %d had to leave: %v", who, err)
		}
		c.counts[visits].Add(1)
		time.Sleep(time.Duration(c.rnd.IntN(3000)) * time.Microsecond)
	}
	return nil
}

// letIn tries to get in until the run ends. Time in which the machine stood still does not count.
func (c *child) letIn(who uint64,
	enter func(ctx context.Context, who uint64) (visitor, error)) visitor {
	defer c.watch("a newcomer")()
	began, stalled, told := time.Now(), c.stallNs.Load(), false
	for {
		ctx, cancel := limited(keptBound)
		v, err := enter(ctx, who)
		cancel()
		took := time.Since(began)
		if took > keptBound {
			time.Sleep(standstill) // tellOn may not have seen it yet
		}
		took -= time.Duration(c.stallNs.Load() - stalled)
		if took > keptBound && !told {
			told = true
			c.broken(keptOut, "newcomer %d was kept out for %v: %v", who, took, err)
		}
		if err == nil {
			c.most(keptMostNs, uint64(max(took, 0)))
			return v
		}
		if c.ctx.Err() != nil || told { // whoever watches must not think that this is one call
			return nil
		}
		c.counts[turnedAway].Add(1)
		time.Sleep(time.Millisecond)
	}
}

// lineOf connects to a socket of the run, once.
func (c *child) lineOf(name string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: c.path(name), Net: "unix"})
}

// newPoster is a newcomer with a lane.
type newPoster struct {
	poster
	c    *child
	conn *net.UnixConn
}

func (p *newPoster) use(rnd *rand.Rand) error {
	n := uint64(0)
	post := func() error {
		defer p.c.watch("the post of a newcomer")()
		for {
			err := p.post(n)
			if err == nil {
				n++
				p.c.counts[sent].Add(1)
			}
			if !full(err) {
				return err
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	for range 1 + rnd.IntN(200) {
		if err := post(); err != nil {
			return err
		}
	}
	return p.c.read(p.poster, post)
}

func (p *newPoster) close() error { return errors.Join(p.poster.close(), p.conn.Close()) }

// newcomerApp is an application of the device process.
func newcomerApp(c *child) error {
	to := netip.AddrPortFrom(c.wires(0).remote.Addr, echoPort)
	return c.newcomers(func(ctx context.Context, _ uint64) (visitor, error) {
		e, err := device.Dial(ctx, c.path(fmt.Sprintf(deviceSocket, 0)), device.Request{
			Name: "newcomer", Ports: []uint16{newcomerPort}, Frames: 32, Sends: 16, NoReconnect: true})
		if err != nil {
			return nil, err
		}
		return &newApp{app: app{c: c, e: e, out: map[uint64]bool{}}, to: to}, nil
	})
}

// newApp is a newcomer whose datagrams come back.
type newApp struct {
	app
	to netip.AddrPort
}

func (a *newApp) use(*rand.Rand) error {
	over := a.c.watch("the echo of a newcomer")
	for a.echoes == 0 {
		if err := a.send(a.to); err != nil {
			return err
		}
		if err := a.take(); err != nil {
			return err
		}
	}
	over()
	defer a.c.watch("the completions of a newcomer")()
	return a.settle()
}

func (a *newApp) close() error { return a.e.Close() }
