package torture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/futex"
	"github.com/shmring/shmring/internal/stage"
)

// Endpoints, one in each process, which send each other messages of all lengths, with a tag or not,
// before there is a receive for them or after. What a process sends to one endpoint for a while is
// a talk; a message has the number of its talk and its place there as data, so that whoever gets it
// knows what it must be. For each talk the ledger has
//
//	to, from   the outboxes of receiver and sender: no two endpoints ever have the same
//	intent     the sender stores it before each call: so many messages it may have sent
//	done       the sender sets the bit of each that completed without an error
//	seen       the receiver sets the bit of each that came whole, or longer than its receive
//
// What is done must be seen, unless its receiver has ended: at the latest when all keep still. How
// messages go, and what that promises beside, is in talks_linux.go.
const (
	endpoints    = 4
	endLongest   = 150 << 10
	endChunks    = 6
	endRoom      = 256 // completions
	talkBits     = 9   // of the place of a message in its talk
	talkMessages = 1 << talkBits
	maxTalks     = 1 << 15 // of the processes of a place together
)

func endpointRole() *role {
	return &role{name: "endpoint", places: endpoints, stops: true, run: (*child).runEndpoints,
		lingers: true, // a dial that was refused has an endpoint for a moment
		words:   endHead + endpoints*(endPlace+maxTalks*talkWords),
		lacks:   futex.HasWaitMany, with: []string{"endpoint"}, // they wait for each other
		steps: at("ring- arm-stored sleep- collect-object fabric- meet-passed meet-led meet-heard " +
			"reach- region- conn- link- group-"),
		starting: func(s *supervisor, p *proc) {
			mine := s.ledger.talks().place(p.index)
			for w := range mine {
				if w != endTalks {
					mine[w].Store(0)
				}
			}
		},
		calm: (*supervisor).calmEndpoints,
		died: func(s *supervisor, p *proc) error { return s.lasts(p.index) },
		counts: map[string]int{"sent": endSent, "done": endDone, "failed": endFailed,
			"seen": endSeen, "cut": endCut, "opened": endOpened, "no_room": endNoRoom,
			"calms": endCalms, "echoed": endEchoed, "reset": endReset,
			"linked": endLinked, "unlinked": endUnlinked, "grouped": endGrouped, "missed": endMissed,
			"matched": endMatched,
			"lent":    endLent, "referenced": endReferenced, "reached": endReached,
			"lasted": endLasted}}
}

// endText has the bytes of all messages.
var endText = sync.OnceValue(func() []byte {
	b := make([]byte, endLongest+256)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(b)-7; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rnd.Uint64())
	}
	return b
})

// endMessage is what a message must be: its bytes, its flags and its tag.
func endMessage(id uint64) (text []byte, flags cq.Flags, tag uint64) {
	x := mix(1, id)
	y := x >> 16
	n := y % (fabric.MaxInline + 1)
	switch x >> 8 % 16 {
	case 0:
		n = y % endLongest
	case 1, 2, 3:
		n = y % (32<<10 + 2)
	}
	if flags = cq.FlagRemoteCQData; x%4 > 0 {
		flags, tag = flags|cq.FlagTagged, x
	}
	at := x % 256
	return endText()[at : at+n], flags, tag
}

// talker is an endpoint while its process has it.
type talker struct {
	*child
	wire.Endpoint
	of   talks
	here []atomic.Uint64 // of them, this place's
	run  context.Context // ends with the run

	mu    sync.Mutex
	sends map[uint64]*sent // that have not ended, and what reaches memory of peers
	recvs map[uint64]*endReceive
	loans []endLoan
	posts uint64            // receives
	wants [endKinds]int     // how many receives there are to be of a kind
	there [endKinds]int     // how many there are
	bufs  [][]byte          // of receives
	order map[line][]landed // what came last
	over  bool              // it is closing

	reach
}

// Kinds of receives: without a tag, with the low bit of one, and with any.
const endKinds = 4

type endReceive struct {
	kind int
	buf  []byte // nil: the message is lent
}

// line is what has an order: what one endpoint sends of one kind.
type line struct {
	from uint64
	kind int
}

// landed is a message and the receive that it got.
type landed struct{ receive, id uint64 }

func endName(place int) string { return fmt.Sprintf("endpoint-%d", place) }

// runEndpoints has one endpoint after the other, and connections beside them.
func (c *child) runEndpoints() (err error) {
	c.ledger.talks().place(c.Index)[endBy].Store(uint64(c.pid))
	running, stop := c.running(phaseStop)
	defer stop()
	beside := []func(c *child, ctx context.Context, rnd *rand.Rand, n int) error{
		(*child).answer, (*child).ask, (*child).group}
	if futex.HasWaitMany() == nil {
		beside = append(beside, (*child).listen)
	}
	ended := make(chan error, len(beside))
	for i, one := range beside {
		rnd := rand.New(rand.NewPCG(c.Seed, uint64(c.Index+(i+1)*endpoints)))
		go func() {
			var err error
			for n := 0; c.ledger.phase() == phaseRun && err == nil; n++ {
				err = one(c, running, rnd, n)
			}
			ended <- err
		}()
	}
	for c.ledger.phase() == phaseRun && err == nil {
		err = c.oneEndpoint()
	}
	for range beside {
		if err == nil {
			err = <-ended
		}
	}
	return err
}

func (c *child) oneEndpoint() (err error) {
	e := &talker{child: c, of: c.ledger.talks(), sends: map[uint64]*sent{},
		recvs: map[uint64]*endReceive{}, order: map[line][]landed{}}
	e.here = e.of.place(c.Index)
	var end func()
	e.run, end = c.running(phaseStop)
	defer end()
	f, err := os.OpenFile(lastFile(c.Base, c.Index), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for since := stage.Lifetime(); ; nap(time.Millisecond) {
		e.Endpoint, err = wire.OpenEndpoint(c.dir, endName(c.Index), endRoom, fabric.Options{Peers: 16,
			Chunks: endChunks, Window: 16 << 10, Pool: endPool, Remote: endRemote,
			RemoteFile: &lastly{File: f, never: c.Spoil == spoilSync}})
		// Who removes the former one may be stopped over that.
		if !errors.Is(err, fs.ErrExist) || stage.Lifetime()-since > patience {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { err = errors.Join(err, e.Writer.Close(), e.Queue.Close()) }()
	if err = e.share(); err != nil {
		return errors.Join(err, e.Endpoint.Endpoint.Close())
	}
	e.here[endHolder].Store(e.Address().Outbox)
	e.of[endOpened].Add(1)
	reading, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.read(reading) }()
	err = e.speak()
	e.here[endHolder].Store(0)
	e.unshare()
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	if c.rnd.IntN(2) == 0 { // else it is closed while somebody reads
		stop()
	}
	err = errors.Join(err, e.Endpoint.Endpoint.Close())
	stop()
	err = errors.Join(err, <-ended)
	for empty := false; !empty && err == nil; {
		empty, err = e.some(func(dst []cq.Entry) (int, error) { return cq.Read(e.Queue, dst) })
	}
	e.release(0)
	if n := e.Stats().Loans; n > 0 && err == nil {
		e.tellN(kindLeaked, n, "%d loans are not back", n)
	}
	if n := len(e.sends) + len(e.recvs); n > 0 && err == nil {
		e.tellN(kindLost, uint64(n), "%d sends and %d receives never ended, though it is closed",
			len(e.sends), len(e.recvs))
	}
	return err
}

// read reads completions and posts receives until the context ends. It sleeps for as long as nobody
// wakes it.
func (e *talker) read(ctx context.Context) error {
	for {
		e.post()
		_, err := e.some(func(dst []cq.Entry) (int, error) {
			return cq.ReadContext(ctx, e.Queue, dst, cq.ReadOptions{})
		})
		if ctx.Err() != nil {
			return unlessCancelled(err)
		}
		if err != nil {
			e.tell(kindFailed, "read: %v", err)
			return err
		}
		s := e.Stats()
		if s.FreeChunks+s.UsedChunks+s.LostChunks != endChunks || s.Corrupt+s.Refused > 0 ||
			s.FreePool+s.HeldPool+s.LentPool != endPool ||
			s.FreeRemote+s.HeldRemote+s.RevokedRemote != endRemote {
			e.tell(kindBroken, "%+v", s)
		}
	}
}

// some takes a few completions.
func (e *talker) some(read func([]cq.Entry) (int, error)) (empty bool, err error) {
	return e.Take(read, func(c *cq.ErrorEntry) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ended(c)
	})
}

// ended looks at the end of an operation.
func (e *talker) ended(c *cq.ErrorEntry) {
	switch {
	case c.Flags&cq.FlagRecv != 0:
		r := e.recvs[c.Context]
		if r == nil {
			e.tell(kindDuplicate, "receive %d ended twice", c.Context)
			return
		}
		delete(e.recvs, c.Context)
		e.there[r.kind]--
		e.received(c, r)
		e.here[endWaits+r.kind].Add(^uint64(0)) // after it is seen
		if len(r.buf) == endLongest {
			e.bufs = append(e.bufs, r.buf)
		}
	case c.Flags&cq.FlagRemoteWrite != 0:
		e.written(c)
	case c.Err != 0 && c.Flags&cq.FlagNoContext != 0: // of an inject
		e.of[endFailed].Add(1)
		e.excuse(c.Err, 0)
	case e.sends[c.Context] == nil:
		e.tell(kindDuplicate, "send %#x ended twice: %+v", c.Context, c)
	default:
		s := e.sends[c.Context]
		delete(e.sends, c.Context)
		e.here[endOpen].Add(^uint64(0))
		if c.Context&reaches != 0 {
			e.of[endReached].Add(1)
			return
		}
		talk, k, _ := e.of.of(c.Context)
		if c.Err == 0 {
			e.of[endDone].Add(1)
			e.promised(c.Context, s, talk, k)
			talk.set(talkDone, k)
		} else {
			e.of[endFailed].Add(1)
			e.excuse(c.Err, talk[talkTo].Load())
		}
		e.gives(s, false)
	}
}

// excuse looks whether there is a reason for what a send says of its receiver.
func (e *talker) excuse(err error, to uint64) {
	at := e.of.has(to)
	switch {
	case errors.Is(err, syscall.ECANCELED) && e.over:
	case errors.Is(err, fabric.ErrPeers):
		e.of[endNoRoom].Add(1)
	case !isAny(err, syscall.ECONNRESET, syscall.EPIPE, syscall.EHOSTUNREACH):
		e.tell(kindBroken, "a send failed: %v", err)
	case at >= 0 && survives(int(e.of.place(at)[endBy].Load()), func() bool {
		return e.of.has(to) == at
	}):
		e.tell(kindUsurped, "a send failed, though endpoint %d lives: %v", at, err)
	}
}

// received compares what came with what was sent.
func (e *talker) received(c *cq.ErrorEntry, r *endReceive) {
	if errors.Is(c.Err, syscall.ECANCELED) && e.over && c.Data == 0 {
		return // it had no message
	}
	talk, k, ok := e.of.of(c.Data)
	text, flags, tag := endMessage(c.Data)
	flags |= cq.FlagRecv
	if flags&cq.FlagTagged == 0 {
		flags |= cq.FlagMsg
	}
	n, room := int(c.Len), len(r.buf)
	got := r.buf[:min(n, room)]
	if c.Flags&cq.FlagFrame != 0 {
		flags, room = flags|cq.FlagFrame, len(text)
		got = e.lent(c)
	}
	switch {
	case !ok || k >= int(talk[talkIntent].Load()) ||
		talk[talkTo].Load() != e.Address().Outbox:
		e.tell(kindUnpublished, "nobody sent %+v here", *c)
	case c.Flags != flags || c.Tag != tag || n > min(room, len(text)) ||
		!bytes.Equal(got, text[:n]) || c.Err == 0 && n != len(text) ||
		c.Err == cq.ETrunc && (n != room || n+int(c.OverrunBytes) != len(text)):
		e.tell(kindUnpublished, "%#x came as %+v with other bytes, flags or tag", c.Data, *c)
	case c.Err != 0 && c.Err != cq.ETrunc:
		if e.of[endCut].Add(1); talk.is(talkDone, k) {
			e.tell(kindLost, "the receive of %#x, whose send is done, failed: %v", c.Data, c.Err)
		}
		e.inOrder(c, talk[talkFrom].Load(), tag)
	default:
		e.inOrder(c, talk[talkFrom].Load(), tag)
		e.saw(c.Data, talk, k)
	}
}

func (e *talker) saw(id uint64, talk talk, k int) {
	if e.Spoil == spoilSkip && id%100 == 0 && endWay(id).level != cq.FlagMatchComplete {
		return
	}
	if e.of[endSeen].Add(1); talk.set(talkSeen, k) {
		e.tell(kindDuplicate, "%#x came again", id)
	}
}

// inOrder looks whether the messages of a sender and a kind got receives in the order in which
// these were posted. Long ones end later than they got theirs.
func (e *talker) inOrder(c *cq.ErrorEntry, from, tag uint64) {
	if len(e.order) > 64 {
		clear(e.order)
	}
	at := line{from, 0}
	if c.Flags&cq.FlagTagged != 0 {
		at.kind = 1 + int(tag&1)
	}
	last := e.order[at]
	for _, l := range last {
		if (l.receive < c.Context) != (l.id < c.Data) {
			e.tell(kindLost, "%#x got receive %d, and %#x got %d", c.Data, c.Context, l.id, l.receive)
		}
	}
	if last = append(last, landed{c.Context, c.Data}); len(last) > 32 {
		last = last[1:]
	}
	e.order[at] = last
}

// post posts receives, as many as there are to be of each kind.
func (e *talker) post() {
	e.mu.Lock()
	defer e.mu.Unlock()
	least := 0
	if e.still.Load() != 0 || e.ledger.phase() != phaseRun {
		least = 1
		e.release(0)
	}
	for kind := range endKinds {
		for e.there[kind] < max(e.wants[kind], least) && !e.over {
			r := e.memory(kind)
			m := fabric.Msg{Buf: r.buf, Addr: fabric.Anybody, Context: e.posts}
			if r.buf == nil {
				m.Flags = cq.FlagFrame
			}
			if kind > 0 {
				m.Flags, m.Tag, m.Ignore = m.Flags|cq.FlagTagged, uint64(kind-1), ^uint64(1)
			}
			if kind == endKinds-1 {
				m.Ignore = ^uint64(0)
			}
			e.here[endWaits+kind].Add(1)
			if err := e.RecvMsg(&m); err != nil {
				e.here[endWaits+kind].Add(^uint64(0))
				if !errors.Is(err, cq.ErrFull) {
					e.tell(kindFailed, "receive: %v", err)
				}
				return
			}
			e.recvs[e.posts] = r
			e.there[kind]++
			e.posts++
		}
	}
}

// memory returns a receive with a long buffer, a short one or none.
func (e *talker) memory(kind int) *endReceive {
	r := &endReceive{kind: kind}
	switch e.posts % 8 {
	case 2, 5:
	case 7:
		r.buf = make([]byte, 100)
	default:
		if len(e.bufs) == 0 {
			e.bufs = append(e.bufs, make([]byte, endLongest))
		}
		r.buf, e.bufs = e.bufs[len(e.bufs)-1], e.bufs[:len(e.bufs)-1]
	}
	return r
}

// speak has talks until the endpoint is to close.
func (e *talker) speak() error {
	most := 3000
	if step, _ := crash.Parse(e.Step); step >= crash.FabricHeads && step <= crash.FabricReleased ||
		e.Spoil == spoilAdd { // sums are looked at when an endpoint is closed
		most = 10
	}
	for left := 1 + e.rnd.IntN(most); left > 0 && e.ledger.phase() == phaseRun; left-- {
		e.wish()
		if e.hushed() {
			e.post()
			nap(time.Millisecond)
		} else if err := e.talk(); err != nil {
			return err
		}
	}
	return nil
}

// wish draws how many receives there are to be.
func (e *talker) wish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.wants {
		e.wants[i] = e.rnd.IntN(6)
	}
}

// talk sends some messages to one endpoint, which may be this one.
func (e *talker) talk() error {
	place := e.rnd.IntN(endpoints)
	to, err := e.Resolve(endName(place))
	if errors.Is(err, fabric.ErrNoPeer) {
		nap(time.Millisecond)
		return nil
	}
	if err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	addr, err := e.Lookup(to)
	n := e.here[endTalks].Load()
	if err != nil || n == maxTalks {
		nap(time.Millisecond) // the ledger is full: it only receives
		return err
	}
	talk := e.of.at(e.Index, n)
	talk[talkTo].Store(addr.Outbox)
	talk[talkFrom].Store(e.Address().Outbox)
	e.here[endTalks].Store(n + 1)
	begin := uint64(e.Index+1)<<40 | n<<talkBits
	for k := range e.rnd.IntN(talkMessages) {
		if e.hushed() || e.ledger.phase() != phaseRun {
			break
		}
		if over, err := e.send(talk, begin+uint64(k), to); over || err != nil {
			return err
		}
		if e.rnd.IntN(8) == 0 && e.reaches(talk, to) {
			return nil
		}
		if e.rnd.IntN(50) == 0 {
			nap(time.Duration(e.rnd.IntN(3000)) * time.Microsecond)
		}
	}
	return nil
}

// send sends a message. over says that its receiver takes no more.
func (e *talker) send(talk talk, id uint64, to cq.Addr) (over bool, err error) {
	m := fabric.Msg{Addr: to, Context: id, Data: id}
	m.Buf, m.Flags, m.Tag = endMessage(id)
	way := endWay(id)
	if e.Spoil == spoilText && e.rnd.IntN(1000) == 0 && way.level != cq.FlagMatchComplete {
		m.Data++
	}
	s, at := &sent{}, fabric.Remote{}
	inject := way.ordinary() && len(m.Buf) <= fabric.MaxInline && e.rnd.IntN(8) == 0
	if inject {
		m.Flags |= cq.FlagInjectCall
	} else if at, err = e.lays(s, &m, way, talk[talkTo].Load()); err != nil || m.Buf == nil {
		return false, err
	}
	e.begun(id, s, inject)
	talk[talkIntent].Store(id%talkMessages + 1)
	for waits := e.rnd.IntN(4) == 0; ; nap(200 * time.Microsecond) {
		if e.rnd.IntN(50) == 0 { // those who wait for its receives may have none for it
			e.wish()
		}
		e.post()
		if err = cq.ErrFull; e.here[endOpen].Load() > endRoom/2 { // else there is none for receives
		} else if way.how == wayWrite {
			err = e.WriteMsg(&m, at)
		} else if waits {
			err = e.SendContext(e.run, &m)
		} else {
			err = e.SendMsg(&m)
		}
		if !errors.Is(err, cq.ErrFull) || e.ledger.phase() != phaseRun {
			break
		}
	}
	if err == nil && !inject {
		e.of[endSent].Add(1)
		e.gives(s, true)
		return false, nil
	}
	e.here[endOpen].Add(^uint64(0))
	if err == nil {
		return false, nil
	}
	talk[talkIntent].Store(id % talkMessages) // nothing of it may come
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sends, id)
	e.gives(s, true)
	e.gives(s, false)
	if e.run.Err() == nil && !errors.Is(err, cq.ErrFull) {
		e.excuseReach(err, talk[talkTo].Load(), at.Key)
	}
	return true, nil
}
