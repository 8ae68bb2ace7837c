package cq_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

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
	Pending  [2]bool
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
	case "pending":
		for i, q := range p.side.qs {
			reply.Pending[i] = p.side.c.Pending(q)
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
		if s.qs[i], err = cq.Create(d, fmt.Sprint(prefix, i), o); err != nil {
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
		s.ws[i], err = cq.Attach(context.Background(), d, fmt.Sprint(prefix, i), cq.WriterOptions{})
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
	p := &peer{t: t}
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
				here, err := openSide(d, "here-")
				must(t, err)
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
			want := [2]bool{i == 0, i == 1}
			if got := there(SideArgs{How: "pending"}).Pending; got != want {
				t.Errorf("events are pending there for %v, want %v", got, want)
			}
			noEvent(t, "an event of the other process's queue", here.c)
			reply := there(SideArgs{How: "answer", N: 1})
			if !slices.Equal(reply.Queues, []int{i}) {
				t.Errorf("events of %v there, want %d", reply.Queues, i)
			}
			if here.c.Pending(here.qs[1-i]) || there(SideArgs{How: "pending"}).Pending != [2]bool{} {
				t.Error("an event of a queue to which nothing was posted")
			}
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
