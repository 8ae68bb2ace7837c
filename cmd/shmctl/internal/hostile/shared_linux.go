package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/futex"
	memory "github.com/shmring/shmring/internal/kind"
)

// Counters and address vectors are for processes of one user, all of which may write a counter:
// what is attacked here is no border between users. It must not end a process all the same.

const counterName = "counter"

// victimCounter uses a counter over which attackers scribble, beside a queue with honest writers.
func victimCounter(c *child) error {
	p := cq.Named(c.dir, counterName)
	n, err := cq.CreateCounter(p, cq.CounterOptions{Wait: cq.WaitFD, Spin: -1})
	if err != nil {
		return err
	}
	other, err := cq.AttachCounter(p, cq.CounterOptions{Spin: -1})
	if err != nil {
		return err
	}
	err = c.readQueues(func() {
		c.manyTimes(1, func(rnd *rand.Rand, i int) {
			c.lookAtCounter(rnd, []*cq.Counter{n, other}[i])
		})
	})
	defer c.watch("close of a counter")()
	c.assess("close", errors.Join(n.Close(), other.Close()))
	return err
}

func (c *child) lookAtCounter(rnd *rand.Rand, n *cq.Counter) {
	defer c.watch("a call of a counter")()
	before := n.Stats()
	var err error
	what, bound := "add to a counter", uint64(plainBound)
	switch rnd.IntN(8) {
	case 0:
		_, err = n.Read()
	case 1:
		err = n.Wait(context.Background(), rnd.Uint64()>>rnd.IntN(64),
			cq.WaitOptions{Timeout: 2 * time.Millisecond})
		what, bound = "wait for a counter", waitBound
	case 2:
		ctx, cancel := limited(2 * time.Millisecond)
		err = n.Wait(ctx, rnd.Uint64()>>rnd.IntN(64), cq.WaitOptions{})
		what, bound = "wait for a counter with a context", contextBound
		cancel()
	case 3:
		err = n.AddErr(1)
	case 4:
		err = n.Set(rnd.Uint64())
	case 5:
		if n.Options().Wait == cq.WaitFD {
			if err = n.TryWait(); err == nil {
				poll(n, 1)
			}
		}
	default:
		err = n.Add(rnd.Uint64N(3))
	}
	after := n.Stats()
	c.steps(what, after.Sleeps-before.Sleeps, bound)
	c.assess(what, err)
}

func attackCounter(c *child) error {
	return c.attackAs(func() (*guest, error) {
		n, err := cq.AttachCounter(cq.Named(c.dir, counterName), cq.CounterOptions{Spin: -1})
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			// What says that it is one is scribbled over, and its creator goes on.
			time.Sleep(time.Millisecond)
			return nil, errOver
		}
		add(&c.did.Attaches, 1)
		return &guest{play: func() {
			_ = n.Add(c.rnd.Uint64())
			_ = n.Wait(context.Background(), c.rnd.Uint64(), cq.WaitOptions{Timeout: 50 * time.Microsecond})
		}, leave: func() error { _ = n.Close(); return nil }}, nil
	})
}

const vectorName = "vector-%d"

func address(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), 1)
}

// lookAtVector looks addresses up in a vector of an attacker.
func lookAtVector(c *child, rnd *rand.Rand, i int) {
	defer c.watch("looks at an address vector")()
	v, err := cq.AttachAddresses(cq.Named(c.dir, fmt.Sprintf(vectorName, i)))
	if err != nil {
		add(&c.did.Calls, 1)
		if !errors.Is(err, fs.ErrNotExist) {
			c.refusedBy("open a vector", err)
		}
		time.Sleep(time.Millisecond)
		return
	}
	buf := make([]byte, 64)
	for range 200 {
		add(&c.did.Calls, 1)
		switch rnd.IntN(4) {
		case 0:
			at, ok := v.Resolve(cq.AppendSockaddr(nil, address(rnd.IntN(1<<10))))
			if ok && uint64(at) >= uint64(v.Options().Count) && at>>32 == 0 {
				add(&c.did.Foreign, 1) // an index of its owner's making
			}
		case 1:
			if n := v.Len(); n < 0 || n > v.Options().Count {
				c.broken(&c.did.Unbounded, "a vector says that it has %d addresses, and has room for %d", n,
					v.Options().Count)
			}
		default:
			at := cq.Addr(rnd.Uint64() >> rnd.IntN(64))
			if rnd.IntN(4) > 0 {
				at = cq.Addr(rnd.IntN(1 << 10))
			}
			_, err := v.Lookup(at, buf[:rnd.IntN(len(buf))])
			c.assess("look an address up", err)
		}
	}
	c.assess("close a vector", v.Close())
}

// attackVector owns a vector and scribbles over it.
func attackVector(c *child) error {
	name := fmt.Sprintf(vectorName, c.Index)
	away := func() error { _ = os.Remove(filepath.Join(c.Shm, name)); return nil }
	return c.attackAs(func() (*guest, error) {
		v, err := cq.CreateAddresses(cq.Named(c.dir, name), cq.AddressOptions{Count: 1 << 10})
		if errors.Is(err, fs.ErrExist) {
			v, err = cq.OpenAddresses(cq.Named(c.dir, name), cq.AddressOptions{Existing: true})
			if err != nil { // too broken
				return nil, away()
			}
		}
		if err != nil {
			return nil, err
		}
		add(&c.did.Attaches, 1)
		return &guest{raids: 1 + c.rnd.IntN(4), play: func() {
			at, err := v.Insert([][]byte{cq.AppendSockaddr(nil, address(c.rnd.IntN(1<<10)))},
				cq.InsertOptions{})
			if err == nil && c.rnd.IntN(2) == 0 {
				_ = v.Remove(at...)
			}
		}, leave: func() error { _ = v.Close(); return away() }}, nil
	})
}

// Endpoints are for processes of one user. A peer may write its outbox, pool, regions and control
// rings, and of the endpoint that it sends to the mail, the uses and the remote memory. Who claims
// all rows keeps others out as long as the endpoint lives, so the victim has one after the other. A
// group it may write wholly.

const (
	victimEnd   = "endpoint"
	victimGroup = "group"
	attackerEnd = "attacker-%d"
	lifeChunks  = 6
	lifePool    = 64 << 10
	lifeRemote  = 16 << 10
	lifeWindow  = 16 << 10
	lifePosts   = 24 // receives that wait
	honestText  = 160
)

func hasEndpoints(*scene) (done func(), skip error) { return func() {}, futex.HasWaitMany() }

// life is an endpoint with its queue.
type life struct {
	*child
	wire.Endpoint
	rnd *rand.Rand

	verifier *verifier // nil: nobody honest sends to it
	posts    uint64
	bufs     map[uint64][]byte // of receives
	mem      []byte            // of the pool
	region   *fabric.Region
	group    *fabric.Group
	peers    []cq.Addr
	begun    int // sends
	sent     int // completed
	ended    int // all that have ended
	failed   error
}

// opens opens an endpoint in one of the ways there are.
type opens func(fabric.Options) (*fabric.Endpoint, error)

// named is with a name in the directory.
func (c *child) named(name string) opens {
	return func(o fabric.Options) (*fabric.Endpoint, error) {
		o.Remote = lifeRemote
		return fabric.Open(c.dir, name, o)
	}
}

// live opens an endpoint.
func (c *child) live(open opens, rnd *rand.Rand) (l *life, err error) {
	l = &life{child: c, rnd: rnd, bufs: map[uint64][]byte{}}
	l.Endpoint, err = wire.MakeEndpoint(512, fabric.Options{Peers: 32, Chunks: lifeChunks,
		Pool: lifePool, Window: lifeWindow}, open)
	return l, err
}

// close ends it, and takes what is in the queue.
func (l *life) close() error {
	err := l.Endpoint.Endpoint.Close()
	for l.read(64) {
	}
	return errors.Join(err, l.Writer.Close(), l.Queue.Close())
}

// victimEndpoint has endpoints to which attackers and newcomers send, beside its queue.
func victimEndpoint(c *child) error {
	w, rnd := c.verifier(), c.split()
	return c.readQueues(func() {
		for c.ctx.Err() == nil {
			c.oneLife(c.named(victimEnd), rnd, w)
		}
	})
}

func (c *child) oneLife(open opens, rnd *rand.Rand, w *verifier) {
	over := c.watch("open of an endpoint")
	l, err := c.live(open, rnd)
	over()
	if err != nil {
		c.refusedBy("open an endpoint", err)
		time.Sleep(time.Millisecond)
		return
	}
	l.verifier = w
	if l.mem, err = l.Alloc(lifePool / 2); err != nil {
		c.broken(&c.did.Leaked, "a new endpoint has no memory: %v", err)
	}
	over = c.watch("join of a group")
	c.assess("join a group", l.join())
	over()
	until := time.Now().Add(time.Duration(10+rnd.IntN(100)) * time.Millisecond)
	for time.Now().Before(until) && c.ctx.Err() == nil {
		func() {
			defer c.watch("a call of an endpoint")()
			l.receive()
			what, err := l.use()
			if err == nil && strings.HasPrefix(what, "send") {
				l.begun++
			}
			c.steps(what, 0, plainBound)
			c.assess(what, err)
		}()
		if c.s.border() && rnd.IntN(8) == 0 && l.Stats().Corrupt > 0 {
			break // its only peer is cut off
		}
	}
	defer c.watch("close of an endpoint")()
	s := l.Stats()
	remote := s.FreeRemote + s.HeldRemote + s.RevokedRemote
	if s.FreeChunks+s.UsedChunks+s.LostChunks != lifeChunks ||
		s.FreePool+s.HeldPool+s.LentPool != lifePool || remote != lifeRemote && !c.s.border() ||
		remote != 0 && c.s.border() {
		c.broken(&c.did.Leaked, "an endpoint's memory does not add up: %+v", s)
	}
	add(&c.did.GivenUp, s.Corrupt)
	c.assess("close an endpoint", l.close())
	if n := l.Stats().Loans; n > 0 {
		c.broken(&c.did.Leaked, "%d loans are not back", n)
	}
}

// join makes it a member of the group that attackers are in too.
func (l *life) join() (err error) {
	l.group, err = l.Join(victimGroup, fabric.GroupOptions{Members: 8, Misses: true})
	return err
}

// receive posts receives: into buffers in which all of a newcomer fits, and lent ones.
func (l *life) receive() {
	for len(l.bufs) < lifePosts {
		m := fabric.Msg{Addr: fabric.Anybody, Context: l.posts}
		if l.posts%3 == 0 {
			m.Flags = cq.FlagFrame
		} else {
			m.Buf = make([]byte, 512+l.rnd.IntN(16<<10))
		}
		if l.posts%5 == 0 {
			m.Flags, m.Tag, m.Ignore = m.Flags|cq.FlagTagged, 0, ^uint64(l.rnd.IntN(2))
		}
		if err := l.RecvMsg(&m); err != nil {
			l.assess("post a receive", err)
			return
		}
		l.bufs[l.posts] = m.Buf
		l.posts++
	}
}

// use makes one call of one kind.
func (l *life) use() (what string, err error) {
	rnd := l.rnd
	peer := cq.Addr(rnd.IntN(len(l.peers) + 1))
	if len(l.peers) > 0 {
		peer = l.peers[rnd.IntN(len(l.peers))]
	}
	at := fabric.Remote{Key: 256 + rnd.Uint64N(3)*256, Offset: 8 * rnd.Uint64N(600)}
	switch rnd.IntN(14) {
	case 11, 12:
		if l.group != nil {
			return "send to a group", l.SendMsg(&fabric.Msg{Addr: l.group.Addr(),
				Buf: make([]byte, rnd.IntN(300))})
		}
	case 0:
		to, err := l.Resolve(fmt.Sprintf(attackerEnd, rnd.IntN(attackers)))
		if err == nil && len(l.peers) < 64 {
			l.peers = append(l.peers, to)
		}
		return "resolve", err
	case 1, 2:
		return "send", l.SendMsg(l.message(peer))
	case 3:
		ctx, cancel := limited(2 * time.Millisecond)
		defer cancel()
		return "send with a context", l.SendContext(ctx, l.message(peer))
	case 4:
		return "read memory of a peer", l.Read(make([]byte, rnd.IntN(4096)), peer, at, 0)
	case 5:
		return "write memory of a peer", l.WriteMsg(&fabric.Msg{Buf: make([]byte, rnd.IntN(4096)),
			Addr: peer, Flags: []cq.Flags{0, cq.FlagRemoteCQData}[rnd.IntN(2)]}, at)
	case 6:
		return "an atomic", l.Atomic(&fabric.AtomicMsg{Op: fabric.Sum, Type: fabric.Uint64,
			Buf: make([]byte, 8), Result: make([]byte, 8), Addr: peer, At: at})
	case 7:
		if l.region != nil && rnd.IntN(2) == 0 {
			err = l.region.Close()
			l.region = nil
		} else if l.region == nil {
			l.region, err = l.Register(4096, cq.FlagRemoteRead|cq.FlagRemoteWrite|cq.FlagAtomic)
		}
		return "a region", err
	case 8:
		_, err = l.Progress()
		return "progress", err
	case 9:
		err = l.Cancel(l.posts - rnd.Uint64N(lifePosts))
		return "cancel", err
	case 10:
		l.read(1 + rnd.IntN(64))
		return "read", nil
	}
	l.wait(context.Background(), time.Millisecond)
	return "read with a timeout", nil
}

func (l *life) read(most int) (more bool) {
	es := make([]cq.Entry, most)
	n, err := cq.Read(l.Queue, es)
	return l.take(es, n, err)
}

func (l *life) wait(ctx context.Context, most time.Duration) {
	es := make([]cq.Entry, 64)
	n, err := cq.ReadContext(ctx, l.Queue, es, cq.ReadOptions{Timeout: most})
	l.take(es, n, err)
}

// message is any message to a peer.
func (l *life) message(to cq.Addr) *fabric.Msg {
	rnd := l.rnd
	m := &fabric.Msg{Addr: to, Buf: make([]byte, rnd.IntN(300)), Data: rnd.Uint64()}
	switch rnd.IntN(8) {
	case 0:
		m.Buf = make([]byte, rnd.IntN(100<<10))
	case 1, 2:
		m.Buf = l.mem[:rnd.IntN(len(l.mem)+1)]
	}
	for _, f := range []cq.Flags{cq.FlagTagged, cq.FlagRemoteCQData, cq.FlagFence,
		cq.FlagMatchComplete, cq.FlagDeliveryComplete} {
		if rnd.IntN(4) == 0 && (f != cq.FlagDeliveryComplete || m.Flags&cq.FlagMatchComplete == 0) {
			m.Flags |= f
		}
	}
	return m
}

// take takes completions of a look at the queue.
func (l *life) take(es []cq.Entry, n int, err error) (more bool) {
	if errors.Is(err, cq.ErrAvail) {
		var failed cq.ErrorEntry
		if err = l.Queue.ReadErr(&failed); err == nil {
			if buf := l.bufs[failed.Context]; failed.Flags&cq.FlagRecv != 0 &&
				buf != nil && failed.Len > uint64(len(buf)) {
				l.broken(&l.did.Unbounded, "%d bytes came into %d, of a message that failed", failed.Len,
					len(buf))
			}
			delete(l.bufs, failed.Context)
			if failed.Flags&cq.FlagSend != 0 {
				l.failed = failed.Err
				l.ends()
			}
			l.assess("a completion", failed.Err)
			return true
		}
	}
	for i := range es[:n] {
		e := &es[i]
		switch {
		case e.Flags&cq.FlagSend != 0:
			l.sent++
			l.ends()
		case e.Flags&cq.FlagRecv != 0:
			l.received(e)
		}
	}
	l.assess("a read", err)
	return err == nil && n > 0
}

// ends counts the end of a send of a victim, each of which has one.
func (l *life) ends() {
	if l.ended++; l.verifier != nil && l.ended > l.begun {
		l.broken(&l.did.Unbounded, "%d sends have ended of %d", l.ended, l.begun)
	}
}

func (l *life) received(e *cq.Entry) {
	buf := l.bufs[e.Context]
	delete(l.bufs, e.Context)
	if e.Flags&cq.FlagFrame != 0 {
		got, err := l.Payload(e)
		buf = bytes.Clone(got)
		if err = errors.Join(err, l.Release(*e)); err != nil || uint64(len(buf)) != e.Len {
			l.broken(&l.did.Unbounded, "a loan of %d bytes has %d: %v", e.Len, len(buf), err)
		}
	} else if e.Len > uint64(len(buf)) {
		l.broken(&l.did.Unbounded, "%d bytes came into %d", e.Len, len(buf))
		return
	}
	buf = buf[:min(uint64(len(buf)), e.Len)]
	if l.verifier == nil {
		add(&l.did.Foreign, 1)
		return
	}
	l.verifier.message(buf)
}

// newcomerEndpoint sends to the victim: it is let in when all has its receive. Each try is somebody
// else, since the victim may have closed its endpoint.
func (c *child) newcomerEndpoint(ctx context.Context, who uint64) (*poster, error) {
	return nil, c.arrive(ctx, c.named("newcomer"), who)
}

// arrive has an endpoint to deliver something.
func (c *child) arrive(ctx context.Context, open opens, who uint64) error {
	l, err := c.live(open, c.rnd)
	if err != nil {
		return err
	}
	return errors.Join(l.deliver(ctx, who), l.close())
}

// deliver sends some messages, and waits until they have their receives.
func (l *life) deliver(ctx context.Context, who uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	to, err := cq.Addr(0), error(nil) // of who was met
	if !l.s.border() {
		to, err = l.Resolve(victimEnd)
	}
	if err != nil {
		return err
	}
	most := 1 + l.rnd.IntN(20)
	for n := range most {
		err := l.SendContext(ctx, &fabric.Msg{Buf: honestMessage(l.Key, who, uint64(n)), Addr: to,
			Flags: cq.FlagMatchComplete})
		if err != nil {
			return err
		}
	}
	before := l.sent
	for l.sent < before+most && l.failed == nil && ctx.Err() == nil {
		n := l.sent
		l.wait(ctx, 10*time.Millisecond)
		add(&l.did.Sent, uint64(l.sent-n))
	}
	return errors.Join(l.failed, ctx.Err())
}

// leaveSoon closes what may be too broken for that, which ends the process.
func leaveSoon(closes func() error) error {
	over := make(chan struct{})
	go func() {
		_ = closes()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-time.After(time.Second):
		return errOver
	}
}

// attackEndpoint sends to the victim, and scribbles over all that it may write.
func attackEndpoint(c *child) error {
	name := fmt.Sprintf(attackerEnd, c.Index)
	return c.attackAs(func() (*guest, error) {
		l, err := c.live(c.named(name), c.split())
		if err != nil { // what it had before is too broken
			_ = os.Remove(filepath.Join(c.Shm, name))
			time.Sleep(time.Millisecond)
			return nil, nil
		}
		box := memory.FabricOutboxName(l.Address().Outbox)
		gone := func() error {
			if err := leaveSoon(l.close); err != nil {
				return err
			}
			_ = os.Remove(filepath.Join(c.Shm, name))
			_ = os.Remove(filepath.Join(c.Shm, box))
			return nil
		}
		l.mem, _ = l.Alloc(lifePool / 2)
		if l.join() != nil { // it is too broken
			_ = os.Remove(filepath.Join(c.Shm, victimGroup))
		}
		l.region, _ = l.Register(4096, cq.FlagRemoteRead|cq.FlagRemoteWrite|cq.FlagAtomic|
			cq.FlagRMAEvent)
		to, err := l.Resolve(victimEnd)
		if err == nil {
			err = l.Endpoint.Send(nil, to, 0)
		}
		if err != nil || l.mem == nil {
			return nil, gone()
		}
		l.peers = []cq.Addr{to}
		return l.guest(gone), nil
	})
}

// guest uses an endpoint while its memory is scribbled over.
func (l *life) guest(leave func() error) *guest {
	add(&l.did.Attaches, 1)
	return &guest{raids: 1 + l.rnd.IntN(4), play: func() {
		l.receive()
		_, _ = l.use()
		if l.rnd.IntN(16) == 0 {
			time.Sleep(50 * time.Microsecond)
		}
	}, leave: leave}
}
