package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// takeAll reads everything and writes it down: a number for a completion, an E before a failure.
func takeAll(t *testing.T, q *cq.Queue) []string {
	t.Helper()
	var out []string
	dst := make([]cq.Context, 3)
	for {
		n, err := cq.Read(q, dst)
		for _, e := range dst[:n] {
			out = append(out, fmt.Sprint(e.Context))
		}
		switch err {
		case nil:
		case cq.ErrWouldBlock:
			return out
		case cq.ErrAvail:
			if _, err := cq.Read(q, dst); err != cq.ErrAvail {
				t.Fatalf("an error that nobody took is gone: %v", err)
			}
			if _, err := q.Peek(1); err != cq.ErrAvail {
				t.Fatalf("peek: %v", err)
			}
			var e cq.ErrorEntry
			must(t, q.ReadErr(&e))
			out = append(out, fmt.Sprint("E", e.Context))
		default:
			t.Fatal(err)
		}
	}
}

// TestErrorOrder: failures come in order with the completions of their lane.
func TestErrorOrder(t *testing.T) {
	for _, tt := range []string{"e", "cce", "ece", "eee", "ccccceccccecee", "eccccccccce"} {
		t.Run(tt, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 16})
			var want []string
			for i, c := range tt {
				if c == 'e' {
					postError(t, w, uint64(i))
					want = append(want, fmt.Sprint("E", i))
					continue
				}
				post(t, w, uint64(i), uint64(i)+1)
				want = append(want, fmt.Sprint(i))
			}
			if got := takeAll(t, q); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if err := q.ReadErr(&cq.ErrorEntry{}); err != cq.ErrWouldBlock {
				t.Errorf("readerr with nothing left: %v", err)
			}
		})
	}
}

func TestErrorsOfTwoLanes(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8})
	a, b := attach(t, d, q.Name()), attach(t, d, q.Name())
	post(t, a, 0, 1)
	postError(t, a, 1)
	post(t, a, 2, 3)
	postError(t, b, 101)
	post(t, b, 102, 103)
	got := takeAll(t, q)
	for _, want := range [][]string{{"0", "E1", "2"}, {"E101", "102"}} {
		at := -1
		for _, w := range want {
			i := slices.Index(got, w)
			if i <= at {
				t.Errorf("%v: order of %v is not kept", got, want)
			}
			at = i
		}
	}
	if len(got) != 5 {
		t.Errorf("got %v", got)
	}
}

// TestReadErrNotNext: an error behind completions is not next.
func TestReadErrNotNext(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	if err := q.ReadErr(&cq.ErrorEntry{}); err != cq.ErrWouldBlock {
		t.Errorf("empty queue: %v", err)
	}
	post(t, w, 0, 1)
	postError(t, w, 1)
	if err := q.ReadErr(&cq.ErrorEntry{}); err != cq.ErrWouldBlock {
		t.Errorf("a completion is next: %v", err)
	}
	_ = read(t, q, 1)
	must(t, q.ReadErr(&cq.ErrorEntry{})) // without a Read that failed before
}

// TestPeekStopsAtError hands out what is before the error, and the error after the release.
func TestPeekStopsAtError(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 8})
	post(t, w, 0, 2)
	postError(t, w, 2)
	post(t, w, 3, 4)
	es, err := q.Peek(8)
	must(t, err)
	if len(es) != 2 {
		t.Fatalf("%d entries", len(es))
	}
	if _, err := q.Peek(8); err != cq.ErrWouldBlock {
		t.Errorf("behind it an error stands: %v", err)
	}
	must(t, q.Release(2))
	if got := takeAll(t, q); !slices.Equal(got, []string{"E2", "3"}) {
		t.Error(got)
	}
}

func TestErrorEntry(t *testing.T) {
	q, w := pair(t, cq.Options{Size: 4, Format: cq.FormatContext})
	detail := bytes.Repeat([]byte{1, 2, 3, 4}, cq.ErrDataMaxBytes/4)
	in := cq.ErrorEntry{Context: 1, Flags: cq.FlagRecv, Len: 2, Buf: shm.Ref(3), Data: 4, Tag: 5,
		Src: cq.From(6), OverrunBytes: 7, Err: cq.ETrunc, ProvErrno: -8, ErrData: detail}
	for _, room := range []int{0, 3, cq.ErrDataMaxBytes, 100} {
		must(t, w.PostError(&in))
		memory := bytes.Repeat([]byte{0xee}, 100)
		got := cq.ErrorEntry{ErrData: memory[:room:room], Redelivered: true, Tag: 99}
		must(t, q.ReadErr(&got))
		want := in
		want.ErrData, want.ErrDataBytes = detail[:min(room, len(detail))], len(detail)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("room for %d: %s", room, diff)
		}
		n := len(want.ErrData)
		if !bytes.Equal(memory[:n], want.ErrData) || memory[n] != 0xee {
			t.Errorf("room for %d: the caller's memory is %v", room, memory)
		}
		wantErr(t, "entry", &got, cq.ETrunc, syscall.EMSGSIZE)
	}
	// Without detail nothing stale comes back; no operation stands behind it.
	must(t, w.PostError(&cq.ErrorEntry{Flags: cq.FlagNoContext, Err: cq.Errno(syscall.ECANCELED)}))
	got := cq.ErrorEntry{ErrData: make([]byte, 8)}
	must(t, q.ReadErr(&got))
	if len(got.ErrData) != 0 || got.Flags != cq.FlagNoContext ||
		!errors.Is(&got, syscall.ECANCELED) {
		t.Errorf("%+v", got)
	}
}

// TestErrorWakes: an error ends blocking reads of every kind.
func TestErrorWakes(t *testing.T) {
	for name, wait := range map[string]func(*cq.Queue) error{
		"timeout": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1)
			return err
		},
		"threshold": func(q *cq.Queue) error {
			_, err := sread(q, make([]cq.Msg, 1), -1, 4)
			return err
		},
		"peek": func(q *cq.Queue) error {
			_, err := q.PeekContext(t.Context(), 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			q, w := pair(t, cq.Options{Size: 4, Spin: -1})
			defer later(func() { postError(t, w, 1) })()
			if err := wait(q); err != cq.ErrAvail {
				t.Fatal(err)
			}
			must(t, q.ReadErr(&cq.ErrorEntry{}))
		})
	}
}

// TestErrorIsNext: an error that was found stays what comes next, also if lanes before it in the
// round have something by now.
func TestErrorIsNext(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, MaxLanes: 2})
	first, second := attach(t, d, q.Name()), attach(t, d, q.Name())
	postError(t, second, 7)
	_, err := q.Peek(1) // begins at the first lane, and will again
	wantErr(t, "peek", err, cq.ErrAvail)
	post(t, first, 0, 1)
	_, err = cq.Read(q, make([]cq.Context, 2))
	wantErr(t, "read", err, cq.ErrAvail)
	_, err = q.Peek(1)
	wantErr(t, "peek", err, cq.ErrAvail)
	var e cq.ErrorEntry
	must(t, q.ReadErr(&e))
	if got := read(t, q, 1); e.Context != 7 || !slices.Equal(got, upTo(0, 1)) {
		t.Errorf("error %d, then %v", e.Context, got)
	}
}
