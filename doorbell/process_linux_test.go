package doorbell

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

func init() {
	roles["producer"] = func() {
		child(func(q *queue, o ring.Order) error {
			lane := int(envInt("BELL_LANE"))
			return q.writer(lane, o).run(envInt("BELL_TOTAL"), newPace(uint64(os.Getpid())))
		})
	}
	roles["reader"] = func() { child(readAll) }
}

// child does its work on the queue that the parent passed as descriptor 3.
func child(f func(q *queue, o ring.Order) error) {
	o := ring.SeqCst
	if os.Getenv("BELL_ORDER") == ring.Release.String() {
		o = ring.Release
	}
	q, err := mapQueue(os.NewFile(3, "queue"), int(envInt("BELL_LANES")))
	if err == nil {
		err = barrier.Register()
	}
	if err == nil {
		err = f(q, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func envInt(name string) uint64 { return must(strconv.ParseUint(os.Getenv(name), 10, 64)) }

func mapQueue(file *os.File, lanes int) (*queue, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, queueBytes(lanes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return overlay(mem, lanes)
}

// sharedQueue lays a new queue over a memfd.
func sharedQueue(t *testing.T, lanes int) (*queue, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("shmring:bell-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "queue")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(int64(queueBytes(lanes))); err != nil {
		t.Fatal(err)
	}
	q, err := mapQueue(file, lanes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(q.mem); err != nil {
			t.Error(err)
		}
	})
	for bit := range lanes {
		q.row(bit).Parked.Store(Parked)
	}
	return q, file
}

// command is a process in a role on the queue in file, to be started.
func command(t *testing.T, role string, file *os.File, lanes int, o ring.Order,
	env ...string) *exec.Cmd {
	t.Helper()
	env = append(env, "GORACE=atexit_sleep_ms=0", fmt.Sprintf("BELL_LANES=%d", lanes),
		"BELL_ORDER="+o.String())
	cmd := shmtest.Child(t, role, env...)
	cmd.ExtraFiles = []*os.File{file}
	return cmd
}

// readAll is a blocking reader without slices: a wake that is lost is a hang.
func readAll(q *queue, o ring.Order) error {
	r := newReader(q, readerOptions{order: o, lazy: true})
	total := envInt("BELL_TOTAL") * uint64(q.lanes)
	for r.count.Load() < total && r.broken == nil {
		r.sread(2*laneSlots, Wait{})
	}
	return r.broken
}

func everyOrderAndThreads(t *testing.T, f func(t *testing.T, o ring.Order, env []string)) {
	for _, o := range orders {
		for _, threads := range []string{"", "1"} {
			t.Run(fmt.Sprintf("%v/GOMAXPROCS=%s", o, threads), func(t *testing.T) {
				registered(t, o)
				var env []string
				if threads != "" {
					env = []string{"GOMAXPROCS=" + threads}
				}
				f(t, o, env)
			})
		}
	}
}

// Two producers and a blocking reader, each a process.
func TestProcesses(t *testing.T) {
	each := uint64(100_000)
	if testing.Short() || raceEnabled {
		each /= 10
	}
	everyOrderAndThreads(t, func(t *testing.T, o ring.Order, env []string) {
		const lanes = 2
		q, file := sharedQueue(t, lanes)
		watchdog(t, q.String)
		env = append(env, fmt.Sprintf("BELL_TOTAL=%d", each))
		cmds := []*exec.Cmd{command(t, "reader", file, lanes, o, env...)}
		for lane := range lanes {
			own := append(env[:len(env):len(env)], fmt.Sprintf("BELL_LANE=%d", lane))
			cmds = append(cmds, command(t, "producer", file, lanes, o, own...))
		}
		for _, cmd := range cmds {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		}
		for _, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %v", cmd.Args, err)
			}
		}
		for lane := range lanes {
			if q.head(lane).Load() != each {
				t.Error("not all was read: ", q)
			}
		}
		if q.hints.epoch.Load() == 0 {
			t.Error("nobody ever had to wake the reader, so this tests nothing")
		}
	})
}

// A producer dies by SIGKILL at any moment, again and again, and a successor goes on at the tail of
// its lane. The other producer's entries arrive all the time; what the dead had published arrives
// once its lane is marked for it.
func TestKilledProducer(t *testing.T) {
	total := uint64(40_000)
	kills := 12
	if testing.Short() || raceEnabled {
		total, kills = total/10, 4
	}
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			registered(t, o)
			q, file := sharedQueue(t, 2)
			watchdog(t, q.String)
			r := newReader(q, readerOptions{order: o})
			victims := make(chan error)
			go func() { victims <- killAll(t, q, file, o, kills) }()
			survivor := command(t, "producer", file, 2, o, "BELL_LANE=0",
				fmt.Sprintf("BELL_TOTAL=%d", total))
			if err := survivor.Start(); err != nil {
				t.Fatal(err)
			}
			for r.cons[0].Head() < total && r.broken == nil {
				r.sread(2*laneSlots, Wait{})
			}
			if err := survivor.Wait(); err != nil {
				t.Error(err)
			}
			ended := make(chan error, 1)
			var over atomic.Bool
			go func() {
				err := <-victims
				over.Store(true)
				r.Mark(1) // as the notice of its death would
				ended <- err
			}()
			for !over.Load() {
				r.sread(2*laneSlots, Wait{Stop: over.Load})
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			r.read(2 * laneSlots)
			if r.broken != nil || r.cons[1].Len() != 0 || r.cons[1].Head() == 0 {
				t.Errorf("%v; %v", r.broken, q)
			}
		})
	}
}

// killAll starts one producer of lane 1 after the other and kills each at some moment.
func killAll(t *testing.T, q *queue, file *os.File, o ring.Order, kills int) error {
	rnd := newPace(11)
	for range kills {
		victim := command(t, "producer", file, 2, o, "BELL_LANE=1",
			fmt.Sprintf("BELL_TOTAL=%d", 1<<40))
		if err := victim.Start(); err != nil {
			return err
		}
		for before := q.tail(1).Load(); q.tail(1).Load() == before; {
			time.Sleep(time.Millisecond) // until it publishes
		}
		time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Microsecond)
		if err := victim.Process.Signal(unix.SIGKILL); err != nil {
			return err
		}
		if err := victim.Wait(); err == nil {
			return fmt.Errorf("the victim ended by itself")
		}
	}
	return nil
}

// A memory object with a domain and several queues of one lane each:
//
//	0     domain's armed word
//	1024  domain's hints
//	4096  queue after queue
const offDomainQueues = 4096

func domainFileBytes(queues int) int { return offDomainQueues + queues*queueBytes(1) }

func init() {
	roles["domain-producer"] = func() {
		queues, bit := int(envInt("BELL_QUEUES")), int(envInt("BELL_QUEUE"))
		o := ring.SeqCst
		if os.Getenv("BELL_ORDER") == ring.Release.String() {
			o = ring.Release
		}
		d, err := mapDomainFile(os.NewFile(3, "domain"), queues)
		if err == nil {
			err = barrier.Register()
		}
		if err == nil {
			w := d.q[bit].writer(0, o, d.ringer(bit))
			err = w.runSoliciting(d.q[bit], envInt("BELL_TOTAL"), newPace(uint64(os.Getpid())))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
	}
}

// runSoliciting is run with an event asked for at every seventh entry and at the last.
func (w *writer) runSoliciting(q *queue, total uint64, p pace) error {
	for w.prod.Tail() < total {
		if w.prod.Free() == 0 {
			time.Sleep(10 * time.Microsecond)
		} else if at := w.prod.Tail(); at%7 == 6 || at+1 == total {
			w.solicit(q, 0)
		} else {
			w.put(1)
		}
		if w.prod.Err() != nil {
			return w.prod.Err()
		}
		p.pause()
	}
	return nil
}

func mapDomainFile(file *os.File, queues int) (*domainQueues, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, domainFileBytes(queues),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	d := &domainQueues{mem: mem}
	if d.arm, err = armAt(mem, 0); err != nil {
		return nil, err
	}
	if d.hints, err = MapDomain(mem[1024:offDomainQueues], queues); err != nil {
		return nil, err
	}
	for bit := range queues {
		q, err := overlay(mem[offDomainQueues+bit*queueBytes(1):][:queueBytes(1)], 1)
		if err != nil {
			return nil, err
		}
		d.q = append(d.q, q)
	}
	return d, nil
}

// sharedDomain lays a new domain and its queues over a memfd, and reads them here.
func sharedDomain(t *testing.T, queues int, o readerOptions) (*domainQueues, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("shmring:domain-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "domain")
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(int64(domainFileBytes(queues))); err != nil {
		t.Fatal(err)
	}
	d, err := mapDomainFile(file, queues)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(d.mem); err != nil {
			t.Error(err)
		}
	})
	d.Domain = NewDomain(d.arm, d.hints, queues)
	for bit, q := range d.q {
		q.row(0).Parked.Store(Parked)
		d.r = append(d.r, newReader(q, o))
		d.r[bit].SetDomain(d.Domain, bit)
	}
	return d, file
}

func (d *domainQueues) command(t *testing.T, file *os.File, bit int, o ring.Order, total uint64,
	env ...string) *exec.Cmd {
	t.Helper()
	return command(t, "domain-producer", file, 1, o, append(env,
		fmt.Sprintf("BELL_QUEUES=%d", len(d.q)), fmt.Sprintf("BELL_QUEUE=%d", bit),
		fmt.Sprintf("BELL_TOTAL=%d", total))...)
}

// Producers in processes of their own; here one goroutine waits on a set, one on its descriptor,
// and two get solicited events of a channel, each for queues of its own. Nobody has slices: a wake
// that is lost is a hang.
func TestDomainAcrossProcesses(t *testing.T) {
	each := uint64(20_000)
	if testing.Short() || raceEnabled {
		each /= 10
	}
	everyOrderAndThreads(t, func(t *testing.T, o ring.Order, env []string) {
		const queues = 6
		d, file := sharedDomain(t, queues, readerOptions{order: o, shared: true})
		watchdog(t, d.String)
		for bit := range queues {
			cmd := d.command(t, file, bit, o, each, env...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := cmd.Wait(); err != nil {
					t.Error(err)
				}
			}()
		}
		var wg sync.WaitGroup
		left := func(bits ...int) (n int) {
			for _, bit := range bits {
				if d.r[bit].count.Load() < each {
					n++
				}
			}
			return n
		}
		wg.Go(func() {
			s := d.NewSet()
			defer s.Close()
			s.Add(0, d.r[0].Bell)
			s.Add(1, d.r[1].Bell)
			if err := d.drainSet(s, func() bool { return left(0, 1) == 0 }, laneSlots); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() { d.drainByEpoll(t, func() bool { return left(2, 3) == 0 }, 2, 3) })
		c := d.NewChannel()
		for _, bit := range []int{4, 5} {
			c.Add(bit, d.r[bit].Bell)
			if err := c.Arm(bit, NotifySolicited); err != nil {
				t.Error(err)
			}
			d.r[bit].readAllOf()
		}
		for range 2 {
			wg.Go(func() {
				d.drainEvents(t, c, func() bool { return left(4, 5) == 0 })
			})
		}
		wg.Wait()
		c.Close()
		for bit, r := range d.r {
			if r.count.Load() != each || r.broken != nil {
				t.Errorf("queue %d: %d of %d, %v", bit, r.count.Load(), each, r.broken)
			}
		}
		if d.hints.epoch.Load() == 0 {
			t.Error("nobody ever had to ring, so this tests nothing")
		}
	})
}

func (d *domainQueues) drainByEpoll(t *testing.T, over func() bool, bits ...int) {
	s := d.NewSet()
	defer s.Close()
	for _, bit := range bits {
		s.Add(bit, d.r[bit].Bell)
	}
	ep := userEpoll(t, must(s.Face()), unix.EPOLLET)
	for !over() {
		ready, err := s.TryWait()
		if err != nil || !ready && !wakes(t, ep, 30_000) {
			t.Error("nothing for half a minute: ", d, err)
			return
		}
		for _, bit := range bits {
			d.r[bit].Lock()
			d.r[bit].read(laneSlots)
			d.r[bit].Unlock()
		}
	}
}

func (d *domainQueues) drainEvents(t *testing.T, c *Channel, over func() bool) {
	for !over() {
		e, ok, err := c.Get(Wait{Stop: over})
		if err != nil {
			t.Error(err)
			return
		}
		if !ok {
			continue
		}
		if err := c.Arm(e.Bit, NotifySolicited); err != nil {
			t.Error(err)
		}
		if n := d.r[e.Bit].readAllOf(); n > 0 && over() {
			d.Kick()
		}
	}
	d.Kick()
}

// Producers die by SIGKILL at any moment. Their notice reaches a set and a channel that sleep, and
// everything that the dead published is read.
func TestDeathReachesTheDomain(t *testing.T) {
	rounds := 6
	if testing.Short() || raceEnabled {
		rounds = 2
	}
	const endless = 1 << 40
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			registered(t, o)
			d, file := sharedDomain(t, 2, readerOptions{order: o, shared: true})
			watchdog(t, d.String)
			s, c := d.NewSet(), d.NewChannel()
			defer s.Close()
			defer c.Close()
			s.Add(0, d.r[0].Bell)
			c.Add(1, d.r[1].Bell)
			for round := range rounds {
				var wg, all sync.WaitGroup
				dead := make([]chan struct{}, 2)
				for bit := range 2 {
					dead[bit] = make(chan struct{})
					rnd := newPace(uint64(2*round + bit))
					all.Go(func() {
						defer close(dead[bit])
						cmd := d.command(t, file, bit, o, endless)
						if err := cmd.Start(); err != nil {
							t.Error(err)
							return
						}
						for before := d.q[bit].tail(0).Load(); d.q[bit].tail(0).Load() == before; {
							time.Sleep(time.Millisecond)
						}
						time.Sleep(time.Duration(rnd.IntN(5_000)) * time.Microsecond)
						_ = cmd.Process.Kill()
						_ = cmd.Wait()
					})
				}
				wg.Go(func() { d.untilDead(t, s, dead[0]) })
				wg.Go(func() { d.eventsUntilDead(t, c, dead[1]) })
				all.Wait()
				wg.Wait()
			}
		})
	}
}

// untilDead reads queue 0 by a set until its producer is dead and nothing is left. The notice comes
// from here, as from the goroutine that watches it.
func (d *domainQueues) untilDead(t *testing.T, s *Set, dead chan struct{}) {
	over, stop := d.notice(0, dead)
	defer stop()
	for {
		ready, err := s.Wait(nil, Wait{Stop: over})
		if err != nil {
			t.Error(err)
		}
		n := d.r[0].readAllOf()
		if len(ready) == 0 && over() && n == 0 {
			break
		}
	}
	if tail := d.q[0].tail(0).Load(); d.q[0].head(0).Load() != tail {
		t.Errorf("%d of %d are read", d.q[0].head(0).Load(), tail)
	}
}

func (d *domainQueues) eventsUntilDead(t *testing.T, c *Channel, dead chan struct{}) {
	over, stop := d.notice(1, dead)
	defer stop()
	if err := c.Arm(1, NotifyAny); err != nil {
		t.Error(err)
	}
	d.r[1].readAllOf()
	for {
		_, ok, err := c.Get(Wait{Stop: over})
		if err != nil {
			t.Error(err)
		}
		if !ok {
			break
		}
		if err := c.Arm(1, NotifyAny); err != nil {
			t.Error(err)
		}
		d.r[1].readAllOf()
	}
	if tail := d.q[1].tail(0).Load(); d.q[1].head(0).Load() != tail {
		t.Errorf("%d of %d are read", d.q[1].head(0).Load(), tail)
	}
}

// notice marks the queue's lane when its producer is dead; over says that this was done.
func (d *domainQueues) notice(bit int, dead chan struct{}) (over func() bool, stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		<-dead
		d.r[bit].Mark(0)
		close(done)
		d.Kick()
	})
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}, wg.Wait
}
