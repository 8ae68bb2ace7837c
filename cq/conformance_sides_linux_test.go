package cq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// side is what each of two parties has: two queues on a channel, and a writer to each of the two of
// the other party.
type side struct {
	c  *cq.Channel
	qs [2]*cq.Queue
	ws [2]*cq.Writer
}

// SideArgs is something for a side to do.
type SideArgs struct {
	How    string
	Prefix string // of the names of two queues
	N      int
}

// SideReply is what came of it.
type SideReply struct {
	Queues   []int // that there were events of, in order
	Contexts []uint64
}

// Side does what one party can. It serves the other process, and this one by a plain call.
func (p *Peer) Side(a SideArgs, reply *SideReply) (err error) {
	switch a.How {
	case "open":
		p.side, err = openSide(p.d, a.Prefix)
	case "connect":
		err = p.side.connect(p.d, a.Prefix)
	case "answer":
		for range a.N {
			if err = p.side.answer(reply); err != nil {
				return err
			}
		}
	case "idle":
		if ev, err := p.side.c.TryGetEvent(); !errors.Is(err, cq.ErrWouldBlock) {
			return fmt.Errorf("an event of %v: %w", ev.Context, err)
		}
	case "close":
		err = p.side.close()
	}
	return err
}

func openSide(d *shm.Dir, prefix string) (s *side, err error) {
	s = &side{}
	if s.c, err = cq.NewChannel(d); err != nil {
		return nil, err
	}
	for i := range s.qs {
		o := cq.Options{Size: 8, UserContext: i}
		if s.qs[i], err = cq.Create(cq.Named(d, fmt.Sprint(prefix, i)), o); err != nil {
			return nil, err
		}
		if err = errors.Join(s.c.Attach(s.qs[i]), s.c.RequestNotify(s.qs[i], cq.NotifyAny)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *side) connect(d *shm.Dir, prefix string) (err error) {
	for i := range s.ws {
		s.ws[i], err = cq.Attach(context.Background(), cq.Named(d, fmt.Sprint(prefix, i)),
			cq.WriterOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// get takes one event and all entries of the queue that it names, and of no other.
func (s *side) get() (at int, got []uint64, err error) {
	ev, err := getEvent(s.c, tooLong)
	if err != nil {
		return -1, nil, err
	}
	at = slices.Index(s.qs[:], ev.Queue)
	if ev.Context != at {
		return at, nil, fmt.Errorf("an event of queue %d has context %v", at, ev.Context)
	}
	if err := errors.Join(s.c.Ack(ev.Queue, 1), s.c.RequestNotify(ev.Queue,
		cq.NotifyAny)); err != nil {
		return at, nil, err
	}
	dst := make([]cq.Context, 8)
	n, err := cq.Read(ev.Queue, dst)
	return at, contexts(dst[:n]), err
}

// answer posts what it gets, plus answerBase, to the other party's queue of the same number.
func (s *side) answer(reply *SideReply) error {
	at, got, err := s.get()
	reply.Queues = append(reply.Queues, at)
	reply.Contexts = append(reply.Contexts, got...)
	for _, c := range got {
		err = errors.Join(err, s.ws[at].Post(&cq.Entry{Context: c + answerBase}))
	}
	return err
}

const answerBase = 1000

func (s *side) close() (err error) {
	for i := range s.qs {
		err = errors.Join(err, s.ws[i].Close(), s.c.Detach(context.Background(), s.qs[i]),
			s.qs[i].Close())
	}
	return errors.Join(err, s.c.Close())
}

// conformSides runs a case for two parties, in one process and in two. there has the other party do
// something.
func conformSides(t *testing.T, name string,
	f func(t *testing.T, here *side, there func(SideArgs) SideReply)) {
	t.Helper()
	p := peerOf(t)
	t.Run(name, func(t *testing.T) {
		for _, at := range sites[:2] { // each party creates queues that the other one opens by name
			t.Run(at.String(), func(t *testing.T) {
				shmtest.Conforms(t)
				d := openDir(t)
				near := &Peer{d: d}
				there := func(a SideArgs) (reply SideReply) {
					if at.far {
						p.call(t, "Side", a, &reply)
					} else if err := near.Side(a, &reply); err != nil {
						t.Error(err)
					}
					return reply
				}
				here := shmtest.Got(openSide(d, "here-")).Or(t)
				_ = there(SideArgs{How: "open", Prefix: "there-"})
				must(t, here.connect(d, "there-"))
				_ = there(SideArgs{How: "connect", Prefix: "here-"})
				f(t, here, there)
				_ = there(SideArgs{How: "close"})
				must(t, here.close())
			})
		}
	})
}

// TestConformanceChannelSides: both parties of a conversation wait on a channel of their own.
func TestConformanceChannelSides(t *testing.T) {
	t.Parallel()
	conformSides(t, "both-sides", func(t *testing.T, here *side, there func(SideArgs) SideReply) {
		turns := []int{0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 0}
		var reply SideReply
		done := later(func() { reply = there(SideArgs{How: "answer", N: len(turns)}) })
		for i, want := range turns {
			must(t, here.ws[want].Post(&cq.Entry{Context: uint64(i)}))
			at, got, err := here.get()
			if at != want || err != nil || !slices.Equal(got, []uint64{uint64(i) + answerBase}) {
				t.Errorf("turn %d: queue %d, %v, %v; want queue %d", i, at, got, err, want)
			}
		}
		done()
		if !slices.Equal(reply.Queues, turns) {
			t.Errorf("the other side had events of %v, want %v", reply.Queues, turns)
		}
		wantContexts(t, "the other side", reply.Contexts, upTo(0, uint64(len(turns)))...)
		noEvent(t, "no more than that", here.c)
	})
	conformSides(t, "nobody-else", func(t *testing.T, here *side, there func(SideArgs) SideReply) {
		for i := range here.ws {
			must(t, here.ws[i].Post(&cq.Entry{Context: 5}))
			noEvent(t, "an event of the other process's queue", here.c)
			reply := there(SideArgs{How: "answer", N: 1})
			if !slices.Equal(reply.Queues, []int{i}) {
				t.Errorf("events of %v there, want %d", reply.Queues, i)
			}
			there(SideArgs{How: "idle"})
			at, got, err := here.get()
			must(t, err)
			if at != i {
				t.Errorf("an event of queue %d, want %d", at, i)
			}
			wantContexts(t, "answer", got, 5+answerBase)
			noEvent(t, "no other event", here.c)
		}
	})
}

// takers are the ways to read. Each takes some of what comes next, all of it with the mark of what
// comes again, which makes a context negative, or all without.
var takers = map[string]func(t *testing.T, q *cq.Queue) []int{
	"read": func(t *testing.T, q *cq.Queue) (got []int) {
		dst := make([]cq.Msg, 8)
		n := shmtest.Got(cq.Read(q, dst)).Or(t)
		for _, e := range dst[:n] {
			got = append(got, marked(t, q, e.Context, e.Flags))
		}
		return got
	},
	"read-without-flags": func(t *testing.T, q *cq.Queue) (got []int) {
		for _, c := range read(t, q, 8) {
			got = append(got, sign(q)*int(c))
		}
		return got
	},
	"read-entries": func(t *testing.T, q *cq.Queue) []int {
		dst := make([]cq.Entry, 8)
		n := shmtest.Got(cq.Read(q, dst)).Or(t)
		return allMarked(t, q, dst[:n])
	},
	"peek": func(t *testing.T, q *cq.Queue) []int {
		es := shmtest.Got(q.Peek(8)).Or(t)
		defer func() { must(t, q.Release(len(es))) }()
		return allMarked(t, q, es)
	},
	"peek-in-two": func(t *testing.T, q *cq.Queue) []int {
		first := shmtest.Got(q.PeekContext(t.Context(), 1)).Or(t)
		rest, err := q.Peek(8)
		if err != cq.ErrWouldBlock {
			must(t, err)
		}
		defer func() { must(t, q.Release(1+len(rest))) }()
		return append(allMarked(t, q, first), allMarked(t, q, rest)...)
	},
	"entries": func(t *testing.T, q *cq.Queue) (got []int) {
		for e, err := range q.Entries(0) {
			must(t, err)
			got = append(got, marked(t, q, e.Context, e.Flags))
		}
		return got
	},
}

func allMarked(t *testing.T, q *cq.Queue, es []cq.Entry) (got []int) {
	for _, e := range es {
		got = append(got, marked(t, q, e.Context, e.Flags))
	}
	return got
}

// marked checks that an entry says of itself what the queue says of the last call.
func marked(t *testing.T, q *cq.Queue, context uint64, flags cq.Flags) int {
	t.Helper()
	if again := flags&cq.FlagRedelivered != 0; again != q.Redelivered() {
		t.Errorf("%d: marked %v, redelivered %v", context, again, q.Redelivered())
	}
	return sign(q) * int(context)
}

func sign(q *cq.Queue) int {
	if q.Redelivered() {
		return -1
	}
	return 1
}

// TestConformanceSuccessor is what the next reader gets after one that was killed, or left.
func TestConformanceSuccessor(t *testing.T) {
	t.Parallel()
	conformOnce(t, "what-was-peeked-is-marked", peekedIsMarked)
	conformOnce(t, "what-was-peeked-is-marked-in-events", func(t *testing.T) {
		d := openDir(t)
		e, err := cq.CreateEvents(cq.Named(d, "events"), cq.EventOptions{Size: 8, Write: true})
		must(t, err)
		writeEvents(t, e, 0, 2)
		shmtest.Got(e.WriteErr(&cq.EventError{Context: 2, Err: cq.EOther})).Or(t)
		shmtest.Got(e.WriteErr(&cq.EventError{Context: 3, Err: cq.EOther})).Or(t)
		shmtest.Got(e.Read(&cq.Event{}, cq.FlagPeek)).Or(t)
		e = succeed(t, e)
		for i := range uint64(2) {
			var ev cq.Event
			if _, err := e.Read(&ev, 0); err != nil || ev.Context != i || ev.Redelivered != (i == 0) {
				t.Errorf("event %d: %+v, %v", i, ev, err)
			}
		}
		shmtest.Got(e.ReadErr(&cq.EventError{}, cq.FlagPeek)).Or(t)
		e = succeed(t, e)
		for i := range uint64(2) {
			var ev cq.EventError
			if _, err := e.ReadErr(&ev, 0); err != nil || ev.Context != 2+i || ev.Redelivered != (i == 0) {
				t.Errorf("error %d: %+v, %v", i, ev, err)
			}
		}
		must(t, e.Close())
	})
}

// succeed has the event queue's reader leave and another one come.
func succeed(t *testing.T, e *cq.EventQueue) *cq.EventQueue {
	t.Helper()
	name := e.Name()
	must(t, e.Detach())
	e = shmtest.Got(cq.OpenEvents(cq.Named(openDir(t), name), cq.EventOptions{Existing: true})).Or(t)
	return e
}

// peekedIsMarked kills a reader of many queues that had three entries of one lane in its hands and
// left two, in each of them, and reads that while another lane has two more, or none is there. What
// may have been seen comes marked, and never in one call with what was not.
func peekedIsMarked(t *testing.T) {
	type left struct {
		way   string
		first int // the lane of the held ones: a read begins with it, or with the other one
		o     cq.Options
		ws    []*cq.Writer
	}
	d := openDir(t)
	all := map[string]*left{}
	for way := range takers {
		for i, lanes := range []int{1, 2, 2} {
			for _, shared := range []bool{false, true} {
				name := fmt.Sprint(way, "-", i, shared)
				q := shmtest.Got(cq.Create(cq.Named(d, name), cq.Options{Size: 8})).Or(t)
				l := &left{way: way, first: i % lanes, o: cq.Options{Existing: true, Shared: shared}}
				for range lanes {
					l.ws = append(l.ws, attach(t, d, name))
				}
				must(t, q.Detach())
				all[name] = l
			}
		}
	}
	names := slices.Sorted(maps.Keys(all))
	c := startReader(t, namedSite, envQueue+"="+strings.Join(names, "/"))
	for i, name := range names {
		c.expect("queue", i, "")
		post(t, all[name].ws[all[name].first], 0, 6)
		c.expect("peek", 4, "0 1 2 3")
		c.expect("release", 1, "")
	}
	c.Kill()
	for name, l := range all {
		lanes := map[bool][]int{}
		if len(l.ws) > 1 {
			post(t, l.ws[1-l.first], 10, 12)
		}
		q := shmtest.Got(cq.Open(cq.Named(d, name), l.o)).Or(t)
		for n := 3 + 2*len(l.ws); n > 0; {
			got := takers[l.way](t, q)
			for _, c := range got {
				lanes[c >= 10] = append(lanes[c >= 10], c)
			}
			n -= len(got)
		}
		if !slices.Equal(lanes[false], []int{-1, -2, -3, 4, 5}) ||
			len(l.ws) > 1 && !slices.Equal(lanes[true], []int{10, 11}) {
			t.Errorf("%s: %v", name, lanes)
		}
		closeQueue(t, q)
		for _, w := range l.ws {
			must(t, w.Close())
		}
	}
}

// TestConformanceCQVisibility is the target side of completion semantics: memory that a writer
// stored before it posted is seen by whoever read the entry.
func TestConformanceCQVisibility(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]int{"payload-before-completion": 1, "earlier-entries-too": 5} {
		spin := map[int]time.Duration{1: -1, 5: time.Millisecond}[every]
		conform(t, name, cq.Options{Size: litmusSize, Spin: spin}, func(t *testing.T, r *rig) {
			litmus(t, r, every)
		})
	}
}

const (
	litmusSize  = 16
	litmusCount = 1_500
	litmusBytes = 192 // of payload for each entry: three lines
)

// litmus has a writer fill memory and post, and checks that memory for every entry that came. Only
// every so many-th payload has an entry of its own.
func litmus(t *testing.T, r *rig, every int) {
	path := filepath.Join(openTempDir(t), "payload")
	must(t, os.WriteFile(path, make([]byte, 2*litmusSize*every*litmusBytes), 0o600))
	must(t, os.Chmod(path, 0o666)) // another user's writer stores there
	a := LitmusArgs{Queue: r.address(), Path: path, Every: every}
	done, ended := make(chan struct{}), error(nil)
	var near *cq.Writer
	handed := func() {}
	if r.far {
		handed = r.hand(t)
	} else {
		near = r.attach(t).(*nearWriter).Writer
	}
	go func() {
		defer close(done)
		if r.far {
			var reply Wire
			r.p.call(t, "Litmus", a, &reply)
			ended = reply.err()
		} else {
			ended = runLitmus(near, a)
		}
	}()
	handed()
	defer func() {
		_ = r.q.Close() // should the writer still wait for room
		<-done
	}()
	payload := mapPayload(t, path)
	dst := make([]cq.Context, 7)
	for next := uint64(every - 1); next < litmusCount; {
		n := shmtest.Got(sread(r.q, dst, tooLong)).Or(t)
		for _, e := range dst[:n] {
			if e.Context != next {
				t.Fatalf("entry %d, want %d", e.Context, next)
			}
			for i := e.Context + 1 - uint64(every); i <= e.Context; i++ {
				for at, got := range words(payload, i) {
					if got != i {
						t.Fatalf("entry %d: word %d of payload %d is %d", e.Context, at, i, got)
					}
				}
			}
			next += uint64(every)
		}
	}
	<-done
	must(t, ended)
}

// LitmusArgs say what to post and where the payload lies.
type LitmusArgs struct {
	Queue, Path string
	Every       int
}

// Litmus is the writer's part, in the other process.
func (p *Peer) Litmus(a LitmusArgs, reply *Wire) error {
	w, err := p.writer(a.Queue)
	if err == nil {
		err = runLitmus(w, a)
	}
	*reply = toWire(err)
	return nil
}

// runLitmus posts and closes the writer.
func runLitmus(w *cq.Writer, a LitmusArgs) error {
	defer w.Close()
	mem, err := openPayload(a.Path)
	if err != nil {
		return err
	}
	defer unix.Munmap(mem)
	for i := range uint64(litmusCount) {
		slot := payloadOf(mem, i)
		for at := 0; at < litmusBytes; at += 8 {
			binary.LittleEndian.PutUint64(slot[at:], i)
		}
		if (i+1)%uint64(a.Every) != 0 {
			continue
		}
		for err = w.Post(&cq.Entry{Context: i}); err == cq.ErrFull; err = w.Post(&cq.Entry{Context: i}) {
			runtime.Gosched()
		}
		if err != nil {
			return err
		}
		if i%499 == 0 {
			time.Sleep(100 * time.Microsecond) // the reader falls asleep
		}
	}
	return nil
}

func openPayload(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func mapPayload(t *testing.T, path string) []byte {
	t.Helper()
	mem := shmtest.Got(openPayload(path)).Or(t)
	t.Cleanup(func() { must(t, unix.Munmap(mem)) })
	return mem
}

// payloadOf is what entry i brings. There is room for twice what the lane holds, so that nothing is
// overwritten that the reader still has to look at.
func payloadOf(mem []byte, i uint64) []byte {
	at := i % uint64(len(mem)/litmusBytes) * litmusBytes
	return mem[at : at+litmusBytes]
}

func words(mem []byte, i uint64) []uint64 {
	slot := payloadOf(mem, i)
	var out []uint64
	for at := 0; at < litmusBytes; at += 8 {
		out = append(out, binary.LittleEndian.Uint64(slot[at:]))
	}
	return out
}
