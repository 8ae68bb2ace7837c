package shm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestRef(t *testing.T) {
	r := MakeRef(0xabcd, 1<<48-1)
	if r.Region() != 0xabcd || r.Offset() != 1<<48-1 {
		t.Error(r)
	}
	if r := MakeRef(1, 1<<48+5); r.Region() != 1 || r.Offset() != 5 {
		t.Error(r)
	}
	for g, want := range map[uint64]uint16{1: 1, 0x10000: 0x8000, 0x1ffff: 0xffff, 0: 0x8000} {
		if got := regionID(g); got != want {
			t.Errorf("generation %#x: %#x", g, got)
		}
	}
}

// lendRegion returns the owner's and a peer's view of one region.
func lendRegion(t testing.TB) (mine, theirs *Region) {
	t.Helper()
	o, err := CreateMemfd(specFor("region"), nil)
	shmtest.Must(t, err)
	p := shmtest.Got(OpenFD(o.FD(), "region", ReadOnly)).Or(t)
	mine = shmtest.Got(NewRegion(o, secData)).Or(t)
	if theirs, err = NewRegion(p, secData); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shmtest.Must(t, errors.Join(o.Close(), p.Close())) })
	return mine, theirs
}

func TestRegionView(t *testing.T) {
	mine, theirs := lendRegion(t)
	if mine.ID() == 0 || mine.ID() != theirs.ID() {
		t.Fatal(mine.ID(), theirs.ID())
	}
	size := len(mine.Bytes())
	copy(mine.Bytes()[100:], "payload")
	l, err := theirs.View(mine.Ref(100), 7)
	if err != nil || string(l.Bytes()) != "payload" || cap(l.Bytes()) != 7 {
		t.Fatal(l, err)
	}
	l.Release()
	l.Release()
	if l.Bytes() != nil || theirs.loans.Load() != 0 {
		t.Error("released, yet lent")
	}
	for name, c := range map[string]struct {
		ref  Ref
		n    int
		want error
	}{
		"end":        {mine.Ref(uint64(size)), 0, nil},
		"all":        {mine.Ref(0), size, nil},
		"past end":   {mine.Ref(uint64(size)), 1, ErrCorrupt},
		"far":        {mine.Ref(1<<48 - 1), 1, ErrCorrupt},
		"long":       {mine.Ref(1), size, ErrCorrupt},
		"negative":   {mine.Ref(1), -1, ErrCorrupt},
		"other":      {MakeRef(mine.ID()+1, 0), 1, ErrStale},
		"no region":  {0, 1, ErrStale},
		"enormous n": {mine.Ref(8), 1<<63 - 1, ErrCorrupt},
	} {
		l, err := theirs.View(c.ref, c.n)
		if !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l.Release()
	}
	if _, err := NewRegion(mine.Object(), 99); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
}

func TestRegionViewAllocatesNothing(t *testing.T) {
	_, r := lendRegion(t)
	ref := r.Ref(64)
	n := testing.AllocsPerRun(1000, func() {
		l := shmtest.Got(r.View(ref, 64)).Or(t)
		l.Release()
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestRegionCloseWaits(t *testing.T) {
	_, r := lendRegion(t)
	l := shmtest.Got(r.View(r.Ref(0), 8)).Or(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("closed over a loan: %v", err)
	}
	if _, err := r.View(r.Ref(0), 8); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("lent while closing: %v", err)
	}
	_ = l.Bytes()[0] // still mapped
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	l.Release()
	wg.Wait()
	shmtest.Must(t, r.Close(t.Context()))
}

func TestRegionConcurrentLoans(t *testing.T) {
	_, r := lendRegion(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				l, err := r.View(r.Ref(0), 8)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				_ = l.Bytes()[7]
				l.Release()
			}
		})
	}
	shmtest.Must(t, r.Close(t.Context()))
	wg.Wait()
}

func BenchmarkRegionView(b *testing.B) {
	_, r := lendRegion(b)
	ref := r.Ref(64)
	b.ReportAllocs()
	for b.Loop() {
		l, err := r.View(ref, 64)
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
}

const (
	secData SectionKind = 1
	secHint SectionKind = 2
)

func specFor(name string) Spec {
	return Spec{Kind: KindLane, Name: name, Attrs: [16]uint64{7, 15: 9}, Sections: []Section{
		{Kind: secData, Length: 64 * 128, ElemSize: 64, Capacity: 128, LayoutHash: 12638214688346347271},
		{Kind: secHint, ID: 3, Length: 100},
	}}
}

func openTestDir(t testing.TB) *Dir {
	t.Helper()
	return shmtest.Have(OpenDir("")).In(t)
}

// makeObject creates an object that is unlinked and closed when the test ends.
func makeObject(t testing.TB, d *Dir, name string) *Object {
	t.Helper()
	o := shmtest.Got(d.Create(name, specFor(""), nil)).Or(t)
	t.Cleanup(func() {
		_ = o.Unlink() // some test may have done it, or let go of the object
		shmtest.Must(t, o.Close())
	})
	return o
}

func openObject(t testing.TB, d *Dir, name string, acc Access) *Object {
	t.Helper()
	return shmtest.Have(d.Open(name, acc)).In(t)
}

func TestCreateOpenShareBytes(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "lane-0001")
	mine, sec, err := o.Section(secData, 0)
	shmtest.Must(t, err)
	if len(mine) != 64*128 || cap(mine) != len(mine) || sec.Offset%headerBytes != 0 {
		t.Fatalf("len %d cap %d section %+v", len(mine), cap(mine), sec)
	}
	p := openObject(t, d, "lane-0001", ReadOnly)
	theirs, _, err := p.Section(secData, 0)
	shmtest.Must(t, err)
	copy(mine, "from the owner")
	if !bytes.HasPrefix(theirs, []byte("from the owner")) {
		t.Fatal("the two mappings differ")
	}
	hint := shmtest.Got(p.MapWritable(secHint, 3)).Or(t)
	if len(hint) != 100 || cap(hint) != 100 {
		t.Fatalf("len %d cap %d", len(hint), cap(hint))
	}
	copy(hint, "from the peer")
	back, _, _ := o.Section(secHint, 3)
	if !bytes.HasPrefix(back, []byte("from the peer")) {
		t.Fatal("hints do not arrive")
	}
	if p.Header().Attrs != o.Header().Attrs || p.Header().UUID != o.Header().UUID {
		t.Fatal("headers differ")
	}
	if life, err := p.Life(); life != Alive || err != nil {
		t.Fatal(life, err)
	}
}
