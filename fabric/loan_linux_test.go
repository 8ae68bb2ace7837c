package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
)

// pieces is how much of a pool n bytes take.
func pieces(n int) uint64 { return uint64(n+4095) &^ 4095 }

// poolAccount fails if bytes of a pool are not all somewhere, or not so many are held and lent.
func poolAccount(t *testing.T, e *end, all int, held, lent uint64) {
	t.Helper()
	s := e.Stats()
	if all = (all + chunk - 1) &^ (chunk - 1); s.FreePool+s.HeldPool+s.LentPool != uint64(all) ||
		s.HeldPool != held || s.LentPool != lent {
		t.Errorf("%d bytes are free, %d held, %d lent: want %d, of which %d and %d are so",
			s.FreePool, s.HeldPool, s.LentPool, all, held, lent)
	}
}

// poolPair is a pair of endpoints here, of which a has a pool of one chunk.
func poolPair(t *testing.T) (a, b *end, to cq.Addr) {
	t.Helper()
	a, b = opened(t, "a", fabric.Options{Pool: chunk}), opened(t, "b", fabric.Options{})
	to = a.knows(t, "b")
	return a, b, to
}

// borrow posts a receive that gets a loan.
func (e *end) borrow(context uint64) error {
	return e.RecvMsg(&fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagFrame, Context: context})
}

// borrowed waits for a loan, and returns its bytes.
func borrowed(t *testing.T, e *end) (cq.Entry, []byte) {
	t.Helper()
	c := completes(t, e)
	mem := shmtest.Got(e.Payload(&c)).Or(t)
	return c, mem
}

// allocated is memory of a pool with a pattern in it.
func allocated(t testing.TB, e *end, n int) []byte {
	t.Helper()
	mem := shmtest.Got(e.Alloc(n)).Or(t)
	copy(mem, pattern(n))
	return mem
}

// TestLoanInPlace: a loan is the sender's memory, not a copy. The send ends when the loan is given
// back, once; and what was given up meanwhile is free then, and not before.
func TestLoanInPlace(t *testing.T) {
	shmtest.Conforms(t)
	for _, how := range []string{"expected", "unexpected", "claimed"} {
		t.Run(how, func(t *testing.T) {
			a, b, to := poolPair(t)
			sent := allocated(t, a, chunk)
			if how == "expected" {
				must(t, b.borrow(7))
			}
			must(t, a.Send(sent, to, 9))
			switch how {
			case "unexpected":
				b.steps(t)
				must(t, b.borrow(7))
			case "claimed":
				claim := fabric.Msg{Addr: fabric.Anybody, Flags: cq.FlagPeek | cq.FlagClaim, Context: 7}
				must(t, b.RecvMsg(&claim))
				if c := completes(t, b); c.Len != chunk || c.Flags&cq.FlagFrame != 0 {
					t.Errorf("found %+v", c)
				}
				claim.Flags = cq.FlagClaim | cq.FlagFrame
				must(t, b.RecvMsg(&claim))
			}
			c, got := borrowed(t, b)
			if c.Context != 7 || c.Len != chunk || !bytes.Equal(got, pattern(chunk)) {
				t.Errorf("%+v, or other bytes", c)
			}
			if sent[5]++; got[5] != sent[5] {
				t.Error("a copy was lent")
			}
			must(t, a.Free(sent))
			poolAccount(t, a, chunk, 0, chunk)
			if _, err := a.Alloc(1); err != cq.ErrFull {
				t.Errorf("a piece of what is lent: %v", err)
			}
			if n, err := cq.Read(a.q, make([]cq.Entry, 1)); n != 0 {
				t.Fatalf("the send has ended: %v", err)
			}
			must(t, b.Release(c))
			if err := b.Release(c); err != fabric.ErrNotFound {
				t.Errorf("given back twice: %v", err)
			}
			if _, err := b.Payload(&c); err != fabric.ErrNotFound {
				t.Errorf("looked at afterwards: %v", err)
			}
			if c := completes(t, a); c.Context != 9 || c.Len != chunk {
				t.Errorf("sent %+v", c)
			}
			poolAccount(t, a, chunk, 0, 0)
		})
	}
}

// TestLoansOfCopies: what was not sent by reference, and what came from this endpoint, is lent from
// private memory.
func TestLoansOfCopies(t *testing.T) {
	a := opened(t, "a", fabric.Options{Pool: chunk, Window: 4096})
	to := a.knows(t, "a")
	for i, sent := range [][]byte{nil, pattern(300), allocated(t, a, 3000), allocated(t, a, 5000)} {
		must(t, a.Send(sent, to, 1)) // the last one does not fit the window
		if i == 3 {
			must(t, a.Free(sent))
			poolAccount(t, a, chunk, pieces(3000), pieces(5000))
		}
		must(t, a.borrow(2))
		var got []byte
		for range 2 {
			if c := completes(t, a); c.Context == 2 {
				got = shmtest.Got(a.Payload(&c)).Or(t)
				must(t, a.Release(c))
			}
		}
		if !bytes.Equal(got, pattern(len(sent))) {
			t.Errorf("message %d is another", i)
		}
	}
	poolAccount(t, a, chunk, pieces(3000), 0)
}

// TestLoanRefused: what a loan does not go with, and memory that is nobody's.
func TestLoanRefused(t *testing.T) {
	a, _, _ := poolPair(t)
	for _, m := range []fabric.Msg{{Flags: cq.FlagMultiRecv}, {Flags: cq.FlagPeek},
		{Flags: cq.FlagClaim | cq.FlagDiscard}, {Buf: make([]byte, 1)}, {Iov: [][]byte{nil}}} {
		m.Addr, m.Flags = fabric.Anybody, m.Flags|cq.FlagFrame
		if err := a.RecvMsg(&m); !errors.Is(err, fabric.ErrFlags) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, n := range []int{-1, 0, chunk + 1} {
		if _, err := a.Alloc(n); !errors.Is(err, fabric.ErrTooLong) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	mem := allocated(t, a, 10)
	must(t, a.Free(mem[9:]))
	for _, b := range [][]byte{mem, nil, {}, make([]byte, 5)} {
		if err := a.Free(b); !errors.Is(err, cq.ErrInvalid) {
			t.Errorf("free of %d bytes that nobody has: %v", len(b), err)
		}
	}
	c := shmtest.Got(cq.CreateCounter(cq.Unnamed("c"), cq.CounterOptions{})).Or(t)
	e := shmtest.Got(fabric.Open(a.d, "counts",
		fabric.Options{Counters: map[*cq.Counter]cq.Flags{c: cq.FlagRecv}})).Or(t)
	if err := (&end{Endpoint: e}).borrow(1); !errors.Is(err, cq.ENoCQ) {
		t.Errorf("a loan that nobody is told of: %v", err)
	}
	must(t, errors.Join(e.Close(), c.Close(), a.Close()))
	if _, err := a.Alloc(1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("memory of a closed endpoint: %v", err)
	}
	if err := a.Free(mem); !errors.Is(err, os.ErrClosed) {
		t.Errorf("to a closed endpoint: %v", err)
	}
}

// TestAllocations: pieces do not overlap, and what is given up can be had again in one piece.
func TestAllocations(t *testing.T) {
	const all = 16 * chunk
	e := opened(t, "a", fabric.Options{Pool: all - 1, Chunks: 3})
	r := rand.New(rand.NewPCG(1, 1))
	var has [][]byte
	held := uint64(0)
	for i := range 3000 {
		if r.IntN(2) == 0 && len(has) > 0 {
			k := r.IntN(len(has))
			if b := has[k][0]; bytes.Count(has[k], []byte{b}) != len(has[k]) {
				t.Fatal("two have the same memory")
			}
			must(t, e.Free(has[k]))
			held -= pieces(len(has[k]))
			has[k] = has[len(has)-1]
			has = has[:len(has)-1]
		} else if mem, err := e.Alloc(1 + r.IntN(chunk)); err == nil {
			copy(mem, bytes.Repeat([]byte{byte(i)}, len(mem)))
			has = append(has, mem)
			held += pieces(len(mem))
		} else if err != cq.ErrFull {
			t.Fatal(err)
		}
		poolAccount(t, e, all, held, 0)
	}
	for _, mem := range has {
		must(t, e.Free(mem))
	}
	shmtest.Got(e.Alloc(all)).Or(t)
	account(t, e, 3, 0, 0)
}

// TestManyLoans: more loans are given back at once than the control ring has room for. Both sides
// sleep until the other has done something.
func TestManyLoans(t *testing.T) {
	shmtest.Conforms(t)
	const n = 100
	a, b := opened(t, "a", fabric.Options{Pool: n * 4096}), opened(t, "b", fabric.Options{})
	to := a.knows(t, "b")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		var cs []cq.Entry
		for len(cs) < n {
			c, failed, err := b.next()
			if err != nil || failed.Err != 0 {
				done <- fmt.Errorf("a loan: %v, %w", failed.Err, err)
				return
			}
			cs = append(cs, c)
		}
		if err := b.Release(cs...); err != nil {
			done <- err
			return
		}
		done <- b.moves(ctx)
	}()
	for i := range n {
		must(t, b.borrow(uint64(i)))
		mem := allocated(t, a, 4096)
		must(t, a.SendContext(t.Context(), &fabric.Msg{Buf: mem, Addr: to, Context: uint64(i)}))
		must(t, a.Free(mem))
	}
	for range n {
		completes(t, a)
	}
	cancel()
	must(t, <-done)
	poolAccount(t, a, n*4096, 0, 0)
}

// TestCloseOwed: an endpoint closes when there is no room to tell of all messages in a buffer for
// several. Those receives end that have their room: the buffer, and one whose message comes yet.
func TestCloseOwed(t *testing.T) {
	for _, alone := range []bool{false, true} {
		a := opened(t, "a", fabric.Options{Slots: 16})
		b := openedSized(t, "b", 4, fabric.Options{ReleaseAlone: alone})
		to := a.knows(t, "b")
		must(t, b.Recv(make([]byte, longBytes), 7))
		must(t, a.Send(pattern(longBytes), to, 1))
		b.steps(t)
		must(t, b.RecvMsg(&fabric.Msg{Buf: make([]byte, 64), Addr: fabric.Anybody, Context: 9,
			Flags: cq.FlagTagged | cq.FlagMultiRecv}))
		for range 3 {
			must(t, a.SendMsg(&fabric.Msg{Addr: to, Flags: cq.FlagTagged | cq.FlagInjectCall}))
		}
		b.steps(t)
		must(t, b.Endpoint.Close())
		var dst [4]cq.Entry
		if n, err := cq.Read(b.q, dst[:]); n != 2 || err != nil {
			t.Errorf("%d messages, %v", n, err)
		}
		for _, want := range []uint64{7, 9} {
			var f cq.ErrorEntry
			err := b.q.ReadErr(&f)
			if err != nil || f.Context != want || !errors.Is(&f, syscall.ECANCELED) {
				t.Errorf("%+v, %v, want %d", f, err, want)
			}
		}
		if s := b.Stats(); s.Abandoned != 1 || s.Cancelled != 1 {
			t.Errorf("%+v", s)
		}
		must(t, errors.Join(a.close(), b.close()))
	}
}

// TestCloseLent: an endpoint closes while a message is lent. Its receiver has the bytes until it
// gives them back; a sender whose receiver closes has sent it.
func TestCloseLent(t *testing.T) {
	shmtest.Conforms(t)
	for _, who := range []string{"sender", "receiver"} {
		t.Run(who, func(t *testing.T) {
			a, b, to := poolPair(t)
			must(t, b.borrow(7))
			must(t, a.Send(allocated(t, a, chunk), to, 9))
			c, got := borrowed(t, b)
			if who == "sender" {
				must(t, a.Close())
				_, failed, err := a.next()
				if err != nil || failed.Context != 9 || failed.Err != cq.Errno(syscall.ECANCELED) {
					t.Errorf("%+v, %v", failed, err)
				}
				b.steps(t)
			} else {
				must(t, b.Close())
				if c := completes(t, a); c.Context != 9 {
					t.Errorf("sent %+v", c)
				}
				poolAccount(t, a, chunk, chunk, 0)
			}
			if !bytes.Equal(got, pattern(chunk)) || b.Stats().Loans != 1 {
				t.Error("the loan is over")
			}
			must(t, b.Release(c))
			if n := b.Stats().Loans; n != 0 {
				t.Errorf("%d are lent still", n)
			}
		})
	}
}

// TestKilledLent: a process is killed while a message is lent. What its sender lent stays until it
// is given back; what its receiver had comes back with the proof of its death, and not before.
func TestKilledLent(t *testing.T) {
	shmtest.Conforms(t)
	for _, who := range []string{"sender", "receiver"} {
		t.Run(who, func(t *testing.T) {
			e := opened(t, "main", fabric.Options{Pool: longBytes})
			c := started(t, "idle")
			tells := func(what string) {
				shmtest.Got(c.In.Write([]byte(what + "\n"))).Or(t)
				c.Says(t, "0")
			}
			if who == "sender" {
				must(t, e.borrow(7))
				tells("lend")
				loan, got := borrowed(t, e)
				c.Kill()
				for e.Stats().Died == 0 {
					e.steps(t)
				}
				nothingLeft(t, e, "main")
				if !bytes.Equal(got, pattern(longBytes)) {
					t.Error("other bytes are lent")
				}
				must(t, e.Release(loan))
				return
			}
			to := e.knows(t, "idle")
			tells("borrow")
			must(t, e.Send(allocated(t, e, longBytes), to, 9))
			tells("progress")
			e.steps(t)
			poolAccount(t, e, longBytes, 0, longBytes)
			c.Kill()
			if _, failed, err := e.next(); err != nil || failed.Context != 9 ||
				failed.Err != cq.Errno(syscall.ECONNRESET) {
				t.Errorf("%+v, %v", failed, err)
			}
			poolAccount(t, e, longBytes, longBytes, 0)
			nothingLeft(t, e, "main")
		})
	}
}

// TestHostileReturns: a receiver that gives back what it has not, or twice, is cut off. Its send
// fails, and the memory is nobody else's until its process has ended.
func TestHostileReturns(t *testing.T) {
	shmtest.Conforms(t)
	for _, c := range []struct {
		name    string
		records []uint64
		ended   int // sends that it gave back before
	}{
		{"twice", []uint64{kind.FabricClear(0, 1, 0), kind.FabricClear(0, 1, 0)}, 1},
		{"another generation", []uint64{kind.FabricClear(0, 2, 0)}, 0},
		{"nobody's", []uint64{kind.FabricClear(2, 1, 0)}, 0},
		{"asks for bytes", []uint64{kind.FabricClear(0, 1, 1)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b, to := poolPair(t)
			must(t, a.Send(allocated(t, a, 4096), to, 0))
			must(t, a.Send(allocated(t, a, 4096), to, 1))
			b.steps(t)
			row := &scribble(t, b, "b").rows[0]
			asks(row, c.records...)
			row.Rev.Add(1)
			for range c.ended {
				completes(t, a)
			}
			for i := c.ended; i < 2; i++ {
				if _, failed, err := a.next(); err != nil || failed.Context != uint64(i) ||
					failed.Err != cq.Errno(syscall.EBADMSG) {
					t.Errorf("%+v, %v", failed, err)
				}
			}
			poolAccount(t, a, chunk, uint64(4096*c.ended), uint64(4096*(2-c.ended)))
		})
	}
}
