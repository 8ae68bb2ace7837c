package doorbell

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/ring"
	"golang.org/x/sys/unix"
)

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
	if d.arm, err = ArmAt(mem, 0); err != nil {
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
