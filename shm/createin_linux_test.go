package shm

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestCreateInBesideRemovers: whoever removes empty directories, as those who tidy up do, does not
// keep others from making objects in them.
func TestCreateInBesideRemovers(t *testing.T) {
	d := openTestDir(t)
	var over atomic.Bool
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for !over.Load() {
				_ = d.RemoveSub("q")
			}
		})
	}
	spec := Spec{Kind: 77, Sections: []Section{{Kind: secData, Length: 64}}}
	for range 300 {
		o, in, err := d.CreateIn("q", "reader", spec, nil)
		if err != nil {
			t.Error(err)
			break
		}
		if linked, err := o.Linked(); !linked || err != nil {
			t.Error(linked, err)
		}
		err = errors.Join(o.Unlink(), o.Close(), in.Close())
		if err != nil {
			t.Error(err)
		}
	}
	over.Store(true)
	all.Wait()
	_ = d.RemoveSub("q")
}

// TestLinkAndMove: the way that those who tidy up cannot win against, in each state of the place,
// of an object that never had a name before.
func TestLinkAndMove(t *testing.T) {
	d := openTestDir(t)
	at := func(name ...string) string { return filepath.Join(append([]string{d.Path()}, name...)...) }
	spec := Spec{Kind: 77, Sections: []Section{{Kind: secData, Length: 64}}}
	for _, c := range []struct {
		name    string
		prepare func() error
		want    error
	}{
		{"nothing", func() error { return nil }, nil},
		{"empty", func() error { return os.Mkdir(at("empty"), 0o700) }, nil},
		{"full", func() error {
			return errors.Join(os.Mkdir(at("full"), 0o700), os.WriteFile(at("full", "x"), nil, 0o600))
		}, nil},
		{"taken", func() error {
			return errors.Join(os.Mkdir(at("taken"), 0o700),
				os.WriteFile(at("taken", "reader"), nil, 0o600))
		}, syscall.EEXIST},
		{"file", func() error { return os.WriteFile(at("file"), nil, 0o600) }, syscall.ENOTDIR},
	} {
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		ref, err := d.use()
		if err != nil {
			t.Fatal(err)
		}
		var in *Dir
		b := builder{name: "reader", spec: spec, dir: ref, link: func(o *Object) (err error) {
			if in, err = d.linkAndMove(o, c.name, "reader"); err != nil {
				return err
			}
			return o.handOver(in)
		}}
		o, err := b.build(nil)
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err == nil {
			if linked, err := o.Linked(); !linked || err != nil || in.Path() != at(c.name) {
				t.Errorf("%s: linked %v, %v, in %s", c.name, linked, err, in.Path())
			}
			if err := errors.Join(o.Unlink(), o.Close(), in.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(at(c.name)); err != nil {
			t.Error(err)
		}
	}
	if left, err := d.List(); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLinkComesAndGoes: the place is full when ours is to be moved there, and gone when it is to be
// used, over and over.
func TestLinkComesAndGoes(t *testing.T) {
	d := openTestDir(t)
	at := func(name ...string) string { return filepath.Join(append([]string{d.Path()}, name...)...) }
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !over.Load() {
			_ = os.Mkdir(at("q"), 0o700)
			_ = os.WriteFile(at("q", "x"), nil, 0o600)
			_ = os.Remove(at("q", "x"))
			_ = os.Remove(at("q"))
		}
	})
	defer func() { over.Store(true); all.Wait(); _ = os.RemoveAll(at("q")) }()
	for range 100 {
		comeAndGo(t, d)
	}
}

// TestLinkAsideBesideRemovers: whoever tidies up removes an empty directory under any name, that of
// one on its way to its own name too.
func TestLinkAsideBesideRemovers(t *testing.T) {
	d := openTestDir(t)
	var over atomic.Bool
	var removed atomic.Int32
	var all sync.WaitGroup
	all.Go(func() {
		for !over.Load() {
			entries, err := d.List()
			if err != nil {
				t.Error(err)
				return
			}
			for _, e := range entries {
				if IsAside(e.Name) && d.RemoveSub(e.Name) == nil {
					removed.Add(1)
				}
			}
		}
	})
	defer func() { over.Store(true); all.Wait(); _ = d.RemoveSub("q") }()
	// On a loaded machine both take turns that are long: less is seen then, and nothing is wrong.
	for begin, n := time.Now(), 0; n < 300 && time.Since(begin) < time.Second; n++ {
		comeAndGo(t, d)
	}
	t.Logf("%d were removed", removed.Load())
}

// comeAndGo makes an object in a directory that is made aside and moved, and removes it.
func comeAndGo(t *testing.T, d *Dir) {
	t.Helper()
	ref, err := d.use()
	if err != nil {
		t.Fatal(err)
	}
	b := builder{name: "reader", spec: Spec{Kind: 77}, dir: ref, link: func(o *Object) error {
		in, err := d.linkAndMove(o, "q", "reader")
		if err != nil {
			return err
		}
		defer in.Close()
		return o.handOver(in)
	}}
	o, err := b.build(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(o.Unlink(), o.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestCreateInRefuses(t *testing.T) {
	d := openTestDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	spec := Spec{Kind: 77}
	o, in, err := d.CreateIn("q", "reader", spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at("open"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	initFails := errors.New("init fails")
	for name, c := range map[string]struct {
		sub, name string
		init      func(*Object) error
		want      error
	}{
		"name taken":     {"q", "reader", nil, syscall.EEXIST},
		"bad name":       {"q", ".reader", nil, ErrName},
		"bad directory":  {"a/b", "reader", nil, ErrName},
		"bell":           {"bell-x", "reader", nil, ErrName},
		"open to others": {"open", "reader", nil, ErrOwner},
		"a file":         {"file", "reader", nil, ErrOwner},
		"init":           {"other", "reader", func(*Object) error { return initFails }, initFails},
	} {
		if o, in, err := d.CreateIn(c.sub, c.name, spec, c.init); !errors.Is(err, c.want) ||
			o != nil || in != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := os.Stat(at("other")); err == nil {
		t.Error("the directory of what was not made is there")
	}
	for _, err := range []error{o.Unlink(), o.Close(), in.Close(), d.RemoveSub("q"),
		os.Remove(at("open")), os.Remove(at("file"))} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestHollowFile: a file with holes, whatever its header says, is refused before it gets memory.
func TestHollowFile(t *testing.T) {
	d := openTestDir(t)
	o, err := d.Create("a", Spec{Kind: 77}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(o.Unlink(), o.Close()); err != nil {
			t.Error(err)
		}
	}()
	page := append([]byte{}, o.Bytes()...)
	h := o.Header()
	h.TotalBytes = 1 << 40
	encodeHeader(page, &h)
	path := filepath.Join(d.Path(), "hollow")
	defer os.Remove(path)
	if err := os.WriteFile(path, page, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	for _, acc := range []Access{Inspect, ReadOnly, ReadWrite} {
		if o, err := d.Open("hollow", acc); !errors.Is(err, ErrTruncated) {
			t.Errorf("access %d: %v, %v", acc, o, err)
		}
	}
}
