package doorbell

import (
	"sync/atomic"
	"testing"
)

// Programs in other languages read these words: where they lie is part of the format.
func TestWordsLieWhereTheFormatSays(t *testing.T) {
	mem := words8(4096)
	h := must(MapHints(mem, 130))
	d := must(MapDomain(mem[2048:], 130))
	arm, row := must(ArmAt(mem, 1024)), must(RowAt(mem, 1152))
	for name, c := range map[string]struct {
		store func()
		off   int
	}{
		"epoch":          {func() { h.epoch.Store(1) }, 0},
		"rung":           {func() { h.rung.Store(1) }, 128},
		"latch":          {func() { h.latch.Store(1) }, 256},
		"ready 0":        {func() { mark(h.ready, 0) }, 384},
		"ready 64":       {func() { mark(h.ready, 64) }, 392},
		"ready 128":      {func() { mark(h.ready, 128) }, 400},
		"armed":          {func() { arm.Word.Store(1) }, 1024},
		"parked":         {func() { row.Parked.Store(Parked) }, 1152},
		"wake index":     {func() { row.Index.Store(1) }, 1160},
		"domain epoch":   {func() { d.epoch.Store(1) }, 2048},
		"domain ready":   {func() { mark(d.ready, 128) }, 2048 + 400},
		"domain summary": {func() { mark(d.summary, 0) }, 2048 + 408},
	} {
		clear(mem)
		c.store()
		for off := range mem {
			if want := off == c.off; (mem[off] != 0) != want {
				t.Errorf("%s: byte %d holds %d", name, off, mem[off])
			}
		}
	}
	if HintsBytes(130) != 408 || DomainBytes(130) != 416 || HintsBytes(1) != 392 {
		t.Error(HintsBytes(130), DomainBytes(130), HintsBytes(1))
	}
	if DomainBytes(64*64+1) != 384+65*8+2*8 {
		t.Error(DomainBytes(64*64 + 1))
	}
}

func TestNoRoomForWords(t *testing.T) {
	mem := words8(4096)
	for name, f := range map[string]func() error{
		"hints, a byte short":   func() error { return e(MapHints(mem[:HintsBytes(65)-1], 65)) },
		"hints, no bits":        func() error { return e(MapHints(mem, 0)) },
		"hints, unaligned":      func() error { return e(MapHints(mem[4:], 1)) },
		"domain, a byte short":  func() error { return e(MapDomain(mem[:DomainBytes(65)-1], 65)) },
		"domain, a word short":  func() error { return e(MapDomain(mem[:DomainBytes(65)-8], 65)) },
		"armed word at the end": func() error { return e(ArmAt(mem, 4096-8)) },
		"armed word beyond":     func() error { return e(ArmAt(mem, 1<<63)) },
		"armed word, wrap":      func() error { return e(ArmAt(mem, 1<<64-8)) },
		"armed word, unaligned": func() error { return e(ArmAt(mem, 4)) },
		"row in nothing":        func() error { return e(RowAt(nil, 0)) },
	} {
		if f() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if HintsBytes(65) > 4096 || e(MapHints(mem[:HintsBytes(65)], 65)) != nil ||
		e(MapDomain(mem[:DomainBytes(65)], 65)) != nil || e(ArmAt(mem, 4096-128)) != nil {
		t.Error("what fits exactly is refused")
	}
}

func e[T any](_ T, err error) error { return err }

func TestInspect(t *testing.T) {
	h := must(MapHints(words8(int(HintsBytes(130))), 130))
	mark(h.ready, 1)
	mark(h.ready, 129)
	h.latch.Store(1)
	h.rung.Store(6)
	h.epoch.Store(8)
	got := Inspect(7<<armGenShift|armDirect|armDom|7, h)
	want := View{Armed: true, Direct: true, Member: true, Seq: 7, Rung: 6, Epoch: 8, Signal: true,
		Ready: 2}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Inspect(armFD, h); !got.FD || got.Direct || got.Member {
		t.Errorf("%+v", got)
	}
	if got := Inspect(7, h); got.Armed {
		t.Errorf("%+v", got)
	}
}

func TestBitset(t *testing.T) {
	b := newBitset(130)
	if !b.empty() || b.next(0) != -1 || b.next(1000) != -1 || b.count() != 0 {
		t.Fatal("not empty")
	}
	members := []int{0, 63, 64, 129}
	for _, i := range members {
		b.set(i)
	}
	var got []int
	for i := b.next(0); i >= 0; i = b.next(i + 1) {
		got = append(got, i)
	}
	if len(got) != 4 || got[1] != 63 || got[3] != 129 || b.count() != 4 || b.has(65) || !b.has(64) {
		t.Fatal(got)
	}
	for _, i := range members {
		b.clear(i)
	}
	if !b.empty() {
		t.Fatal("clear")
	}
}

// mark skips the store of a bit that is set: the line then stays shared between producers.
func TestMarkKeepsOtherBits(t *testing.T) {
	words := make([]atomic.Uint64, 2)
	for _, i := range []int{3, 3, 70, 71} {
		mark(words, i)
	}
	if words[0].Load() != 8 || words[1].Load() != 0xc0 {
		t.Fatal(words[0].Load(), words[1].Load())
	}
}
