package ctl_test

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
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// loneObjects makes an object of each kind that stands by itself and returns their names. They stay
// when nobody has them open, but for the bell.
func loneObjects(t *testing.T, d *shm.Dir) []string {
	t.Helper()
	c, err := cq.CreateCounter(cq.Named(d, "c"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(7))
	must(t, c.Close())
	v, err := cq.CreateAddresses(cq.Named(d, "a"),
		cq.AddressOptions{Count: 16, Lifetime: cq.Persistent})
	must(t, err)
	must(t, v.Detach())
	set, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, set.Close()) })
	list, err := d.List()
	must(t, err)
	for _, n := range list {
		if strings.HasPrefix(n.Name(), "bell-") {
			return []string{"c", "a", n.Name()}
		}
	}
	t.Fatal("no bell")
	return nil
}

func TestShowObject(t *testing.T) {
	d := ownDir(t)
	names := loneObjects(t, d)
	for i, want := range []shm.Kind{shm.KindCounter, shm.KindAddresses, shm.KindBell} {
		o, err := ctl.ShowObject(d, names[i])
		must(t, err)
		if *o.Kind != want.String() || o.Name != names[i] ||
			o.Path != filepath.Join(d.Path(), names[i]) || (o.Counter != nil) != (i == 0) ||
			(o.Addresses != nil) != (i == 1) || (o.Domain != nil) != (i == 2) || *o.SizeBytes < 4096 {
			t.Errorf("%+v", o)
		}
		switch i {
		case 0:
			if o.Counter.Value != 7 || o.Process != nil || o.State != ctl.StateReleased {
				t.Errorf("%s, %+v", o.State, o.Counter)
			}
		case 1:
			if o.Addresses.Count != 16 || o.State != ctl.StateReleased {
				t.Errorf("%s, %+v", o.State, o.Addresses)
			}
		case 2:
			if o.Domain.Sleeping || *o.Process.PID != os.Getpid() || o.State != ctl.StateOpen {
				t.Errorf("%s, %+v", o.State, o.Domain)
			}
		}
	}
	_, err := ctl.ShowObject(d, "nothing")
	wantErr(t, "not there", err, fs.ErrNotExist)
	_, err = ctl.ShowObject(d, "a/b")
	wantErr(t, "name", err, shm.ErrName)
}

// TestShowObjectBroken: whatever stands in a file is an error, or bounded.
func TestShowObjectBroken(t *testing.T) {
	d := ownDir(t)
	const name = "copy"
	path := filepath.Join(d.Path(), name)
	rnd := rand.New(rand.NewPCG(5, 6))
	for _, from := range loneObjects(t, d) {
		good, err := os.ReadFile(filepath.Join(d.Path(), from))
		must(t, err)
		try := func(what string, text []byte, want error) {
			t.Helper()
			must(t, os.WriteFile(path, text, 0o600))
			_, err := ctl.ShowObject(d, name)
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
			s, err := ctl.ShowObject(d, name)
			if err == nil && s.Addresses != nil && s.Addresses.Used > 16 {
				t.Errorf("%d addresses of 16", s.Addresses.Used)
			}
		}
	}
}
