package cq_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["follow reader"] = childFollowReader }

// childFollowReader makes a queue of envCount entries a lane, accepts one writer, and does what it
// is told: peek, read, release, errors, head, peeked, accept, detach and close, each with a number.
func childFollowReader() {
	q, err := cq.CreateAnonymous("q", cq.Options{Size: number(envCount, 8), Trust: cq.CrossUser,
		Overrun: cq.Overrun(number(envLanes, 0)), Allow: &shm.AllowList{UIDs: []int{0}}})
	need(err)
	conn := dialParent()
	in := bufio.NewReader(os.Stdin)
	for {
		var what string
		var n int
		if _, err := fmt.Fscan(in, &what, &n); err != nil {
			os.Exit(0)
		}
		err, out := error(nil), ""
		switch what {
		case "accept":
			err = q.Accept(context.Background(), conn)
		case "peek":
			out, err = peekAll(q, n)
		case "read":
			out, err = readAll(q, n)
		case "release":
			err = q.Release(n)
		case "errors":
			e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
			err = q.ReadErr(&e)
			out = fmt.Sprintf("%d %v %s %v", e.Context, e.Err, e.ErrData, e.Redelivered)
		case "head":
			cq.StoreHead(q, 1, uint64(n))
		case "peeked":
			cq.StorePeeked(q, 1, uint64(n))
		case "detach":
			err = q.Detach()
		case "close":
			err = q.Close()
		}
		if err != nil {
			out = strings.TrimSpace(out + " error: " + err.Error())
		}
		say("%s", out)
	}
}

// peekAll hands out up to n entries of one lane, as far as they do not differ in the mark.
func peekAll(q *cq.Queue, n int) (string, error) {
	es, err := q.Peek(n)
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = fmt.Sprint(e.Context)
		if q.Redelivered() {
			out[i] += "!"
		}
	}
	return strings.Join(out, " "), err
}

// readAll reads until n entries came, or nothing does.
func readAll(q *cq.Queue, n int) (string, error) {
	var out []string
	buf := make([]cq.Msg, 3)
	for len(out) < n {
		k, err := sread(q, buf[:min(len(buf), n-len(out))], 30*time.Millisecond)
		if errors.Is(err, cq.ErrTimedOut) {
			break
		}
		if err != nil {
			return strings.Join(out, " "), err
		}
		for _, e := range buf[:k] {
			mark := ""
			if e.Flags&cq.FlagRedelivered != 0 {
				mark = "!"
			}
			out = append(out, fmt.Sprint(e.Context)+mark)
		}
	}
	return strings.Join(out, " "), nil
}

// successor is a reader of another user.
type successor struct {
	*other
	t testing.TB
}

func startSuccessor(t testing.TB, env ...string) *successor {
	t.Helper()
	return &successor{startOther(t, "follow reader", env...), t}
}

// do has it do something and returns what it says.
func (s *successor) do(what string, n int) string {
	s.t.Helper()
	_, err := fmt.Fprintln(s.in, what, n)
	must(s.t, err)
	return s.line(s.t)
}

func (s *successor) expect(what string, n int, want string) {
	s.t.Helper()
	if got := s.do(what, n); got != want {
		s.t.Errorf("%s %d: %q, want %q", what, n, got, want)
	}
}
