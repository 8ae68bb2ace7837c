package xdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

func TestReadFrameChecks(t *testing.T) {
	t.Parallel()
	g := Geometry{Frames: 4, ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	o, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "frames",
		Sections: []shm.Section{{Kind: kind.SectFrames, Length: g.bytes(), ElemSize: 1,
			Capacity: g.bytes()}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := shm.NewRegion(o, kind.SectFrames)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	want := Record{Sequence: 9, Src: netip.MustParseAddrPort("192.0.2.1:4000"),
		Dst: netip.MustParseAddrPort("192.0.2.2:4791")}
	want.Put(r.Bytes()[2048:])
	for _, off := range []uint64{2048, 2048 + 362, 4095} {
		if got, err := ReadFrame(r, g, r.Ref(off)); err != nil || got != want {
			t.Errorf("at %d: %+v, %v", off, got, err)
		}
	}
	for ref, wantErr := range map[shm.Ref]error{
		r.Ref(g.bytes()): ErrFrame, r.Ref(1<<48 - 1): ErrFrame,
		shm.MakeRef(r.ID()+1, 0): shm.ErrStale,
	} {
		if _, err := ReadFrame(r, g, ref); !errors.Is(err, wantErr) {
			t.Errorf("%v: %v", ref, err)
		}
	}
	// A geometry that is larger than the memory.
	g.Frames = 1000
	if _, err := ReadFrame(r, g, r.Ref(5*2048)); !errors.Is(err, shm.ErrCorrupt) {
		t.Error(err)
	}
	for range 1000 {
		_, _ = ReadFrame(r, g, shm.Ref(rand.Uint64()))
	}
}
