package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// Ports of a device scene: what the bystander has, what attackers may take, and where answers come
// from.
const (
	honestPort   = 5000
	newcomerPort = 5001
	hostilePort  = 5100
	echoPort     = 6000
)

// prepareDevice makes a network of two ends, B and A, and has somebody at A answer.
func prepareDevice(sc *scene) (done func(), skip error) {
	pair, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, err
	}
	var echo *net.UDPConn
	err = pair.A.Do(func() error {
		echo, err = net.ListenUDP("udp4", &net.UDPAddr{IP: pair.A.Addr.AsSlice(), Port: echoPort})
		return err
	})
	if err != nil {
		_ = pair.Close()
		return nil, err
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := echo.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	sc.files = []*os.File{pair.B.NetNS(), pair.A.NetNS()}
	sc.ends = wire.Ends{*pair.B, *pair.A}
	return func() { _ = errors.Join(echo.Close(), pair.Close()) }, nil
}

// openServer makes a server for one end.
func (c *child) openServer(i int) (*wire.Served, error) {
	runtime.LockOSThread()
	if err := veth.Enter(3 + i); err != nil {
		return nil, err
	}
	var allow []device.Allow
	for _, text := range []string{fmt.Sprintf("uid:%d,ports=%d-%d", honestUID, honestPort, honestPort),
		fmt.Sprintf("uid:%d,ports=%d-%d", newcomerUID, newcomerPort, newcomerPort),
		fmt.Sprintf("uid:%d,ports=%d-%d,frames=512,sends=128,apps=12", attackerUID, hostilePort,
			hostilePort+99)} {
		a, err := device.ParseAllow(text)
		if err != nil {
			return nil, err
		}
		allow = append(allow, a)
	}
	return wire.Serve(c.path(fmt.Sprintf(deviceSocket, i)), device.Config{
		Interface: c.Ends[i].Name, Allow: allow, Resolver: c.Ends.Ways(i),
		NoObject: true, Frames: 2048, Spin: -1, Report: func(err error) { c.refusedBy("serve", err) }})
}

// victimServer is a device process.
func victimServer(c *child) error {
	s, err := c.openServer(0)
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Millisecond)
	before := held()
	c.ready()
	shown, computed, since := s.Stats(), processCPU(), stage.Lifetime()
	look := func() {
		over := c.watch("a look at the server")
		st := s.Stats()
		over()
		rounds, polls := st.Rounds-shown.Rounds, st.Polls-shown.Polls
		if add(&c.did.Calls, rounds); polls > rounds+1 {
			c.broken(&c.did.Unbounded, "the server slept %[2]d times in %[1]d rounds", rounds, polls)
		}
		// Its rounds are run by a goroutine of the library: all that the process computes until the
		// next one is shown is what one costs at most.
		now := processCPU()
		cost := now - computed
		c.most(&c.did.CPUMostNs, uint64(cost))
		late := min(cost, stage.Lifetime()-since) > 2*cpuBound
		if late {
			c.broken(&c.did.Unbounded, "a round of the server computes for %v", cost)
		}
		if late || rounds > 0 {
			computed, since = now, stage.Lifetime()
		}
		shown = st
		for _, f := range st.Frames {
			if f.Sum() != f.Frames {
				c.broken(&c.did.Unbounded, "%d of %d frames are accounted for", f.Sum(), f.Frames)
			}
		}
		if err := s.Err(); err != nil {
			c.broken(&c.did.Hangs, "the server has failed: %v", err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	for c.ctx.Err() == nil {
		look()
	}
	c.settles(before, nil, look)
	if st := s.Stats(); len(st.Apps) != 0 || st.Admitted != st.Evicted {
		c.broken(&c.did.Leaked, "%d applications are still there", len(st.Apps))
	}
	over := c.watch("the end of Serve")
	if err := s.Stop(); err != nil {
		return err
	}
	over()
	defer c.watch("close of the server")()
	return s.Close()
}

// app is an application of the device process that is honest: its datagrams come back, and each
// send is completed once.
type app struct {
	c      *child
	e      *device.Endpoint
	out    map[uint64]bool // sends that are not completed
	echoes uint64          // since everything was completed
	err    error
}

// enterApp gets in with the port of its role.
func (c *child) enterApp(ctx context.Context, _ uint64) (*poster, error) {
	port := map[string]uint16{roleHonest: honestPort, roleNewcomer: newcomerPort}[c.Role]
	e, err := device.Dial(ctx, c.path(fmt.Sprintf(deviceSocket, 0)), device.Request{Name: c.Role,
		Ports: []uint16{port}, Frames: 64, Sends: 32, NoReconnect: true})
	if err != nil {
		return nil, err
	}
	a := &app{c: c, e: e, out: map[uint64]bool{}}
	return &poster{post: a.post, empty: a.empty, again: true,
		close: func() error { return errors.Join(a.err, e.Close()) }}, nil
}

// post sends a datagram.
func (a *app) post(n uint64) error {
	payload := binary.LittleEndian.AppendUint64(nil, n)
	payload = binary.LittleEndian.AppendUint64(payload, seal(a.c.Key, 0, n))
	err := a.e.SendTo(payload, 0, netip.AddrPortFrom(a.c.Ends[1].Addr, echoPort), n)
	if err == nil {
		a.out[n] = true
	} else if full(err) {
		a.take()
	}
	if a.err != nil {
		err = a.err
	}
	return err
}

// empty tells that all sends are completed, and something came back.
func (a *app) empty() bool {
	if a.take(); a.err == nil && (len(a.out) > 0 || a.echoes == 0) {
		return false
	}
	a.echoes = 0
	return true
}

// take takes what there is, for a moment.
func (a *app) take() {
	var es [64]cq.Entry
	n, err := cq.ReadContext(context.Background(), a.e.Queue(), es[:],
		cq.ReadOptions{Timeout: 2 * time.Millisecond})
	if errors.Is(err, cq.ErrAvail) {
		var x cq.ErrorEntry
		if err = a.e.Queue().ReadErr(&x); err == nil {
			err = fmt.Errorf("a send of a bystander failed: %w", &x)
		}
	} else if errors.Is(err, cq.ErrWouldBlock) || errors.Is(err, cq.ErrTimedOut) {
		err = nil
	}
	for i := range es[:n] {
		e := &es[i]
		if e.Flags&cq.FlagFrame != 0 {
			err = errors.Join(err, a.came(e))
			continue
		}
		if !a.out[e.Context] {
			a.c.broken(&a.c.did.BystanderLost, "send %d was completed, which is not under way", e.Context)
		}
		delete(a.out, e.Context)
		add(&a.c.did.Seen, 1)
	}
	a.err = errors.Join(a.err, err)
}

// came looks at a datagram, and gives its frame back.
func (a *app) came(e *cq.Entry) error {
	loan, err := a.e.View(e)
	if err != nil {
		return err
	}
	b := loan.Bytes()
	if len(b) < 16 ||
		binary.LittleEndian.Uint64(b[8:]) != seal(a.c.Key, 0, binary.LittleEndian.Uint64(b)) {
		a.c.broken(&a.c.did.BystanderLost, "a datagram that nobody sent came back")
	}
	loan.Release()
	a.echoes++
	return a.e.Release(*e)
}

// attackServer has applications that scribble over their payload memory, commands and queues.
func attackServer(c *child) error {
	to := netip.AddrPortFrom(c.Ends[1].Addr, echoPort)
	return c.attackAs(func() (*guest, error) {
		if c.rnd.IntN(40) == 0 {
			return nil, errOver
		}
		ctx, cancel := limited(2 * time.Second)
		defer cancel()
		e, err := device.Dial(ctx, c.path(fmt.Sprintf(deviceSocket, 0)), device.Request{Name: "hostile",
			Ports: []uint16{uint16(hostilePort + c.Index*50 + c.rnd.IntN(50))}, Frames: 32, Sends: 16,
			NoReconnect: true, QueueOptions: cq.Options{Size: 64}})
		if err != nil {
			return nil, nil
		}
		add(&c.did.Attaches, 1)
		return &guest{play: func() { c.useHostile(e, to) }, leave: func() error {
			if c.rnd.IntN(8) == 0 {
				os.Exit(0) // without a word
			}
			_ = e.Close()
			return nil
		}}, nil
	})
}

// useHostile sends, receives, and gives frames back that it does not have.
func (c *child) useHostile(e *device.Endpoint, to netip.AddrPort) {
	add(&c.did.Mutations, 1)
	if e.SendTo(make([]byte, c.rnd.IntN(1400)), 0, to, c.rnd.Uint64()) != nil {
		time.Sleep(20 * time.Microsecond)
	}
	var es [16]cq.Entry
	n, err := cq.Read(e.Queue(), es[:])
	if errors.Is(err, cq.ErrAvail) {
		_ = e.Queue().ReadErr(&cq.ErrorEntry{})
	}
	for i := range es[:n] {
		add(&c.did.Mutations, 1)
		_ = e.Release(es[i])
		forged := es[i]
		forged.Meta = cq.Meta(c.rnd.Uint64())
		if c.rnd.IntN(2) == 0 {
			forged.Buf = shm.MakeRef(es[i].Buf.Region(), c.rnd.Uint64()>>c.rnd.IntN(64))
			forged.Meta = es[i].Meta
		}
		_ = e.Release(forged) // once more, or another one
	}
	if c.rnd.IntN(50) == 0 {
		ctx, cancel := limited(time.Millisecond)
		_ = e.Take(ctx, uint16(c.rnd.Uint32()))
		cancel()
	}
}

// attackApp is a device process that scribbles over all that it shares with applications.
func attackApp(c *child) error {
	s, err := c.openServer(c.Index)
	if err != nil {
		return err
	}
	came := uint64(0)
	return c.attackAs(func() (*guest, error) {
		if s.Err() != nil || c.rnd.IntN(400) == 0 {
			return nil, errOver
		}
		return &guest{play: func() { time.Sleep(100 * time.Microsecond) }, leave: func() error {
			n := s.Stats().Admitted
			add(&c.did.Attaches, n-came)
			came = n
			time.Sleep(time.Duration(c.rnd.IntN(3000)) * time.Microsecond)
			return nil
		}}, nil
	})
}

// useServer uses the device process of an attacker.
func useServer(c *child, rnd *rand.Rand, i int) {
	over := c.watch("dial")
	add(&c.did.Calls, 1)
	ctx, cancel := limited(200 * time.Millisecond)
	e, err := device.Dial(ctx, c.path(fmt.Sprintf(deviceSocket, i)), device.Request{Name: "victim",
		Ports: []uint16{uint16(hostilePort + rnd.IntN(100))}, Frames: 32, Sends: 16,
		NoReconnect: rnd.IntN(2) == 0})
	cancel()
	over()
	if err != nil {
		c.refusedBy("dial", err)
		time.Sleep(time.Millisecond)
		return
	}
	var busy sync.WaitGroup
	to := netip.AddrPortFrom(c.Ends[1-i].Addr, echoPort)
	until := time.Now().Add(time.Duration(5+rnd.IntN(60)) * time.Millisecond)
	seed := rnd.Uint64()
	busy.Go(func() { // somebody else than the reader
		rnd := rand.New(rand.NewPCG(seed, 1))
		for time.Now().Before(until) && c.ctx.Err() == nil {
			over := c.watch("a send")
			err := e.SendTo(make([]byte, rnd.IntN(1400)), 0, to, rnd.Uint64())
			over()
			add(&c.did.Calls, 1)
			if c.assess("send", err); err != nil {
				time.Sleep(50 * time.Microsecond)
			}
			e.Stats()
		}
	})
	for time.Now().Before(until) && c.ctx.Err() == nil {
		c.receiveHostile(e)
	}
	busy.Wait()
	defer c.watch("close of an endpoint")()
	c.assess("close", e.Close())
}

func (c *child) receiveHostile(e *device.Endpoint) {
	defer c.watch("a read of an endpoint")()
	q := e.Queue()
	before := q.Stats()
	var es [16]cq.Entry
	n, err := cq.ReadContext(context.Background(), q, es[:],
		cq.ReadOptions{Timeout: 2 * time.Millisecond})
	after := q.Stats()
	c.steps("read an endpoint", after.Sleeps-before.Sleeps+after.Barriers-before.Barriers,
		waitBound)
	if errors.Is(err, cq.ErrAvail) {
		err = q.ReadErr(&cq.ErrorEntry{ErrData: make([]byte, 64)})
	}
	c.assess("read an endpoint", err)
	for i := range es[:n] {
		entry := &es[i]
		if entry.Flags&cq.FlagFrame == 0 {
			continue
		}
		add(&c.did.Foreign, 1)
		_, err := e.Record(entry)
		c.assess("record of a frame", err)
		loan, err := e.View(entry)
		c.assess("view of a frame", err)
		if err == nil {
			sum := byte(0)
			for _, b := range loan.Bytes() {
				sum ^= b
			}
			runtime.KeepAlive(sum)
			loan.Release()
		}
		c.assess("release of a frame", e.Release(*entry))
	}
}
