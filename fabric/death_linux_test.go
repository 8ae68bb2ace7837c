package fabric_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestSenderKilled: what a sender had sent when it was killed arrives, receives beyond that stay,
// for whoever comes next, and nothing is left of it.
func TestSenderKilled(t *testing.T) {
	e := opened(t, "main", fabric.Options{Peers: 1}) // there is one row for both rounds
	bufs := make([][32]byte, 45)
	for i := range 25 {
		must(t, e.Recv(bufs[i][:], uint64(i)))
	}
	for round := range 2 {
		c := start(t, "burst")
		c.Says(t, "sent")
		c.Kill()
		for i := 20 * round; i < 20*(round+1); i++ {
			want := fmt.Sprintf("message %d", i%20)
			if c := completes(t, e); c.Context != uint64(i) || string(bufs[i][:c.Len]) != want {
				t.Fatalf("receive %d: %+v, %q", i, c, bufs[i])
			}
		}
		nothingLeft(t, e, "main")
		for i := 25; i < 45 && round == 0; i++ {
			must(t, e.Recv(bufs[i][:], uint64(i)))
		}
	}
	if s := e.Stats(); s.Died != 2 || s.Received != 40 || s.Corrupt != 0 {
		t.Errorf("%+v", s)
	}
}

// claimant starts a process whose endpoint leads a lane to e, up to its n-th step: the lane has its
// number, the first row, that is rung, a message is there, and the lane leads nowhere.
func claimant(t *testing.T, e, beside *end, n int) *child {
	t.Helper()
	c := started(t, "idle")
	a := shmtest.Got(beside.Lookup(beside.knows(t, "idle"))).Or(t)
	s := scribbleOn(t, e, "idle", a)
	lane := &s.lanes[0]
	lane.Slots.Store(8)
	lane.Target.Store(e.Address().Outbox)
	high, low := kind.UuidWords(e.Address().UUID)
	lane.TargetHigh.Store(high)
	lane.TargetLow.Store(low)
	lane.Pays.Store(1)
	lane.Bell.Parked.Store(1)
	lane.ID.Store(kind.FabricLaneID(a.Outbox, 0, 1))
	to := scribble(t, e, "main")
	for i, does := range []func(){
		func() { to.claims[0].Store(lane.ID.Load()) },
		to.rings,
		func() {
			s.slots[0].Head.Store(kind.FabricMessage)
			s.slots[0].Seq.Store(1)
		},
		func() { lane.Slots.Store(3) }} {
		if i < n {
			does()
		}
	}
	return c
}

// TestClaimantKilled: the row of a sender that was killed before it rang is had by the next one,
// which can wait for it, and nothing is left of the dead.
func TestClaimantKilled(t *testing.T) {
	shmtest.Conforms(t)
	e, next := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "next", fabric.Options{})
	claimant(t, e, next, 1).Kill()
	to := next.knows(t, "main")
	shmtest.WantErr(t, "a send while it has the row", next.Send(nil, to, 1), cq.ErrFull)
	sent := make(chan error)
	go func() { sent <- next.SendContext(t.Context(), &fabric.Msg{Addr: to}) }()
	sleeps(t, next.Bell())
	nothingLeft(t, e, "main", "next")
	must(t, <-sent)
}

// TestClaimantSentTo: a peer that had claimed a row, and was killed before it rang, is buried by
// who sent to it, lane and all.
func TestClaimantSentTo(t *testing.T) {
	e, next := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "next", fabric.Options{})
	c := claimant(t, e, next, 1)
	must(t, e.Inject(nil, e.knows(t, "idle")))
	c.Kill()
	shmtest.Eventually(t, "the death", func() bool {
		e.steps(t)
		return e.Stats().Died > 0
	})
	e.steps(t)
	must(t, next.Send(nil, next.knows(t, "main"), 1))
	nothingLeft(t, e, "main", "next")
}

// TestClaimantStarved: a lane that cannot be mapped of a peer that is buried already is looked at
// again later, and is over then. So is what could not be removed of it.
func TestClaimantStarved(t *testing.T) {
	e, next := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "next", fabric.Options{})
	c, bell := claimant(t, e, next, 1), scribble(t, e, "main")
	must(t, e.Inject(nil, e.knows(t, "idle")))
	c.Kill()
	restore := shmtest.LimitFiles(0)
	defer restore()
	shmtest.Eventually(t, "the death", func() bool {
		e.steps(t)
		return e.Stats().Died > 0
	})
	restore()
	f := shmtest.Got(os.Open(os.DevNull)).Or(t)
	first := uint64(f.Fd())
	must(t, f.Close())
	for n := range uint64(4) { // for the outbox, then for less than the endpoint takes
		shmtest.LimitFiles(first + n)
		bell.rings()
		e.steps(t)
		restore()
	}
	to := next.knows(t, "main")
	shmtest.Eventually(t, "the row", func() bool {
		e.steps(t)
		return next.Send(nil, to, 1) == nil
	})
	nothingLeft(t, e, "main", "next")
}

// TestKilledReplaced: who takes the name of an endpoint whose process was killed removes all of it.
func TestKilledReplaced(t *testing.T) {
	for range 2 {
		started(t, "idle").Kill()
	}
	e := opened(t, "idle", fabric.Options{})
	if all := shmtest.Got(e.d.List()).Or(t); len(all) != 2 {
		t.Errorf("left are %v", all)
	}
}

// TestCloserKilled: of a sender that is killed while it closes its endpoint nothing is left.
func TestCloserKilled(t *testing.T) {
	e, beside := opened(t, "main", fabric.Options{}), opened(t, "beside", fabric.Options{})
	c := started(t, "idle")
	a := shmtest.Got(beside.Lookup(beside.knows(t, "idle"))).Or(t)
	s := scribbleOn(t, e, "idle", a)
	c.obeys(t, "send", "0")
	e.steps(t)
	s.page.State.Store(kind.FabricClosed)
	c.Kill()
	nothingLeft(t, e, "main", "beside")
}

// TestClaimantCollected: a collector leaves nothing of a sender that was killed before it sent,
// however far it came, while its receiver lives and does not look; and all that is to arrive.
func TestClaimantCollected(t *testing.T) {
	shmtest.Conforms(t)
	for n, name := range []string{"named", "claimed", "rung", "sent", "leads nowhere"} {
		t.Run(name, func(t *testing.T) {
			e, next := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "next", fabric.Options{})
			claimant(t, e, next, n).Kill()
			shmtest.Got(ctl.Collect(e.d, ctl.CollectOptions{Remove: true})).Or(t)
			all, err := e.d.List()
			arrives := map[string]int{"sent": 1}[name]
			if must(t, err); len(all) != 4+arrives {
				t.Fatalf("left are %v", all)
			}
			e.steps(t)
			if s := e.Stats(); s.Stored != uint64(arrives) || s.Refused+s.Corrupt > 0 {
				t.Errorf("%+v", s)
			}
			nothingLeft(t, e, "main", "next")
			to := next.knows(t, "main")
			if err = next.Send(nil, to, 1); name == "claimed" {
				shmtest.WantErr(t, "a send while it has the row", err, cq.ErrFull)
				e.steps(t)
				err = next.Send(nil, to, 1)
			}
			must(t, err)
		})
	}
}

// TestAdoptedUnderLock: a lane that is adopted while a collector holds the lock of its outbox,
// which looks like life, is the dead's all the same.
func TestAdoptedUnderLock(t *testing.T) {
	e, next := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "next", fabric.Options{})
	claimant(t, e, next, 3).Kill()
	shmtest.Got(ctl.Collect(e.d, ctl.CollectOptions{Remove: true})).Or(t)
	all := shmtest.Got(e.d.List()).Or(t)
	lives := []string{"main", "next", kind.FabricOutboxName(e.Address().Outbox),
		kind.FabricOutboxName(next.Address().Outbox)}
	for _, n := range all {
		if !slices.Contains(lives, n.Name()) {
			box := shmtest.Got(e.d.Open(n.Name(), shm.ReadWrite)).Or(t)
			must(t, box.Hold(nil))
			e.steps(t)
			e.steps(t)
			must(t, box.Close())
		}
	}
	if s := e.Stats(); s.Stored != 1 || s.Died != 1 {
		t.Fatalf("%+v", s)
	}
	shmtest.Got(ctl.Collect(e.d, ctl.CollectOptions{Remove: true})).Or(t)
	nothingLeft(t, e, "main", "next")
}

// TestFullCloses: who finds no row at one that has closed since is told that, and not to ask again.
func TestFullCloses(t *testing.T) {
	shmtest.Conforms(t)
	e, first := opened(t, "main", fabric.Options{Peers: 1}), opened(t, "first", fabric.Options{})
	next := opened(t, "next", fabric.Options{})
	must(t, first.Send(nil, first.knows(t, "main"), 1))
	to := next.knows(t, "main")
	shmtest.WantErr(t, "a send without a row", next.Send(nil, to, 1), fabric.ErrPeers)
	must(t, e.Close())
	shmtest.WantErr(t, "a send to one that has closed", next.Send(nil, to, 1), fabric.ErrNoPeer)
}

// besideIdle opens an endpoint and starts a process with another one, which moves when told to.
func besideIdle(t *testing.T) (*end, *child, cq.Addr) {
	t.Helper()
	e := opened(t, "main", fabric.Options{})
	c := started(t, "idle")
	to := e.knows(t, "idle")
	return e, c, to
}

// TestReceiverKilled: what a receiver had examined succeeds, the rest fails, and who sleeps for it
// wakes; what is sent afterwards is an error of the call.
func TestReceiverKilled(t *testing.T) {
	e, c, to := besideIdle(t)
	for i := range 3 {
		must(t, e.Send(nil, to, uint64(i)))
	}
	shmtest.Got(c.In.Write([]byte("progress\n"))).Or(t)
	c.Says(t, "3")
	for i := range 4 {
		must(t, e.Send(nil, to, uint64(3+i)))
	}
	killed := make(chan struct{})
	go func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		close(killed)
	}()
	for i := range 7 {
		c, failed, err := e.next()
		switch {
		case err != nil:
			t.Fatal(err)
		case i < 3 && (failed.Err != 0 || c.Context != uint64(i)):
			t.Errorf("send %d, which was examined: %+v", i, failed)
		case i >= 3 && (failed.Context != uint64(i) || failed.Err != cq.Errno(syscall.ECONNRESET)):
			t.Errorf("send %d, which was not: %+v, %+v", i, c, failed)
		}
	}
	<-killed
	if err := e.Send(nil, to, 1); !errors.Is(err, fabric.ErrPeerDied) {
		t.Errorf("to a dead one: %v", err)
	}
	nothingLeft(t, e, "main")
}

// TestWaiterOfKilled: who waits for room in the lane to a receiver that is killed gets an error.
func TestWaiterOfKilled(t *testing.T) {
	e, c, to := besideIdle(t)
	for e.Inject(nil, to) == nil {
	}
	done := make(chan error)
	go func() { done <- e.SendContext(t.Context(), &fabric.Msg{Addr: to, Context: 1}) }()
	sleeps(t, e.Bell())
	c.Kill()
	if err := <-done; !errors.Is(err, fabric.ErrPeerDied) {
		t.Errorf("a wait for room: %v", err)
	}
}

// TestReceiverCloses: a receiver that closes examines what has come; then sends fail at the call.
func TestReceiverCloses(t *testing.T) {
	e, c, to := besideIdle(t)
	for i := range 3 {
		must(t, e.Send(nil, to, uint64(i)))
	}
	c.Stop(t)
	for i := range 3 {
		if c := completes(t, e); c.Context != uint64(i) {
			t.Errorf("send %d: %+v", i, c)
		}
	}
	if err := e.Send(nil, to, 1); !errors.Is(err, fabric.ErrPeerClosed) {
		t.Errorf("to a closed one: %v", err)
	}
	nothingLeft(t, e, "main")
}

// TestSenderCloses: what was sent before a close arrives, though the receiver looks later; and its
// outbox goes with the last who had something in it.
func TestSenderCloses(t *testing.T) {
	a, b, c := opened(t, "a", fabric.Options{}), opened(t, "b", fabric.Options{}),
		opened(t, "c", fabric.Options{})
	sent := 0
	for _, name := range []string{"b", "c"} {
		to := a.knows(t, name)
		var err error
		for err == nil { // until the lane is full
			if err = a.Send([]byte("last words"), to, 1); err == nil {
				sent++
			}
		}
	}
	must(t, a.Close())
	for i := range sent {
		_, failed, err := a.next()
		if err != nil || failed.Err != cq.Errno(syscall.ECANCELED) {
			t.Errorf("send %d: %v, %v", i, failed, err)
		}
	}
	for i, e := range []*end{b, c} {
		for range sent / 2 {
			var buf [16]byte
			must(t, e.Recv(buf[:], 1))
			if c := completes(t, e); string(buf[:c.Len]) != "last words" {
				t.Errorf("%+v, %q", c, buf)
			}
		}
		e.steps(t)
		all, err := e.d.List()
		if must(t, err); len(all) != 5-i {
			t.Errorf("after %d receivers: %v", i+1, all)
		}
	}
}

// TestPlaceAgain: who has the place of another in the outbox finds nothing of what that one got.
func TestPlaceAgain(t *testing.T) {
	a := opened(t, "a", fabric.Options{Peers: 1})
	for i, name := range []string{"b", "c", "d"} {
		other := opened(t, name, fabric.Options{Peers: 1})
		to := a.knows(t, name)
		for range 3 - i {
			must(t, a.Send(nil, to, 1))
		}
		other.steps(t)
		if s := other.Stats(); s.Stored != uint64(3-i) || s.Corrupt > 0 {
			t.Errorf("%s: %+v", name, s)
		}
		must(t, other.Close())
		for range 3 - i {
			completes(t, a)
		}
	}
}

// TestCloseEndsReceives: posted receives of both kinds end with ECANCELED, oldest first, and a read
// of the queue goes on.
func TestCloseEndsReceives(t *testing.T) {
	a := opened(t, "a", fabric.Options{})
	must(t, a.Recv(make([]byte, 1), 5))
	must(t, a.TRecv(make([]byte, 1), fabric.Anybody, 0, 0, 6))
	closed := make(chan error)
	go func() { closed <- a.Close() }() // the first read below may sleep by then, or not
	for context := uint64(5); context <= 6; context++ {
		_, failed, err := a.next()
		if err != nil || failed.Context != context || failed.Err != cq.Errno(syscall.ECANCELED) {
			t.Errorf("%d: %+v, %v", context, failed, err)
		}
	}
	must(t, <-closed)
}

// TestEchoKilled: the process at the other end of a ping-pong is killed at any moment. Every send
// ends, and every receive has its message or stays.
func TestEchoKilled(t *testing.T) {
	for i := range 8 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			e := opened(t, "main", fabric.Options{})
			c := started(t, "echo")
			to := e.knows(t, "echo")
			var err error
			bufs := make([][8]byte, 4)
			for k := range bufs {
				must(t, e.Recv(bufs[k][:], uint64(k)))
			}
			open, received := 0, 0
			for err == nil || open > 0 {
				for err == nil && open < 4 {
					if err = e.Send([]byte("ping"), to, 100); err == nil {
						open++
					}
				}
				if errors.Is(err, syscall.EAGAIN) {
					err = nil
				}
				if open == 0 {
					break
				}
				entry, failed, e2 := e.next()
				must(t, e2)
				switch {
				case failed.Err != 0 && failed.Context != 100:
					t.Fatalf("a receive failed: %+v", failed)
				case failed.Err != 0, entry.Context == 100:
					open--
				default:
					received++
					must(t, e.Recv(bufs[entry.Context][:], entry.Context))
				}
				if received == 10*(i+1) && c.ProcessState == nil {
					c.Kill()
				}
			}
			if !errors.Is(err, fabric.ErrPeerDied) {
				t.Errorf("in the end: %v", err)
			}
			nothingLeft(t, e, "main")
		})
	}
}

// TestKilledInside: a process is killed in the middle of a long message. A receive fails with what
// came, a send fails, all chunks come back, and nothing is left of the dead.
func TestKilledInside(t *testing.T) {
	for _, who := range []string{"sender", "receiver"} {
		for steps := range 6 {
			t.Run(fmt.Sprint(who, steps), func(t *testing.T) {
				e, c, to := besideIdle(t)
				tells := func(what string) {
					shmtest.Got(c.In.Write([]byte(what + "\n"))).Or(t)
					c.Says(t, "0")
				}
				buf, context := make([]byte, longBytes), uint64(7)
				if who == "sender" {
					must(t, e.Recv(buf, 7))
					tells("send")
				} else {
					context = 9
					tells("receive")
					must(t, e.Send(pattern(longBytes), to, 9))
				}
				for i := range steps {
					if i%2 == 0 == (who == "sender") {
						e.steps(t)
					} else {
						tells("progress")
					}
				}
				c.Kill()
				_, failed, err := e.next()
				if err != nil || failed.Err != cq.Errno(syscall.ECONNRESET) ||
					failed.Context != context {
					t.Fatalf("%+v, %v", failed, err)
				}
				if n := failed.Len; who == "sender" && (n >= longBytes || steps > 2 && n == 0 ||
					string(buf[:n]) != string(pattern(longBytes)[:n])) {
					t.Errorf("%d bytes came, or others", n)
				}
				account(t, e, 8, 0, 0)
				nothingLeft(t, e, "main")
			})
		}
	}
}

// TestGroupKilled: who is killed leaves: sends go on to the others, and succeed. Its seat is the
// next one's, and a group whose members are all dead is nobody's.
func TestGroupKilled(t *testing.T) {
	ends := members(t, fabric.Options{}, fabric.GroupOptions{Members: 3}, "a", "b")
	a, b := ends[0], ends[1]
	for i := range 3 {
		c := started(t, "member", fmt.Sprint("MEMBER=m", i))
		c.obeys(t, "join", "done")
		must(t, errors.Join(a.Send(number(1), a.g.Addr(), 1),
			a.Send(pattern(longBytes), a.g.Addr(), 2)))
		moves(t, a.end, b.end)
		c.obeys(t, "progress", "done")
		c.Kill()
		if e := completes(t, a.end); e.Context != 1 {
			t.Errorf("%+v", e)
		}
		must(t, errors.Join(b.Recv(make([]byte, 8), 1), b.Recv(make([]byte, longBytes), 2)))
		for range 100 {
			moves(t, a.end, b.end)
		}
		if e := completes(t, a.end); e.Context != 2 {
			t.Errorf("%+v", e)
		}
		if got := b.completions(t); len(got) != 2 {
			t.Errorf("%+v", got)
		}
	}
	account(t, a.end, 8, 0, 0)
	c := started(t, "member", "MEMBER=m")
	c.obeys(t, "join", "done")
	must(t, errors.Join(a.g.Close(), b.g.Close()))
	c.Kill()
	g := joins(t, a.end, fabric.GroupOptions{}) // that of the dead
	must(t, a.Send(number(1), g.Addr(), 3))
	if e := completes(t, a.end); e.Context != 3 {
		t.Errorf("%+v", e)
	}
	must(t, g.Close())
	moves(t, a.end, b.end)
	nothingLeft(t, a.end, "a", "b")
}
