package cq_test

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// mortals are where a writer may die, and whether that gives no notice.
var mortals = map[string]struct {
	at        site
	elsewhere bool
}{
	"named":                       {namedSite, false},
	"named-other-PID-namespace":   {namedSite, true},
	"unnamed":                     {memfdSite, false},
	"unnamed-other-PID-namespace": {memfdSite, true},
	"other-user":                  {othersSite, false},
}

// ways are how one waits for a queue.
var ways = map[string]cq.Options{"read": {}, "read-beside-descriptor": {Wait: cq.WaitFD},
	"shared": {Shared: true}, "descriptor": {Wait: cq.WaitFD}, "set": {}, "set-descriptor": {},
	"channel": {}}

// TestDeathWakes: a writer that died between publishing and ringing leaves nobody asleep, wherever
// it was and in whatever way one waits, and its lane goes to the next.
func TestDeathWakes(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for where, m := range mortals {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			var attr *syscall.SysProcAttr
			if m.elsewhere {
				attr = ownPIDs(t)
			}
			var qs []*cq.Queue
			names := slices.Sorted(maps.Keys(ways))
			for _, way := range names {
				o := ways[way]
				o.Size, o.Spin = 8, -1
				qs = append(qs, m.at.createAs(t, where+"-"+way, o))
			}
			w := startWriters(t, m.at, attr, qs...)
			fds, got := make([]int, len(qs)), make([][]uint64, len(qs))
			done := make([]chan error, len(qs))
			for i, q := range qs {
				w.do(t, "use", uint64(i))
				w.post(t, 0, 1)
				eventually(t, "the first entry", func() bool { return len(drain(t, q)) == 1 })
				var wait func() ([]uint64, error)
				fds[i], wait = sleeper(t, names[i], q)
				done[i] = make(chan error, 1)
				go func() {
					var err error
					got[i], err = wait()
					done[i] <- err
				}()
			}
			time.Sleep(short) // long enough to be asleep, mostly
			for i := range qs {
				w.do(t, "use", uint64(i))
				w.publish(t, 1, 77)
			}
			for _, fd := range fds {
				if fd >= 0 && !m.elsewhere && readable(t, fd, 20) {
					t.Error("readable before its death")
				}
			}
			w.Kill()
			for i, q := range qs {
				must(t, <-done[i])
				eventually(t, "the entry, and what was its memory is gone", func() bool {
					got[i] = append(got[i], drain(t, q)...)
					return len(got[i]) > 0 && (!m.at.others || q.Stats().Retired == 1)
				})
				wantContexts(t, names[i], got[i], 77)
				if w := m.at.attach(t, q); w.Lane() != 1 || w.Next() != 2 {
					t.Errorf("%s: the next one goes on in lane %d at %d", names[i], w.Lane(), w.Next())
				}
			}
		})
	}
}

// sleeper returns a wait that ends when an entry may be there, with what it reads if it is a read,
// and the descriptor that it polls, or -1.
func sleeper(t *testing.T, way string, q *cq.Queue) (fd int, wait func() ([]uint64, error)) {
	t.Helper()
	polls := func(o interface {
		TryWait() error
		GetWait() (cq.Native, error)
	}) (int, func() ([]uint64, error)) {
		eventually(t, "there is nothing", func() bool { drain(t, q); return o.TryWait() == nil })
		fd := waitFD(o)
		return fd, func() ([]uint64, error) {
			for once := true; once || o.TryWait() == nil; once = false {
				if !readable(t, fd, 60_000) {
					return nil, cq.ErrTimedOut
				}
			}
			return nil, nil
		}
	}
	ctx := soon(t)
	switch way {
	case "descriptor":
		return polls(q)
	case "set-descriptor":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{Wait: cq.WaitFD})
		addTo(t, s, q)
		return polls(s)
	case "set":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		addTo(t, s, q)
		return -1, func() ([]uint64, error) {
			_, err := s.Wait(ctx, make([]cq.Waitable, 1), cq.WaitOptions{})
			return nil, err
		}
	case "channel":
		c := channel(t, openDir(t))
		attachTo(t, c, q)
		must(t, c.RequestNotify(q, cq.NotifyAny))
		return -1, func() ([]uint64, error) {
			_, err := c.GetEvent(ctx, cq.WaitOptions{})
			return nil, errors.Join(err, c.Ack(q, 1))
		}
	}
	return -1, func() ([]uint64, error) {
		es := make([]cq.Context, 2)
		n, err := cq.ReadContext(ctx, q, es, cq.ReadOptions{})
		return contexts(es[:n]), err
	}
}

// noRoom checks that no writer can attach to a queue with one lane.
func noRoom(t *testing.T, what string, at site, q *cq.Queue) {
	t.Helper()
	_, err := at.tryAttach(t, q)
	wantErr(t, what, err, cq.ErrLanes)
}

// TestDestroyedHalfway: a reader that died while it destroyed its queue leaves one that nobody can
// use any more, and that makes way for a new one, persistent or not.
func TestDestroyedHalfway(t *testing.T) {
	t.Parallel()
	for _, lifetime := range []string{"0", "1"} {
		d := openDir(t)
		name := queueName(t) + lifetime
		killedCreator(t, name, lifetime)
		words := scribble(t, d, name, cq.ReaderFile).section(t, cq.SectQueue, 0)
		poke(words, cq.OffState, kind.StateClosed)
		k := objectKinds()[0]
		for _, what := range []string{"adopt", "attach"} {
			_, err := k.calls()[what](cq.Named(d, name), k.zero())
			wantErr(t, what, err, cq.ErrClosed, os.ErrClosed)
		}
		q, err := cq.Open(cq.Named(d, name), cq.Options{})
		if err != nil {
			_ = os.RemoveAll(d.Path() + "/" + name)
			t.Fatal(err)
		}
		must(t, q.Close())
		nothingLeft(t, d)
	}
}

// TestDeathOfSuccessor: the second writer of a lane that the reader never parked between the two is
// watched as the first one was.
func TestDeathOfSuccessor(t *testing.T) {
	t.Parallel()
	_, q := create(t, cq.Options{Size: 8, Spin: -1})
	first := startWriter(t, namedSite, q, nil)
	first.post(t, 0, 1)
	for got := 0; got < 1; { // from here on the lane is hot
		got += len(drain(t, q))
	}
	first.Kill()
	second := startWriter(t, namedSite, q, nil)
	if second.lane != 1 {
		t.Fatal(second.lane)
	}
	_ = drain(t, q)
	for range 2 { // what woke up for the two is looked at
		_, _ = sread(q, make([]cq.Msg, 1), 20*time.Millisecond)
	}
	defer whenAsleep(t, q, func() {
		second.publish(t, 1, 77)
		second.Kill()
	})()
	dst := make([]cq.Context, 2)
	if n, err := sread(q, dst, time.Minute); n != 1 || dst[0].Context != 77 {
		t.Errorf("%d, %v, %v", n, err, dst)
	}
}

// TestDeadBellManyNames: a bell that its process left in several directories goes from each of them
// as soon as somebody has a set for it, or puts a queue of it into one.
func TestDeadBellManyNames(t *testing.T) {
	one := openDir(t)
	dirs := []*shm.Dir{one}
	for range 2 {
		path := shmtest.Got(os.MkdirTemp(filepath.Dir(one.Path()), "shmring-more-")).Or(t)
		t.Cleanup(func() { must(t, os.RemoveAll(path)) })
		d := shmtest.Have(shm.OpenDir(path)).In(t)
		dirs = append(dirs, d)
	}
	spec := cq.BellSpec()
	spec.UUID = shm.NewUUID()
	name := "bell-" + spec.UUID.String()
	obj := shmtest.Got(one.Create(name, spec, nil)).Or(t)
	for _, d := range dirs[1:] {
		must(t, obj.LinkTo(d, name))
	}
	must(t, obj.Release())
	must(t, obj.Close())

	for _, d := range dirs[:2] {
		s := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
		must(t, s.Close())
	}
	s := waitSet(t, one, cq.WaitSetOptions{})
	q := shmtest.Got(cq.Create(cq.Named(dirs[2], "q"), cq.Options{})).Or(t)
	must(t, s.Add(q))
	must(t, s.Remove(q))
	must(t, q.Close())
	for i, d := range dirs {
		names := shmtest.Got(d.List()).Or(t)
		for _, n := range names {
			if strings.Contains(n.Name(), spec.UUID.String()) {
				t.Errorf("directory %d still has %s", i, n.Name())
			}
		}
	}
}

// TestBellGoesWithoutDescriptors: a process that has no descriptor left takes its bell away.
func TestBellGoesWithoutDescriptors(t *testing.T) {
	d := openDir(t)
	bells := func() (n int) {
		names := shmtest.Got(d.List()).Or(t)
		for _, name := range names {
			if strings.HasPrefix(name.Name(), "bell-") {
				n++
			}
		}
		return n
	}
	before := bells()
	s := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
	restore := shmtest.LimitFiles(0)
	err := s.Close()
	restore()
	if n := bells(); err != nil || n != before {
		t.Errorf("%d bells, before there were %d; %v", n, before, err)
	}
}

// TestNoticesComeBack: who could not follow a peer for want of a descriptor looks now and then, and
// follows it as soon as there is one.
func TestNoticesComeBack(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8})
	_ = startChild(t, "writer", envQueue+"="+q.Name(), envCount+"=1").Line(t)
	dir := shmtest.Have(d.Sub(q.Name(), false)).In(t)
	lane := shmtest.Have(dir.Open(kind.LaneFile(1), shm.Inspect)).In(t)
	words := shmtest.Got(kind.WordsOf[kind.LaneWords](lane, kind.SectLane, 1)).Or(t)
	eventually(t, "the writer has posted", func() bool { return words.Tail.Load() == 1 })
	_, c, name := named3(t, cq.CounterOptions{})
	peer := startCounterPeer(t, name, false)
	defer func() {
		_ = peer.Stop(t)
		must(t, c.Close())
	}()
	e := shmtest.Have(cq.CreateEvents(cq.Unnamed("news"), cq.EventOptions{})).In(t)
	open := openFiles()
	fillGaps()
	defer func() {
		for _, fd := range openFiles() {
			if !slices.Contains(open, fd) && fd <= slices.Max(open) {
				must(t, unix.Close(fd))
			}
		}
	}()
	dst := make([]cq.Msg, 2)
	// There is one for the lane, and none for its writer.
	restore := shmtest.LimitFiles(uint64(slices.Max(open) + 2))
	defer restore()
	if n, err := cq.Read(q, dst); n != 1 {
		t.Fatal(n, err)
	}
	shmtest.LimitFiles(3)
	must(t, q.BindEvents(e))
	defer func() { must(t, q.BindEvents(nil)) }()
	blind := func(want bool) func() bool {
		return func() bool {
			_, _ = cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{Timeout: time.Millisecond})
			_ = cntrWait(c, 1, time.Millisecond)
			reader, reporter, waiter := cq.Blinded(q, c)
			return reader == want && reporter == want && waiter == want
		}
	}
	eventually(t, "nobody is followed", blind(true))
	restore()
	eventually(t, "they are followed", blind(false))
}

// TestReaderDeathIsAnEvent: a writer's event queue tells of its reader's death, and of the one that
// takes the queue over.
func TestReaderDeathIsAnEvent(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	d := openDir(t)
	name := queueName(t)
	killedCreator(t, name, "1")
	w := attach(t, d, name)
	t.Cleanup(func() {
		if q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true}); err == nil {
			_ = q.Close()
		}
	})
	e := newsOf(t, w.BindEvents, cq.EventOptions{Size: 2})
	wantErr(t, "a bound event queue", e.Close(), cq.ErrBusy)
	_, p := nextPeer(t, e) // it was dead before
	if p.Role != cq.PeerReader || p.Generation != 1 {
		t.Errorf("%+v", p)
	}
	post(t, w, 0, 3)
	for i := range 3 {
		c := startReader(t, namedSite)
		ev, p := nextPeer(t, e)
		if ev.Event != cq.EventPeerNew || p.Role != cq.PeerReader || p.PID != c.Process.Pid {
			t.Errorf("%v %+v", ev.Event, p)
		}
		if ev.FID.Generation != p.Generation || p.Object != w.Stats().QueueID {
			t.Errorf("%v %+v, of %v", ev.FID, p, w.Stats().QueueID)
		}
		if i == 0 {
			c.expect("read", 1, "0")
		}
		c.Kill()
		p = wantDeath(t, e, ev.FID, cq.PeerReader, c.Process.Pid)
		if p.First != 1 || p.End != 3 || p.Lane != w.Lane() {
			t.Errorf("%+v", p)
		}
	}
	noNews(t, e)
	q := shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true})).Or(t)
	if ev, p := nextPeer(t, e); ev.Event != cq.EventPeerNew || p.Generation != 5 || ev.FID != q.FID() {
		t.Errorf("%v of %v %+v", ev.Event, ev.FID, p)
	}
	own := shmtest.Got(q.Writer()).Or(t)
	wantErr(t, "own", own.BindEvents(e), cq.ErrInvalid)
	must(t, errors.Join(own.Close(), q.Detach()))
	noNews(t, e)
}

// TestSuccessorIsToldOnce: a reader that reports and dies leaves its event queue to a successor,
// which reports no death again; with an event queue of its own it does.
func TestSuccessorIsToldOnce(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	d, name := openDir(t), queueName(t)
	q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})).Or(t)
	e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, errors.Join(q.Detach(), e.Detach()))
	reader := startChild(t, "death reader", envQueue+"="+name)
	reader.Says(t, "bound")
	c := startChild(t, "poster", envQueue+"="+name, envCount+"=1")
	_ = c.Line(t)
	c.Kill()
	reader.Says(t, "told")
	reader.Kill()
	q = shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true})).Or(t)
	e = shmtest.Got(cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{Existing: true})).Or(t)
	must(t, q.BindEvents(e))
	fid := q.FID()
	fid.Generation-- // of the reader that reported
	wantDeath(t, e, fid, cq.PeerWriter, c.Process.Pid)
	noNews(t, e)
	own := shmtest.Got(cq.CreateEvents(cq.Named(d, "own"), cq.EventOptions{})).Or(t)
	must(t, q.BindEvents(own))
	wantDeath(t, own, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, errors.Join(q.Close(), e.Close(), own.Close()))
}

// TestDeathsUnderFire: writers at full speed are killed at random while the queue is read by every
// kind of wait; every one has its event, and after it what it had published was read.
func TestDeathsUnderFire(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	const rounds, writers = 4, 2
	_, q := create(t, cq.Options{Size: 64, Shared: true})
	e := newsOf(t, q.BindEvents, cq.EventOptions{Size: 4})
	read := account{}
	buf := make([]cq.Tagged, 32)
	take := func(wait time.Duration) {
		n, err := sread(q, buf, wait)
		if err != nil && !errors.Is(err, cq.ErrTimedOut) {
			t.Fatal(err)
		}
		read.saw(t, buf[:n])
	}
	rnd := rand.New(rand.NewPCG(5, 1))
	for range rounds {
		pids := map[int]bool{}
		for range writers {
			c := startChild(t, "writer", envQueue+"="+q.Name())
			_ = c.Line(t)
			pids[c.Process.Pid] = true
			time.AfterFunc(time.Duration(rnd.IntN(30))*time.Millisecond,
				func() { _ = c.Process.Kill() })
		}
		ev := cq.Event{Payload: make([]byte, 0, 256)}
		for end := time.Now().Add(time.Minute); len(pids) > 0; {
			if time.Now().After(end) {
				t.Fatalf("no news of %v", pids)
			}
			take(time.Millisecond)
			if _, err := e.Read(&ev, 0); err == cq.ErrWouldBlock {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			p := shmtest.Got(cq.ParsePeerEntry(ev.Payload)).Or(t)
			if !pids[p.PID] {
				t.Errorf("a second event, or a wrong one: %+v", p)
			}
			delete(pids, p.PID)
			for tries := 0; read[p.Lane] < p.End; tries++ {
				if tries > 1000 {
					t.Fatalf("lane %d: %d of %d can be read after %+v", p.Lane, read[p.Lane], p.End, p)
				}
				take(0)
			}
		}
	}
	noNews(t, e)
}

func init() { roles["lane holder"] = childLaneHolder }

// childLaneHolder begins to collect a queue and gets no further.
func childLaneHolder() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(collect.HoldLanes(d, os.Getenv(envQueue)))
	say("held")
	select {}
}

// TestDeathOutlivesCollectors: collectors that have the lanes of a queue, and give up, or die over
// it, hide nobody who died there, and nobody takes them for writers.
func TestDeathOutlivesCollectors(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, meet := range map[string]func(t *testing.T, d *shm.Dir, name string){
		"gives up": func(t *testing.T, d *shm.Dir, name string) {
			release := shmtest.Got(collect.HoldLanes(d, name)).Or(t)
			release()
		},
		"dies": func(t *testing.T, _ *shm.Dir, name string) {
			c := startChild(t, "lane holder", envQueue+"="+name)
			c.Says(t, "held")
			c.Kill()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, name := openDir(t), queueName(t)
			q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})
			must(t, err)
			c := namedWriter(t, q, 1)
			must(t, q.Detach())
			c.Kill()
			for range 2 {
				meet(t, d, name)
			}
			q = shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true})).Or(t)
			e := newsOf(t, q.BindEvents, cq.EventOptions{})
			wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
			noNews(t, e)
			if got := drain(t, q); len(got) != 1 {
				t.Errorf("read %v", got)
			}
			must(t, errors.Join(q.BindEvents(nil), q.Close()))
		})
	}
}
