package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/shm"
)

// Users of a run. None of them needs to exist.
const (
	attackerUID = 65534
	honestUID   = 65533
	newcomerUID = 65532
)

func (c *child) path(name string) string { return filepath.Join(c.Dir, name) }

// everybody is who may meet whom in a run: the lists are not what is attacked here.
func everybody() *shm.AllowList {
	return &shm.AllowList{UIDs: []int{0, attackerUID, honestUID, newcomerUID}}
}

func (c *child) writerOptions() cq.WriterOptions {
	o := cq.WriterOptions{Trust: c.s.trust}
	if o.Trust == cq.CrossUser {
		o.Allow = everybody()
	}
	return o
}

// dial connects to a socket of the run, until the run ends.
func (c *child) dial(name string) (*net.UnixConn, error) {
	for {
		conn, err := c.line("unix", name)
		if err == nil || c.ctx.Err() != nil {
			return conn, err
		}
		time.Sleep(time.Millisecond)
	}
}

// limited is a context for one meeting.
func limited(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// seal is what says that an entry is one that this honest writer wrote as its nth. Attackers cannot
// make it up, and have nowhere to read it.
func seal(key, who, n uint64) uint64 {
	x := key
	for _, v := range []uint64{who, n} {
		x = wire.Mix((x ^ v) + 0x9e3779b97f4a7c15)
	}
	return x
}

const honestFlags = cq.FlagSend | cq.FlagMsg

func honestEntry(key, who, n uint64) cq.Entry {
	s := seal(key, who, n)
	return cq.Entry{Context: who, Flags: honestFlags, Len: s >> 40, Buf: shm.Ref(^s), Data: s, Tag: n,
		Src: cq.From(cq.Addr(s >> 1))}
}

// verifier checks what honest writers wrote. One goroutine has it.
type verifier struct {
	c    *child
	next map[uint64]uint64
}

func (c *child) verifier() *verifier { return &verifier{c: c, next: map[uint64]uint64{}} }

// take looks at a private copy of an entry.
func (w *verifier) take(e *cq.Entry) {
	who, n := e.Context, e.Tag
	if w.c.Spoil != "" {
		w.c.spoilt()
	}
	want := honestEntry(w.c.Key, who, n)
	want.Meta = e.Meta
	if *e != want {
		add(&w.c.did.Foreign, 1)
		return
	}
	w.number(who, n)
}

// message looks at a private copy of a message.
func (w *verifier) message(buf []byte) {
	if len(buf) == honestText {
		who, n := binary.LittleEndian.Uint64(buf), binary.LittleEndian.Uint64(buf[8:])
		if bytes.Equal(buf, honestMessage(w.c.Key, who, n)) {
			w.number(who, n)
			return
		}
	}
	add(&w.c.did.Foreign, 1)
}

// honestMessage is what a newcomer sends as its nth.
func honestMessage(key, who, n uint64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, who)
	b = binary.LittleEndian.AppendUint64(b, n)
	for x := seal(key, who, n); len(b) < honestText; x = seal(key, x, n) {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}

func (w *verifier) number(who, n uint64) {
	if w.c.Spoil == spoilLose && n == spoilAfter {
		return
	}
	if n != w.next[who] {
		w.c.broken(&w.c.did.BystanderLost, "writer %d: entry %d came, expected %d", who, n, w.next[who])
	}
	w.next[who] = n + 1
	add(&w.c.did.Seen, 1)
}

// poster is what somebody honest has who got in.
type poster struct {
	post  func(n uint64) error // one more, numbered
	empty func() bool          // everything is read, or completed
	close func() error
	// again says that only the next post has to get through: another process of the same user can eat
	// the hint that somebody must be woken, and a wire loses what it likes.
	again bool
}

// enters tries once to get in as the one with a number; nil has been done then.
type enters func(c *child, ctx context.Context, who uint64) (*poster, error)

// stays is a bystander: it posts until the run ends, with pauses in which readers fall asleep.
func (c *child) stays() error {
	ctx, cancel := limited(patience)
	defer cancel()
	w, err := c.s.honest(c, ctx, uint64(c.Index))
	if err != nil {
		return err
	}
	c.ready()
	post := c.posts(w, "the post of a bystander")
	for round := 0; c.ctx.Err() == nil; round++ {
		for range 1 + c.rnd.IntN(200) {
			if err := post(); err != nil {
				return fmt.Errorf("a bystander could not post: %w", err)
			}
		}
		time.Sleep(time.Duration(c.rnd.IntN(400)) * time.Microsecond)
		if round%16 == 0 {
			if err := c.read(w, post); err != nil {
				return err
			}
			time.Sleep(3 * time.Millisecond)
		}
	}
	if err := c.read(w, post); err != nil {
		return err
	}
	return w.close()
}

// posts returns what posts one after the other, as soon as there is room.
func (c *child) posts(w *poster, what string) func() error {
	n := uint64(0)
	return func() error {
		defer c.watch(what)()
		for {
			err := w.post(n)
			if err == nil {
				n++
				add(&c.did.Sent, 1)
			}
			if !full(err) {
				return err
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// read waits until everything is read.
func (c *child) read(w *poster, post func() error) error {
	defer c.watch("the reading of what is honest")()
	for i := 1; !w.empty(); i++ {
		if time.Sleep(200 * time.Microsecond); i%100 == 0 && w.again {
			if err := post(); err != nil {
				return err
			}
		}
	}
	return nil
}

// newcomersFirst is the number under which a newcomer first tries to get in. Each try has the next
// one: order is promised for one lane, and whom it tried may have closed it.
const newcomersFirst = 1 << 20

// fewestVisits is how often somebody new has to come during an attack.
const fewestVisits = 3

// newcomers come, post, and leave, until the run ends.
func (c *child) newcomers() error {
	c.ready()
	for who := uint64(newcomersFirst); c.ctx.Err() == nil; {
		w, in := c.letIn(&who)
		if !in {
			continue
		}
		if w != nil {
			if err := errors.Join(c.visit(w), w.close()); err != nil {
				c.broken(&c.did.KeptOut, "newcomer %d was let in and could not go on: %v", who, err)
			}
		}
		add(&c.did.Visits, 1)
		time.Sleep(time.Duration(c.rnd.IntN(3000)) * time.Microsecond)
	}
	return nil
}

// letIn tries to get in until the run ends. Time in which the machine stood still does not count.
func (c *child) letIn(who *uint64) (w *poster, in bool) {
	defer c.watch("a newcomer")()
	began, since, told := time.Now(), stage.Lifetime(), false
	for {
		*who++
		ctx, cancel := limited(keptBound)
		w, err := c.s.newcomer(c, ctx, *who)
		cancel()
		if took := stage.Lifetime() - since; took > keptBound && !told {
			told = true
			c.broken(&c.did.KeptOut, "newcomer %d was kept out for %v: %v", *who, took, err)
		}
		if err == nil {
			c.most(&c.did.KeptMostNs, uint64(time.Since(began)))
			return w, true
		}
		if c.ctx.Err() != nil || told { // whoever watches must not think that this is one call
			return nil, false
		}
		add(&c.did.TurnedAway, 1)
		time.Sleep(time.Millisecond)
	}
}

// line connects to a socket of the run, once.
func (c *child) line(network, name string) (*net.UnixConn, error) {
	return net.DialUnix(network, nil, &net.UnixAddr{Name: c.path(name), Net: network})
}

// visit posts some, which are read.
func (c *child) visit(p *poster) error {
	post := c.posts(p, "the post of a newcomer")
	for range 1 + c.rnd.IntN(200) {
		if err := post(); err != nil {
			return err
		}
	}
	return c.read(p, post)
}
