package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
)

// Peers that live, break no rule, and do not go on: they hold what is theirs alone.

var connWindow4096 = []byte{0, 16, 0, 0, 0, 0, 0, 0}

// holder is an intruder that dials a server and examines little of what comes.
func holder(t *testing.T, o fabric.Options) *intruder {
	t.Helper()
	e := &intruder{end: opened(t, "holder", o)}
	e.to = e.knows(t, "server")
	return e
}

// hears waits for the next message, whatever it says, and keeps its first word.
func (e *intruder) hears(t *testing.T) cq.Entry {
	t.Helper()
	buf := make([]byte, 64)
	must(t, e.RecvMsg(&fabric.Msg{Buf: buf, Addr: fabric.Anybody, Context: 1,
		Flags: cq.FlagTagged, Ignore: ^uint64(0)}))
	c := shmtest.Got(e.await(t, 1)).Or(t)
	e.heard = binary.LittleEndian.Uint64(buf)
	return c
}

// TestListenHeld: who asks for as many connections as can wait, and opens none, keeps nobody else
// out, and has less than before.
func TestListenHeld(t *testing.T) {
	d := directory(t)
	l := listens(t, d, "server")
	e := holder(t, fabric.Options{})
	for i := range uint64(127) {
		must(t, e.say(said{1, (i + 1) << 32, connWindow4096}, 0))
	}
	must(t, e.say(said{1, 128 << 32, connWindow4096}, 2))
	shmtest.Got(e.await(t, 2)).Or(t)
	for range 3 {
		c := dials(t, d, "server")
		writes(t, c, "let in")
		reads(t, accepts(t, l), "let in")
	}
	closed := 0
	for range 129 { // the answers, and what was closed of them
		if e.hears(t).Tag&0xff == 8 {
			closed++
		}
	}
	if closed == 0 {
		t.Error("it has all that it asked for")
	}
}

// TestDialHeld: one that answers no dial is asked so often, and then no more.
func TestDialHeld(t *testing.T) {
	const most = 128
	e := opened(t, "server", fabric.Options{})
	scribble(t, e, "server").page.Accepts.Store(1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, most)
	for range most {
		go func() {
			_, err := fabric.Dial(ctx, e.d, "server")
			done <- err
		}()
	}
	shmtest.Eventually(t, "all dials", func() bool {
		e.steps(t)
		return e.Stats().Stored == most
	})
	cancel()
	for range most {
		failsWith(t, "a dial", <-done, context.Canceled)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := fabric.Dial(ctx, e.d, "server")
	failsWith(t, "one more", err, syscall.ECONNREFUSED)
}

// TestCreditHeld: who sends on, and does not look what it may send, has nobody remember more of
// that than the last.
func TestCreditHeld(t *testing.T) {
	const rounds, part = 200, 32 << 10
	l := listens(t, directory(t), "server")
	e := holder(t, fabric.Options{Window: 4096, Chunks: 32})
	must(t, e.say(said{1, 1 << 32, connWindow4096}, 0))
	e.number = e.hears(t).Data
	must(t, e.say(said{4, 0, nil}, 0))
	c := accepts(t, l)
	for range rounds { // half a window each
		for range 4 {
			must(t, e.say(said{5, 0, make([]byte, part)}, 0))
		}
		shmtest.Got(io.ReadFull(c, make([]byte, 4*part))).Or(t)
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	n, last := 0, uint64(0)
	for {
		m := e.hears(t)
		if m.Tag&0xff == 8 {
			break
		}
		n, last = n+1, m.Data
	}
	if want := uint64(rounds*4*part + 256<<10); n > 100 || last != want {
		t.Errorf("%d times it was told what it may send, at last %d, want %d", n, last, want)
	}
	must(t, errors.Join(<-closed, e.say(said{8, 0, nil}, 0)))
}
