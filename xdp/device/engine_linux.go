package device

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

const publishEveryNs = 5e6

// queue is one socket of the device.
type queue struct {
	number  uint32
	umem    *xdp.UMEM
	sock    *xdp.Socket
	packets []xdp.Received
	done    []xdp.Sent
	sends   []sendRow // by frame, of what the kernel has to send
	parsed  packet.Datagram
	sums    []packet.Checksum // of the packets in this batch
	touched []*app            // applications with packets in this batch

	malformed, badChecksum uint64

	// object is what tools see, by which "shmctl xdp" lists the socket and "shmctl capture" copies
	// what all applications receive and send. It is there for processes of the server's own user.
	object *capture.Follower
}

// engine is the goroutine that moves packets. Everybody else talks to it by calls.
type engine struct {
	s       *Server
	queues  []*queue
	apps    []*app // in turn
	turn    int
	byPort  []*app                    // 65536
	sending int                       // packets that the kernel has to send
	local   atomic.Pointer[xdp.Local] // what is the interface's own
	calls   chan func()
	loop    drive.Loop
	stop    context.CancelFunc
	ended   chan struct{}
	err     error

	now       int64
	checkAt   int64
	publishAt int64
	stats     Stats
	dirty     bool // something happened since counters were shown
	shown     atomic.Pointer[Stats]
}

// do runs f between two rounds and returns when it has run. It reports false if the engine has
// ended, when nothing runs concurrently any more.
func (en *engine) do(f func()) bool {
	done := make(chan struct{})
	select {
	case en.calls <- func() { f(); close(done) }: // it has room, so that the engine may sleep
		en.loop.Wake()
	case <-en.ended:
		return false
	}
	select {
	case <-done:
		return true
	case <-en.ended:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// run drives the device until the context ends, or the device is gone.
func (en *engine) run(ctx context.Context, spin time.Duration) {
	defer close(en.ended)
	en.err = en.loop.Run(ctx, spin, en)
}

// Round does everything that can be done without waiting.
func (en *engine) Round(now int64) (work int, err error) {
	en.now = now
	en.stats.Rounds++
	for range len(en.calls) { // what comes meanwhile waits, so that calls cannot stop packets
		f := <-en.calls
		f()
		work++
	}
	for _, q := range en.queues {
		q.object.Turn(now)
		work += en.reap(q)
	}
	work += en.takeCommands()
	for _, q := range en.queues {
		filled := q.sock.Fill(2 * len(q.packets))
		n := en.receive(q)
		work += n
		if e := en.kick(q, filled+n > 0); err == nil {
			err = e
		}
	}
	en.expel()
	en.dirty = en.dirty || work > 0
	if en.dirty && now >= en.publishAt {
		en.publish()
	}
	if err == nil && now >= en.checkAt {
		en.checkAt = now + drive.CheckEveryNs
		for _, q := range en.queues {
			if e := en.linkState(q.sock.Check()); err == nil {
				err = e
			}
		}
	}
	return work, err
}

// tellMTU has applications know how long a datagram can be now. The MTU changes. It runs in the
// engine.
func (en *engine) tellMTU() {
	most := en.s.watcher.State().MTU - packet.IPv4Bytes - packet.UDPBytes
	for _, a := range en.apps {
		a.page.counts[kind.PageMaxPayload].Store(uint64(max(1, min(most, en.s.maxPayload))))
	}
}

// reap ends sends that the kernel is done with.
func (en *engine) reap(q *queue) int {
	n := q.sock.Reap(q.done)
	if n > 0 {
		crash.At(crash.DevReaped)
	}
	for i := range q.done[:n] {
		r := &q.sends[q.done[i].Frame]
		if r.app == nil {
			en.stats.Orphans++
		} else if r.app.completed(*r) {
			q.touched = append(q.touched, r.app)
		}
	}
	en.sending -= n
	for i, a := range q.touched {
		a.complete()
		q.touched[i] = nil
	}
	q.touched = q.touched[:0]
	return n
}

// takeCommands gives every application a turn of the same length, beginning with another one each
// time.
func (en *engine) takeCommands() (work int) {
	n := len(en.apps)
	for i := range n {
		a := en.apps[(en.turn+i)%n]
		if a.dead != nil {
			continue
		}
		if err := shm.Guard(a.work); err != nil {
			a.dead = err
		}
		work += a.worked
	}
	if n > 0 {
		en.turn = (en.turn + 1) % n
	}
	return work
}

// receive sorts a batch of packets by application and hands them over. Frames that are not lent are
// the kernel's again at once.
func (en *engine) receive(q *queue) int {
	n := q.sock.Receive(q.packets)
	if n > 0 {
		crash.At(crash.DevReceived)
	}
	local := *en.local.Load()
	for i := range q.packets[:n] {
		a := en.sort(q, i, local)
		if a == nil {
			continue
		}
		if len(a.batch) == 0 {
			q.touched = append(q.touched, a)
		}
		a.batch = append(a.batch, int32(i))
	}
	for i, a := range q.touched {
		a.deliver(en, q)
		q.touched[i] = nil
	}
	q.touched = q.touched[:0]
	q.sock.Recycle(slices.DeleteFunc(q.packets[:n], lent))
	if n > 0 {
		crash.At(crash.DevDropped)
	}
	return n
}

// sort returns the application that a packet is for, or counts why there is none. The program has
// steered by the same rules; but they change, and who gets what must not hang on that alone.
func (en *engine) sort(q *queue, i int, local xdp.Local) *app {
	en.stats.Received++
	frame := q.sock.Packet(q.packets[i])
	if packet.Parse(frame, &q.parsed) != nil {
		en.stats.Malformed++
		q.malformed++
		return nil
	}
	a := en.byPort[q.parsed.Dst.Port()]
	if a == nil || a.dead != nil {
		en.stats.Unclaimed++
		return nil
	}
	own := q.parsed.Own(local)
	if !a.account.Any && !own {
		en.stats.Foreign++
		return nil
	}
	q.sums[i] = packet.VerifyUDP(frame, &q.parsed)
	if q.sums[i] == packet.ChecksumWrong && !a.wrongSums {
		en.stats.BadChecksum++
		q.badChecksum++
		a.badChecksum++
		a.dirty = true
		return nil
	}
	return a
}

// kick shows the kernel what is new. A link that is down is not an error: packets wait for it.
func (en *engine) kick(q *queue, filled bool) error {
	var err error
	q.sock.Flush()
	if q.sock.Unsent() > 0 {
		_, err = q.sock.Kick()
		crash.At(crash.DevKicked)
	}
	if filled && err == nil {
		err = q.sock.WakeFill()
	}
	return en.linkState(err)
}

func (en *engine) linkState(err error) error {
	if errors.Is(err, xdp.ErrLinkDown) {
		en.stats.LinkDown++
		return nil
	}
	return err
}

// expel hangs up on applications that broke their queues; their connections do the rest.
func (en *engine) expel() {
	for _, a := range en.apps {
		if a.dead != nil && !a.expelled {
			a.expelled = true
			// Ends the goroutine that reads it, which detaches the application.
			_ = a.conn.CloseRead()
		}
	}
}

// Rest says what ends a sleep: packets, commands of those who can be served, and time.
func (en *engine) Rest(now int64, s *drive.Sleep) {
	s.AtMost(en.checkAt - now)
	if en.dirty { // counters are to be shown soon, and not before each sleep
		s.AtMost(en.publishAt - now)
	}
	if en.sending > 0 {
		s.Briefly()
	}
	for _, q := range en.queues {
		s.On(q.sock.FD())
	}
	for _, a := range en.apps {
		if a.dead != nil {
			continue
		}
		if a.blocked || a.parked.count > 0 {
			s.Briefly()
		}
		if a.blocked {
			continue
		}
		if a.arm() {
			s.Not()
			return
		}
		wait, _ := a.q.GetWait()
		s.On(wait.FD)
	}
	en.stats.Polls++
}

// publish shows counters to other goroutines, and to the applications after those: who sees what it
// did counted finds it in Stats of the server too.
func (en *engine) publish() {
	en.dirty, en.publishAt = false, en.now+publishEveryNs
	s := en.stats
	s.SendsInUse = en.sending
	for _, a := range en.apps {
		s.addQueues(a)
	}
	for _, q := range en.queues {
		r := q.sock.RingStats()
		s.Kernel = append(s.Kernel, q.object.Kernel(en.now))
		s.Frames = append(s.Frames, q.sock.FrameStats())
		s.Rings = append(s.Rings, r)
		s.Syscalls = append(s.Syscalls, q.sock.SyscallStats())
		q.object.Update(en.now, &status.Traffic{Received: r.Received, Accepted: r.Posted,
			Completed: r.Sent, Malformed: q.malformed, BadChecksum: q.badChecksum})
	}
	en.shown.Store(&s)
	for _, a := range en.apps {
		a.publish()
	}
}

// attach makes an application known. It runs in the engine.
func (en *engine) attach(a *app) {
	a.work = func() { a.worked = 0; a.retry(en); a.commands(en) }
	a.queue = en.queues[len(en.apps)%len(en.queues)] // the only one if it reads in place
	en.apps = append(en.apps, a)
	en.tellMTU()
	a.publish()
}

// detach forgets an application: nothing of it is touched afterwards. Its packets that are with the
// kernel come back to nobody. It runs in the engine.
func (en *engine) detach(a *app) {
	for i, x := range en.apps {
		if x == a {
			en.apps = append(en.apps[:i], en.apps[i+1:]...)
			break
		}
	}
	en.assign(a, nil)
	a.reclaim()
	en.stats.addQueues(a)
	en.forget(a)
	a.forsake()
	en.stats.Evicted++
	en.publish()
}

// takePorts takes all of them or none.
func (s *Server) takePorts(a *app, ports []uint16) error {
	for i, port := range ports {
		if err := s.takePort(a, port); err != nil {
			for _, port := range ports[:i] {
				_ = s.dropPort(a, port)
			}
			return err
		}
	}
	return nil
}

func (s *Server) takePort(a *app, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := a.account.permits(port); err != nil {
		return err
	}
	if s.ports[port] != nil {
		return fmt.Errorf("%w: %d", ErrPortTaken, port)
	}
	if len(a.ports) >= maxPorts {
		return fmt.Errorf("%w: %d ports, possible are %d", ErrBudget, len(a.ports)+1, maxPorts)
	}
	if err := a.account.book(0, 0, 1); err != nil {
		return err
	}
	// What is not the interface's own stays the kernel's, unless the allow-list says otherwise.
	rule, err := s.program.AddRule(xdp.Rule{UDPPort: port, Local: !a.account.Any}, xdp.Target{})
	if err != nil {
		a.account.unbook(0, 0, 1)
		return err
	}
	crash.At(crash.DevSteered)
	s.ports[port], s.rules[port] = a, rule
	a.ports = append(a.ports, port)
	return nil
}

func (s *Server) dropPort(a *app, port uint16) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(a.ports, port)
	if i < 0 {
		return fmt.Errorf("%w: port %d is not this application's", ErrOptions, port)
	}
	a.ports = slices.Delete(a.ports, i, i+1)
	delete(s.ports, port)
	a.account.unbook(0, 0, 1)
	crash.At(crash.DevUnsteered)
	rule := s.rules[port]
	delete(s.rules, port)
	return s.program.RemoveRule(rule)
}

// assign makes these the ports of an application. Another one may have taken a port that this one
// dropped before the engine is told of the drop: the later owner keeps it, and the former one sends
// from it no more. It runs in the engine.
func (en *engine) assign(a *app, ports []uint16) {
	for port := range a.owns {
		if en.byPort[port] == a {
			en.byPort[port] = nil
		}
	}
	clear(a.owns)
	for _, port := range ports {
		if former := en.byPort[port]; former != nil {
			delete(former.owns, port)
		}
		a.owns[port] = true
		en.byPort[port] = a
	}
}

// own shows the engine which ports an application has. It reports false if the engine has ended.
func (s *Server) own(a *app, first bool) bool {
	s.mu.Lock()
	ports := slices.Clone(a.ports)
	s.mu.Unlock()
	return s.engine.do(func() {
		if first {
			s.engine.attach(a)
		}
		s.engine.assign(a, ports)
	})
}

// sendRow says for whom a packet is that the kernel has not sent yet.
type sendRow struct {
	app     *app // nil once the application is gone
	context uint64
	slot    uint32 // of the application's payload memory
	inject  bool
}

// forget makes the packets of an application nobody's. They come back as the kernel sends them.
func (en *engine) forget(a *app) {
	for _, q := range en.queues {
		for i := range q.sends {
			if q.sends[i].app == a {
				q.sends[i].app = nil
			}
		}
	}
}
