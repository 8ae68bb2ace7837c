package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/shm"
)

// everything is one object of each kind, each bound to what it can be bound to.
type everything struct {
	d       *shm.Dir
	q       *cq.Queue
	objects map[string]io.Closer
}

// keeps says what each object keeps open that is not closed itself.
var keeps = map[string][]string{
	"binding":            {"writer", "queue", "counter", "address vector"},
	"writer":             {"event queue"},
	"own writer":         {"queue"},
	"queue":              {"event writer", "event queue"},
	"queue of the set":   {"set", "event queue"},
	"counter":            {"event queue"},
	"memory region":      {"event queue", "counter"},
	"set":                {"queue", "counter", "event queue", "second event queue"},
	"poll set":           {"queue", "counter", "event queue", "second event queue"},
	"channel":            {"queue"},
	"event writer":       {"second event queue"},
	"event queue":        {"second event queue"},
	"second event queue": {"event queue"},
}

// letGo are those that CloseAll makes let go of what they keep, if they are among the objects.
var letGo = []string{"set", "poll set", "channel", "memory region", "event writer", "event queue",
	"second event queue"}

// kept returns what stays open, by name, if one object is not closed.
func kept(one string) map[string]bool {
	out := map[string]bool{}
	var add func(name string)
	add = func(name string) {
		for _, k := range keeps[name] {
			if !out[k] && k != one {
				out[k] = true
				if !slices.Contains(letGo, k) {
					add(k)
				}
			}
		}
	}
	add(one)
	return out
}

func openEverything(t *testing.T) *everything {
	t.Helper()
	d := openDir(t)
	e := &everything{d: d, objects: map[string]io.Closer{}}
	put := func(name string, c io.Closer, err error) {
		must(t, err)
		e.objects[name] = c
	}
	events, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{})
	put("event queue", events, err)
	second, err := cq.CreateEvents(cq.Named(d, "second"), cq.EventOptions{})
	put("second event queue", second, err)
	must(t, errors.Join(events.BindEvents(second), second.BindEvents(events)))
	reporter, err := cq.AttachEvents(t.Context(), cq.Named(d, "events"), cq.WriterOptions{})
	put("event writer", reporter, err)
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	put("set", set, err)
	poll, err := cq.NewPollSet(d, 0)
	put("poll set", poll, err)
	channel, err := cq.NewChannel(d)
	put("channel", channel, err)
	e.q, err = cq.Create(cq.Named(d, "q"), cq.Options{Size: 8})
	put("queue", e.q, err)
	inSet, err := cq.Create(cq.Named(d, "in-set"),
		cq.Options{Size: 8, Wait: cq.WaitInSet, WaitSet: set})
	put("queue of the set", inSet, err)
	w, err := cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})
	put("writer", w, err)
	own, err := e.q.Writer()
	put("own writer", own, err)
	count, err := cq.CreateCounter(cq.Named(d, "count"), cq.CounterOptions{})
	put("counter", count, err)
	peers, err := cq.CreateAddresses(cq.Named(d, "peers"), cq.AddressOptions{})
	put("address vector", peers, err)
	obj, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindRegion,
		Sections: []shm.Section{{Kind: 0x1000, Length: 1 << 12}}}, nil)
	put("object", obj, err)
	region, err := cq.RegisterMemory(obj, cq.MemoryOptions{Events: events, Length: 64,
		Offset: obj.Header().Sections[0].Offset, Access: cq.FlagRemoteRead})
	put("memory region", region, err)
	b, err := feed.Bind(feed.Options{Queue: w, Flags: cq.FlagTransmit, Addresses: peers,
		Counters: map[*cq.Counter]cq.Flags{count: cq.FlagSend}})
	put("binding", b, err)
	must(t, errors.Join(b.Begin(0), region.BindCounter(count, cq.FlagRemoteRead),
		e.q.BindEvents(reporter), inSet.BindEvents(events), w.BindEvents(events),
		count.BindEvents(events), reporter.BindEvents(second), channel.Attach(e.q)))
	for _, m := range []cq.Waitable{e.q, count, events, second} {
		must(t, errors.Join(set.Add(m), poll.Add(m)))
	}
	must(t, channel.Inject(e.q)) // an event that nobody acknowledges
	shmtest.Got(channel.GetEvent(soon(t), cq.WaitOptions{})).Or(t)
	return e
}

var everyName = []string{"event queue", "second event queue", "event writer", "set", "poll set",
	"channel", "queue", "queue of the set", "writer", "own writer", "counter", "address vector",
	"memory region", "binding", "object"}

// all returns the objects but one, beginning somewhere, forwards or backwards.
func (e *everything) all(from int, backwards bool, but string) (out []io.Closer) {
	for i := range everyName {
		if backwards {
			i = len(everyName) - 1 - i
		}
		if name := everyName[(from+i)%len(everyName)]; name != but {
			out = append(out, e.objects[name])
		}
	}
	return out
}

// TestCloseAll: whatever comes first, everything is closed and nothing is left; again is harmless.
func TestCloseAll(t *testing.T) {
	for from := range everyName { // TestClosingOrder has all orders
		e := openEverything(t)
		backwards := from%2 == 1
		all := append(e.all(from, backwards, ""), nil, (*cq.Queue)(nil), (*cq.WaitSet)(nil))
		for range 2 {
			if err := cq.CloseAll(all...); err != nil {
				t.Fatalf("from %d, backwards %v: %v", from, backwards, err)
			}
		}
		nothingLeft(t, e.d)
	}
}

// TestCloseAllButOne: an object that is not given keeps open what it is bound to, and what that is
// bound to in turn, and nothing else; closing the rest later works.
func TestCloseAllButOne(t *testing.T) {
	for _, one := range everyName {
		t.Run(one, func(t *testing.T) {
			e, want := openEverything(t), kept(one)
			err := cq.CloseAll(e.all(0, false, one)...)
			if busy := errors.Is(err, cq.ErrBusy); busy != (len(want) > 0) {
				t.Errorf("%v, though it keeps %v", err, want)
			}
			what := one[strings.LastIndex(one, " ")+1:]
			if one == "binding" {
				what = "endpoint"
			}
			if err != nil && !strings.Contains(strings.ToLower(err.Error()), what) {
				t.Errorf("%v, which does not name a %s", err, what)
			}
			for name, o := range e.objects {
				if name == one {
					continue
				}
				if busy := errors.Is(o.Close(), syscall.EBUSY); busy != want[name] {
					t.Errorf("%s stays open: %v, want %v", name, busy, want[name])
				}
			}
			must(t, cq.CloseAll(e.all(0, false, "")...))
			nothingLeft(t, e.d)
		})
	}
}

// TestCloseAllWithLoans: entries that are handed out keep the queue and what it is bound to, and
// nothing else.
func TestCloseAllWithLoans(t *testing.T) {
	e := openEverything(t)
	must(t, e.objects["writer"].(*cq.Writer).Post(&cq.Entry{}))
	if es, err := e.q.Peek(1); err != nil || len(es) != 1 {
		t.Fatal(es, err)
	}
	wantErr(t, "close", cq.CloseAll(e.all(0, false, "")...), cq.ErrBusy, syscall.EBUSY)
	if _, err := e.objects["counter"].(*cq.Counter).Read(); !errors.Is(err, cq.ErrClosed) {
		t.Errorf("the counter: %v", err)
	}
	must(t, e.q.Release(1))
	must(t, cq.CloseAll(e.all(0, false, "")...))
	nothingLeft(t, e.d)
}

// TestLaneOfFormerQueue: what a dead writer of a destroyed queue left makes way.
func TestLaneOfFormerQueue(t *testing.T) {
	d := openDir(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "again"), cq.Options{Size: 4, MaxLanes: 1})).Or(t)
	c := startChild(t, "writer", envQueue+"=again", envCount+"=1")
	_ = c.Line(t)
	must(t, q.Close())
	c.Kill()
	q = shmtest.Got(cq.Create(cq.Named(d, "again"), cq.Options{Size: 4, MaxLanes: 1})).Or(t)
	t.Cleanup(func() { closeQueue(t, q) })
	if w := attach(t, d, "again"); w.Lane() != 1 {
		t.Error("lane", w.Lane())
	}
}

// TestWakesAreOfBatches: a batch that wakes a sleeper on the descriptor and one on a set is one
// wake, and attaching is none. Whoever takes a lane over counts on.
func TestWakesAreOfBatches(t *testing.T) {
	const quiet = 16 // batches that find nobody asleep, so that more wakes would fit below them
	d, q := create(t, cq.Options{Size: 2 * quiet, Wait: cq.WaitFD})
	w := attach(t, d, q.Name())
	post(t, w, 0, quiet)
	must(t, w.Close())
	drain(t, q)
	s := shmtest.Have(cq.NewWaitSet(d, cq.WaitSetOptions{Wait: cq.WaitFD})).In(t)
	must(t, s.Add(q))
	defer func() { must(t, s.Remove(q)) }()
	arm := func() {
		for q.TryWait() != nil || s.TryWait() != nil {
			_ = drain(t, q)
		}
	}
	arm()
	w = shmtest.Have(cq.Attach(t.Context(), cq.Named(d, q.Name()), cq.WriterOptions{})).In(t)
	before := w.Stats().Wakes
	for i := range uint64(3) {
		lane := show(t, d, q.Name()).Lanes[1]
		if got := w.Stats(); got.Wakes != before+i || *lane.Wakes != before+i ||
			*lane.Publishes != quiet+i {
			t.Fatalf("after %d: %+v, %+v", i, got, lane)
		}
		arm()
		must(t, w.Post(&cq.Entry{}))
	}
	must(t, w.Close())
	if got := attach(t, d, q.Name()).Stats(); got.Wakes != before+3 || got.Publishes != quiet+3 {
		t.Errorf("the next one begins with %+v", got)
	}
	if before > 1 { // the first of all may have found the reader asleep
		t.Errorf("%d wakes before anybody slept", before)
	}
}

// TestCheckHeldYoung: an object may be unfinished as long as its file is young. What it says itself
// of its age, or that nobody finished it, is no excuse.
func TestCheckHeldYoung(t *testing.T) {
	umem := kind.UMEM{Frames: 2, ChunkBytes: 2048, HeadroomBytes: 64}
	obj := shmtest.Have(shm.CreateMemfd(umem.Spec("umem"), nil)).In(t)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", obj.FD()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	page := obj.Bytes()[:4096]
	now := time.Duration(0)
	check := func(what string, created, born time.Duration, want string) {
		t.Helper()
		for {
			began := time.Now()
			binary.LittleEndian.PutUint64(page[0x78:], uint64(spin.Now()+int64(created)))
			binary.LittleEndian.PutUint32(page[0x980:], crc32.Checksum(page[:0x980],
				crc32.MakeTable(crc32.Castagnoli)))
			all, err := inspect.CheckHeld([]inspect.Held{{Name: "held", Path: "held", FD: fd, Memfd: true,
				Born: time.Now().Add(born)}}, nil)
			if time.Since(began) > time.Second/2 { // it is not young any more
				continue
			}
			if err != nil || len(all) != 1 {
				t.Fatalf("%s: %+v, %v", what, all, err)
			}
			got := ""
			for _, v := range all[0].Violations {
				got += v.Invariant
			}
			if got != want || all[0].Undecided != (want == "") {
				t.Errorf("%s: undecided %v, %+v, want %s", what, all[0].Undecided, all[0].Violations,
					want)
			}
			return
		}
	}
	check("just made", now, now, "")
	check("two seconds old", -2*time.Second, now, "object.seals")
	check("yet to be made", time.Hour, now, "object.seals")
	check("an old file", now, -time.Hour, "object.seals")
	check("a file of tomorrow", now, 24*time.Hour, "object.seals")

	binary.LittleEndian.PutUint64(page[0xa00:], 0)
	check("being made", now, now, "")
	check("being made for an hour", now, -time.Hour, "header.state")
	check("being made tomorrow", now, 24*time.Hour, "header.state")
	binary.LittleEndian.PutUint64(page[0xa00:], 1)
}

// TestResetsAreCounted: what TryWait costs shows in the statistics, and only there.
func TestResetsAreCounted(t *testing.T) {
	d := openDir(t)
	for _, wait := range []cq.WaitObject{cq.WaitUnspec, cq.WaitFD} {
		q := shmtest.Got(cq.Create(cq.Named(d, "resets"), cq.Options{Wait: wait})).Or(t)
		if n := q.Stats().Resets; n != 0 {
			t.Errorf("%v: %d before the first TryWait", wait, n)
		}
		if wait == cq.WaitFD {
			must(t, q.TryWait())
			if q.Stats().Resets == 0 {
				t.Error("TryWait made system calls that are not counted")
			}
		}
		must(t, q.Close())
	}
}

// TestCloseEndsWaits closes a queue under goroutines that block in it, in every way to block.
func TestCloseEndsWaits(t *testing.T) {
	kinds := map[string]func(*cq.Queue) error{
		"timeout": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1)
			return err
		},
		"context": func(q *cq.Queue) error {
			_, err := cq.ReadContext(t.Context(), q, make([]cq.Msg, 1), cq.ReadOptions{})
			return err
		},
		"threshold": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1, 3)
			return err
		},
		"peek": func(q *cq.Queue) error {
			_, err := q.PeekContext(t.Context(), 1)
			return err
		},
	}
	for name, block := range kinds {
		t.Run(name, func(t *testing.T) {
			eachWait(t, func(t *testing.T, o cq.Options) {
				for _, waiters := range []int{1, 3} {
					o.Shared = waiters > 1
					d, q := create(t, o)
					w := attach(t, d, q.Name())
					var all sync.WaitGroup
					var wrong atomic.Value
					for range waiters {
						all.Go(func() {
							if err := block(q); err != cq.ErrClosed {
								wrong.Store(err)
							}
						})
					}
					time.Sleep(3 * time.Millisecond)
					must(t, q.Close())
					all.Wait()
					if err := wrong.Load(); err != nil {
						t.Errorf("%d waiters: %v", waiters, err)
					}
					must(t, w.Close())
				}
			})
		})
	}
}

// TestCloseWaits: Close comes at any moment of a busy reader and a busy writer, and neither sees
// memory that is gone.
func TestCloseWaits(t *testing.T) {
	shmtest.Long(t)
	for range 25 {
		d, q := create(t, cq.Options{Size: 8, Spin: -1})
		w := attach(t, d, q.Name())
		var all sync.WaitGroup
		all.Go(func() {
			for w.Post(&cq.Entry{}) != cq.ErrClosed {
			}
		})
		all.Go(func() {
			dst := make([]cq.Msg, 3)
			for {
				if _, err := sread(q, dst, time.Microsecond); err == cq.ErrClosed {
					return
				}
			}
		})
		all.Go(func() {
			for q.Signal() == nil {
				_ = q.Stats()
				_ = w.Stats()
			}
		})
		time.Sleep(100 * time.Microsecond)
		all.Go(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		must(t, q.Close())
		all.Wait()
	}
}

// TestCloseWithLoans: entries that are handed out keep the queue open, and working.
func TestCloseWithLoans(t *testing.T) {
	for name, end := range map[string]func(*cq.Queue) error{"close": (*cq.Queue).Close,
		"detach": (*cq.Queue).Detach} {
		_, q := create(t, cq.Options{Size: 4})
		w := shmtest.Got(q.Writer()).Or(t)
		post(t, w, 0, 3)
		must(t, w.Close())
		es := shmtest.Got(q.Peek(2)).Or(t)
		wantErr(t, name, end(q), cq.ErrBusy, syscall.EBUSY)
		must(t, q.Release(1))
		wantErr(t, name, end(q), cq.ErrBusy)
		if es[1].Context != 1 {
			t.Error("the entry is gone")
		}
		if _, err := q.Peek(1); err != nil {
			t.Errorf("the queue works on: %v", err)
		}
		must(t, q.Release(2))
		must(t, end(q))
		if name == "detach" {
			d := openDir(t)
			q := shmtest.Got(cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})).Or(t)
			must(t, q.Close())
		}
	}
}

// TestRefusedCloseDisturbsNobody: a goroutine that waits does not notice a Close that fails.
func TestRefusedCloseDisturbsNobody(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Shared: true, Spin: -1})
	w := attach(t, d, q.Name())
	post(t, w, 0, 1)
	shmtest.Got(q.Peek(1)).Or(t)
	end := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := q.Peek(1); err != cq.ErrWouldBlock {
				end <- err
				return
			}
			if ctx.Err() != nil {
				end <- nil
				return
			}
		}
	}()
	for range 200 {
		wantErr(t, "close", q.Close(), cq.ErrBusy)
	}
	cancel()
	if err := <-end; err != nil {
		t.Errorf("somebody saw %v", err)
	}
	must(t, q.Release(1))
}
