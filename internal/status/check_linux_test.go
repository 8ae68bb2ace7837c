package status_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

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
		obj, err := shm.OpenPath(path)
		if err != nil {
			t.Fatal(err)
		}
		defer obj.Close()
		got := status.Check(obj)
		if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || got[0].Invariant != want) {
			t.Errorf("%+v, want %s", got, want)
		}
	}
	look("")
	obj, err := shm.OpenPath(path)
	if err != nil {
		t.Fatal(err)
	}
	at := obj.Header().Sections[0].Offset + 8 // the number of the interface
	if err := obj.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 1}, int64(at)); err != nil {
		t.Fatal(err)
	}
	look("endpoint.info")

	if _, err := f.WriteAt([]byte{0, 0, 0, 0, 0}, int64(at)); err != nil {
		t.Fatal(err)
	}
	look("")

	other, err := d.Create("no-endpoint", shm.Spec{Kind: shm.KindEndpoint}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if got := status.Check(other); len(got) != 1 || got[0].Invariant != "endpoint.layout" {
		t.Errorf("%+v", got)
	}
	if err := other.Unlink(); err != nil {
		t.Error(err)
	}
}

// TestCheckFrames: the states of frames add up to their number, in counters that are of one moment.
func TestCheckFrames(t *testing.T) {
	d, o := newObject(t)
	path := filepath.Join(d.Path(), o.Name())
	var c status.Counters
	c.Frames.Frames = 8
	c.Frames.States[xdp.FrameFree], c.Frames.States[xdp.FrameLoaned] = 5, 3
	o.Update(&c)
	obj, err := shm.OpenPath(path)
	if err != nil {
		t.Fatal(err)
	}
	defer obj.Close()
	if got := status.Check(obj); len(got) > 0 {
		t.Fatalf("%+v", got)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
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
	now, err := shm.OpenPath(filepath.Join(d.Path(), o.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
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
		was, err := shm.CreateMemfd(shm.Spec{Kind: shm.KindEndpoint, Name: f.name,
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
		})
		if err != nil {
			t.Fatal(err)
		}
		got := status.Check(was)
		if f.at == 0 && len(got) > 0 || f.at != 0 && (len(got) != 1 ||
			got[0].Invariant != "endpoint.layout" || got[0].Offset != f.at) {
			t.Errorf("%s: %+v", f.name, got)
		}
		if err := was.Close(); err != nil {
			t.Error(err)
		}
	}
}
