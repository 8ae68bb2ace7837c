package shm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"

	"golang.org/x/sys/unix"
)

func TestNames(t *testing.T) {
	d := openTestDir(t)
	for _, name := range []string{"", ".", "..", ".hidden", "a/b", "/a", "a\x00b", "a\nb", "a\x7f",
		"\xff", strings.Repeat("x", 65)} {
		_, err := d.Open(name, ReadOnly)
		_, err2 := d.Create(name, specFor(""), nil)
		_, err3 := d.Sub(name, true)
		for _, err := range []error{err, err2, err3, d.RemoveSub(name)} {
			if !errors.Is(err, ErrName) || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%q: %v", name, err)
			}
		}
	}
	if _, err := d.Sub("bell-1", true); !errors.Is(err, ErrName) {
		t.Errorf("a queue called like a bell: %v", err)
	}
	for _, name := range []string{"bell-x", "new-" + NewUUID().String(), "x~collected", "x.lock"} {
		_, err := d.Create(name, specFor(""), nil)
		_, _, err2 := d.CreateIn(name, "x", specFor(""), nil)
		if !errors.Is(err, ErrName) || !errors.Is(err2, ErrName) {
			t.Errorf("%s, which is reserved: %v, %v", name, err, err2)
		}
	}
	bell := specFor("")
	bell.Kind = KindBell
	o := shmtest.Got(d.Create("bell-"+NewUUID().String(), bell, nil)).Or(t)
	must(t, errors.Join(o.Unlink(), o.Close()))
	for _, name := range []string{"x", "new-x", "lock", "Größe 3", "a..b", strings.Repeat("x", 64)} {
		o := makeObject(t, d, name)
		if o.Header().Name != name {
			t.Errorf("header says %q for %q", o.Header().Name, name)
		}
	}
}

// TestNest: a nested directory takes no descriptor, does what it did, and nothing to another one
// that has its name.
func TestNest(t *testing.T) {
	above := openTestDir(t)
	at := func(name string) string { return filepath.Join(above.Path(), name) }
	o, d, err := above.CreateIn("sub", "a", specFor(""), nil)
	must(t, err)
	defer d.Close()
	defer o.Close()
	was := d.ref.fd
	in := above.Dup()
	d.Nest(in, "sub")
	d.Nest(in, "sub")
	must(t, in.Close())
	if _, err := unix.FcntlInt(uintptr(was), unix.F_GETFD, 0); err == nil || d.ref.fd >= 0 {
		t.Errorf("it still has descriptor %d", was)
	}
	stamp := func() uint64 {
		t.Helper()
		s := shmtest.Got(d.Stamp()).Or(t)
		return s
	}
	before := stamp()
	b := makeObject(t, d, "b")
	if stamp() == before {
		t.Error("another name has the same stamp")
	}
	must(t, d.At("f", func(dirfd int, path string) error {
		return unix.Mkfifoat(dirfd, path, 0o600)
	}))
	must(t, d.Remove("f"))
	if names, err := d.List(); len(names) != 2 || err != nil {
		t.Errorf("it lists %v, %v", names, err)
	}
	if locked, err := d.Owned("b"); !locked || err != nil {
		t.Errorf("owned: %v, %v", locked, err)
	}
	look := openObject(t, d, "b", ReadOnly)
	must(t, b.Unlink())
	if linked, err := look.Linked(); linked || err != nil {
		t.Errorf("linked: %v, %v", linked, err)
	}
	must(t, os.Rename(at("sub"), at("moved")))
	gone := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, stands := range []string{"nothing", "another"} {
		if stands == "another" {
			must(t, os.Mkdir(at("sub"), 0o700))
			must(t, os.WriteFile(filepath.Join(at("sub"), "a"), nil, 0o600))
		}
		gone("unlink beside "+stands, o.Unlink())
		gone("remove beside "+stands, d.Remove("a"))
		gone("look beside "+stands, d.At(".", func(int, string) error { return nil }))
		gone("open beside "+stands, second(d.Open("a", ReadOnly)))
		gone("create beside "+stands, second(d.Create("c", specFor(""), nil)))
		_ = stamp()
	}
	must(t, os.Remove(filepath.Join(at("sub"), "a")))
	must(t, os.Remove(at("sub")))
	must(t, os.Rename(at("moved"), at("sub")))
	must(t, errors.Join(o.Unlink(), o.Close()))
	must(t, above.RemoveSub("sub"))
}

func TestDirMustBePrivate(t *testing.T) {
	base := openTestDir(t).Path()
	dir := filepath.Join(base, "loose")
	must(t, os.Mkdir(dir, 0o700))
	defer os.Remove(dir)
	for _, mode := range []os.FileMode{0o710, 0o701, 0o777} {
		must(t, os.Chmod(dir, mode))
		for _, err := range []error{second(OpenDir(dir)),
			second(openTestDir(t).Sub("loose", true))} {
			if !errors.Is(err, ErrOwner) || !errors.Is(err, fs.ErrPermission) {
				t.Errorf("mode %v: %v", mode, err)
			}
		}
	}
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	if _, err := OpenDir(dir); !errors.Is(err, ErrOwner) ||
		!strings.Contains(err.Error(), "a directory of your own") {
		t.Errorf("one for everybody: %v", err)
	}
	must(t, os.Chmod(dir, 0o700))
	link := filepath.Join(base, "link")
	must(t, os.Symlink(dir, link))
	defer os.Remove(link)
	if _, err := OpenDir(link); !errors.Is(err, ErrOwner) {
		t.Errorf("symbolic link: %v", err)
	}
	file := filepath.Join(base, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	defer os.Remove(file)
	if _, err := OpenDir(file); !errors.Is(err, ErrOwner) {
		t.Errorf("file: %v", err)
	}
	if _, err := OpenDir(filepath.Join(base, "no", "such")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing parent: %v", err)
	}
}

func TestDirOfAnotherUser(t *testing.T) {
	shmtest.RequireRoot(t, "root", "nobody else may give files away")
	d := openTestDir(t)
	dir := filepath.Join(d.Path(), "theirs")
	must(t, os.Mkdir(dir, 0o700))
	defer os.Remove(dir)
	const nobody = 65534
	must(t, os.Chown(dir, nobody, nobody))
	if _, err := OpenDir(dir); !errors.Is(err, ErrOwner) {
		t.Errorf("directory: %v", err)
	}
	o := makeObject(t, d, "a")
	must(t, os.Chown(filepath.Join(d.Path(), "a"), nobody, nobody))
	if _, err := d.Open("a", ReadOnly); !errors.Is(err, ErrOwner) {
		t.Errorf("object: %v", err)
	}
	if _, err := OpenFD(o.FD(), "a", ReadOnly); !errors.Is(err, ErrOwner) {
		t.Errorf("object by descriptor: %v", err)
	}
}

func TestDirMustBeInMemory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	f := shmtest.Have(os.Open(dir)).In(t)
	if ok, _, err := sysMemoryFS(int(f.Fd())); err != nil || ok {
		t.Skipf("the directory for temporary files is itself in memory (%v)", err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

func TestSubListStamp(t *testing.T) {
	d := openTestDir(t)
	if _, err := d.Sub("orders", false); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("missing queue: %v", err)
	}
	sub := shmtest.Got(d.Sub("orders", true)).Or(t)
	if sub.Path() != filepath.Join(d.Path(), "orders") {
		t.Error(sub.Path())
	}
	before := shmtest.Got(sub.Stamp()).Or(t)
	o := makeObject(t, sub, "reader")
	after, err := sub.Stamp()
	if err != nil || after == before {
		t.Errorf("stamp %d, then %d, %v", before, after, err)
	}
	word(o.Bytes(), offAttrs).Store(1)
	if again, err := sub.Stamp(); err != nil || again != after {
		t.Errorf("stamp moved from %d to %d without a change of names, %v", after, again, err)
	}
	if got, err := d.List(); err != nil || len(got) != 1 || got[0].Name() != "orders" ||
		!got[0].IsDir() {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := sub.List(); err != nil || len(got) != 1 || got[0].Name() != "reader" ||
		got[0].IsDir() {
		t.Errorf("%v, %v", got, err)
	}
	if err := d.RemoveSub("orders"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("removed a queue that holds objects: %v", err)
	}

	must(t, errors.Join(sub.Close(), sub.Close()))
	_, err1 := sub.List()
	_, err2 := sub.Stamp()
	_, err3 := sub.Open("reader", ReadOnly)
	_, err4 := sub.Create("x", specFor(""), nil)
	_, err5 := sub.Sub("x", true)
	for _, err := range []error{err1, err2, err3, err4, err5, sub.RemoveSub("x")} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	if err := o.Unlink(); err != nil { // an object outlives the Dir that it came from
		t.Error(err)
	}
	must(t, d.RemoveSub("orders"))
	if err := d.RemoveSub("orders"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed twice: %v", err)
	}
}

func TestDefaultPath(t *testing.T) {
	t.Setenv(EnvDir, "")
	if got := DefaultPath(); !strings.HasPrefix(got, "/dev/shm/shmring-") {
		t.Error(got)
	}
	t.Setenv(EnvDir, "/x")
	if got := DefaultPath(); got != "/x" {
		t.Error(got)
	}
}

// TestOwned: the lock of a living owner is seen without opening the object, also by itself.
func TestOwned(t *testing.T) {
	d := openTestDir(t)
	_, err := d.Owned("none")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without an object: %v", err)
	}
	o := shmtest.Got(d.Create("one", specFor("one"), nil)).Or(t)
	wantOwned := func(want bool) {
		t.Helper()
		for range 2 { // looking does not free it
			if got, err := d.Owned("one"); got != want || err != nil {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
		}
	}
	wantOwned(true)
	need(o.Release())
	wantOwned(false)
	need(errors.Join(o.Claim(nil), o.Unlink(), o.Close()))
}
