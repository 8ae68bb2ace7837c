package cq_test

import (
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
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
	_, err = channel.GetEvent(soon(t), cq.WaitOptions{})
	must(t, err)
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
	for from := range everyName {
		for _, backwards := range []bool{false, true} {
			e := openEverything(t)
			all := append(e.all(from, backwards, ""), nil, (*cq.Queue)(nil), (*cq.WaitSet)(nil))
			for range 2 {
				if err := cq.CloseAll(all...); err != nil {
					t.Fatalf("from %d, backwards %v: %v", from, backwards, err)
				}
			}
			nothingLeft(t, e.d)
		}
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
