package cq_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["ticker"] = childTicker }

// childTicker posts one completion to each of some queues in turn, for every line that it gets.
func childTicker() {
	d, err := shm.OpenDir("")
	need(err)
	n, err := strconv.Atoi(os.Getenv(envCount))
	need(err)
	var ws []*cq.Writer
	for i := range n {
		w, err := cq.Attach(context.Background(), d, fmt.Sprintf("q%d", i), cq.WriterOptions{Wait: true})
		need(err)
		ws = append(ws, w)
	}
	say("ready")
	in := bufio.NewReader(os.Stdin)
	for i := 0; ; i++ {
		if _, err := in.ReadString('\n'); err != nil {
			break
		}
		need(ws[i%n].Post(&cq.Entry{Context: uint64(i)}))
	}
	for _, w := range ws {
		need(w.Close())
	}
	need(d.Close())
}

// TestSetsAcrossProcesses: another process posts, and the set, its descriptor and the channel tell
// which queue has it.
func TestSetsAcrossProcesses(t *testing.T) {
	const queues, rounds = 3, 30
	d := openDir(t)
	s := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
	c := channel(t, d)
	ch := startChild(t, "ticker", fmt.Sprint(envCount, "=", queues))
	var qs [queues]*cq.Queue
	for i := range qs {
		qs[i], _ = attached(t, d, c, fmt.Sprintf("q%d", i), cq.Options{Shared: true})
		must(t, s.Add(qs[i]))
		t.Cleanup(func() { must(t, s.Remove(qs[i])) })
		must(t, c.RequestNotify(qs[i], cq.NotifyAny))
	}
	if line := ch.line(t); line != "ready" {
		t.Fatal(line)
	}
	fd, err := c.FD()
	must(t, err)
	dst := make([]cq.Waitable, queues)
	for i := range rounds {
		q := qs[i%queues]
		must(t, s.TryWait())
		_, err := fmt.Fprintln(ch.in)
		must(t, err)
		readableWithin(t, waitFD(s))
		n, err := s.Wait(t.Context(), dst, cq.WaitOptions{})
		if n != 1 || err != nil || dst[0] != cq.Waitable(q) {
			t.Fatalf("%d: %d, %v", i, n, err)
		}
		readableWithin(t, fd)
		ev, err := c.GetEvent(t.Context(), cq.WaitOptions{})
		if err != nil || ev.Queue != q {
			t.Fatalf("%d: %v, %v", i, ev.Queue, err)
		}
		must(t, c.Ack(q, 1))
		if got := drain(t, q); len(got) != 1 || got[0] != uint64(i) {
			t.Fatalf("%d: read %v", i, got)
		}
		must(t, c.RequestNotify(q, cq.NotifyAny))
	}
	ch.stop(t)
}

func readableWithin(t testing.TB, fd int) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT}}
		n, err := unix.Poll(p, 1000)
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if n > 0 && p[0].Revents == unix.POLLIN {
			return
		}
		if n > 0 {
			t.Fatalf("events %#x", p[0].Revents)
		}
	}
	t.Fatal("never readable")
}

// TestChannelEdge: with two events pending, an edge-triggered epoll tells of the descriptor once,
// and taking until ErrWouldBlock gets both; the next event is an edge again.
func TestChannelEdge(t *testing.T) {
	d := openDir(t)
	c := channel(t, d)
	a, wa := attached(t, d, c, "a", cq.Options{Shared: true})
	b, wb := attached(t, d, c, "b", cq.Options{Shared: true})
	fd, err := c.FD()
	must(t, err)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must(t, err)
	defer unix.Close(ep)
	must(t, unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}))
	var evs [1]unix.EpollEvent
	for range 20 {
		must(t, c.RequestNotify(a, cq.NotifyAny))
		must(t, c.RequestNotify(b, cq.NotifyAny))
		post(t, wa, 0, 1)
		post(t, wb, 0, 1)
		got := map[*cq.Queue]int{}
		for len(got) < 2 {
			for n := 0; n == 0; {
				if n, err = unix.EpollWait(ep, evs[:], 60_000); err != nil && err != unix.EINTR || n == 0 {
					t.Fatalf("no edge: %d, %v, %v", n, err, got)
				}
			}
			for {
				ev, err := c.TryGetEvent()
				if err != nil {
					wantErr(t, "no more", err, cq.ErrWouldBlock)
					break
				}
				got[ev.Queue]++
				must(t, c.Ack(ev.Queue, 1))
			}
		}
		if got[a] != 1 || got[b] != 1 {
			t.Fatalf("events %v", got)
		}
		drain(t, a)
		drain(t, b)
	}
}

// TestDeathWakesSets: a writer that died between publishing and ringing leaves nobody asleep, on a
// set, its descriptor, or a channel.
func TestDeathWakesSets(t *testing.T) {
	t.Parallel()
	for name, elsewhere := range map[string]bool{"here": false, "in another PID namespace": true} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			s := waitSet(t, d, cq.WaitSetOptions{})
			byFD := waitSet(t, d, cq.WaitSetOptions{Wait: cq.WaitFD})
			c := channel(t, d)
			q, err := cq.Create(d, queueName(t), cq.Options{Size: 8, Shared: true})
			must(t, err)
			t.Cleanup(func() { closeQueue(t, q) })
			must(t, c.Attach(q))
			t.Cleanup(func() { must(t, c.Detach(context.Background(), q)) })
			for _, set := range []*cq.WaitSet{s, byFD} {
				must(t, set.Add(q))
				t.Cleanup(func() { must(t, set.Remove(q)) })
			}
			writer := mortal(t, q.Name(), elsewhere)
			for got := 0; got < 1; {
				got += len(drain(t, q))
			}
			must(t, c.RequestNotify(q, cq.NotifyAny))
			for byFD.TryWait() != nil {
				drain(t, q)
			}
			woken := make(chan error, 2)
			go func() {
				_, err := setWait(s, nil, time.Minute)
				woken <- err
			}()
			go func() {
				ev, err := getEvent(c, time.Minute)
				if err == nil {
					err = c.Ack(ev.Queue, 1)
				}
				woken <- err
			}()
			time.Sleep(20 * time.Millisecond) // long enough to be asleep, mostly
			publishFor(t, d, q.Name())
			writer.kill()
			for range 2 {
				if err := <-woken; err != nil {
					t.Error(err)
				}
			}
			readableWithin(t, waitFD(byFD))
			if got := drain(t, q); len(got) != 1 || got[0] != 77 {
				t.Error(got)
			}
		})
	}
}

// TestSetsOfAnonymousQueues: a writer of a queue without a name rings the set and the channel of
// its reader's process, which it knows by descriptor only.
func TestSetsOfAnonymousQueues(t *testing.T) {
	s, err := cq.NewWaitSet(nil, cq.WaitSetOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	q, err := cq.CreateAnonymous("anonymous", cq.Options{Shared: true})
	must(t, err)
	t.Cleanup(func() { closeQueue(t, q) })
	ours, theirs := connect(t, unix.SOCK_STREAM)
	accepted := accept(t.Context(), q, ours)
	w, err := cq.AttachConn(t.Context(), theirs, cq.WriterOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, w.Close()) })
	must(t, <-accepted)
	must(t, s.Add(q))
	defer s.Remove(q)
	dst := make([]cq.Waitable, 1)
	for i := range uint64(20) {
		wait := later(func() { post(t, w, i, i+1) })
		if n, err := s.Wait(t.Context(), dst, cq.WaitOptions{}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		wait()
		drain(t, q)
	}
	if w.Stats().Wakes == 0 {
		t.Error("nobody rang")
	}
}
