package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/shmring/shmring/cq"
)

func init() {
	maps.Copy(roles, map[string]func(){
		"history counter": childHistoryCounter,
		"history owner":   childHistoryOwner,
		"history lookups": childHistoryLookups,
	})
}

// childHistoryCounter adds to a counter that others add to as well, and looks at it.
func childHistoryCounter() {
	r := newRecorder()
	c, err := cq.AttachCounter(cq.Named(r.dir, r.name), cq.CounterOptions{Spin: -1})
	need(err)
	seen := 0
	for range number(envCount, 0) {
		r.pause()
		switch n := r.rnd.IntN(5); r.rnd.IntN(8) {
		case 0, 1, 2:
			r.do(histOp{Op: "add", N: n}, func(*histOp) { need(c.Add(uint64(n))) })
		case 3:
			r.do(histOp{Op: "set", N: seen + n}, func(*histOp) { need(c.Set(uint64(seen + n))) })
		case 4:
			r.do(histOp{Op: "wait", N: seen + n}, func(o *histOp) {
				o.OK = needOr(cntrWait(c, uint64(o.N), 200*time.Microsecond), cq.ErrTimedOut)
			})
		default:
			r.do(histOp{Op: "value"}, func(o *histOp) {
				v, err := c.Read()
				need(err)
				o.Values, seen = []uint64{v}, int(v)
			})
		}
	}
	need(c.Close())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}

// TestHistoryOfACounter has several processes at one counter, some of which are killed.
func TestHistoryOfACounter(t *testing.T) {
	t.Parallel()
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	d := openDir(t)
	decided(t, func(part int) porcupine.CheckResult {
		h := &history{t: t, name: queueName(t), env: []string{fmt.Sprint("SEED=", seed)}}
		c, err := cq.CreateCounter(cq.Named(d, h.name), cq.CounterOptions{})
		must(t, err)
		var all sync.WaitGroup
		for line := range 3 {
			rnd := rand.New(rand.NewPCG(uint64(seed), uint64(line)))
			all.Go(func() {
				for range 2 {
					h.play("history counter", 1000, 2+rnd.IntN(40/part))
				}
				h.play("history counter", 25/part, -1)
			})
		}
		all.Wait()
		must(t, c.Close())
		return h.judge(counterModel(), h.ops, "closed")
	})
}

// leastPart is how small a part of a history is judged before a test gives up.
const leastPart = 16

// smaller runs a test's history, which is judged in bounded time, in smaller and smaller parts
// until the judgement is one.
func smaller(run func(part int) porcupine.CheckResult) (result porcupine.CheckResult) {
	for part := 1; part <= leastPart; part *= 2 {
		if result = run(part); result != porcupine.Unknown {
			break
		}
	}
	return result
}

// decided fails where no order of the operations explains what was seen, and where nobody knows
// however few there are.
func decided(t *testing.T, run func(part int) porcupine.CheckResult) {
	t.Helper()
	switch smaller(run) {
	case porcupine.Illegal:
		t.Error("no order of these operations explains what was seen")
	case porcupine.Unknown:
		t.Error("not even a history of a few operations was judged in time")
	}
}

// TestUndecidedHistory: what was not judged is run again with less, and is no success.
func TestUndecidedHistory(t *testing.T) {
	var parts []int
	judge := func(part int) porcupine.CheckResult {
		parts = append(parts, part)
		return porcupine.Unknown
	}
	if r := smaller(judge); r != porcupine.Unknown || !slices.Equal(parts, []int{1, 2, 4, 8, 16}) {
		t.Errorf("%v after parts %v", r, parts)
	}
	r := smaller(func(part int) porcupine.CheckResult {
		if part < 4 {
			return porcupine.Unknown
		}
		return porcupine.Illegal
	})
	if r != porcupine.Illegal {
		t.Errorf("%v in place of what the third part says", r)
	}
}

// judge holds what was recorded against a specification, without operations of some kinds.
func (h *history) judge(model porcupine.Model, ops []*histOp,
	without ...string) porcupine.CheckResult {
	h.t.Helper()
	var left []*histOp
	for _, o := range ops {
		if !slices.Contains(without, o.Op) {
			left = append(left, o)
		}
	}
	result := checkHistory(h.t, model, left)
	h.t.Logf("%d operations of %d processes: %v", len(left), h.next, result)
	return result
}

// childHistoryOwner changes an address vector.
func childHistoryOwner() {
	r := newRecorder()
	v, err := cq.OpenAddresses(cq.Named(r.dir, r.name), cq.AddressOptions{Existing: true})
	need(err)
	for range number(envCount, 0) {
		r.pause()
		if r.rnd.IntN(2) == 0 {
			n := 1 + r.rnd.IntN(vectorRows+2)
			r.do(histOp{Op: "insert", Values: []uint64{uint64(n)}}, func(o *histOp) {
				at, err := v.Insert([][]byte{sockaddr(n)}, cq.InsertOptions{})
				var failed *cq.InsertError
				if o.OK = err == nil; o.OK {
					o.N = int(at[0])
				} else if !errors.As(err, &failed) {
					need(err)
				}
			})
			continue
		}
		r.do(histOp{Op: "remove", N: r.rnd.IntN(vectorRows), Values: []uint64{0}}, func(o *histOp) {
			o.OK = needOr(v.Remove(cq.Addr(o.N)), cq.ErrInvalid)
		})
	}
	need(v.Detach())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}

// childHistoryLookups looks addresses up that another process inserts and removes.
func childHistoryLookups() {
	r := newRecorder()
	v, err := cq.AttachAddresses(cq.Named(r.dir, r.name))
	need(err)
	buf := make([]byte, 64)
	for range number(envCount, 0) {
		r.pause()
		n := 1 + r.rnd.IntN(vectorRows+2)
		if r.rnd.IntN(2) == 0 {
			r.do(histOp{Op: "resolve", Values: []uint64{uint64(n)}}, func(o *histOp) {
				at, ok := v.Resolve(sockaddr(n))
				if o.OK = ok; ok {
					o.N = int(at)
				}
			})
			continue
		}
		r.do(histOp{Op: "lookup", N: r.rnd.IntN(vectorRows), Values: []uint64{0}}, func(o *histOp) {
			k, err := v.Lookup(cq.Addr(o.N), buf)
			if o.OK = needOr(err, cq.ErrInvalid); !o.OK {
				return
			}
			for i := range vectorRows + 3 {
				if bytes.Equal(buf[:k], sockaddr(i)) {
					o.Values[0] = uint64(i)
				}
			}
		})
	}
	need(v.Close())
	r.do(histOp{Op: "closed"}, func(*histOp) {})
}

// TestHistoryOfAnAddressVector: searches and look-ups of other processes see each change at one
// moment. An address may be found by its index a moment before its index is found by it, so the two
// are judged apart.
func TestHistoryOfAnAddressVector(t *testing.T) {
	t.Parallel()
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	d := openDir(t)
	decided(t, func(part int) porcupine.CheckResult {
		h := &history{t: t, name: queueName(t), env: []string{fmt.Sprint("SEED=", seed)}}
		v, err := cq.CreateAddresses(cq.Named(d, h.name), cq.AddressOptions{Count: vectorRows})
		must(t, err)
		must(t, v.Detach())
		var all sync.WaitGroup
		for _, role := range []string{"history owner", "history lookups", "history lookups"} {
			all.Go(func() { h.play(role, 150/part, -1) })
		}
		all.Wait()
		v, err = cq.OpenAddresses(cq.Named(d, h.name), cq.AddressOptions{Existing: true})
		must(t, err)
		must(t, v.Close())
		result := h.judge(vectorModel(), h.ops, "closed", "lookup")
		if result == porcupine.Ok {
			result = h.judge(vectorModel(), h.ops, "closed", "resolve")
		}
		return result
	})
}
