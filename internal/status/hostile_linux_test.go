package status_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

func newObject(t *testing.T) (*shm.Dir, *status.Object) {
	t.Helper()
	d, err := shm.OpenDir("")
	if err != nil {
		t.Fatal(err)
	}
	o, err := status.Create(d, status.Info{Interface: "a-name-that-is-too-long-for-one",
		Queue: 1, Geometry: xdp.Geometry{Frames: 8, ChunkBytes: 2048}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = o.Close() // a test may have removed it
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, o
}

// TestGarbage: whatever another process writes, looking gives a result or an error.
func TestGarbage(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	whole := make([]byte, info.Size())
	if _, err := f.ReadAt(whole, 0); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	failed := 0
	for range 500 {
		var junk [8]byte
		binary.LittleEndian.PutUint64(junk[:], rng.Uint64())
		at := 4096 + rng.Int64N(info.Size()-4096-8)
		if _, err := f.WriteAt(junk[:], at); err != nil {
			t.Fatal(err)
		}
		if _, err := status.Look(d, o.Name()); err != nil {
			failed++
		}
		if rng.IntN(8) == 0 {
			if _, err := f.WriteAt(whole, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if failed == 0 || failed == 500 {
		t.Errorf("%d of 500 looks failed", failed)
	}
	if err := f.Truncate(4096 + 100); err != nil {
		t.Fatal(err)
	}
	if _, err := status.Look(d, o.Name()); err == nil {
		t.Error("a file that was cut can be looked at")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// TestNotAnEndpoint: files that are none are neither shown nor removed.
func TestNotAnEndpoint(t *testing.T) {
	d, o := newObject(t)
	stray := filepath.Join(d.Path(), status.Prefix+"stray")
	if err := os.WriteFile(stray, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(stray)
	all, err := status.List(d)
	if len(all) != 1 || all[0].Name != o.Name() || err == nil {
		t.Errorf("%d endpoints, %v", len(all), err)
	}
	if all[0].Info.Interface != "a-name-that-is-" || all[0].Info.Geometry.Frames != 8 {
		t.Errorf("%+v", all[0].Info)
	}
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
	if _, err := status.SetWish(d, status.Prefix+"stray", shm.UUID{}, shm.UUID{}); err == nil {
		t.Error("a stray file takes wishes")
	}
}

// TestWish: of two tools the one that knows what is wanted now has its way.
func TestWish(t *testing.T) {
	d, o := newObject(t)
	a, b := shm.NewUUID(), shm.NewUUID()
	set := func(old, id shm.UUID, want bool) {
		t.Helper()
		done, err := status.SetWish(d, o.Name(), old, id)
		if err != nil || done != want {
			t.Errorf("done %v, %v", done, err)
		}
	}
	if o.Wanted() || !o.Wish().IsZero() {
		t.Error("something is wanted from birth")
	}
	set(shm.UUID{}, a, true)
	if !o.Wanted() || o.Wish() != a || o.Wanted() {
		t.Error("the first wish was not seen, or twice")
	}
	set(shm.UUID{}, b, false)
	set(b, shm.UUID{}, false)
	set(a, shm.UUID{}, true)
	if !o.Wanted() || !o.Wish().IsZero() {
		t.Error("the end was not seen")
	}
}
