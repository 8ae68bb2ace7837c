package cq_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// newsOf makes an event queue that is told of what bind binds to it, until the test ends.
func newsOf(t testing.TB, bind func(cq.EventSink) error, o cq.EventOptions) *cq.EventQueue {
	t.Helper()
	e := shmtest.Have(cq.CreateEvents(cq.Unnamed("news"), o)).In(t)
	must(t, bind(e))
	t.Cleanup(func() { must(t, bind(nil)) })
	return e
}

// nextPeer waits for an event about a peer.
func nextPeer(t testing.TB, e *cq.EventQueue) (cq.Event, cq.PeerEntry) {
	t.Helper()
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	if _, err := e.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil {
		t.Fatalf("no event: %v", err)
	}
	p := shmtest.Got(cq.ParsePeerEntry(ev.Payload)).Or(t)
	return ev, p
}

// wantDeath waits for the death of a process in a role.
func wantDeath(t testing.TB, e *cq.EventQueue, fid cq.FID, role cq.PeerRole,
	pid int) cq.PeerEntry {
	t.Helper()
	ev, p := nextPeer(t, e)
	if ev.Event != cq.EventPeerDeath || ev.FID != fid || ev.Data != uint64(p.Lane) {
		t.Errorf("event %+v", ev)
	}
	if p.Role != role || p.PID != pid || p.Object == (shm.UUID{}) || p.Again || p.More != 0 {
		t.Errorf("%+v, want the death of %v %d", p, role, pid)
	}
	return p
}

// noNews lets several looks go by in which nothing comes.
func noNews(t testing.TB, e *cq.EventQueue) {
	t.Helper()
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	if _, err := eqSread(e, &ev, 350*time.Millisecond); !errors.Is(err, cq.ErrTimedOut) {
		p, _ := cq.ParsePeerEntry(ev.Payload)
		t.Errorf("%v, %v, %+v", err, ev.Event, p)
	}
}

// TestWriterDeathIsAnEvent: the reader's event queue gets one event for each writer that died, and
// none for one that is stopped, or detaches. What the dead one published can be read then, and the
// next one goes on in its lane, also in front of what nobody has read yet; one that lives has its
// lane. The lane of another user is unmapped as soon as it was read, and the next one brings memory
// of its own; while nobody has proved the death there is no room.
func TestWriterDeathIsAnEvent(t *testing.T) {
	shmtest.Conforms(t)
	for where, m := range mortals {
		t.Run(where, func(t *testing.T) {
			if !m.at.others { // which counts descriptors of the process
				t.Parallel()
			}
			var attr *syscall.SysProcAttr
			if m.elsewhere {
				attr = ownPIDs(t)
			}
			q := m.at.create(t, cq.Options{Size: 16, MaxLanes: 1, Spin: -1})
			e := newsOf(t, q.BindEvents, cq.EventOptions{Size: 4})
			var fds, maps int
			var got []uint64
			for i := range uint64(3) {
				w := startWriter(t, m.at, q, attr)
				if w.next != 4*i || w.lane != 1 {
					t.Errorf("writer %d begins at %d in lane %d", i, w.next, w.lane)
				}
				w.post(t, 4*i, 4*i+4)
				noRoom(t, "with a living writer", m.at, q)
				if i == 2 {
					_ = w.Stop(t) // which detaches, and ends
					noNews(t, e)
					break
				}
				w.Halt(t)
				if i == 0 {
					noNews(t, e) // and nobody reads
				}
				noRoom(t, "with a stopped writer", m.at, q)
				w.Kill()
				pid := w.Process.Pid
				if m.elsewhere {
					pid = 1
				}
				if p := wantDeath(t, e, q.FID(), cq.PeerWriter, pid); p.Lane != 1 || p.First != 4*i ||
					p.End != p.First+4 {
					t.Errorf("%+v, want four entries from %d on", p, 4*i)
				}
				if !m.at.others {
					continue
				}
				eventually(t, "its memory is gone", func() bool { // a sleep ends, or a look finds it
					dst := make([]cq.Context, 2)
					n, err := sread(q, dst, time.Millisecond)
					if err != nil && !errors.Is(err, cq.ErrTimedOut) {
						t.Fatal(err)
					}
					got = append(got, contexts(dst[:n])...)
					return q.Stats().Retired == i+1
				})
				if i == 0 {
					fds, maps = held(t)
				} else {
					eventually(t, "nothing more is held than after the first", func() bool {
						f, m := held(t) // who watches a peer lets go of it in a goroutine
						return f <= fds+1 && m <= maps
					})
				}
			}
			wantContexts(t, "read", append(got, drain(t, q)...), upTo(0, 12)...)
		})
	}
}

// namedWriter starts a process that posts in a named queue up to an index.
func namedWriter(t *testing.T, q *cq.Queue, until uint64) *child {
	t.Helper()
	c := startChild(t, "poster", envQueue+"="+q.Name(), envCount+"="+uintText(until))
	c.Says(t, "posted")
	return c
}

// TestDeathsInOneLane: whoever takes a lane over leaves a record of the one it found dead, so that
// all are counted, also if nobody looked for a while.
func TestDeathsInOneLane(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	_, q := create(t, cq.Options{Size: 16, MaxLanes: 1})
	e := newsOf(t, q.BindEvents, cq.EventOptions{Size: 32})
	var pids []int
	for i := range uint64(7) {
		c := namedWriter(t, q, i+1)
		pids = append(pids, c.Process.Pid)
		c.Kill()
	}
	last := uint64(0)
	for i, pid := range pids {
		p := wantDeath(t, e, q.FID(), cq.PeerWriter, pid)
		if own := p.First == uint64(i) && p.End == uint64(i)+1; p.Generation <= last ||
			!own && (i >= 4 || p.First != p.End) { // the lane knows the last four
			t.Errorf("%d: %+v after generation %d", i, p, last)
		}
		last = p.Generation
	}
	noNews(t, e)
}

// TestDeathWaitsForRoom: an event queue that is full loses no death, and reports it when there is
// room, in order.
func TestDeathWaitsForRoom(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 8})
	e := newsOf(t, q.BindEvents, cq.EventOptions{Size: 2, Write: true})
	var filler cq.Event
	shmtest.Got(e.Write(&cq.Event{Event: cq.EventUser})).Or(t)
	_, err := e.Write(&cq.Event{Event: cq.EventUser})
	wantErr(t, "beside the room for an overrun", err, cq.ErrFull)
	c := startChild(t, "writer", envQueue+"="+q.Name(), envCount+"=1", envLanes+"=5")
	for range 5 {
		_ = c.Line(t)
	}
	eventually(t, "five entries", func() bool { return len(drain(t, q)) > 0 && q.Stats().Read == 5 })
	c.Kill()
	time.Sleep(250 * time.Millisecond)
	if _, err := e.Read(&filler, 0); err != nil || filler.Event != cq.EventUser {
		t.Fatal(err, filler)
	}
	seen := map[int]bool{}
	for range 5 {
		seen[wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid).Lane] = true
	}
	if len(seen) != 5 {
		t.Errorf("lanes %v", seen)
	}
	noNews(t, e)
}

// TestDeathOfEventWriters: an event queue can report its own writers, to itself, and a queue can
// report to the event queue of another process.
func TestDeathOfEventWriters(t *testing.T) {
	t.Parallel()
	d, e := createEvents(t, cq.EventOptions{Size: 8})
	must(t, e.BindEvents(e))
	w := attachEvents(t, d, e.Name())
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})).Or(t)
	must(t, q.BindEvents(w))
	c := startChild(t, "event poster", envQueue+"="+e.Name())
	c.Says(t, "posted")
	var ev cq.Event
	if _, err := e.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil ||
		ev.Event != cq.EventUser {
		t.Fatal(err, ev)
	}
	c.Kill()
	if p := wantDeath(t, e, e.FID(), cq.PeerWriter, c.Process.Pid); p.Lane != 2 || p.End != 1 {
		t.Errorf("%+v", p)
	}
	c = namedWriter(t, q, 1)
	c.Kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	must(t, q.Close())
	must(t, e.BindEvents(nil))
}

// TestDeathsBetweenLooks: each of many that died in one lane while nobody looked is told, or
// counted with the first that is.
func TestDeathsBetweenLooks(t *testing.T) {
	t.Parallel()
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 32, MaxLanes: 1})
	e := newsOf(t, q.BindEvents, cq.EventOptions{Size: 64})
	told := 0
	for _, many := range []int{1, 9, 2} {
		look := cq.HoldDeaths(q)
		for n := range many {
			namedWriter(t, q, uint64(n+1)).Kill()
			drain(t, q)
		}
		look()
		for sum := 0; sum < many; told++ {
			_, p := nextPeer(t, e)
			if sum += 1 + int(p.More); sum > many {
				t.Errorf("%d deaths of %d: %+v", sum, many, p)
			}
		}
		noNews(t, e)
	}
	if told < 3 {
		t.Errorf("%d events", told)
	}
}

// TestKilledWhileItReports: a reader that dies at any moment while it reports the deaths of its
// writers leaves none out: its successor, with the same event queue, finds each there once, or
// twice and then marked.
func TestKilledWhileItReports(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.Long(t)
	const lanes = 5
	rnd := rand.New(rand.NewPCG(7, 1))
	d, name := openDir(t), queueName(t)
	for range 4 {
		q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{Size: 8, Lifetime: cq.Persistent})).Or(t)
		e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Lifetime: cq.Persistent})
		must(t, err)
		must(t, errors.Join(q.Detach(), e.Detach()))
		reader := startChild(t, "death reader", envQueue+"="+name, envKind+"=blind")
		reader.Says(t, "bound")
		c := startChild(t, "writer", envQueue+"="+name, envCount+"=1", envLanes+"=5")
		for range lanes {
			_ = c.Line(t)
		}
		c.Kill()
		time.Sleep(time.Duration(rnd.IntN(250_000)) * time.Microsecond)
		reader.Kill()
		q = shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{Existing: true})).Or(t)
		e = shmtest.Got(cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{Existing: true})).Or(t)
		must(t, q.BindEvents(e))
		told := map[int]int{}
		for len(told) < lanes {
			_, p := nextPeer(t, e)
			if told[p.Lane]++; p.PID != c.Process.Pid || told[p.Lane] > 1 && !p.Again {
				t.Errorf("event %d of lane %d: %+v", told[p.Lane], p.Lane, p)
			}
		}
		for ev := (cq.Event{Payload: make([]byte, 0, 256)}); ; {
			if _, err := eqSread(e, &ev, 350*time.Millisecond); errors.Is(err, cq.ErrTimedOut) {
				break
			}
			p, err := cq.ParsePeerEntry(ev.Payload)
			if err != nil || !p.Again || told[p.Lane] > 1 {
				t.Errorf("one more: %+v, %v", p, err)
			}
			told[p.Lane]++
		}
		if n := len(drain(t, q)); n > lanes {
			t.Errorf("%d entries of %d writers", n, lanes)
		}
		must(t, errors.Join(q.Close(), e.Close()))
	}
}

func init() {
	roles["poster"] = childPoster
	roles["event poster"] = childEventPoster
	roles["death reader"] = childDeathReader
}

func uintText(n uint64) string { return strconv.FormatUint(n, 10) }

// childPoster posts until its lane stands at an index, and closes when it is told to.
func childPoster() {
	d := shmtest.Needs(shm.OpenDir(""))
	w, err := cq.Attach(context.Background(), cq.Named(d, os.Getenv(envQueue)), cq.WriterOptions{})
	need(err)
	for w.Next() < uint64(number(envCount, 0)) {
		need(w.Post(&cq.Entry{Context: w.Next()}))
	}
	say("posted")
	untilTold()
	need(w.Close())
}

// childEventPoster writes one event.
func childEventPoster() {
	d := shmtest.Needs(shm.OpenDir(""))
	w := shmtest.Needs(cq.AttachEvents(context.Background(), cq.Named(d, os.Getenv(envQueue)),
		cq.WriterOptions{}))
	shmtest.Needs(w.Write(&cq.Event{Event: cq.EventUser}))
	say("posted")
	untilTold()
	need(w.Close())
}

// childDeathReader adopts a queue and the event queue beside it, binds one to the other, and says
// when the first event has come, which it leaves there.
func childDeathReader() {
	d := shmtest.Needs(shm.OpenDir(""))
	q := shmtest.Needs(cq.Open(cq.Named(d, os.Getenv(envQueue)), cq.Options{Existing: true}))
	e := shmtest.Needs(cq.OpenEvents(cq.Named(d, "events"), cq.EventOptions{Existing: true}))
	need(q.BindEvents(e))
	say("bound")
	if os.Getenv(envKind) == "blind" {
		untilTold()
	}
	ev := cq.Event{Payload: make([]byte, 0, 256)}
	shmtest.Needs(e.ReadContext(context.Background(), &ev, cq.ReadOptions{Flags: cq.FlagPeek}))
	need(q.BindEvents(nil)) // which waits until nothing is half done
	say("told")
	untilTold()
}

// killOther has a writer of another user post once, end, and its lane be retired.
func killOther(t *testing.T, q *cq.Queue) (pid int) {
	t.Helper()
	before := q.Stats().Retired
	w := startWriter(t, othersSite, q, nil)
	w.post(t, 0, 1)
	w.Kill()
	eventually(t, "its lane is retired", func() bool {
		_, _ = sread(q, make([]cq.Context, 1), time.Millisecond)
		return q.Stats().Retired > before
	})
	return w.Process.Pid
}

// TestLostNotice: a death is told also if the kernel's notice of it is lost.
func TestLostNotice(t *testing.T) {
	t.Parallel()
	shmtest.Long(t)
	_, q := create(t, cq.Options{Size: 8})
	e := newsOf(t, q.BindEvents, cq.EventOptions{})
	c := namedWriter(t, q, 1)
	eventually(t, "it is watched", func() bool { return cq.LoseNotice(q, 1) })
	c.Kill()
	wantDeath(t, e, q.FID(), cq.PeerWriter, c.Process.Pid)
	noNews(t, e)
}

// reporter tells an event queue of deaths.
type reporter struct {
	bind func(cq.EventSink) error
	fid  cq.FID
	role cq.PeerRole
	die  func() (pid int) // somebody, always in the same place
	// counts says that of several who die between two looks one is told and the others are counted,
	// and that who died before the first binding is no news.
	counts bool
}

var reporters = map[string]func(t *testing.T) reporter{
	"named": func(t *testing.T) reporter {
		_, q := create(t, cq.Options{Size: 8, MaxLanes: 1})
		posts := uint64(0)
		return reporter{q.BindEvents, q.FID(), cq.PeerWriter, func() int {
			posts++
			c := namedWriter(t, q, posts)
			c.Kill()
			return c.Process.Pid
		}, false}
	},
	"other user": func(t *testing.T) reporter { // whose lane goes
		shmtest.NeedOther(t) // a skip later would leave what is bound
		q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
		return reporter{q.BindEvents, q.FID(), cq.PeerWriter,
			func() int { return killOther(t, q) }, false}
	},
	"counter": func(t *testing.T) reporter {
		_, c, base := named3(t, cq.CounterOptions{})
		t.Cleanup(func() { must(t, c.Close()) })
		return reporter{c.BindEvents, c.FID(), cq.PeerUser, func() int {
			p := startCounterPeer(t, base, false)
			p.Kill()
			return p.Process.Pid
		}, true}
	},
}

// TestDeathOutlivesItsSink: what was not reported to one event queue, because it was full, closed
// or not bound yet, is reported to the next one, and nothing twice to the same.
func TestDeathOutlivesItsSink(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for name, of := range reporters {
		t.Run(name, func(t *testing.T) {
			r := of(t)
			var sinks [3]*cq.EventQueue
			for i := range sinks {
				o := cq.EventOptions{Size: 2, Write: true}
				sinks[i] = shmtest.Have(cq.CreateEvents(cq.Unnamed("small"), o)).In(t)
			}
			full, next, last := sinks[0], sinks[1], sinks[2]
			must(t, r.bind(full))
			for err := error(nil); err == nil; {
				_, err = full.Write(&cq.Event{Event: cq.EventUser})
			}
			var pids []int
			for range 3 {
				pids = append(pids, r.die())
				time.Sleep(150 * time.Millisecond) // it is found out, or else found later
			}
			must(t, r.bind(next)) // has room for one at a time
			for n := 0; n < len(pids); n++ {
				ev, p := nextPeer(t, next)
				if n += int(p.More); ev.FID != r.fid || p.Role != r.role || p.More > 0 && !r.counts ||
					p.PID != pids[n] {
					t.Errorf("death %d: %+v, %+v of %v", n, ev, p, pids)
				}
			}
			must(t, r.bind(nil))
			var pid int
			if !r.counts {
				former := r.die()
				pid = r.die() // in the same place
				must(t, r.bind(next))
				if name == "named" { // whose lane knows both
					wantDeath(t, next, r.fid, r.role, former)
				}
				wantDeath(t, next, r.fid, r.role, pid)
				must(t, r.bind(nil))
			}
			must(t, r.bind(next))
			noNews(t, next)
			if name == "named" { // nobody has had the lane since
				must(t, r.bind(last))
				wantDeath(t, last, r.fid, r.role, pid)
				noNews(t, last)
			}
			must(t, r.bind(nil))
		})
	}
}

// TestDeathBeforeBinding: the death of a lane's last writer is news to whoever binds later, also
// where there is no room for what is said of it.
func TestDeathBeforeBinding(t *testing.T) {
	t.Parallel()
	_, q := create(t, cq.Options{Size: 8})
	namedWriter(t, q, 1).Kill()
	namedWriter(t, q, 2).Kill()
	e := newsOf(t, q.BindEvents, cq.EventOptions{DataMaxBytes: 8})
	var ev cq.Event
	if _, err := e.ReadContext(soon(t), &ev, cq.ReadOptions{}); err != nil ||
		ev.Event != cq.EventPeerDeath || len(ev.Payload) > 0 || ev.Data != 1 {
		t.Errorf("%v, %+v", err, ev)
	}
	noNews(t, e)
}
