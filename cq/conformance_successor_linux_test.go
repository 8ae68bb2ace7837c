package cq_test

import (
	"fmt"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceSuccessor is what the next reader gets after one that was killed, or left.
func TestConformanceSuccessor(t *testing.T) {
	t.Parallel()
	ways := map[string]func(*testing.T, *cq.Queue) []uint64{
		"read": func(t *testing.T, q *cq.Queue) (got []uint64) {
			dst := make([]cq.Msg, 8)
			n, err := cq.Read(q, dst)
			must(t, err)
			for _, e := range dst[:n] {
				if e.Flags&cq.FlagRedelivered != 0 != q.Redelivered() {
					t.Errorf("%+v of %d, redelivered %v", e, n, q.Redelivered())
				}
				got = append(got, e.Context)
			}
			return got
		},
		"read-without-flags": func(t *testing.T, q *cq.Queue) []uint64 { return read(t, q, 8) },
		"peek":               peekSome,
	}
	name := "what-was-peeked-is-marked"
	for way, take := range ways {
		for held := range 2 { // a read begins with the lane of the held ones, or with the other one
			conformOnce(t, fmt.Sprint(name, "/", way, "-lane-", held), func(t *testing.T) {
				afterHolder(t, held, take)
			})
		}
	}
	conformOnce(t, "what-was-peeked-is-marked-in-events", func(t *testing.T) {
		d := openDir(t)
		e, err := cq.CreateEvents(d, "events", cq.EventOptions{Size: 8, Write: true})
		must(t, err)
		writeEvents(t, e, 0, 2)
		_, err = e.WriteErr(&cq.EventError{Context: 2, Err: cq.EOther})
		must(t, err)
		_, err = e.WriteErr(&cq.EventError{Context: 3, Err: cq.EOther})
		must(t, err)
		_, err = e.Read(&cq.Event{}, cq.FlagPeek)
		must(t, err)
		e = succeed(t, e)
		for i := range uint64(2) {
			var ev cq.Event
			if _, err := e.Read(&ev, 0); err != nil || ev.Context != i || ev.Redelivered != (i == 0) {
				t.Errorf("event %d: %+v, %v", i, ev, err)
			}
		}
		_, err = e.ReadErr(&cq.EventError{}, cq.FlagPeek)
		must(t, err)
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
	e, err := cq.AdoptEvents(openDir(t), name, cq.EventOptions{})
	must(t, err)
	return e
}

// afterHolder kills a reader that had three entries of one lane in its hands and left two, and
// reads what it left while another lane has two more.
func afterHolder(t *testing.T, held int, take func(*testing.T, *cq.Queue) []uint64) {
	d, name := openDir(t), queueName(t)
	q, err := cq.Create(d, name, cq.Options{Size: 8})
	must(t, err)
	ws := []*cq.Writer{attach(t, d, name), attach(t, d, name)}
	must(t, q.Detach())
	c := startChild(t, "holder", envQueue+"="+name)
	post(t, ws[held], 0, 6)
	if got := c.line(t); got != "holds 4, released 1" {
		t.Fatal(got)
	}
	c.kill()
	post(t, ws[1-held], 10, 12)
	q, err = cq.Adopt(d, name, cq.Options{})
	must(t, err)
	seen := map[uint64]int{}
	for left := 7; left > 0; {
		got := take(t, q)
		for _, c := range got {
			if seen[c]++; q.Redelivered() != (c >= 1 && c <= 3) {
				t.Errorf("%d of %v: redelivered %v", c, got, q.Redelivered())
			}
		}
		left -= len(got)
	}
	if len(seen) != 7 {
		t.Errorf("seen %v", seen)
	}
	closeQueue(t, q)
	for _, w := range ws {
		must(t, w.Close())
	}
}
