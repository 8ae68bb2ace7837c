package status_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// TestCheck: each invariant has a word that breaks it.
func TestCheck(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	look := func(want string) {
		t.Helper()
		obj := shmtest.Have(d.Open(o.Name(), shm.Inspect)).In(t)
		got := status.Check(obj)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || got[0].Invariant != want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	look("")
	obj := shmtest.Got(d.Open(o.Name(), shm.Inspect)).Or(t)
	at := obj.Header().Sections[0].Offset + 8 // the number of the interface
	shmtest.Must(t, obj.Close())
	f := shmtest.Have(os.OpenFile(path, os.O_WRONLY, 0)).In(t)
	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
	look("endpoint.info")

	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 0}, int64(at)); err != nil {
		t.Fatal(err)
	}
	look("")

	other := shmtest.Have(d.Create("no-endpoint", shm.Spec{Kind: shm.KindEndpoint}, nil)).In(t)
	if got := status.Check(other); len(got) != 1 || got[0].Invariant != "endpoint.layout" {
		t.Errorf("%+v", got)
	}
	shmtest.Must(t, other.Unlink())
}

// TestCheckFrames: the states of frames add up to their number, in counters that are of one moment.
func TestCheckFrames(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	var c status.Counters
	c.Frames.Frames = 8
	c.Frames.Free, c.Frames.Loaned = 5, 3
	o.Update(&c)
	obj := shmtest.Have(d.Open(o.Name(), shm.Inspect)).In(t)
	if got := status.Check(obj); len(got) > 0 {
		t.Fatalf("%+v", got)
	}
	f := shmtest.Have(os.OpenFile(path, os.O_RDWR, 0)).In(t)
	counters, update := obj.Header().Sections[1].Offset, obj.Header().Sections[2].Offset
	word := func(name string) uint64 {
		return counters + 8*uint64(slices.Index(status.CounterNames(), name))
	}
	put := func(at, n uint64) (was uint64) {
		t.Helper()
		var b [8]byte
		if _, err := f.ReadAt(b[:], int64(at)); err != nil {
			t.Fatal(err)
		}
		was = binary.LittleEndian.Uint64(b[:])
		binary.LittleEndian.PutUint64(b[:], n)
		if _, err := f.WriteAt(b[:], int64(at)); err != nil {
			t.Fatal(err)
		}
		return was
	}
	for _, c := range []struct {
		at, n    uint64
		found    string
		reported uint64
	}{
		{word("frames_free"), 6, "endpoint.frames", word("frames")},
		{word("frames_quarantine"), 1, "endpoint.frames", word("frames")},
		{word("frames_send"), 1<<64 - 1, "endpoint.frames", word("frames_send")},
		{word("frames"), 9, "endpoint.frames", word("frames")},
		{obj.Header().Sections[0].Offset + 5*8, 7, "endpoint.frames", word("frames")}, // of the UMEM
		{update + 8, 2, "endpoint.update", update + 8},
	} {
		was := put(c.at, c.n)
		got := status.Check(obj)
		if len(got) != 1 || got[0].Invariant != c.found || got[0].Offset != c.reported {
			t.Errorf("%d at %#x: %+v, want %s at %#x", c.n, c.at, got, c.found, c.reported)
		}
		put(c.at, was)
	}
	// An owner that died in an update.
	put(update, 2)
	put(word("frames_free"), 6)
	if got := status.Check(obj); len(got) > 0 {
		t.Errorf("in an update: %+v", got)
	}
}

// TestCheckEarlier: an endpoint that was made before there was a section for updates is whole, and
// what it counts is not judged; with another section of that kind it is not.
func TestCheckEarlier(t *testing.T) {
	d, o := newObject(t)
	var c status.Counters
	c.Frames.Frames = 8 // in no state
	o.Update(&c)
	now := shmtest.Have(d.Open(o.Name(), shm.Inspect)).In(t)
	if got := status.Check(now); len(got) != 1 || got[0].Invariant != "endpoint.frames" {
		t.Errorf("now: %+v", got)
	}
	const update = 2
	for _, f := range []struct {
		name   string
		change func([]shm.Section) []shm.Section
		at     uint64
	}{
		{"earlier", func(s []shm.Section) []shm.Section {
			return slices.Delete(s, update, update+1)
		}, 0},
		{"longer", func(s []shm.Section) []shm.Section {
			s[update].Length += 8
			return s
		}, 0x180 + 64*update},
		{"other", func(s []shm.Section) []shm.Section {
			s[update].LayoutHash++
			return s
		}, 0x180 + 64*update},
	} {
		was := shmtest.Got(shm.CreateMemfd(shm.Spec{Kind: shm.KindEndpoint, Name: f.name,
			Sections: f.change(slices.Clone(now.Header().Sections))}, func(was *shm.Object) error {
			for _, s := range was.Header().Sections {
				from, _, err := now.Section(s.Kind, s.ID)
				if err != nil {
					return err
				}
				to, _, err := was.Section(s.Kind, s.ID)
				if err != nil {
					return err
				}
				copy(to, from)
			}
			return nil
		})).Or(t)
		got := status.Check(was)
		if f.at == 0 && len(got) > 0 || f.at != 0 && (len(got) != 1 ||
			got[0].Invariant != "endpoint.layout" || got[0].Offset != f.at) {
			t.Errorf("%s: %+v", f.name, got)
		}
		shmtest.Must(t, was.Close())
	}
}

func TestMain(m *testing.M) { shmtest.Main(m) }

func newObject(t *testing.T) (*shm.Dir, *status.Object) {
	t.Helper()
	d := shmtest.Got(shm.OpenDir("")).Or(t)
	o := shmtest.Got(status.Create(d, status.Info{Interface: "a-name-that-is-too-long-for-one",
		Queue: 1, Geometry: xdp.Geometry{Frames: 8, ChunkBytes: 2048}})).Or(t)
	t.Cleanup(func() {
		_ = o.Close() // a test may have removed it
		shmtest.Must(t, d.Close())
	})
	return d, o
}

// TestGarbage: whatever another process writes, looking gives a result or an error.
func TestGarbage(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	f := shmtest.Have(os.OpenFile(path, os.O_RDWR, 0)).In(t)
	info := shmtest.Got(f.Stat()).Or(t)
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
	shmtest.Must(t, f.Truncate(4096+100))
	if _, err := status.Look(d, o.Name()); err == nil {
		t.Error("a file that was cut can be looked at")
	}
	shmtest.Must(t, os.Remove(path))
}

// TestNotAnEndpoint: files that are none are neither shown nor removed.
func TestNotAnEndpoint(t *testing.T) {
	d, o := newObject(t)
	stray := filepath.Join(d.Path(), status.Prefix+"stray")
	shmtest.Must(t, os.WriteFile(stray, []byte("hello"), 0o600))
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
	if err := status.SetWish(d, status.Prefix+"stray", shm.UUID{}); err == nil {
		t.Error("a stray file takes wishes")
	}
}

// TestWish: what is wanted is seen once, and so is its end.
func TestWish(t *testing.T) {
	d, o := newObject(t)
	if o.Wanted() || o.Wish() != (shm.UUID{}) {
		t.Error("something is wanted from birth")
	}
	for _, id := range []shm.UUID{shm.NewUUID(), {}} {
		shmtest.Must(t, status.SetWish(d, o.Name(), id))
		if !o.Wanted() || o.Wish() != id || o.Wanted() {
			t.Errorf("%v was not seen, or twice", id)
		}
	}
}

// FuzzPages: whatever another process writes to its pages, looking at them gives a result that is
// within bounds, or an error, and checking them agrees with looking.
func FuzzPages(f *testing.F) {
	d, err := shm.OpenDir("")
	if err != nil {
		f.Fatal(err)
	}
	o, err := status.Create(d, status.Info{Interface: "eth0", Queue: 1, Receive: "in",
		Geometry: xdp.Geometry{Frames: 8, ChunkBytes: 2048}})
	if err != nil {
		f.Fatal(err)
	}
	path := filepath.Join(d.Path(), o.Name())
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := errors.Join(file.Close(), o.Close(), d.Close()); err != nil {
			f.Error(err)
		}
	})
	whole, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	const header = 4096
	pages := whole[header:]
	f.Add(uint16(0), pages[:512])
	f.Add(uint16(0), []byte(strings.Repeat("\xff", 400)))
	f.Add(uint16(8), []byte{0, 0, 0, 0x80, 0, 0, 0, 0})
	f.Add(uint16(header), []byte(strings.Repeat("\xff", 64)))
	f.Add(uint16(0), []byte{})
	for at := uint16(0); at < uint16(len(pages)); at += 4096 {
		f.Add(at, []byte(strings.Repeat("\x01", 100)))
	}
	f.Fuzz(func(t *testing.T, at uint16, b []byte) {
		if _, err := file.WriteAt(pages, header); err != nil {
			t.Fatal(err)
		}
		from := min(int(at), len(pages))
		b = b[:min(len(b), len(pages)-from)]
		if _, err := file.WriteAt(b, int64(header+from)); err != nil {
			t.Fatal(err)
		}
		s, err := status.Look(d, o.Name())
		if err == nil {
			within(t, &s)
		} else if !errors.Is(err, shm.ErrCorrupt) {
			t.Fatalf("no error of this package: %v", err)
		}
		obj, openErr := d.Open(o.Name(), shm.Inspect)
		if openErr != nil {
			t.Fatal(openErr)
		}
		bad := slices.DeleteFunc(status.Check(obj), func(v shm.Violation) bool {
			return v.Invariant == "endpoint.frames" || v.Invariant == "endpoint.update" // it can be shown
		})
		if openErr = obj.Close(); openErr != nil || (err != nil) != (len(bad) > 0) {
			t.Fatalf("Look says %v, Check %+v; %v", err, bad, openErr)
		}
	})
}

// within fails the test unless a snapshot has nothing that its reader would have to be afraid of.
func within(t *testing.T, s *status.Snapshot) {
	t.Helper()
	i := &s.Info
	if len(i.Interface) > 16 || len(i.Receive) > 72 || len(i.Transmit) > 72 {
		t.Fatalf("texts: %+v", i)
	}
	for _, n := range []uint32{i.Queue, i.Geometry.Frames, i.Geometry.ChunkBytes, i.Rings.Rx,
		i.Rings.Tx,
		i.Rings.Fill, i.Rings.Comp, uint32(i.Index)} {
		if n > 1<<31-1 {
			t.Fatalf("numbers: %+v", i)
		}
	}
	if len(s.Words) != len(status.CounterNames()) {
		t.Fatalf("%d counters", len(s.Words))
	}
	_, _ = i.Bind.String(), s.Counters.AttachMode().String()
}
