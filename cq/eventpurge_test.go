package cq_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// writeAbout writes events about objects by their number, which is the context too; a negative
// number is an error event.
func writeAbout(t testing.TB, w eventWriter, objects ...int) {
	t.Helper()
	for _, o := range objects {
		var err error
		if o < 0 {
			_, err = w.WriteErr(&cq.EventError{FID: fabric(uint64(-o)), Context: uint64(-o)})
		} else {
			_, err = w.Write(&cq.Event{FID: fabric(uint64(o)), Context: uint64(o)})
		}
		must(t, err)
	}
}

// TestEventPurge is P36: what was queued about a closed object is never read, wherever it stands.
func TestEventPurge(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, tt := range []struct{ own, other, want []int }{
			{[]int{1}, nil, nil},
			{[]int{1, 1, 1}, []int{1}, nil},
			{[]int{1, 2, 1, 3, 1}, nil, []int{2, 3}},
			{[]int{2, 1}, []int{3, 1, -1, 4}, []int{2, 3, 4}},
			{[]int{-1, 2, -1, 1}, []int{1, -1}, []int{2}},
			{[]int{2, -3, 1, 2}, []int{-1}, []int{2, 2, 3}},
			{[]int{2, 2}, nil, []int{2, 2}},
		} {
			t.Run(fmt.Sprint(shared, tt), func(t *testing.T) {
				d, e := createEvents(t, cq.EventOptions{Size: 8, Write: true, Shared: shared})
				w := attachEvents(t, d, e.Name())
				for range 5 { // around the end of the ring
					writeAbout(t, e, tt.own...)
					writeAbout(t, w, tt.other...)
					must(t, e.Purge(fabric(1)))
					must(t, e.Purge(fabric(1)))
					got := drainEventsAnd(t, e)
					slices.Sort(got)
					if fmt.Sprint(got) != fmt.Sprint(tt.want) {
						t.Errorf("%v, want %v", got, tt.want)
					}
					// A later object may have the number again.
					writeAbout(t, w, 1)
					if got := drainEventsAnd(t, e); len(got) != 1 {
						t.Errorf("%v is left of a later event", got)
					}
				}
			})
		}
	}
}

// TestEventPurgePeeked: what was peeked at, did not fit, or stopped a read is purged too.
func TestEventPurgePeeked(t *testing.T) {
	_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true})
	var ev cq.Event
	for what, seen := range map[string]func() error{
		"peeked": func() error { _, err := e.Read(&ev, cq.FlagPeek); return err },
		"too small": func() error {
			if _, err := e.Read(&ev, 0); err == nil {
				t.Error("it fits")
			}
			return nil
		},
	} {
		_, err := e.Write(&cq.Event{FID: fabric(1), Payload: make([]byte, 9*len(what)/10)})
		must(t, err)
		if what == "peeked" {
			ev.Payload = make([]byte, 0, 20)
		} else {
			ev.Payload = nil
		}
		writeAbout(t, e, 2)
		must(t, seen())
		must(t, e.Purge(fabric(1)))
		if got := drainEventsAnd(t, e); !slices.Equal(got, []uint64{2}) {
			t.Errorf("%s: %v", what, got)
		}
	}
	writeAbout(t, e, -1, 3)
	_, err := e.Read(&ev, 0)
	wantErr(t, "read", err, cq.ErrAvail)
	must(t, e.Purge(fabric(1)))
	_, err = e.ReadErr(&cq.EventError{}, 0)
	wantErr(t, "readerr of what was purged", err, cq.ErrWouldBlock)
	if got := drainEventsAnd(t, e); !slices.Equal(got, []uint64{3}) {
		t.Error(got)
	}
}

// TestEventPurgeRoom: what was purged gives its room back at the next look.
func TestEventPurgeRoom(t *testing.T) {
	d, e := createEvents(t, cq.EventOptions{Size: 4, Write: true, Wait: cq.WaitFD, Spin: -1})
	w := attachEvents(t, d, e.Name())
	writeAbout(t, w, 1, 1, 1, 1)
	must(t, e.Purge(fabric(1)))
	must(t, e.TryWait())
	writeAbout(t, w, 2, 1, 2, 1)
	must(t, e.Purge(fabric(1)))
	wantErr(t, "trywait", e.TryWait(), cq.ErrWouldBlock)
	if got := drainEvents(t, e); !slices.Equal(got, []uint64{2, 2}) {
		t.Error(got)
	}
	writeAbout(t, w, 1)
	must(t, e.Purge(fabric(1)))
	_, err := eqSread(e, &cq.Event{}, time.Millisecond)
	wantErr(t, "sread", err, cq.ErrTimedOut)
}

// TestEventPurgeMany: objects that are closed while nobody reads take bounded memory.
func TestEventPurgeMany(t *testing.T) {
	t.Parallel()
	_, e := createEvents(t, cq.EventOptions{Size: 4, Write: true})
	writeAbout(t, e, 3, 70000, 2)
	for i := range uint64(65536) {
		must(t, e.Purge(fabric(i)))
	}
	wantErr(t, "one more", e.Purge(fabric(65536)), cq.ErrFull)
	if got := drainEvents(t, e); !slices.Equal(got, []uint64{70000}) {
		t.Error(got)
	}
	must(t, e.Purge(fabric(65536)))
}

// TestEventPurgeAlone has one writer that the reader keeps up with, which reads go a short way for.
func TestEventPurgeAlone(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared=", shared), func(t *testing.T) {
			_, e := createEvents(t, cq.EventOptions{Size: 8, Write: true, Shared: shared})
			for range 20 {
				writeAbout(t, e, 7, 1, 2, 1, -1, 3)
				var ev cq.Event
				if _, err := e.Read(&ev, 0); err != nil || ev.Context != 7 {
					t.Fatal(err, ev)
				}
				must(t, e.Purge(fabric(1)))
				if got := drainEventsAnd(t, e); !slices.Equal(got, []uint64{2, 3}) {
					t.Fatal(got)
				}
			}
		})
	}
}
