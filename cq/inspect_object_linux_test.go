package cq_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// loneObjects makes an object of each kind that stands by itself and returns their names. They stay
// when nobody has them open, but for the bell.
func loneObjects(t *testing.T, d *shm.Dir) []string {
	t.Helper()
	base := queueName(t)
	c, err := cq.CreateCounter(d, base+".c", cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(7))
	must(t, c.Close())
	v, err := cq.CreateAddresses(d, base+".a", cq.AddressOptions{Count: 16,
		Lifetime: cq.Persistent})
	must(t, err)
	must(t, v.Detach())
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, set.Close()) })
	names := []string{base + ".c", base + ".a"}
	for _, name := range names {
		t.Cleanup(func() { must(t, os.Remove(filepath.Join(d.Path(), name))) })
	}
	list, err := d.List()
	must(t, err)
	for _, n := range list {
		if strings.HasPrefix(n.Name, "bell-") {
			return append(names, n.Name)
		}
	}
	t.Fatal("no bell")
	return nil
}

func TestInspectObject(t *testing.T) {
	d := openDir(t)
	names := loneObjects(t, d)
	for i, want := range []shm.Kind{shm.KindCounter, shm.KindAddresses, shm.KindBell} {
		s, err := cq.InspectObject(d, names[i])
		must(t, err)
		if s.Kind != want || s.Name != names[i] || s.Path != filepath.Join(d.Path(), names[i]) ||
			(s.Counter != nil) != (i == 0) || (s.Addresses != nil) != (i == 1) ||
			(s.Bell != nil) != (i == 2) || s.UUID.IsZero() || s.SizeBytes < 4096 {
			t.Errorf("%+v", s)
		}
		switch i {
		case 0:
			if s.Counter.Value != 7 {
				t.Errorf("%+v", s.Counter)
			}
		case 1:
			if s.Addresses.Options.Count != 16 || s.Life != shm.Released {
				t.Errorf("%v, %+v", s.Life, s.Addresses)
			}
		case 2:
			if s.Bell.Sleeping || s.Owner.PID != os.Getpid() || s.Life != shm.Alive {
				t.Errorf("%v, %+v", s.Life, s.Bell)
			}
		}
	}
	_, err := cq.InspectObject(d, "nothing")
	wantErr(t, "not there", err, fs.ErrNotExist)
	_, err = cq.InspectObject(d, "a/b")
	wantErr(t, "name", err, shm.ErrName)
}

// TestInspectObjectBroken: whatever stands in a file is an error, or bounded.
func TestInspectObjectBroken(t *testing.T) {
	d := openDir(t)
	name := queueName(t) + ".copy"
	path := filepath.Join(d.Path(), name)
	t.Cleanup(func() { _ = os.Remove(path) })
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, from := range loneObjects(t, d) {
		good, err := os.ReadFile(filepath.Join(d.Path(), from))
		must(t, err)
		try := func(what string, text []byte, want error) {
			t.Helper()
			must(t, os.WriteFile(path, text, 0o600))
			_, err := cq.InspectObject(d, name)
			if want == nil {
				must(t, err)
			} else if !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", what, from, err, want)
			}
		}
		try("a copy", good, nil)
		try("a page", good[:4096], shm.ErrTruncated)
		try("nothing", nil, shm.ErrTruncated)
		bad := append([]byte(nil), good...)
		bad[0x100] ^= 1 // an attribute, under the checksum
		try("a scribbled header", bad, shm.ErrCorrupt)
		for range 30 {
			wild := append([]byte(nil), good...)
			for off := 4096; off+8 <= len(wild) && off < 4096+16384; off += 8 {
				binary.LittleEndian.PutUint64(wild[off:], rnd.Uint64()>>rnd.IntN(64))
			}
			must(t, os.WriteFile(path, wild, 0o600))
			s, err := cq.InspectObject(d, name)
			if err == nil && s.Addresses != nil && s.Addresses.Used > 16 {
				t.Errorf("%d addresses of 16", s.Addresses.Used)
			}
		}
	}
}
