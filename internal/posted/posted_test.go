package posted

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestIndex: an index finds what a search through a plain list finds, whatever was added and
// removed.
func TestIndex(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var x Index[int]
		var list []*Node[int]
		key := func() Key {
			k := Key{From: r.Uint64N(3), Tag: r.Uint64N(40)}
			switch r.IntN(6) {
			case 0:
				k.From = Anybody
			case 1:
				k.Ignore = r.Uint64N(64)
			}
			return k
		}
		for i := range 3000 {
			switch k := key(); r.IntN(3) {
			case 0:
				n := x.New()
				n.Key, n.Of, n.Number = k, i, uint64(i)
				x.Add(n)
				list = append(list, n)
			default:
				if r.IntN(2) == 0 { // a message finds receives, and a receive messages: exact ones
					k = Key{From: r.Uint64N(3), Tag: r.Uint64N(40)}
				}
				at := slices.IndexFunc(list, func(n *Node[int]) bool { return n.meets(k) })
				got := x.Find(k)
				if at < 0 && got != nil || at >= 0 && got != list[at] {
					t.Fatalf("seed %d, step %d: %+v found %v, want place %d", seed, i, k, got, at)
				}
				if at >= 0 && len(list) > r.IntN(400) {
					x.Remove(got)
					x.Free(got)
					list = slices.Delete(list, at, at+1)
				}
			}
			if x.Len() != len(list) || len(list) > 0 && x.First() != list[0] {
				t.Fatalf("seed %d, step %d: %d of %d", seed, i, x.Len(), len(list))
			}
		}
	}
}

// TestPut: segments of a message lie where they belong, in whatever order they come, and what does
// not fit is left out.
func TestPut(t *testing.T) {
	const message = "abcdefghijkl"
	for _, sizes := range [][]int{{12}, {20}, {5}, {0}, {3, 0, 1, 9}, {0, 4, 4}, {1, 1, 1}} {
		for step := 1; step <= len(message); step++ {
			var r Node[Receive]
			var pieces [][]byte
			for _, n := range sizes {
				pieces = append(pieces, make([]byte, n))
			}
			r.Of.Memory(pieces[0], pieces[1:]...)
			s, ok := new(Receives).PlaceIn(&r, len(message))
			for at := (len(message) - 1) / step * step; at >= 0; at -= step {
				s.Put(at, []byte(message[at:min(at+step, len(message))]))
			}
			got := string(slices.Concat(pieces...))
			if want := message[:min(len(got), len(message))]; !ok || s.Len != len(want) ||
				strings.TrimRight(got, "\x00") != want {
				t.Errorf("%v by %d: %q, %v", sizes, step, got, ok)
			}
		}
	}
}

// rig is what receives report to.
type rig struct {
	Receives
	q      *cq.Queue
	counts [5]uint64
}

func newRig(t *testing.T, size int, alone bool) *rig {
	t.Helper()
	r := &rig{}
	var w *cq.Writer
	q, err := cq.Create(cq.Unnamed("q"), cq.Options{Size: size})
	if err == nil {
		w, err = q.Writer()
	}
	var b *feed.Binding
	if err == nil {
		b, err = feed.Bind(feed.Options{Queue: w, Flags: cq.FlagRecv})
	}
	shmtest.Must(t, err)
	t.Cleanup(func() {
		if err := errors.Join(b.Close(), w.Close(), q.Close()); err != nil {
			t.Error(err)
		}
	})
	c := &r.counts
	r.q, r.Receives = q, New(Options{Binding: b, Queue: w, Most: 100, MinMulti: 4, Alone: alone,
		Count: Counts{&c[0], &c[1], &c[2], &c[3], &c[4]}})
	return r
}

func (r *rig) post(t *testing.T, op cq.Flags, context uint64, room int) {
	t.Helper()
	n := shmtest.Got(r.Begin(op)).Or(t)
	n.Of.Context, n.Key = context, Key{From: Anybody}
	n.Of.Memory(make([]byte, room))
	r.Add(n)
}

// said reads what was reported.
func (r *rig) said(t *testing.T) (out []string) {
	t.Helper()
	shmtest.Must(t, r.Commit())
	var dst [1]cq.Entry
	var failed cq.ErrorEntry
	for {
		switch _, err := cq.Read(r.q, dst[:]); {
		case err == nil:
			out = append(out, fmt.Sprint(dst[0].Context, dst[0].Flags, dst[0].Len))
		case err == cq.ErrAvail && r.q.ReadErr(&failed) == nil:
			out = append(out, fmt.Sprint(failed.Context, failed.Flags, failed.Err))
		default:
			return out
		}
	}
}

// TestReleaseLast: a multi-receive buffer is given back after the last of its messages, in
// whatever order these end, and by whatever it ends.
func TestReleaseLast(t *testing.T) {
	const one = "7 MSG|RECV 4"
	for _, c := range []struct {
		how   string
		room  int
		alone bool
		want  string // of the last, in place of its completion or behind it
	}{
		{"full", 8, false, "7 MSG|RECV|MULTI_RECV 4"},
		{"full", 8, true, one + ", 7 MULTI_RECV 0"},
		{"too long", 16, false, "7 MSG|RECV|MULTI_RECV 4"},
		{"cancel", 16, false, one + ", 7 MSG|RECV|MULTI_RECV operation canceled"},
	} {
		t.Run(fmt.Sprintf("%s/%v", c.how, c.alone), func(t *testing.T) {
			r := newRig(t, 16, c.alone)
			r.post(t, cq.FlagMultiRecv, 7, c.room)
			var s [2]Span
			for i := range s {
				s[i], _ = r.Place(0, Key{}, 4)
			}
			switch c.how {
			case "cancel":
				if !r.Cancel(7) || r.Cancel(7) {
					t.Error("one is there, once")
				}
			case "too long":
				if _, ok := r.Place(0, Key{}, 9); ok {
					t.Error("it fits")
				}
			}
			if r.Len() != 0 {
				t.Error("it takes more")
			}
			for i, want := range []string{one, c.want} {
				r.Done(&s[1-i], &cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: 4}, 0, nil)
				if got := strings.Join(r.said(t), ", "); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
			if n := r.Queue.Credits().Len(); n != 0 {
				t.Errorf("%d credits are left", n)
			}
		})
	}
}

// TestOwed: what finds no room is reported later, in its order and before the release.
func TestOwed(t *testing.T) {
	r := newRig(t, 4, true)
	r.post(t, cq.FlagMultiRecv, 7, 40)
	r.post(t, 0, 8, 4)
	var want []string
	for i := range 10 {
		s, ok := r.Place(0, Key{}, 4)
		r.Done(&s, &cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: 4, Data: uint64(i)}, 0, nil)
		want = append(want, "7 MSG|RECV 4")
		if !ok || r.Owes() != (i > 1) {
			t.Errorf("message %d: %v, %v", i, ok, r.Owes())
		}
	}
	s, _ := r.Place(0, Key{}, 4)
	r.Done(&s, &cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: 4}, 0, nil)
	want = append(want, "7 MULTI_RECV 0", "8 MSG|RECV 4")
	got := r.said(t)
	for r.Settle() > 0 {
		got = append(got, r.said(t)...)
	}
	if !slices.Equal(got, want) || r.Owes() || r.counts[0] != 11 {
		t.Errorf("%q, %v, %v", got, r.Owes(), r.counts)
	}
}

// TestRoomBehind: a message in a multi-receive buffer that comes behind one which has its room is
// not lost for want of room that there was before.
func TestRoomBehind(t *testing.T) {
	r := newRig(t, 8, true)
	place := func(kind cq.Flags) {
		s, _ := r.Place(kind, Key{}, 4)
		r.Done(&s, &cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg, Len: 4}, 0, nil)
	}
	r.post(t, cq.FlagMultiRecv, 7, 40)
	place(0)
	shmtest.Must(t, r.Commit())
	for range 5 { // and there is room for one more
		r.post(t, cq.FlagTagged, 8, 4)
	}
	place(cq.FlagTagged)
	place(0)
	place(0)
	want := []string{"7 MSG|RECV 4", "8 MSG|RECV 4", "7 MSG|RECV 4", "7 MSG|RECV 4"}
	got := r.said(t)
	r.Settle()
	if got = append(got, r.said(t)...); !slices.Equal(got, want) || r.counts[4] != 0 {
		t.Errorf("%q, %v", got, r.counts)
	}
}
