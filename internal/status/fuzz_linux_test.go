package status_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

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
		obj, openErr := shm.OpenPath(path)
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
