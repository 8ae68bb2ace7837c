package fabric_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

// moves moves all endpoints, so often that all is done that can be.
func moves(t *testing.T, es ...*end) {
	t.Helper()
	for range 100 {
		for _, e := range es {
			e.steps(t)
		}
	}
}

// TestDelivery: a send of this level completes when its bytes are in the buffer that was posted, or
// kept by the receiver; not before that is in a call. So what is sent after it shows them, though
// nobody is told of them.
func TestDelivery(t *testing.T) {
	shmtest.Conforms(t)
	const level = cq.FlagDeliveryComplete
	for _, n := range []int{8, 4 << 10, 100 << 10} {
		for _, how := range []string{"flag", "default", "reference"} {
			for _, expected := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d/%s/expected=%v", n, how, expected), func(t *testing.T) {
					o := fabric.Options{Pool: n}
					if how == "default" {
						o.TransmitFlags = level
					}
					a := opened(t, "a", o)
					b := opened(t, "b", fabric.Options{Selective: cq.FlagRecv})
					to := a.knows(t, "b")
					payload, buf, second := pattern(n), make([]byte, n), make([]byte, 1)
					if how == "reference" {
						payload = allocated(t, a, n)
					}
					recv := fabric.Msg{Buf: buf, Addr: fabric.Anybody}
					if expected {
						must(t, b.RecvMsg(&recv))
					}
					if how == "default" {
						must(t, a.Send(payload, to, 1))
					} else {
						must(t, a.SendMsg(&fabric.Msg{Buf: payload, Addr: to, Context: 1,
							Flags: level}))
					}
					if moves(t, a); len(a.completions(t)) > 0 {
						t.Fatal("delivered to one who did not call in")
					}
					moves(t, a, b)
					cs := a.completions(t)
					kept := n <= chunk && how != "reference" || n <= fabric.MaxInline
					if (len(cs) == 1) != (expected || kept) {
						t.Fatalf("delivered: %v", cs)
					}
					if !expected {
						must(t, b.RecvMsg(&recv))
						moves(t, a, b)
						cs = append(cs, a.completions(t)...)
					}
					if len(cs) != 1 || cs[0].Context != 1 || !bytes.Equal(buf, payload) {
						t.Fatalf("%+v, or other bytes", cs)
					}
					must(t, b.RecvMsg(&fabric.Msg{Buf: second, Addr: fabric.Anybody, Context: 2,
						Flags: cq.FlagCompletion}))
					must(t, a.Inject(second, to))
					if c := completes(t, b); c.Context != 2 {
						t.Errorf("it told of another: %+v", c)
					}
				})
			}
		}
	}
}

// completions takes those that there are.
func (e *end) completions(t *testing.T) []cq.Entry {
	t.Helper()
	var dst [128]cq.Entry
	n, err := cq.Read(e.q, dst[:])
	if err != nil && !errors.Is(err, cq.ErrWouldBlock) {
		t.Fatal(err)
	}
	return dst[:n]
}

// contexts are those of the completions that there are.
func (e *end) contexts(t *testing.T) (all []uint64) {
	t.Helper()
	for _, c := range e.completions(t) {
		all = append(all, c.Context)
	}
	return all
}

// TestMatch: a send of this level completes when its message has its receive, or is dropped, in
// the order of the matches, however it came and however long that takes.
func TestMatch(t *testing.T) {
	shmtest.Conforms(t)
	const level = cq.FlagMatchComplete
	for _, n := range []int{8, 4 << 10, 100 << 10, -1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			pool, length := 0, n
			if n < 0 {
				pool, length = 5*chunk, chunk
			}
			a := opened(t, "a", fabric.Options{TransmitFlags: level, Pool: pool})
			b := opened(t, "b", fabric.Options{})
			to := a.knows(t, "b")
			send := func(tag uint64) {
				payload := pattern(length)
				if pool > 0 {
					payload = allocated(t, a, length)
				}
				must(t, a.TSend(payload, to, tag, tag))
			}
			only := func(what string, want ...uint64) {
				t.Helper()
				moves(t, a, b)
				got := a.contexts(t)
				b.completions(t)
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("%s: %v completed, want %v", what, got, want)
				}
			}
			call := func(tag uint64, flags cq.Flags) {
				m := fabric.Msg{Addr: fabric.Anybody, Tag: tag, Context: 100,
					Flags: flags | cq.FlagTagged}
				if flags&(cq.FlagPeek|cq.FlagDiscard) == 0 {
					m.Buf = make([]byte, length)
				}
				must(t, b.RecvMsg(&m))
			}
			for tag := range uint64(4) {
				send(tag)
			}
			only("nobody receives")
			call(2, 0)
			only("the third", 2)
			call(1, cq.FlagPeek|cq.FlagClaim)
			only("one is kept")
			call(3, cq.FlagPeek|cq.FlagDiscard)
			only("one is dropped", 3)
			call(1, cq.FlagClaim|cq.FlagDiscard)
			only("what was kept is dropped", 1)
			must(t, b.TRecv(make([]byte, length), fabric.Anybody, 0, 0, 100))
			only("the first", 0)
			must(t, b.TRecv(make([]byte, length), fabric.Anybody, 4, 0, 100))
			send(4)
			only("expected", 4)
		})
	}
}

// TestManyMatches: more sends of this level than a row has bits complete in the order of their
// matches, which is that of nobody, and are not heard before their sender looks again: a receiver
// that closes has told of all. One that was cut short succeeds; one that has no receive fails.
func TestManyMatches(t *testing.T) {
	var err error
	const all = 100
	a := opened(t, "a", fabric.Options{TransmitFlags: cq.FlagMatchComplete})
	b := opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	for round := range 2 {
		for tag := range uint64(all) {
			for err = cq.ErrFull; err == cq.ErrFull; err = a.TSend([]byte("xy"), to, tag, tag) {
				moves(t, b)
			}
			must(t, err)
		}
		moves(t, a, b)
		if c := a.contexts(t); len(c) > 0 {
			t.Errorf("%v before any match", c)
		}
		for i := range uint64(all) {
			tag := (i*37 + 11) % all
			must(t, b.TRecv(make([]byte, 1), fabric.Anybody, tag, 0, tag))
			if round > 0 { // the sender looks at nothing
				continue
			}
			moves(t, a, b)
			if c := a.contexts(t); !slices.Equal(c, []uint64{tag}) {
				t.Fatalf("%v at the match of %d", c, tag)
			}
		}
		moves(t, a, b)
		if c := a.contexts(t); len(c) != all*round {
			t.Errorf("%d of %d", len(c), all*round)
		}
		for range all {
			fails(t, b) // each was cut short
		}
	}
	const last = 7
	for tag := range uint64(last) {
		must(t, a.TSend(nil, to, tag, tag))
	}
	for tag := range uint64(last - 1) {
		must(t, b.TRecv(nil, fabric.Anybody, last-1-tag, 0, tag))
	}
	must(t, b.Close())
	for tag := range uint64(last - 1) {
		if c := completes(t, a); c.Context != tag+1 {
			t.Errorf("%+v", c)
		}
	}
	if e := fails(t, a); e.Context != 0 || !errors.Is(&e, syscall.EPIPE) {
		t.Errorf("without a receive: %+v", e)
	}
}

// TestMatchOfFormer: what a receiver said of the lane before is not said of the next one.
func TestMatchOfFormer(t *testing.T) {
	b := opened(t, "b", fabric.Options{Peers: 1})
	for range 2 {
		a := opened(t, "a", fabric.Options{TransmitFlags: cq.FlagMatchComplete})
		to := a.knows(t, "b")
		must(t, a.Send(nil, to, 1))
		moves(t, a, b)
		if c := a.contexts(t); len(c) > 0 {
			t.Fatal("a match without a receive")
		}
		must(t, b.Recv(nil, 1))
		completes(t, b)
		completes(t, a)
		must(t, a.Close())
		moves(t, b)
	}
}

// TestMatchKilled: what a receiver had told of succeeds, though its sender looks when that one is
// dead; the rest fails, whether it had been examined or not.
func TestMatchKilled(t *testing.T) {
	for steps, want := range map[string]int{"": 0, "progress": 0, "progress receive": 1,
		"receive progress": 1, "progress receive discard receive": 3} {
		t.Run(steps, func(t *testing.T) {
			e, c, to := besideIdle(t)
			for i := range uint64(4) {
				flags := cq.FlagMatchComplete
				if i == 3 {
					flags = cq.FlagFence // it waits for the others
				}
				must(t, e.SendMsg(&fabric.Msg{Addr: to, Context: i, Flags: flags}))
			}
			for _, step := range strings.Fields(steps) {
				shmtest.Got(c.In.Write([]byte(step + "\n"))).Or(t)
				shmtest.Got(c.Out.ReadString('\n')).Or(t)
			}
			c.Kill()
			for i := range 4 {
				got, failed, err := e.next()
				must(t, err)
				if i < want && (failed.Err != 0 || got.Context != uint64(i)) ||
					i >= want && (failed.Context != uint64(i) ||
						failed.Err != cq.Errno(syscall.ECONNRESET)) {
					t.Errorf("send %d of %d: %+v, %+v", i, want, got, failed)
				}
			}
			nothingLeft(t, e, "main")
		})
	}
}

// TestFence: a send with a fence, and those behind it, go when all before it have completed. None
// is refused, whatever memory they are of. With level match it says that those before it have their
// receives too, and they say no more than what they were asked to.
func TestFence(t *testing.T) {
	shmtest.Conforms(t)
	for _, name := range []string{"b", "a"} {
		for _, level := range []cq.Flags{0, cq.FlagDeliveryComplete, cq.FlagMatchComplete} {
			t.Run(fmt.Sprint(name, "/", level), func(t *testing.T) {
				a := opened(t, "a", fabric.Options{Pool: 2 * chunk, Selective: cq.FlagRecv})
				b := a
				if name == "b" {
					b = opened(t, "b", fabric.Options{Selective: cq.FlagRecv})
				}
				to := a.knows(t, name)
				first, buf := pattern(100<<10), make([]byte, 100<<10)
				ref := allocated(t, a, 2*chunk)
				send := func(i int, payload []byte, flags cq.Flags) {
					t.Helper()
					must(t, a.SendMsg(&fabric.Msg{Buf: payload, Addr: to, Context: uint64(i),
						Tag: uint64(i), Flags: cq.FlagTagged | flags}))
				}
				recv := func(i int, buf []byte, flags cq.Flags) {
					t.Helper()
					must(t, b.RecvMsg(&fabric.Msg{Buf: buf, Addr: fabric.Anybody, Context: 100,
						Tag: uint64(i), Flags: cq.FlagTagged | flags}))
				}
				only := func(what string, stored uint64, want ...uint64) {
					t.Helper()
					moves(t, a, b)
					c := a.contexts(t)
					c = slices.DeleteFunc(c, func(i uint64) bool { return i == 4 }) // by reference
					if !slices.Equal(c, want) || b.Stats().Stored != stored {
						t.Errorf("%s: %v, want %v; %+v", what, c, want, b.Stats())
					}
				}
				open := cq.FlagMatchComplete // by what the first stays open
				send(0, nil, 0)
				send(1, first, open)
				send(2, []byte("fenced"), cq.FlagFence|level)
				small := []byte("small")
				send(3, small, cq.FlagInject)
				copy(small, "other")
				send(4, ref, 0)
				must(t, a.Free(ref))
				for i := range 50 {
					send(5+i, nil, 0)
				}
				only("the second is open", 2, 0)
				recv(1, buf, 0)
				moves(t, a, b)
				if level == cq.FlagMatchComplete {
					only("the first has no receive", 2, 1)
					recv(0, nil, 0)
					only("the fenced has no receive", 55, append([]uint64{3}, numbers(5, 55)...)...)
					recv(2, make([]byte, 9), 0)
					only("it has", 55, 2)
				} else {
					only("all before it have completed", 55, append([]uint64{1, 2, 3}, numbers(5, 55)...)...)
					recv(2, make([]byte, 9), 0)
				}
				if !bytes.Equal(buf, first) {
					t.Error("other bytes came before the fence")
				}
				got, gotRef := make([]byte, 5), make([]byte, 2*chunk)
				recv(3, got, 0)
				recv(4, gotRef, 0)
				moves(t, a, b)
				if string(got) != "small" || !bytes.Equal(gotRef, pattern(2*chunk)) {
					t.Errorf("%q, or other bytes by reference", got)
				}
				poolAccount(t, a, 2*chunk, 0, 0)
			})
		}
	}
}

// TestFencedOfPool: of short sends of the pool that wait behind a fence more go at once than a row
// has bits. Those beyond go by their headers alone, and their bytes come all the same.
func TestFencedOfPool(t *testing.T) {
	const all = kind.FabricMostAsks + 6
	a := opened(t, "a", fabric.Options{Pool: chunk, Slots: 128})
	b := opened(t, "b", fabric.Options{})
	to, ref := a.knows(t, "b"), allocated(t, a, 8)
	must(t, a.Send(nil, to, 0))
	for i := range all {
		flags := cq.FlagMatchComplete
		if i == 0 {
			flags |= cq.FlagFence
		}
		must(t, a.SendMsg(&fabric.Msg{Buf: ref, Addr: to, Flags: flags}))
	}
	must(t, a.Free(ref))
	moves(t, a, b)
	for i := range all + 1 {
		buf := make([]byte, 8)
		must(t, b.Recv(buf, 0))
		if moves(t, a, b); len(b.completions(t)) != 1 || i > 0 && !bytes.Equal(buf, pattern(8)) {
			t.Fatalf("message %d came as %q", i, buf)
		}
	}
	if c := a.completions(t); len(c) != all+1 {
		t.Errorf("%d of %d sends completed", len(c), all+1)
	}
	poolAccount(t, a, chunk, 0, 0)
}

// numbers are the numbers from one to another.
func numbers(from, to uint64) (all []uint64) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return all
}

// TestWaitingBounded: sends that wait and report nothing if they go well, which have no room in the
// queue, are as many as there can be headers.
func TestWaitingBounded(t *testing.T) {
	_, a, _, to := pair(t, fabric.Options{Selective: cq.FlagTransmit})
	for _, flags := range []cq.Flags{0, cq.FlagFence} {
		must(t, a.SendMsg(&fabric.Msg{Addr: to, Flags: cq.FlagMatchComplete | flags}))
	}
	for range 2 * kind.FabricMostOps {
		if err := a.SendMsg(&fabric.Msg{Addr: to}); err != nil {
			shmtest.WantErr(t, "a send", err, cq.ErrFull)
			return
		}
	}
	t.Error("any number can wait")
}
