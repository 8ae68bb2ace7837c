package xdp

import (
	"errors"
	"testing"
)

// lent returns a table of four frames, of which holders have the first three under the generations
// 7, 8 and 9.
func lent(t *testing.T, holders ...uint16) *frameTable {
	t.Helper()
	f := newFrameTable(0, 4, 4)
	for i, h := range holders {
		id, ok := f.pop(&f.rxFree, FrameFill)
		if !ok || !f.move(id, FrameReceived) || !f.loan(id, uint32(7+i), h) {
			t.Fatalf("frame %d cannot be lent", id)
		}
	}
	return f
}

// A reclaim takes the loans of one holder that are older than what it names.
func TestReclaimTakesTheOlder(t *testing.T) {
	t.Parallel()
	f := lent(t, 1, 1, 1)
	if n := f.reclaim(9, 1); n != 2 || f.counts[FrameLoaned] != 1 || f.counts[FrameFree] != 3 {
		t.Errorf("%d reclaimed, %v", n, f.stats())
	}
	if _, ok := f.lent(2, 9, 1); !ok {
		t.Error("the loan of the living reader is gone")
	}
	f = lent(t, 1, 2, 1)
	if n := f.reclaim(100, 1); n != 2 || !f.is(1, FrameLoaned) {
		t.Errorf("%d reclaimed of holder 1, %v", n, f.stats())
	}
	f = lent(t, 1)
	f.loans[0].generation = 1<<32 - 3
	if n := f.reclaim(2, 1); n != 1 {
		t.Errorf("%d reclaimed across the end of the numbers", n)
	}
}

// A frame cannot get to where it would have two owners.
func TestIllegalMoves(t *testing.T) {
	t.Parallel()
	for to := range frameStates {
		for from := range frameStates {
			f := newFrameTable(0, 1, 1)
			f.state[0] = from
			f.counts = [frameStates]uint64{}
			f.counts[from] = 1
			legal := legalFrom[to]&(1<<from) != 0
			moved := f.move(0, to)
			if moved != legal || f.is(0, to) != (legal || from == to) || f.stats().Sum() != 1 {
				t.Errorf("%v to %v: moved %v, legal %v, %+v", from, to, moved, legal, f.stats())
			}
			if refused := f.stats().Illegal == 1; refused == legal {
				t.Errorf("%v to %v: counted %d", from, to, f.stats().Illegal)
			}
		}
	}
	f := newFrameTable(4, 1, 1)
	if f.move(3, FrameFill) || f.move(5, FrameFill) {
		t.Error("a frame of another table moves")
	}
}

// No frame of a UMEM is given out twice, whoever had it before.
func TestFramesAreGivenOnce(t *testing.T) {
	t.Parallel()
	u := &UMEM{geo: Geometry{Frames: 8}}
	var at uint32
	for _, n := range []uint32{3, 4, 0} {
		first, frames, err := u.take(n)
		if err != nil || first != at || n != 0 && frames != n {
			t.Fatalf("%d frames from %d: %v", frames, first, err)
		}
		at += frames
	}
	if at != 8 {
		t.Errorf("%d frames given out of 8", at)
	}
	if _, _, err := u.take(1); !errors.Is(err, ErrUMEMUsed) {
		t.Errorf("one more: %v", err)
	}
}
