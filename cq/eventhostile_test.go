package cq_test

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
)

// TestEventHostileLane: a writer that writes nonsense loses its lane, once told, and only that.
func TestEventHostileLane(t *testing.T) {
	slot := func(word int, v uint64) func(t *testing.T, s scribbler) {
		return func(t *testing.T, s scribbler) {
			poke(s.section(t, cq.SectSlots, 1), 2*cq.SlotBytes+8*word, v) // of the third event
		}
	}
	for name, tt := range map[string]struct {
		do    func(t *testing.T, s scribbler)
		field string
		read  int // events of the lane that are still read
	}{
		"payload beyond the record": {slot(2, 233), "payload length", 2},
		"endless payload":           {slot(2, ^uint64(0)), "payload length", 2},
		"payload of 2^63":           {slot(2, 1<<63), "payload length", 2},
		"kind 0":                    {slot(7, 0), "entry kind", 2},
		"kind 200":                  {slot(7, 200), "entry kind", 2},
		"tail": {func(t *testing.T, s scribbler) {
			poke(s.section(t, cq.SectLane, 1), 0, 1<<40)
		}, "index", 0},
		"overrun": {func(t *testing.T, s scribbler) {
			poke(s.section(t, cq.SectLane, 1), cq.OffLaneOver, 3)
		}, "overrun", 4},
	} {
		t.Run(name, func(t *testing.T) {
			d, e := createEvents(t, cq.EventOptions{Size: 8, MaxLanes: 3, Write: true})
			bad, good := attachEvents(t, d, e.Name()), attachEvents(t, d, e.Name())
			writeEvents(t, bad, 0, 4)
			writeEvents(t, good, 100, 104)
			tt.do(t, scribble(t, d, e.Name(), "lane-0001"))
			var fromBad, fromGood []uint64
			told := 0
			ev := cq.Event{Payload: make([]byte, 0, 1000)}
			for range 30 {
				_, err := e.Read(&ev, 0)
				var lane *cq.LaneError
				switch {
				case err == nil && ev.Context >= 100:
					fromGood = append(fromGood, ev.Context)
				case err == nil:
					fromBad = append(fromBad, ev.Context)
				case errors.As(err, &lane):
					told++
					wantErr(t, "read", err, cq.ErrCorrupt, syscall.EBADMSG)
					if lane.Lane != 1 || lane.Field != tt.field || lane.PID != os.Getpid() {
						t.Errorf("%+v", lane)
					}
				case err != cq.ErrWouldBlock:
					t.Fatal(err)
				}
			}
			if told != 1 || len(fromBad) != tt.read || !slices.Equal(fromGood, upTo(100, 104)) {
				t.Errorf("told %d times, %v of the lane, good: %v", told, fromBad, fromGood)
			}
			_, err := bad.Write(&cq.Event{})
			wantErr(t, "write of the bad one", err, cq.ErrCorrupt, syscall.EBADMSG)
			writeEvents(t, good, 104, 106)
			writeEvents(t, e, 106, 107)
			got := drainEvents(t, e)
			slices.Sort(got)
			if !slices.Equal(got, upTo(104, 107)) {
				t.Errorf("then %v", got)
			}
		})
	}
}

// FuzzEventLane has arbitrary bytes as a writer's words, slots and detail records. Whatever they
// are, the reader ends, hands out no more than there can be, and another writer's events come in
// order.
func FuzzEventLane(f *testing.F) {
	f.Add(fuzzLane(3, 1), []byte{0, 1, 2, 3, 4, 5, 6, 7})
	f.Add(fuzzLane(8, 2), []byte{3, 0, 4, 0, 2, 0x80})
	f.Add(fuzzLane(9, 1), []byte{1, 3})
	f.Add(fuzzLane(^uint64(0), 0), []byte{0, 0, 0})
	for _, n := range []uint64{1, 40, 232, 233, ^uint64(0)} {
		long := fuzzLane(2, 1)
		poke(long, 512+16, n)
		f.Add(long, []byte{0, 5, 0})
		failed := append(fuzzLane(2, 2), make([]byte, 64)...)
		poke(failed, 1024+16, n)
		f.Add(failed, []byte{3, 4, 6})
	}
	f.Fuzz(func(t *testing.T, lane, steps []byte) {
		d := openDir(t)
		o := cq.EventOptions{Size: fuzzSize, MaxLanes: 2, Spin: -1, Wait: cq.WaitFD}
		if len(steps) > 0 && steps[0]&0x80 != 0 {
			o.Overrun = cq.OverrunQueue
		}
		e, err := cq.CreateEvents(cq.Named(d, "fuzz"), o)
		must(t, err)
		spec := cq.EventLaneSpec(1, e)
		must(t, e.Detach())
		row := make([]byte, cq.RowBytes)
		row[0] = 1
		plantLane(t, d, "fuzz", spec, lane, row)
		w, err := cq.AttachEvents(t.Context(), cq.Named(d, "fuzz"), cq.WriterOptions{})
		must(t, err)
		e, err = cq.OpenEvents(cq.Named(d, "fuzz"), cq.EventOptions{Existing: true, Spin: -1})
		must(t, err)
		if w.Lane() == 2 {
			for i := range uint64(4) {
				_, err = w.Write(&cq.Event{Context: 1000 + i, FID: fabric(1)})
				must(t, err)
			}
		} else {
			_, _ = w.Write(&cq.Event{Context: 1, Payload: make([]byte, 200)})
			_, _ = w.WriteErr(&cq.EventError{Context: 1})
		}
		good, others := uint64(0), 0
		steps = steps[:min(len(steps), 64)]
		for i := range len(steps) + 64 {
			step := byte(0)
			if i < len(steps) {
				step = steps[i]
			}
			c, err := fuzzEventStep(t, e, step)
			switch {
			case err != nil:
			case w.Lane() == 2 && c == 1000+good:
				good++
			default:
				others++
			}
		}
		if w.Lane() == 2 && good != 4 || others > 2*fuzzSize {
			t.Errorf("%d good events, %d others", good, others)
		}
		must(t, w.Close())
		must(t, e.Close())
		must(t, os.RemoveAll(d.Path()+"/fuzz"))
	})
}

// fuzzEventStep makes one call of the reader's and returns the context of an event that was taken.
func fuzzEventStep(t *testing.T, e *cq.EventQueue, step byte) (uint64, error) {
	ev := cq.Event{Payload: make([]byte, 0, int(step>>3)*16)}
	bad := cq.EventError{ErrData: make([]byte, 0, int(step>>3)*16)}
	var err error
	switch step & 7 {
	case 0:
		_, err = e.Read(&ev, 0)
	case 1:
		if _, err = e.Read(&ev, cq.FlagPeek); err == nil {
			err = cq.ErrWouldBlock // nothing was taken
		}
	case 2:
		_, err = eqSread(e, &ev, 50*time.Microsecond)
	case 3:
		_, err = e.ReadErr(&bad, 0)
		ev.Context = bad.Context
	case 4:
		if _, err = e.ReadErr(&bad, cq.FlagPeek); err == nil {
			err = cq.ErrWouldBlock
		}
	case 5:
		err = errors.Join(e.Purge(cq.FID{}), cq.ErrWouldBlock)
	case 6:
		err = errors.Join(e.TryWait(), cq.ErrWouldBlock)
	case 7:
		cq.MarkEventLane(e, 1)
		err = cq.ErrWouldBlock
	}
	var too *cq.TooSmallError
	switch {
	case errors.As(err, &too):
		ev.Payload = make([]byte, 0, too.NeedBytes)
		if too.NeedBytes > e.Options().DataMaxBytes {
			t.Fatal(err)
		}
		_, err = e.Read(&ev, 0)
	case err == cq.ErrAvail:
		_, err = e.ReadErr(&bad, 0)
		ev.Context = bad.Context
	}
	var lane *cq.LaneError
	if errors.As(err, &lane) && !errors.Is(err, syscall.EBADMSG) {
		t.Fatal(err)
	}
	return ev.Context, err
}
