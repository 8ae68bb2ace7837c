package cq_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
)

// history is what a number of processes did, as they said themselves.
type history struct {
	t    *testing.T
	name string
	env  []string
	mu   sync.Mutex
	ops  []*histOp
	next int // number of the next process
}

// play runs a process to its end, or kills it once it has said that many lines, and keeps what it
// said.
func (h *history) play(role string, count, killAfter int) {
	h.mu.Lock()
	h.next++
	client := h.next
	h.mu.Unlock()
	env := append([]string{envQueue + "=" + h.name, fmt.Sprint(envClient, "=", client),
		fmt.Sprint(envCount, "=", count), "GORACE=atexit_sleep_ms=0"}, h.env...)
	cmd := shmtest.Child(h.t, role, env...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		h.t.Error(err)
		return
	}
	var last *histOp
	lines := bufio.NewReader(out)
	for n := 0; ; n++ {
		if n == killAfter {
			_ = cmd.Process.Kill()
		}
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // half a line is none
		}
		o := new(histOp)
		if err := json.Unmarshal(line, o); err != nil {
			h.t.Error(err)
			break
		}
		if last = o; !o.Pending {
			h.add(o)
		}
	}
	_, _ = io.Copy(io.Discard, lines)
	err = cmd.Wait()
	if killAfter < 0 && err != nil {
		h.t.Errorf("%s %d: %v", role, client, err)
	}
	if last != nil && last.Pending {
		switch last.Op {
		case "read", "peek", "release", "adopt":
			last.EndNs = spin.Now() // the reader is dead: nothing comes of it any more
		default:
			last.EndNs = never // it may not have happened, and what was published be noticed late
		}
		h.add(last)
	}
}

func (h *history) add(o *histOp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, o)
}

// perLane makes of what was recorded the history of lanes: who read knows values, of which the
// posts say in which lane they were.
func (h *history) perLane() (out []*histOp) {
	lanes, laneOf := map[int]bool{}, map[uint64]int{}
	for _, o := range h.ops {
		if o.Op == "post" {
			lanes[o.Lane] = true
			for _, v := range o.Values {
				laneOf[v] = o.Lane
			}
		}
	}
	everywhere := func(o *histOp, op string) {
		for lane := range lanes {
			c := *o
			c.Op, c.Lane = op, lane
			out = append(out, &c)
		}
	}
	held := 0 // lane of what was peeked at
	for _, o := range h.ops {
		switch o.Op {
		case "post":
			out = append(out, o)
		case "adopt":
			everywhere(o, o.Op)
		case "release":
			c := *o
			c.Lane = held
			out = append(out, &c)
		case "read", "peek":
			if o.Pending {
				everywhere(o, o.Op)
			} else if !o.OK {
				everywhere(o, "empty")
			}
			byLane := map[int]*histOp{}
			for i, v := range o.Values {
				lane, known := laneOf[v]
				if !known {
					h.t.Errorf("%x was read and never posted", v)
					continue
				}
				if byLane[lane] == nil {
					c := *o
					c.Lane, c.Values, c.Again = lane, nil, nil
					byLane[lane] = &c
					out = append(out, &c)
				}
				held = lane
				byLane[lane].Values = append(byLane[lane].Values, v)
				byLane[lane].Again = append(byLane[lane].Again, o.Again[i])
			}
		}
	}
	return out
}

// TestHistoryOfAQueue has writers and readers of a queue in processes of their own, most of which
// are killed in the middle and followed by others, and holds what they saw against the
// specification of a lane.
func TestHistoryOfAQueue(t *testing.T) {
	shmtest.Long(t)
	seed := rand.Uint32()
	t.Logf("seed %d", seed)
	for _, events := range []bool{false, true} {
		t.Run(fmt.Sprintf("events=%v", events), func(t *testing.T) {
			decided(t, func(part int) porcupine.CheckResult {
				return historyOfAQueue(t, seed, events, part)
			})
		})
	}
}

func historyOfAQueue(t *testing.T, seed uint32, events bool, part int) porcupine.CheckResult {
	const size = 4
	d := openDir(t)
	h := &history{t: t, name: queueName(t), env: []string{fmt.Sprint("SEED=", seed)}}
	var err error
	if events {
		var e *cq.EventQueue
		h.env = append(h.env, envEvents+"=1")
		e, err = cq.CreateEvents(d, h.name, cq.EventOptions{Size: size, MaxLanes: 4})
		must(t, err)
		must(t, e.Detach())
	} else {
		var q *cq.Queue
		q, err = cq.Create(d, h.name, cq.Options{Size: size, MaxLanes: 4})
		must(t, err)
		must(t, q.Detach())
	}
	h.run(seed, part)
	h.empty(events)
	return h.judge(laneModel(size), h.perLane())
}

// run plays two lines of writers and one of readers, until the last of each was not killed.
func (h *history) run(seed uint32, part int) {
	var all sync.WaitGroup
	for line, role := range []string{"history writer", "history writer", "history reader"} {
		rnd := rand.New(rand.NewPCG(uint64(seed), uint64(line)))
		all.Go(func() {
			for range max(8/part, 1) {
				h.play(role, 1000, 2+rnd.IntN(40/part))
			}
			h.play(role, 40/part, -1)
		})
	}
	all.Wait()
}

// empty reads what is left, in a process like the others.
func (h *history) empty(events bool) {
	h.play("history reader", 40, -1)
	d := openDir(h.t)
	if events {
		e, err := cq.AdoptEvents(d, h.name, cq.EventOptions{})
		must(h.t, err)
		must(h.t, e.Close())
		return
	}
	q, err := cq.Adopt(d, h.name, cq.Options{})
	must(h.t, err)
	must(h.t, q.Close())
}
