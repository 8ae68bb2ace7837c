package cq_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["counter"] = childCounter }

// childCounter does what its parent says, line by line, and answers each.
func childCounter() {
	d := shmtest.Needs(shm.OpenDir(""))
	c, err := cq.AttachCounter(cq.Named(d, os.Getenv(envQueue)+"-3"), cq.CounterOptions{Spin: -1})
	need(err)
	say("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var what string
		var n uint64
		_, err := fmt.Sscan(in.Text(), &what, &n)
		need(err)
		switch what {
		case "add":
			err = c.Add(n)
		case "adderr":
			err = c.AddErr(n)
		case "silently":
			c.AddSilently(n)
		case "wait":
			say("waiting")
			err = c.Wait(context.Background(), n, cq.WaitOptions{})
		}
		say("%s: %v", what, err)
	}
	need(c.Close())
}

// peer is a child in the role "counter".
type counterPeer struct{ *child }

func startCounterPeer(t *testing.T, name string, newPIDs bool) counterPeer {
	t.Helper()
	cmd := shmtest.Child(t, "counter", envQueue+"="+name)
	if newPIDs {
		cmd.SysProcAttr = ownPIDs(t)
	}
	p := counterPeer{start(t, cmd)}
	p.Says(t, "ready")
	return p
}

// does tells the peer what to do and checks its first answer.
func (p counterPeer) does(t *testing.T, what string, n uint64, answer string) {
	t.Helper()
	shmtest.Got(fmt.Fprintln(p.In, what, n)).Or(t)
	if got := p.Line(t); got != answer {
		t.Fatalf("%s %d: %q, want %q", what, n, got, answer)
	}
}

// named3 makes a counter as peers find it.
func named3(t *testing.T, o cq.CounterOptions) (d *shm.Dir, c *cq.Counter, name string) {
	t.Helper()
	d, name = openDir(t), queueName(t)
	c = shmtest.Got(cq.CreateCounter(cq.Named(d, name+"-3"), o)).Or(t)
	return d, c, name
}

func TestCounterWakesOtherProcesses(t *testing.T) {
	t.Parallel()
	d, c, name := named3(t, cq.CounterOptions{Spin: -1})
	var peers []counterPeer
	for range 4 {
		peers = append(peers, startCounterPeer(t, name, false))
	}
	asleep := func() {
		eventually(t, "all sleep", func() bool {
			n := 0
			for _, h := range showCounter(t, d, c.Name()).Handles {
				if h.Threshold != nil {
					n++
				}
			}
			return n == len(peers)
		})
	}
	for i, p := range peers {
		p.does(t, "wait", uint64(10+i), "waiting")
	}
	asleep()
	must(t, c.Add(9))
	must(t, c.Add(10)) // one add, all of them
	for _, p := range peers {
		p.Says(t, "wait: <nil>")
	}
	for _, p := range peers {
		p.does(t, "wait", 100, "waiting")
	}
	asleep()
	must(t, c.AddErr(1))
	for _, p := range peers {
		p.Says(t, "wait: cq: an operation has failed: ReadErr says how many have")
	}
	done := make(chan error)
	go func() { done <- c.Wait(t.Context(), 20, cq.WaitOptions{}) }()
	eventually(t, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	peers[0].does(t, "add", 1, "add: <nil>")
	must(t, <-done)
	for _, p := range peers {
		_ = p.Stop(t)
	}
	must(t, c.Close())
	nothingLeft(t, d)
}

// TestCounterDeathWakes: an adder that is killed between its add and its wake leaves nobody asleep,
// whether it came before or after the waiter fell asleep, and where its death cannot be watched.
func TestCounterDeathWakes(t *testing.T) {
	t.Parallel()
	for what, how := range map[string]struct{ late, newPIDs bool }{"it was there": {},
		"it came later":                        {late: true},
		"in another PID namespace":             {newPIDs: true},
		"it came later from another namespace": {late: true, newPIDs: true}} {
		t.Run(what, func(t *testing.T) {
			_, c, name := named3(t, cq.CounterOptions{Spin: -1})
			defer c.Close()
			var p counterPeer
			if !how.late {
				p = startCounterPeer(t, name, how.newPIDs)
			}
			done := make(chan error, 2)
			for range cap(done) { // one of them follows the other
				go func() { done <- cntrWait(c, 5, time.Minute) }()
			}
			eventually(t, "they sleep", func() bool {
				return c.Stats().Sleeps > 0 && c.Stats().Waiters == cap(done)
			})
			if how.late {
				before := c.Stats().Sleeps
				p = startCounterPeer(t, name, how.newPIDs)
				eventually(t, "they know it", func() bool { return c.Stats().Sleeps > before })
			}
			p.does(t, "silently", 5, "silently: <nil>")
			// Nobody was told. Who looks for another reason may have found it: that is no fault.
			p.Kill()
			for range cap(done) {
				must(t, <-done)
			}
		})
	}
}

// TestCounterKilledWaiter: one that dies asleep costs a wake at most, and its seat is free.
func TestCounterKilledWaiter(t *testing.T) {
	d, c, name := named3(t, cq.CounterOptions{Spin: -1})
	p := startCounterPeer(t, name, false)
	p.does(t, "wait", 3, "waiting")
	eventually(t, "it sleeps", func() bool {
		s := showCounter(t, d, c.Name()).Handles
		return len(s) == 2 && s[1].Threshold != nil && *s[1].Threshold == 3
	})
	p.Kill()
	for range 50 {
		must(t, c.Add(1))
	}
	if n := c.Stats().Rings; n > 1 {
		t.Errorf("%d wakes for a dead waiter", n)
	}
	if s := showCounter(t, d, c.Name()); len(s.Handles) != 1 {
		t.Errorf("%+v", s.Handles)
	}
	p = startCounterPeer(t, name, false)
	done := make(chan error)
	go func() { done <- c.Wait(t.Context(), 51, cq.WaitOptions{}) }()
	eventually(t, "it sleeps", func() bool { return c.Stats().Sleeps > 0 })
	p.does(t, "add", 1, "add: <nil>")
	must(t, <-done)
	_ = p.Stop(t)
	must(t, c.Close())
	nothingLeft(t, d)
}

// TestCounterOpenClose has processes' worth of handles come and go at once: each finds a counter or
// none, and the last one removes it.
func TestCounterOpenClose(t *testing.T) {
	t.Parallel()
	d, name := openDir(t), queueName(t)
	errs := make(chan error)
	for range 6 {
		go func() {
			var last error
			for range 20 {
				c, err := cq.CreateCounter(cq.Named(d, name), cq.CounterOptions{})
				if errors.Is(err, syscall.EEXIST) {
					c, err = cq.AttachCounter(cq.Named(d, name), cq.CounterOptions{})
				}
				if errors.Is(err, syscall.ENOENT) {
					continue
				}
				if err == nil {
					err = errors.Join(c.Add(1), c.Wait(context.Background(), 1, cq.WaitOptions{}), c.Close())
				}
				if err != nil {
					last = err
				}
			}
			errs <- last
		}()
	}
	for range 6 {
		must(t, <-errs)
	}
	nothingLeft(t, d)
}

// TestCounterSyscalls: nobody makes a system call but to wake who sleeps for just that.
func TestCounterSyscalls(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls := calls(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitNone, cq.WaitFD} {
		_, c, name := named3(t, cq.CounterOptions{Wait: wait})
		work := func() {
			_ = c.Add(1)
			_ = c.AddErr(1)
			_, _ = c.Read()
			_, _ = c.ReadErr()
			_ = c.Wait(t.Context(), 1, cq.WaitOptions{})
			_ = cntrWait(c, 1, time.Second)
		}
		quiet(t, "nobody sleeps", calls, work)
		p := startCounterPeer(t, name, false)
		p.does(t, "wait", 1<<40, "waiting")
		time.Sleep(20 * time.Millisecond)
		quiet(t, "somebody sleeps for more", calls, func() {
			_ = c.Add(1)
			_, _ = c.Read()
		})
		must(t, c.Set(1<<40))
		if got := p.Line(t); !strings.HasPrefix(got, "wait: ") {
			t.Error(got)
		}
		_ = p.Stop(t)
		must(t, c.Close())
	}
}

// TestCounterDeathIsAnEvent: every handle that is bound is told once of each process that is killed
// while it has the counter open, and after what that had added. One that is stopped is not dead,
// nor one that closes.
func TestCounterDeathIsAnEvent(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	d, one, base := named3(t, cq.CounterOptions{Lifetime: cq.Persistent})
	two := shmtest.Got(cq.AttachCounter(cq.Named(d, base+"-3"), cq.CounterOptions{})).Or(t)
	t.Cleanup(func() {
		must(t, one.Close())
		must(t, two.Close())
		must(t, cq.Remove(cq.Named(d, base+"-3")))
	})
	early := startCounterPeer(t, base, false)
	early.Kill()
	es := []*cq.EventQueue{newsOf(t, one.BindEvents, cq.EventOptions{}),
		newsOf(t, two.BindEvents, cq.EventOptions{})}
	stopped := startCounterPeer(t, base, false)
	stopped.Halt(t)
	seats := map[int]uint64{}
	for i, newPIDs := range []bool{false, false, true} {
		p := startCounterPeer(t, base, newPIDs)
		p.does(t, "add", 1, "add: <nil>")
		p.Kill()
		pid := p.Process.Pid
		if newPIDs {
			pid = 1
		}
		for _, e := range es {
			entry := wantDeath(t, e, one.FID(), cq.PeerUser, pid)
			if before, again := seats[entry.Lane]; again && before == entry.Generation && e == es[0] {
				t.Errorf("told twice: %+v", entry)
			}
			seats[entry.Lane] = entry.Generation
		}
		wantCounter(t, one, uint64(i)+1, 0)
	}
	_ = startCounterPeer(t, base, false).Stop(t) // which closes
	for _, e := range es {
		noNews(t, e)
	}
	stopped.GoOn(t)
	stopped.does(t, "add", 1, "add: <nil>")
	stopped.Kill()
	for _, e := range es {
		wantDeath(t, e, one.FID(), cq.PeerUser, stopped.Process.Pid)
		noNews(t, e)
	}
}
