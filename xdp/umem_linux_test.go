package xdp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func TestUMEMIsSealed(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	u, err := NewUMEM(UMEMOptions{Name: "umem", Frames: 8, ChunkBytes: 4096, HeadroomBytes: 128})
	must(t, err)
	defer u.Close(t.Context())
	fd := u.Region().Object().FD()
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("it can be mapped writable")
	}
	for _, size := range []int64{0, 1 << 30} {
		if err := unix.Ftruncate(u.Region().Object().FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("resize to %d: %v", size, err)
		}
	}
	if _, err := unix.Pwrite(u.Region().Object().FD(), []byte{1}, 4096); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v", err)
	}
	u.Region().Bytes()[5] = 0xaa // our own mapping still is writable
	peer, g, err := OpenUMEM(u.Region().Object().FD(), "peer", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close(context.Background())
	if g != u.Geometry() || g.Chunk(4096+777) != 4096 {
		t.Errorf("geometry %+v, want %+v", g, u.Geometry())
	}
	if peer.Bytes()[5] != 0xaa || peer.ID() != u.Region().ID() {
		t.Error("the peer sees something else")
	}
}

// TestOpenUMEMRefuses: objects that are no UMEM, or whose header lies about it.
func TestOpenUMEMRefuses(t *testing.T) {
	t.Parallel()
	good := func() shm.Spec {
		return kind.UMEM{Frames: 8, ChunkBytes: 2048, HeadroomBytes: 64}.Spec("")
	}
	for name, c := range map[string]struct {
		change func(*shm.Spec)
		want   error
	}{
		"kind":        {func(s *shm.Spec) { s.Kind = shm.KindRegion }, shm.ErrKind},
		"section":     {func(s *shm.Spec) { s.Sections[0].Kind = 1 }, shm.ErrKind},
		"frames":      {func(s *shm.Spec) { s.Attrs[0] = 9 }, shm.ErrCorrupt},
		"many frames": {func(s *shm.Spec) { s.Attrs[0] = 1<<32 + 8 }, shm.ErrCorrupt},
		"feature":     {func(s *shm.Spec) { s.FeatIncompat = 1 << 40 }, shm.ErrVersion},
	} {
		spec := good()
		c.change(&spec)
		o, err := shm.CreateMemfd(spec, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, _, err := OpenUMEM(o.FD(), name, 0); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		must(t, o.Close())
	}
	o := shmtest.Got(shm.CreateMemfd(good(), nil)).Or(t)
	defer o.Close()
	r, _, err := OpenUMEM(o.FD(), "good", 0)
	must(t, err)
	must(t, r.Close(context.Background()))
	if _, _, err := OpenUMEM(-1, "none", 0); err == nil {
		t.Error("opened no descriptor")
	}
}

func TestReadFrameChecks(t *testing.T) {
	t.Parallel()
	g := Geometry{Frames: 4, ChunkBytes: 2048, HeadroomBytes: RecordBytes}
	o := shmtest.Got(shm.CreateMemfd(shm.Spec{Kind: shm.KindUMEM, Name: "frames",
		Sections: []shm.Section{{Kind: kind.SectFrames, Length: g.bytes(), ElemSize: 1,
			Capacity: g.bytes()}}}, nil)).Or(t)
	r := shmtest.Got(shm.NewRegion(o, kind.SectFrames)).Or(t)
	t.Cleanup(func() { _ = r.Close(context.WithoutCancel(t.Context())) })
	want := Record{Sequence: 9, Src: netip.MustParseAddrPort("192.0.2.1:4000"),
		Dst: netip.MustParseAddrPort("192.0.2.2:4791")}
	want.Put(r.Bytes()[2048:], false)
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

// TestPrivilegeHint: what is missing is named, and what is not missing is not.
func TestPrivilegeHint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		h         hostFindings
		has, lets string
	}{
		{hostFindings{missingCaps: []string{"CAP_BPF"}, memlockBytes: 1}, "lacks CAP_BPF:", "ulimit"},
		{hostFindings{memlockBytes: ^uint64(0)}, "user namespace", "lacks"},
		{hostFindings{memlockBytes: 1, memlockFree: true}, "user namespace", "ulimit"},
	} {
		got := privilegeHint(c.h)
		if !strings.Contains(got, c.has) || strings.Contains(got, c.lets) {
			t.Errorf("%+v: %q", c.h, got)
		}
	}
}
