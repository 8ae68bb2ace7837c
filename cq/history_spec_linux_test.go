package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
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
	c := shmtest.Needs(cq.AttachCounter(cq.Named(r.dir, r.name), cq.CounterOptions{Spin: -1}))
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
				v := shmtest.Needs(c.Read())
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
	decided(t, func(h *history, d *shm.Dir, part int) porcupine.CheckResult {
		c := shmtest.Got(cq.CreateCounter(cq.Named(d, h.name), cq.CounterOptions{})).Or(t)
		var all sync.WaitGroup
		for line := range 3 {
			rnd := rand.New(rand.NewPCG(h.seed, uint64(line)))
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

// decided has a history judged in bounded time, in smaller and smaller parts until the judgement is
// one. It fails where no order of the operations explains what was seen, and where nobody knows
// however few there are. Each part has a history of its own, and the same seed.
func decided(t *testing.T, run func(h *history, d *shm.Dir, part int) porcupine.CheckResult) {
	t.Helper()
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	for part := 1; part <= leastPart; part *= 2 {
		switch run(&history{t: t, name: queueName(t), seed: uint64(seed),
			env: []string{fmt.Sprint("SEED=", seed)}}, openDir(t), part) {
		case porcupine.Ok:
			return
		case porcupine.Illegal:
			t.Error("no order of these operations explains what was seen")
			return
		}
	}
	t.Error("not even a history of a few operations was judged in time")
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
	v := shmtest.Needs(cq.OpenAddresses(cq.Named(r.dir, r.name), cq.AddressOptions{Existing: true}))
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
	v := shmtest.Needs(cq.AttachAddresses(cq.Named(r.dir, r.name)))
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
	decided(t, func(h *history, d *shm.Dir, part int) porcupine.CheckResult {
		v, err := cq.CreateAddresses(cq.Named(d, h.name), cq.AddressOptions{Count: vectorRows})
		must(t, err)
		must(t, v.Detach())
		var all sync.WaitGroup
		for _, role := range []string{"history owner", "history lookups", "history lookups"} {
			all.Go(func() { h.play(role, 150/part, -1) })
		}
		all.Wait()
		v = shmtest.Got(cq.OpenAddresses(cq.Named(d, h.name), cq.AddressOptions{Existing: true})).Or(t)
		must(t, v.Close())
		result := h.judge(vectorModel(), h.ops, "closed", "lookup")
		if result == porcupine.Ok {
			result = h.judge(vectorModel(), h.ops, "closed", "resolve")
		}
		return result
	})
}

// histOp is an operation as the process that called it saw it. What is known before the call is
// input; the rest is what it returned. A process that was killed returned nothing: Pending.
type histOp struct {
	Op     string
	Lane   int
	N      int      // entries, or an index, or a number
	Values []uint64 // posted, or read
	Again  []bool   // of each value read: it was marked as redelivered
	OK     bool

	Pending       bool
	Client        int
	CallNs, EndNs int64
}

const never = int64(1) << 62

func (o *histOp) operation() porcupine.Operation {
	return porcupine.Operation{ClientId: o.Client, Input: o, Output: o, Call: o.CallNs,
		Return: o.EndNs}
}

func describe(input, _ any) string {
	o := input.(*histOp)
	end := fmt.Sprintf("ok=%v %v", o.OK, o.Again)
	if o.Pending {
		end = "killed"
	}
	return fmt.Sprintf("%s lane %d n=%d %x: %s", o.Op, o.Lane, o.N, o.Values, end)
}

// checkHistory holds a history against a specification. Where there is none of the histories that
// the specification allows, a picture of it is written.
func checkHistory(t *testing.T, model porcupine.Model, ops []*histOp) porcupine.CheckResult {
	t.Helper()
	history := make([]porcupine.Operation, len(ops))
	for i, o := range ops {
		history[i] = o.operation()
	}
	result, info := porcupine.CheckOperationsVerbose(model, history, 20*time.Second)
	if result == porcupine.Illegal && t.Name() != "TestHistorySpecs" { // where that is wanted
		path := t.ArtifactDir() + "/history.html"
		t.Logf("picture: %s, %v", path, porcupine.VisualizePath(model, info, path))
	}
	return result
}

// laneState is what a lane holds: entries that were not released; how many of them, from the first,
// a former reader had been handed; and how many this one has in hand.
type laneState struct {
	queue       []uint64
	former, own int
}

func (s laneState) released(k int) laneState {
	return laneState{s.queue[k:], max(0, s.former-k), max(0, s.own-k)}
}

func (s laneState) posted(values []uint64) laneState {
	s.queue = slices.Concat(s.queue, values)
	return s
}

// laneModel is a queue, judged lane by lane: entries come once and in order, or again and marked,
// and a read finds nothing only if there is nothing. Each operation has a lane; a read that took
// from several is one operation in each.
func laneModel(capacity int) porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
			byLane := map[int][]porcupine.Operation{}
			for _, o := range history {
				lane := o.Input.(*histOp).Lane
				byLane[lane] = append(byLane[lane], o)
			}
			for _, p := range byLane {
				parts = append(parts, p)
			}
			return parts
		},
		Init: func() []any { return []any{laneState{}} },
		Step: func(state, input, _ any) (next []any) {
			for _, s := range laneStep(state.(laneState), input.(*histOp), capacity) {
				next = append(next, s)
			}
			return next
		},
		Equal: func(a, b any) bool {
			x, y := a.(laneState), b.(laneState)
			return x.former == y.former && x.own == y.own && slices.Equal(x.queue, y.queue)
		},
		DescribeOperation: describe,
		DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
	}
	return m.ToModel()
}

func laneStep(s laneState, o *histOp, capacity int) (next []laneState) {
	switch o.Op {
	case "post":
		room := capacity - len(s.queue)
		if o.Pending { // it had published some of them, or none
			for k := 0; k <= min(len(o.Values), room); k++ {
				next = append(next, s.posted(o.Values[:k]))
			}
			return next
		}
		if o.OK && len(o.Values) <= room {
			return []laneState{s.posted(o.Values)}
		}
		if !o.OK && room == 0 {
			return []laneState{s}
		}
	case "empty":
		if len(s.queue) == 0 {
			return []laneState{s}
		}
	case "read", "peek":
		if s.own != 0 {
			return nil
		}
		if o.Pending {
			return s.taken(o)
		}
		k := len(o.Values)
		if k > len(s.queue) || !slices.Equal(o.Values, s.queue[:k]) {
			return nil
		}
		for i, again := range o.Again {
			if again != (i < s.former) {
				return nil
			}
		}
		if s.own = k; o.Op == "read" {
			s = s.released(k)
		}
		return []laneState{s}
	case "release":
		if o.N > s.own {
			return nil
		}
		if next = append(next, s.released(o.N)); o.Pending {
			next = append(next, s)
		}
	case "adopt":
		heir := laneState{s.queue, max(s.former, s.own), 0}
		if next = append(next, heir); o.Pending {
			next = append(next, s)
		}
	}
	return next
}

// taken are the states that a reader may have left that was killed while it took entries.
func (s laneState) taken(o *histOp) (next []laneState) {
	for k := 0; k <= min(o.N, len(s.queue)); k++ {
		if o.Op == "read" {
			next = append(next, s.released(k))
			continue
		}
		s.own = k
		next = append(next, s)
	}
	return next
}

// counterModel is one number.
func counterModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, input, _ any) (bool, any) {
			v, o := state.(int), input.(*histOp)
			switch o.Op {
			case "add":
				return true, v + o.N
			case "set":
				return true, o.N
			case "value":
				return o.Pending || len(o.Values) == 1 && uint64(v) == o.Values[0], v
			case "wait":
				return o.Pending || o.OK == (v >= o.N), v
			}
			return false, v
		},
		DescribeOperation: describe,
	}
}

const vectorRows = 8 // a power of two, or the vector has more

// vectorModel is an address vector of vectorRows rows: what each holds, 0 for nothing. Inserting
// takes the lowest free one.
func vectorModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return [vectorRows]uint64{} },
		Step: func(state, input, _ any) (bool, any) {
			rows, o := state.([vectorRows]uint64), input.(*histOp)
			at := slices.Index(rows[:], o.Values[0])
			switch o.Op {
			case "insert":
				if at < 0 {
					at = slices.Index(rows[:], 0)
				}
				if at >= 0 {
					rows[at] = o.Values[0]
				}
				return o.OK == (at >= 0) && (!o.OK || at == o.N), rows
			case "remove":
				ok := rows[o.N] != 0
				rows[o.N] = 0
				return o.OK == ok, rows
			case "resolve":
				return o.OK == (at >= 0) && (!o.OK || at == o.N), rows
			case "lookup":
				if !o.OK {
					return rows[o.N] == 0, rows
				}
				return rows[o.N] == o.Values[0], rows
			}
			return false, rows
		},
		DescribeOperation: describe,
	}
}

// historyOf reads operations as a test writes them: op=values, with n=number, lane=number,
// again, no (it failed), killed, and until=number of an operation that it overlaps with.
func historyOf(t *testing.T, text string) (ops []*histOp) {
	t.Helper()
	for i, words := range strings.Split(text, ";") {
		o := &histOp{OK: true, CallNs: int64(10 * i), EndNs: int64(10*i + 1)}
		for _, w := range strings.Fields(words) {
			key, value, _ := strings.Cut(w, "=")
			var n int
			switch _, err := fmt.Sscanf(value, "%d", &n); {
			case key == "n":
				o.N = n
			case key == "lane":
				o.Lane = n
			case key == "until": // the operation with that number
				o.EndNs = int64(10*n + 1)
			case key == "no":
				o.OK = false
			case key == "killed":
				o.Pending = true
			case key == "again":
				for j := range o.Again {
					o.Again[j] = true
				}
			case err == nil || value == "":
				o.Op = key
				for v := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
					n := shmtest.Got(strconv.Atoi(v)).Or(t)
					o.Values, o.Again = append(o.Values, uint64(n)), append(o.Again, false)
				}
			}
		}
		ops = append(ops, o)
	}
	return ops
}

// TestHistorySpecs gives each specification histories that are possible, and some with a mistake,
// which it must see.
func TestHistorySpecs(t *testing.T) {
	models := map[string]porcupine.Model{"lane": laneModel(2), "counter": counterModel(),
		"vector": vectorModel()}
	for _, tt := range []struct {
		model string
		want  bool
		ops   string
	}{
		{"lane", true, "post=1,2; read=1,2; empty"},
		{"lane", false, "post=1,2; read=2,1"},                           // out of order
		{"lane", false, "post=1; read=1; read=1"},                       // twice
		{"lane", false, "post=1; empty"},                                // lost
		{"lane", true, "post=1 until=2; empty"},                         // not yet there
		{"lane", false, "read=1; post=1"},                               // from nowhere
		{"lane", true, "post=1,2; post=3 no"},                           // full
		{"lane", false, "post=1; post=3 no"},                            // not full
		{"lane", false, "post=1,2; post=3"},                             // too much
		{"lane", true, "post=1; empty lane=2"},                          // of another lane
		{"lane", true, "post=1,2; peek=1; adopt; read=1 again; read=2"}, // redelivered
		{"lane", false, "post=1,2; peek=1; adopt; read=1; read=2"},      // and not marked
		{"lane", false, "post=1,2; peek=1; adopt; read=1,2 again"},      // and too many marked
		{"lane", true, "post=1,2; peek=1,2; release n=1; adopt; read=2 again; empty"},
		{"lane", false, "post=1,2; peek=1,2; release n=1; adopt; empty"},
		{"lane", true, "post=3,4 killed until=9; empty; read=3; empty"},
		{"lane", false, "post=3,4 killed until=9; read=4"},
		{"lane", true, "post=1,2; read n=2 killed; adopt; read=2"},
		{"lane", false, "post=1,2; read n=1 killed; adopt; empty"},
		{"counter", true, "add n=2; add n=3 until=3; value=2; value=5; wait n=5"},
		{"counter", false, "add n=2; add n=3; value=2"},
		{"counter", false, "add n=3 until=4; value=3; value=0"},
		{"counter", false, "wait n=3; add n=3"},
		{"counter", true, "set n=7; wait n=8 no; value=7"},
		{"vector", true, "insert=7 n=0; insert=8 n=1; remove=0 n=0; resolve=7 no; insert=9 n=0;" +
			"lookup=9 n=0; resolve=8 n=1"},
		{"vector", false, "insert=7 n=1"}, // not the lowest
		{"vector", false, "insert=7 n=0; remove=0 n=0; resolve=7 n=0"},
		{"vector", false, "insert=7 n=0; resolve=7 no"},
	} {
		got := checkHistory(t, models[tt.model], historyOf(t, tt.ops))
		if want := map[bool]porcupine.CheckResult{true: porcupine.Ok, false: porcupine.Illegal}; got !=
			want[tt.want] {
			t.Errorf("%s: %s: %v", tt.model, tt.ops, got)
		}
	}
}
