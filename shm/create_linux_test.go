package shm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

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
		must(t, c.prepare())
		ref := shmtest.Got(d.use()).Or(t)
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
			must(t, errors.Join(o.Unlink(), o.Close(), in.Close()))
		}
		must(t, os.RemoveAll(at(c.name)))
	}
	if left, err := d.List(); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestMadeBesideOthers: an object comes into its directory whatever others do to that meanwhile,
// over and over.
func TestMadeBesideOthers(t *testing.T) {
	for name, c := range map[string]struct {
		others  int
		disturb func(d *Dir) error
		create  func(*testing.T, *Dir)
	}{
		// As those do who tidy up.
		"they remove it while it is empty": {4, func(d *Dir) error { _ = d.RemoveSub("q"); return nil },
			createIn},
		// It is full when ours is to be moved there, and gone when it is to be used.
		"it comes and goes": {1, func(d *Dir) error {
			q := filepath.Join(d.Path(), "q")
			_ = os.Mkdir(q, 0o700)
			_ = os.WriteFile(filepath.Join(q, "x"), nil, 0o600)
			_ = os.Remove(filepath.Join(q, "x"))
			_ = os.Remove(q)
			return nil
		}, comeAndGo},
		"they remove it on its way to its own name": {1, func(d *Dir) error {
			entries, err := d.List()
			for _, e := range entries {
				if IsAside(e.Name()) {
					_ = d.RemoveSub(e.Name())
				}
			}
			return err
		}, comeAndGo},
	} {
		t.Run(name, func(t *testing.T) {
			d := openTestDir(t)
			var over atomic.Bool
			var all sync.WaitGroup
			for range c.others {
				all.Go(func() {
					for !over.Load() {
						if err := c.disturb(d); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			defer os.RemoveAll(filepath.Join(d.Path(), "q"))
			defer func() { over.Store(true); all.Wait() }()
			// On a loaded machine both take turns that are long: less is seen then, and nothing is wrong.
			for begin, n := time.Now(), 0; n < 300 && time.Since(begin) < time.Second; n++ {
				c.create(t, d)
			}
		})
	}
}

func createIn(t *testing.T, d *Dir) {
	t.Helper()
	spec := Spec{Kind: 77, Sections: []Section{{Kind: secData, Length: 64}}}
	o, in, err := d.CreateIn("q", "reader", spec, nil)
	must(t, err)
	if linked, err := o.Linked(); !linked || err != nil {
		t.Error(linked, err)
	}
	must(t, errors.Join(o.Unlink(), o.Close(), in.Close()))
}

// comeAndGo makes an object in a directory that is made aside and moved, and removes it.
func comeAndGo(t *testing.T, d *Dir) {
	t.Helper()
	ref := shmtest.Got(d.use()).Or(t)
	b := builder{name: "reader", spec: Spec{Kind: 77}, dir: ref, link: func(o *Object) error {
		in, err := d.linkAndMove(o, "q", "reader")
		if err != nil {
			return err
		}
		defer in.Close()
		return o.handOver(in)
	}}
	o := shmtest.Got(b.build(nil)).Or(t)
	must(t, errors.Join(o.Unlink(), o.Close()))
}

func TestCreateInRefuses(t *testing.T) {
	d := openTestDir(t)
	at := func(name string) string { return filepath.Join(d.Path(), name) }
	spec := Spec{Kind: 77}
	o, in, err := d.CreateIn("q", "reader", spec, nil)
	must(t, err)
	must(t, os.Mkdir(at("open"), 0o755))
	must(t, os.WriteFile(at("file"), nil, 0o600))
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
		"a file":         {"file", "reader", nil, fs.ErrExist},
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
	o := shmtest.Got(d.Create("a", Spec{Kind: 77}, nil)).Or(t)
	defer func() { must(t, errors.Join(o.Unlink(), o.Close())) }()
	page := append([]byte{}, o.Bytes()...)
	h := o.Header()
	h.TotalBytes = 1 << 40
	encodeHeader(page, &h)
	path := filepath.Join(d.Path(), "hollow")
	defer os.Remove(path)
	must(t, os.WriteFile(path, page, 0o600))
	must(t, os.Truncate(path, 1<<40))
	for _, acc := range []Access{Inspect, ReadOnly, ReadWrite} {
		if o, err := d.Open("hollow", acc); !errors.Is(err, ErrTruncated) {
			t.Errorf("access %d: %v, %v", acc, o, err)
		}
	}
}

// TestLateSections: late sections take no memory, for their owner and who else maps the object,
// before they are provided, one by one. What cannot be provided is refused.
func TestLateSections(t *testing.T) {
	d := openTestDir(t)
	page := pageBytes()
	spec := Spec{Kind: 77, Late: 2, Sections: []Section{{Kind: secData, Length: 100},
		{Kind: secData, ID: 1, Length: 8 * page, Align: 64}, {Kind: secData, ID: 2, Length: 1 << 20}}}
	o := shmtest.Got(d.Create("late", spec, nil)).Or(t)
	defer func() { must(t, errors.Join(o.Unlink(), o.Close())) }()
	memory := func() uint64 {
		var st syscall.Stat_t
		must(t, syscall.Stat(filepath.Join(d.Path(), "late"), &st))
		return uint64(st.Blocks) * 512
	}
	plan, err := Plan(spec)
	if h := o.Header(); err != nil || h.TotalBytes != plan || h.EarlyBytes != 2*page {
		t.Errorf("%d bytes, %d early, planned %d, %v", h.TotalBytes, h.EarlyBytes, plan, err)
	}
	looks := []*Object{openObject(t, d, "late", ReadOnly), openObject(t, d, "late", ReadWrite)}
	for i, want := range []uint64{2 * page, 2 * page, 10 * page, 10*page + 1<<20} {
		for range 2 { // the second time nothing is left to do
			if err := o.Provide(secData, uint32(max(i, 1)-1)); i > 0 && err != nil {
				t.Error(err)
			}
			if got := memory(); got != want {
				t.Errorf("%d sections were provided: %d bytes, want %d", i, got, want)
			}
		}
	}
	for i, o := range append(looks, o) {
		mem, _, err := o.Section(secData, 2)
		if err != nil || mem[len(mem)-1] != 0 || o.Header().EarlyBytes != 2*page {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := o.Provide(secData, 3); !errors.Is(err, ErrKind) {
		t.Errorf("no section: %v", err)
	}
	if looks[1].Close(); !errors.Is(looks[1].Provide(secData, 2), os.ErrClosed) {
		t.Error("provided after Close")
	}
	for _, late := range []int{-1, 4} {
		spec.Late = late
		if _, err := Plan(spec); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d late sections: %v", late, err)
		}
	}
}

// TestHugePagesRefused: an object of huge pages needs them reserved, and has no name.
func TestHugePagesRefused(t *testing.T) {
	spec := Spec{Kind: KindRegion, Sections: []Section{{Kind: 1, Length: 4096}}}
	spec.HugePageBytes = 3 << 20
	if _, err := CreateMemfd(spec, nil); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("3 MiB: %v", err)
	}
	spec.HugePageBytes = 2 << 20
	if n, err := Plan(spec); err != nil || n != 4<<20 {
		t.Errorf("planned %d, %v", n, err)
	}
	d, err := OpenDir(t.TempDir())
	if err == nil {
		defer d.Close()
		if _, err := d.Create("huge", spec, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("with a name: %v", err)
		}
	}
	spec.Sections[0].Length = 1 << 40 // more than there can be
	if _, err := CreateMemfd(spec, nil); err == nil {
		t.Error("a TiB of huge pages")
	} else {
		t.Log(err)
	}
}

// childTinyFS mounts a file system of 1 MiB that only it sees.
func childTinyFS() {
	path := os.Getenv(EnvDir)
	need(syscall.Mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=0700"))
	d := childDir()
	spec := specFor("")
	spec.Sections[0].Length = 2 << 20
	_, err := d.Create("big", spec, nil)
	var no *Error
	say("%v %v", errors.Is(err, ErrNoSpace) && errors.Is(err, syscall.ENOSPC), errors.As(err, &no))
	if no == nil {
		need(err)
	}
	say("needed %v available %v", no.Want.(uint64) > 2<<20, no.Got == uint64(1<<20))

	// The file system filled up after it was asked: the kernel's refusal gets the same face.
	b := builder{name: "big", spec: spec, dir: d.ref}
	fd := shmtest.Needs(sysTmpfile(d.ref.at(".")))
	err = b.noSpace(sysAllocate(fd, 0, 2<<20), 2<<20)
	sysClose(fd)
	say("%v", errors.Is(err, ErrNoSpace))

	spec.Late = len(spec.Sections)
	late := shmtest.Needs(d.Create("late", spec, nil))
	say("late %v", errors.Is(late.Provide(spec.Sections[0].Kind, spec.Sections[0].ID), ErrNoSpace))
	var st unix.Statfs_t
	need(unix.Statfs(path, &st))
	full := "nr_inodes=" + strconv.FormatUint(st.Files-st.Ffree, 10)
	need(syscall.Mount("", path, "", syscall.MS_REMOUNT, full))
	err = late.LinkTo(d, "again")
	say("link %v %v", errors.Is(err, ErrNoSpace), errors.As(err, &no) && no.Hint != "")
	need(errors.Join(late.Unlink(), late.Close()))

	left := shmtest.Needs(d.List())
	o, err := d.Create("small", specFor(""), nil)
	say("left %d, then %v", len(left), err)
	need(errors.Join(o.Unlink(), o.Close(), d.Close(), syscall.Unmount(path, 0)))
	say("unmounted")
}

func TestTinyFileSystem(t *testing.T) {
	cmd := shmtest.Child(t, "tinyfs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := shmtest.StartWith(t, cmd, "mount")
	for _, want := range []string{"true true", "needed true available true", "true",
		"late true", "link true true",
		"left 0, then <nil>", "unmounted"} {
		c.Says(t, want)
	}
}

func init() { moreRoles["commit"] = childCommit }

// childCommit maps a file of 256 MiB while it may have only 128 MiB more of private memory that can
// be written to. That is what the kernel adds up as promised, with vm.overcommit_memory=2 for the
// whole machine.
func childCommit() {
	const length = 256 << 20
	fd := shmtest.Needs(sysMemfd("commit", 0))
	need(unix.Ftruncate(fd, length))
	limit := privateBytes() + length/2
	need(unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}))
	all, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		_ = unix.Munmap(all)
	}
	say("private %v", errors.Is(err, unix.ENOMEM))
	mem, err := sysMap(fd, 0, length, true)
	say("mapped %v", err)
	if err == nil {
		mem[length-1] = 1
		need(sysUnmap(mem))
	}
	sysClose(fd)
}

// privateBytes is what RLIMIT_DATA counts of this process.
func privateBytes() uint64 {
	text := shmtest.Needs(os.ReadFile("/proc/self/status"))
	_, rest, _ := strings.Cut(string(text), "VmData:")
	kb := shmtest.Needs(strconv.ParseUint(strings.Fields(rest)[0], 10, 64))
	return kb << 10
}

// TestMappingCommitsNothing: the pages around a mapping are promised to nobody, not even while it
// is made.
func TestMappingCommitsNothing(t *testing.T) {
	c := shmtest.Start(t, shmtest.Child(t, "commit"))
	if got := c.Line(t); got != "private true" {
		shmtest.Require(t, "children", errors.New("RLIMIT_DATA is not kept here: "+got))
	}
	c.Says(t, "mapped <nil>")
}

func TestWindowIsShared(t *testing.T) {
	d := openTestDir(t)
	o := makeObject(t, d, "a")
	look := openObject(t, d, "a", ReadOnly)
	w := shmtest.Got(look.Window(secData, 0)).Or(t)
	mem, _, err := o.Section(secData, 0)
	if err != nil || len(w.Bytes()) != len(mem) {
		t.Fatal(err, len(w.Bytes()))
	}
	look.Close() // the window goes on
	word(w.Bytes(), 8).Store(7)
	if got := word(mem, 8).Load(); got != 7 {
		t.Errorf("the owner sees %d", got)
	}
	for range 2 {
		must(t, w.Close())
	}
	word(w.Bytes(), 8).Add(1)
	if got := word(w.Bytes(), 8).Load(); got != 1 {
		t.Errorf("after Close the word is %d, want a page of zeros, and one", got)
	}
	if got := word(mem, 8).Load(); got != 7 {
		t.Errorf("a write after Close arrived: %d", got)
	}
	if _, err := look.Window(secData, 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("of a closed object: %v", err)
	}
	if _, err := o.Window(secData, 1); !errors.Is(err, ErrKind) {
		t.Errorf("of no section: %v", err)
	}
	look = openObject(t, d, "a", Inspect)
	if _, err := look.Window(secData, 0); !errors.Is(err, syscall.EACCES) {
		t.Errorf("for an inspector: %v", err)
	}
}

// TestWindowClosedInUse: an access beside Close meets the section or zeros, and never a hole. A
// hole would end the test process.
func TestWindowClosedInUse(t *testing.T) {
	o := makeObject(t, openTestDir(t), "a")
	var users sync.WaitGroup
	for range 200 {
		w := shmtest.Got(o.Window(secData, 0)).Or(t)
		begun := make(chan struct{})
		users.Go(func() {
			at := word(w.Bytes(), 0)
			close(begun)
			for range 2000 {
				at.Add(1)
			}
			runtime.KeepAlive(w)
		})
		<-begun
		must(t, w.Close())
	}
	users.Wait()
}

func init() { moreRoles["bounded"] = childBounded }

// childBounded says what a user meets who may have files of two pages only, or whose quota is used
// up.
func childBounded() {
	d := childDir()
	try := func() {
		_, named := d.Create("big", specFor(""), nil)
		_, unnamed := CreateMemfd(specFor(""), nil)
		say("%v %v", errors.Is(named, ErrNoSpace), errors.Is(unnamed, ErrNoSpace))
	}
	var had unix.Rlimit
	need(unix.Getrlimit(unix.RLIMIT_FSIZE, &had))
	need(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: had.Max}))
	try()
	need(unix.Setrlimit(unix.RLIMIT_FSIZE, &had))
	need(shmtest.Forbid(unix.SYS_FALLOCATE, unix.EDQUOT))
	try()
}

// TestUserLimits: a limit of file sizes and a quota of the file system are want of room.
func TestUserLimits(t *testing.T) {
	c := startChild(t, "bounded")
	c.Says(t, "true true")
	c.Says(t, "true true")
}
