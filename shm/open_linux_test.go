package shm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestCreateLeavesNothing(t *testing.T) {
	d := openTestDir(t)
	failed := errors.New("no")
	var inner *Object
	_, err := d.Create("a", specFor(""), func(o *Object) error {
		inner = o
		if _, _, err := o.Section(secData, 0); err != nil {
			t.Error(err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Error(err)
	}
	must(t, inner.Close())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic of init was swallowed")
			}
		}()
		_, _ = d.Create("a", specFor(""), func(*Object) error { panic("init") })
	}()
	spec := specFor("")
	spec.Sections[0].Length = 1 << 46
	// Ask first by itself: a creation that is not stopped would eat the machine.
	if err := checkRoom(noDir, 1<<46); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("64 TiB: %v", err)
	}
	if _, err := d.Create("a", spec, nil); !errors.Is(err, ErrNoSpace) {
		t.Errorf("64 TiB: %v", err)
	}
	if _, err := CreateMemfd(spec, nil); !errors.Is(err, ErrNoSpace) {
		t.Errorf("64 TiB: %v", err)
	}
	spec.Mode = 0o640
	if _, err := d.Create("a", spec, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mode: %v", err)
	}
	if left, err := d.List(); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestCreateTaken(t *testing.T) {
	d := openTestDir(t)
	makeObject(t, d, "a")
	if _, err := d.Create("a", specFor(""), nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
	// The name is taken while we were busy with the memory.
	_, err := d.Create("b", specFor(""), func(*Object) error {
		makeObject(t, d, "b")
		return nil
	})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	d := openTestDir(t)
	path := filepath.Join(d.Path(), "bad")
	image := imageOf(goldenHeader(t))
	changed := func(change func([]byte)) []byte {
		b := append([]byte(nil), image...)
		change(b)
		return b
	}
	write := func(b []byte, mode os.FileMode) func() error {
		return func() error {
			return errors.Join(os.WriteFile(path, b, mode), os.Chmod(path, mode))
		}
	}
	for name, c := range map[string]struct {
		put  func() error
		want error
	}{
		"missing":   {func() error { return nil }, fs.ErrNotExist},
		"empty":     {write(nil, 0o600), ErrTruncated},
		"cut":       {write(image[:len(image)-1], 0o600), ErrTruncated},
		"half page": {write(image[:100], 0o600), ErrTruncated},
		"grown":     {write(append(image, 0), 0o600), ErrCorrupt},
		"text":      {write([]byte(strings.Repeat("hello ", 2000)), 0o600), ErrCorrupt},
		"scribbled": {write(changed(func(b []byte) { b[offAttrs]++ }), 0o600), ErrCorrupt},
		"half written": {write(changed(func(b []byte) { b[offState] = 0 }), 0o600),
			ErrCorrupt},
		"version":     {write(changed(func(b []byte) { b[offABIMajor] = 9 }), 0o600), ErrVersion},
		"loose":       {write(image, 0o604), ErrOwner},
		"loose group": {write(image, 0o620), ErrOwner},
		"directory":   {func() error { return os.Mkdir(path, 0o700) }, ErrKind},
		"fifo":        {func() error { return syscall.Mkfifo(path, 0o600) }, ErrKind},
		"link":        {func() error { return os.Symlink("/etc/passwd", path) }, ErrKind},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, c.put())
			defer os.Remove(path)
			for _, acc := range []Access{ReadOnly, ReadWrite, Inspect} {
				_, err := d.Open("bad", acc)
				if !errors.Is(err, c.want) {
					t.Errorf("access %d: got %v, want %v", acc, err, c.want)
				}
				var e *Error
				if !errors.As(err, &e) || e.Op != "open" || e.Name != "bad" || e.Hint == "" {
					t.Errorf("access %d: %v lacks operation, object or remedy", acc, err)
				}
			}
		})
	}
}

func TestFeatures(t *testing.T) {
	d := openTestDir(t)
	open := func(spec Spec, acc Access) error {
		o := shmtest.Have(d.Create("a", spec, nil)).In(t)
		defer o.Unlink()
		p, err := d.Open("a", acc)
		if err == nil {
			p.Close()
		}
		return err
	}
	for _, acc := range []Access{ReadOnly, ReadWrite, Inspect} {
		spec := specFor("")
		spec.FeatCompat = 1 << 5
		if err := open(spec, acc); err != nil {
			t.Errorf("compatible, access %d: %v", acc, err)
		}
		spec.FeatROCompat = 1 << 5
		if err := open(spec, acc); acc != Inspect && !errors.Is(err, ErrVersion) ||
			acc == Inspect && err != nil {
			t.Errorf("read-only-compatible, access %d: %v", acc, err)
		}
		spec.FeatIncompat = 1 << 5
		if err := open(spec, acc); !errors.Is(err, ErrVersion) {
			t.Errorf("incompatible, access %d: %v", acc, err)
		}
		spec.FeatIncompat, spec.FeatROCompat = 1<<40, 1<<41
		if err := open(spec, acc); err != nil {
			t.Errorf("the kind's own bits, access %d: %v", acc, err)
		}
	}
}

func TestKindAndSections(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	h := o.Header()
	if _, _, err := o.Section(secHint, 0); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	h.Sections[0].Length = 1 << 40 // the caller's copy
	if o.Header().Sections[0].Length == 1<<40 {
		t.Error("Header hands out its own table")
	}
	if got := cap(o.Bytes()); uint64(got) != o.Header().TotalBytes {
		t.Error(got)
	}
}

func TestMapWritable(t *testing.T) {
	d := openTestDir(t)
	spec := specFor("")
	spec.Sections = append(spec.Sections, Section{Kind: 7, Length: 64, Align: 64})
	o := shmtest.Have(d.Create("a", spec, nil)).In(t)
	defer o.Unlink()
	p := openObject(t, d, "a", ReadOnly)
	for _, s := range []struct {
		k  SectionKind
		id uint32
	}{{secHint, 3}, {7, 0}} { // they share a page
		if _, err := p.MapWritable(s.k, s.id); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("section %v: %v", s, err)
		}
	}
	a := shmtest.Got(p.MapWritable(secData, 0)).Or(t)
	if b, err := p.MapWritable(secData, 0); err != nil || &a[0] != &b[0] {
		t.Errorf("a second mapping: %v", err)
	}
	if _, err := p.MapWritable(9, 9); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	look := openObject(t, d, "a", Inspect)
	if _, err := look.MapWritable(secData, 0); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("inspector: %v", err)
	}
	if err := look.Claim(nil); !errors.Is(err, syscall.EBADF) {
		t.Errorf("inspector: %v", err)
	}
	rw := openObject(t, d, "a", ReadWrite)
	if b, err := rw.MapWritable(secData, 0); err != nil || len(b) != 64*128 {
		t.Error(len(b), err)
	}
	p.Close()
	if _, err := p.MapWritable(secHint, 3); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func TestTruncatedUnderInspector(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	look := openObject(t, d, "a", Inspect)
	data, _, err := look.Section(secData, 0)
	must(t, err)
	must(t, os.Truncate(filepath.Join(d.Path(), "a"), 0))
	sum := 0
	err = Guard(func() {
		for _, b := range data {
			sum += int(b)
		}
	})
	if !errors.Is(err, ErrTruncated) {
		t.Errorf("reading: %v", err)
	}
	if err := o.Release(); !errors.Is(err, ErrTruncated) {
		t.Errorf("release by the owner: %v", err)
	}
	if _, err := look.Life(); !errors.Is(err, ErrTruncated) {
		t.Errorf("life: %v", err)
	}
	if err := o.Claim(nil); !errors.Is(err, ErrTruncated) {
		t.Errorf("claim: %v", err)
	}
	must(t, os.Remove(filepath.Join(d.Path(), "a")))
}

func TestGuardPassesOtherPanics(t *testing.T) {
	for name, f := range map[string]func(){
		"value": func() { panic("x") },
		"nil":   func() { var p *int; *p = 1 },
		"index": func() { _ = []int{}[len(os.Args)] },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: swallowed", name)
				}
			}()
			_ = Guard(f)
		}()
	}
	must(t, Guard(func() {}))
}

func TestMemfdAndSeals(t *testing.T) {
	o := shmtest.Have(CreateMemfd(specFor("frames"), nil)).In(t)
	if uint16(o.Generation()) == 0 {
		t.Error("generation", o.Generation())
	}
	early := shmtest.Have(OpenFD(o.FD(), "frames", ReadWrite)).In(t)
	wantLife(t, early, Alive)
	if err := early.Claim(nil); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("claim: %v", err)
	}
	if err := o.Unlink(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("unlink: %v", err)
	}
	if linked, err := o.Linked(); linked || err != nil {
		t.Error(linked, err)
	}
	must(t, o.Seal(SealShrink|SealGrow|SealFutureWrite|SealSeal))
	if err := o.Seal(SealShrink); !errors.Is(err, syscall.EPERM) {
		t.Errorf("seal of the sealed: %v", err)
	}
	if err := syscall.Ftruncate(o.FD(), 0); !errors.Is(err, syscall.EPERM) {
		t.Errorf("truncate: %v", err)
	}
	if _, err := OpenFD(o.FD(), "frames", ReadWrite); !errors.Is(err, syscall.EPERM) {
		t.Errorf("open for writing: %v", err)
	}
	p := shmtest.Have(OpenFD(o.FD(), "frames", ReadOnly)).In(t)
	if _, err := p.MapWritable(secHint, 3); !errors.Is(err, syscall.EPERM) {
		t.Errorf("map for writing: %v", err)
	}
	mine, _, _ := o.Section(secData, 0)
	theirs, _, _ := p.Section(secData, 0)
	mine[5] = 77
	if theirs[5] != 77 {
		t.Error("the owner's stores do not arrive")
	}
	must(t, o.Release())
	wantLife(t, p, Released)
	if err := early.Claim(nil); err != nil { // it was mapped before the seal
		t.Error(err)
	}
}

func TestOpenFDRefuses(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	if _, err := OpenFD(int(r.Fd()), "pipe", ReadOnly); !errors.Is(err, ErrCorrupt) {
		t.Errorf("pipe: %v", err)
	}
	if _, err := OpenFD(-1, "none", ReadOnly); !errors.Is(err, syscall.EBADF) {
		t.Errorf("none: %v", err)
	}
}

// TestAllocateInterrupted: allocating ends although signals undo each step of more than a quarter
// of a megabyte, leaves nothing out, and passes other errors on.
func TestAllocateInterrupted(t *testing.T) {
	const total, most = 200<<20 + 4096, 256 << 10
	calls, done := 0, uint64(0)
	err := inSteps(total, func(at, n uint64) error {
		calls++
		switch {
		case at != done || n == 0 || at+n > total:
			t.Fatalf("%d bytes at %d after %d", n, at, done)
		case n > most:
			return unix.EINTR
		}
		done += n
		return nil
	})
	if err != nil || done != total {
		t.Errorf("%d bytes of %d, %v", done, total, err)
	}
	if calls > 3*total/most {
		t.Errorf("%d calls", calls)
	}
	calls = 0
	if err := inSteps(total, func(uint64, uint64) error { calls++; return nil }); err != nil ||
		calls != 4 {
		t.Errorf("%d calls without signals, %v", calls, err)
	}
	err = inSteps(total, func(uint64, uint64) error { return unix.ENOSPC })
	if !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

// TestOpenWithoutDescriptors: a name that is not there is not there, though the system has no
// descriptor to look with; one that is there cannot be opened. What the process cannot read of
// itself then it may ask for again.
func TestOpenWithoutDescriptors(t *testing.T) {
	d := openTestDir(t)
	o := shmtest.Got(d.Create("there", specFor(""), nil)).Or(t)
	defer func() { must(t, errors.Join(o.Unlink(), o.Close())) }()
	restore := shmtest.LimitFiles(0)
	_, missing := d.Open("missing", ReadOnly)
	_, there := d.Open("there", ReadOnly)
	_, starved := readSelf()
	restore()
	if _, still := readSelf(); !starved || still {
		t.Errorf("what it could not read of itself: %v, and then %v", starved, still)
	}
	if !errors.Is(missing, fs.ErrNotExist) || !errors.Is(there, syscall.EMFILE) {
		t.Errorf("missing: %v, there: %v", missing, there)
	}
}

// TestLinkTo gives an object a second name in another directory, finds it there, and takes both
// names away; only the owner may do so, and only while the name means the object.
func TestLinkTo(t *testing.T) {
	d := openTestDir(t)
	other := shmtest.Have(d.Sub("other", true)).In(t)
	spec := Spec{Kind: KindBell, Sections: []Section{{Kind: 1, Length: 64}}}
	o := shmtest.Have(d.Create("bell-1", spec, nil)).In(t)
	must(t, o.LinkTo(other, "bell-1"))
	if err := o.LinkTo(other, "bell-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second time: %v", err)
	}
	if err := o.LinkTo(other, "a/b"); !errors.Is(err, ErrName) {
		t.Errorf("a path: %v", err)
	}
	again, err := other.Open("bell-1", ReadWrite)
	if err != nil || again.Header().UUID != o.Header().UUID {
		t.Fatalf("by its second name: %v", err)
	}
	defer again.Close()
	if err := again.LinkTo(d, "bell-2"); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("not the owner: %v", err)
	}
	if err := again.UnlinkFrom(d, "bell-1"); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("not the owner: %v", err)
	}
	must(t, errors.Join(o.UnlinkFrom(other, "bell-1"), o.Unlink()))
	if err := o.UnlinkFrom(other, "bell-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("gone: %v", err)
	}
	foreign := shmtest.Got(other.Create("bell-1", spec, nil)).Or(t)
	if err := o.UnlinkFrom(other, "bell-1"); !errors.Is(err, ErrStale) {
		t.Errorf("a foreign object: %v", err)
	}
	must(t, errors.Join(foreign.Unlink(), foreign.Close(), d.RemoveSub("other")))
	memfd := shmtest.Have(CreateMemfd(spec, nil)).In(t)
	if err := memfd.LinkTo(d, "bell-3"); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("a memfd: %v", err)
	}
}
