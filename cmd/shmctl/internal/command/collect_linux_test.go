package command

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

func TestCheck(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	must(t, os.WriteFile(filepath.Join(d.Path(), "notes"), []byte("no object"), 0o600))
	has(t, ok(t, "check"), "5 objects checked, 0 findings")
	has(t, ok(t, "check", "orders", d.Path()+"/sent"), "2 objects")
	has(t, ok(t, "check", "--list"), "slot.sequence", "quiet")
	listed := parsed[[]invariant](t, "invariants", ok(t, "check", "--list", "-j"))
	if len(listed) < 50 || !listed[0].Exact || listed[0].What == "" {
		t.Errorf("%+v", listed)
	}
	// A copy, for the original is in use.
	kept := createQueue(t, d, "kept", cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, kept.Detach())
	path := filepath.Join(d.Path(), "kept", "reader")
	image := shmtest.Got(os.ReadFile(path)).Or(t)
	image[0x1080] = 9 // the state
	must(t, os.WriteFile(path, image, 0o600))
	r := run(t, "check", "kept")
	if r.code != ctl.CodeCheck || !strings.Contains(r.stdout, "queue.state") ||
		!strings.Contains(r.stdout, "0x1080") || !strings.Contains(r.stdout, "9, want 1 to 4") ||
		!strings.Contains(r.stderr, "1 invariants do not hold") {
		t.Errorf("%+v", r)
	}
	r = run(t, "check", "-j")
	f := parsed[ctl.CheckReport](t, "check", r.stdout).Findings
	if r.code != ctl.CodeCheck || len(f) != 1 || f[0].Name != "kept" ||
		*f[0].Offset != 0x1080 || *f[0].SectionOffset != 128 || f[0].Section != "queue" {
		t.Errorf("%+v", r)
	}
	if p := failure(t, r.stderr); p.Code != ctl.CodeCheck {
		t.Errorf("%+v", p)
	}
	refused(t, "check nobody", ctl.CodeNotFound)
	must(t, os.RemoveAll(filepath.Join(d.Path(), "kept")))
	must(t, os.Remove(filepath.Join(d.Path(), "notes")))
}

func TestCheckTables(t *testing.T) {
	r := ctl.CheckReport{Objects: 3, Undecided: []string{"/dev/shm/x/peers"}, Findings: []ctl.Finding{
		{Name: "orders", Path: "/dev/shm/x/orders/lane-0001", Invariant: "lane.tail", Section: "lane",
			Offset: new(uint64(4096)), SectionOffset: new(uint64(0)), Got: "99", Want: "0 to 8"},
		{Name: "orders", Path: "/dev/shm/x/orders/no\tes", Invariant: "queue.entry",
			Section: "directory", Got: `"no\tes"`, Want: "reader"}}}
	golden(t, "check", checkLines(&r, &output{}, page{}))
	golden(t, "check-raw", checkLines(&r, &output{noHeader: true}, page{}))
}

// TestCheckPID: what a process has without a name is checked by the number of the process, those of
// the device path too.
func TestCheckPID(t *testing.T) {
	newDir(t)
	shmtest.Have(cq.Create(cq.Unnamed("orders"), cq.Options{Size: 8})).In(t)
	shmtest.Have(cq.CreateEvents(cq.Unnamed("news"), cq.EventOptions{Size: 8})).In(t)
	u := shmtest.Got(xdp.NewUMEM(xdp.UMEMOptions{Frames: 2})).Or(t)
	defer func() { must(t, u.Close(t.Context())) }()
	me := strconv.Itoa(os.Getpid())
	text := ok(t, "check", "--pid", me)
	var n int // what a test before this one closes by and by may be among them
	if _, err := fmt.Sscanf(text, "%d objects checked, 0 findings", &n); err != nil || n < 3 {
		t.Error(text)
	}

	fd := memfdOf(t, func(image []byte) { binary.LittleEndian.PutUint64(image[0x100:], 3) },
		u.Region().Object().Bytes())
	r := run(t, "check", "-j", "--pid", me)
	v := parsed[ctl.CheckReport](t, "check", r.stdout)
	if f := v.Findings; r.code != ctl.CodeCheck || v.Objects < 4 || len(f) != 2 ||
		f[0].Name != fmt.Sprintf("%s/%d umem", me, fd) || f[0].Invariant != "umem.geometry" ||
		*f[0].Offset != 0x100 || f[1].Invariant != "object.seals" || f[1].Offset != nil ||
		f[1].Path != fmt.Sprintf("/proc/%s/fd/%d", me, fd) {
		t.Errorf("%+v", r)
	}
	r = run(t, "check", "--pid", me)
	if r.code != ctl.CodeCheck || !strings.Contains(r.stdout, "umem.geometry") ||
		!strings.Contains(r.stderr, "2 invariants do not hold") {
		t.Errorf("%+v", r)
	}

	if r := run(t, "check", "--pid", "1073741824"); r.code != ctl.CodeNotFound ||
		!strings.Contains(r.stderr, "no such process") {
		t.Errorf("%+v", r)
	}
	r = run(t, "check", "-j", "--pid", "1073741824")
	if p := failure(t, r.stderr); p.Code != ctl.CodeNotFound || p.Hint == "" {
		t.Errorf("%+v", p)
	}
}

// TestCheckPIDs: of several processes each that cannot be checked is told, also beside findings.
func TestCheckPIDs(t *testing.T) {
	newDir(t)
	me, gone := strconv.Itoa(os.Getpid()), []string{"1073741823", "1073741824"}
	told := func(stderr string, lines int) {
		t.Helper()
		if strings.Count(stderr, "no such process") != lines {
			t.Error(stderr)
		}
		for _, pid := range gone {
			if strings.Count(stderr, "process "+pid) != 1 {
				t.Errorf("nothing of %s in %s", pid, stderr)
			}
		}
	}
	r := run(t, "check", "--pid", gone[0], "--pid", me, "--pid", gone[1])
	if r.code != ctl.CodeNotFound || !strings.HasSuffix(r.stdout, " 0 findings\n") {
		t.Errorf("%+v", r)
	}
	told(r.stderr, 2)

	fd := shmtest.Got(unix.MemfdCreate("shmring:none", unix.MFD_CLOEXEC)).Or(t)
	defer func() { must(t, unix.Close(fd)) }()
	shmtest.Got(unix.Pwrite(fd, bytes.Repeat([]byte{0xff}, 8192), 0)).Or(t)
	r = run(t, "check", "-j", "--pid", strings.Join([]string{gone[0], me, gone[1]}, ","))
	valid(t, r.stdout)
	if r.code != ctl.CodeCheck || strings.Count(r.stderr, "\n") != 3 {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(r.stderr) {
		failure(t, line)
	}
	told(r.stderr, 2)
}

// memfdOf makes this process have a changed copy of an object, which is old and not sealed.
func memfdOf(t *testing.T, change func([]byte), object []byte) int {
	t.Helper()
	image := append([]byte{}, object...)
	change(image)
	binary.LittleEndian.PutUint64(image[0x78:], 1)  // when it was made
	binary.LittleEndian.PutUint64(image[0xb28:], 2) // both records of owners: it was released
	binary.LittleEndian.PutUint64(image[0xba8:], 2)
	binary.LittleEndian.PutUint32(image[0x980:], crc32.Checksum(image[:0x980],
		crc32.MakeTable(crc32.Castagnoli)))
	fd := shmtest.Got(unix.MemfdCreate("copy", unix.MFD_CLOEXEC)).Or(t)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	n := shmtest.Got(unix.Pwrite(fd, image, 0)).Or(t)
	if n != len(image) {
		t.Fatal("it is not whole")
	}
	return fd
}

func collected(t *testing.T, text string) gcResult {
	t.Helper()
	return parsed[gcResult](t, "gc", text)
}

func TestGC(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	kept := createQueue(t, d, "kept", cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, kept.Detach())
	must(t, os.WriteFile(filepath.Join(d.Path(), "notes"), []byte("no object"), 0o600))
	must(t, os.Mkdir(filepath.Join(d.Path(), "empty"), 0o700))

	before := state(t, d.Path())
	text := ok(t, "gc")
	has(t, text, "orders", "living", "left by its owner", "garbage",
		"no object of this library", "1 of 8 would be removed, 0 bytes: shmctl gc --remove")
	r := collected(t, ok(t, "gc", "-j"))
	if r.Remove || r.Garbage != 1 || r.Removed+r.Failed != 0 || len(r.Remains) != 8 {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(before, state(t, d.Path())); diff != "" {
		t.Errorf("looking changed the directory:\n%s", diff)
	}
	r = collected(t, ok(t, "gc", "--remove", "-j"))
	if !r.Remove || r.Garbage+r.Failed != 0 || r.Removed != 1 {
		t.Errorf("%+v", r)
	}
	has(t, ok(t, "gc"), "nothing of 7 would be removed")
	if r := run(t, "gc", "-r", "--persistent-too", "orders"); r.code != ctl.CodeFailure ||
		!strings.Contains(r.stderr, "shmctl: gc orders: stays: process ") {
		t.Errorf("%+v", r)
	}
	refused(t, "gc -r --persistent-too nobody", ctl.CodeNotFound)
	r = collected(t, ok(t, "gc", "-r", "--persistent-too", "kept", "-j"))
	if r.Removed != 1 || r.Bytes == 0 {
		t.Errorf("%+v", r)
	}
	must(t, os.Remove(filepath.Join(d.Path(), "notes")))
	if r := run(t, "gc", "--dir", filepath.Join(d.Path(), "none")); r.code != ctl.CodeNotFound {
		t.Errorf("%+v", r)
	}
	r2 := run(t, "__complete", "gc", "--persistent-too", "")
	has(t, r2.stdout, "orders\n")
}

func TestGCTables(t *testing.T) {
	life, pid := "alive", 42
	p := ctl.Process{PID: &pid, Life: &life}
	cannot := ctl.NewProblem(&shm.Error{Op: "open", Name: "cut", Field: "size", Got: 1,
		Want: 4096, Err: shm.ErrTruncated})
	all := []ctl.Remains{
		{Name: "cut\n", Fate: "damaged", Reason: "damaged", Error: cannot},
		{Name: "orders", Kind: new("queue"), Fate: "living", Process: &p, Unread: new(uint64(3)),
			Reason: "process 42 lives and has it", SizeBytes: new(uint64(81920))},
		{Name: "stale", Kind: new("queue"), Fate: "garbage", Unread: new(uint64(0)),
			Reason: "its reader and all writers are gone", SizeBytes: new(uint64(65536))},
		{Name: "locked", Kind: new("counter"), Fate: "failed", SizeBytes: new(uint64(8192)),
			Reason: "garbage that cannot be removed", Error: ctl.NewProblem(errors.New("no"))}}
	dry := sumUp(false, all)
	golden(t, "gc", gcLines(&dry, &output{}, page{}))
	all[2].Fate = "removed"
	done := sumUp(true, all)
	golden(t, "gc-remove", gcLines(&done, &output{raw: true}, page{}))
	golden(t, "gc-raw", gcLines(&done, &output{raw: true, noHeader: true}, page{}))
	if done.Failed != 1 || done.Removed != 1 || done.Bytes != 65536 {
		t.Errorf("%+v", done)
	}
}

// stranger is a user that is not this one.
const stranger = 65534

// userDirs makes a place where the directories of users stand, and the one of this user, with a
// queue that is left. Its own directory is what a verb looks at that is not told otherwise.
func userDirs(t *testing.T) (place string) {
	t.Helper()
	place = shmtest.Got(os.MkdirTemp("/dev/shm", "users-")).Or(t)
	t.Cleanup(func() { must(t, os.RemoveAll(place)) })
	must(t, os.Chmod(place, 0o755))
	before := usersAt
	usersAt = place
	t.Cleanup(func() { usersAt = before })
	own := filepath.Join(place, fmt.Sprint("shmring-", os.Geteuid()))
	t.Setenv(shm.EnvDir, own)
	d := shmtest.Have(shm.OpenDir(own)).In(t)
	leave(t, d, "own", 1)
	return place
}

// TestAllUsersSkips: what is not a directory of just the user of its name is told of and skipped.
func TestAllUsersSkips(t *testing.T) {
	place := userDirs(t)
	for args, want := range map[string]string{
		"ls -w":         "--all-users looks once: leave --watch out, or have watch(1) repeat it",
		"show own -w":   "leave --watch out",
		"tail own -f":   "--all-users looks once: leave --follow out, or have watch(1) repeat it",
		"ls --dir x":    "--all-users and --dir exclude each other",
		"check --pid 1": "--all-users and --pid exclude each other",
	} {
		refused(t, args+" --all-users", ctl.CodeUsage, want)
	}
	if os.Geteuid() != 0 {
		r := refused(t, "ls --all-users", ctl.CodePermission, "--all-users needs root", "run as root")
		if r.stdout != "" {
			t.Errorf("it begins: %s", r.stdout)
		}
		return
	}
	self := os.Geteuid()
	must(t, os.Symlink(filepath.Join(place, fmt.Sprint("shmring-", self)),
		filepath.Join(place, "shmring-70001")))
	must(t, os.Mkdir(filepath.Join(place, "shmring-70002"), 0o700))
	must(t, os.Mkdir(filepath.Join(place, "shmring-007"), 0o700)) // no number of a user
	must(t, os.WriteFile(filepath.Join(place, "shmring-70003"), nil, 0o600))
	for verb, want := range map[string]string{"ls": "own ", "show own": "own\n", "gc": "own ",
		"check": "objects checked", "tail own": "LANE"} {
		r := run(t, append(strings.Fields(verb), "--all-users")...)
		if r.code != ctl.CodePermission || !strings.Contains(r.stdout, want) ||
			!strings.HasPrefix(r.stdout, "user ") || strings.Count(r.stdout, "user ") != 1 {
			t.Errorf("%s: exit %d\n%s%s", verb, r.code, r.stdout, r.stderr)
		}
		has(t, r.stderr, "shmring-70001", "shmring-70002", "shmring-70003")
		if strings.Contains(r.stderr, "shmring-007") {
			t.Errorf("%s: %s", verb, r.stderr)
		}
	}
	must(t, os.RemoveAll(place))
	must(t, os.Mkdir(place, 0o755))
	refused(t, "ls --all-users -j", 0, "no user has anything in "+place)
}

// TestAllUsersAsRoot: each user's objects are looked at and collected by a process of that user,
// wherever its files lead, and who finds nothing of his own is told of the others.
func TestAllUsersAsRoot(t *testing.T) {
	shmtest.RequireRoot(t, "root", "processes of another user are started")
	place := userDirs(t)
	victim := filepath.Join(place, "victim")
	must(t, os.Mkdir(victim, 0o755))
	must(t, os.WriteFile(filepath.Join(victim, "reader"), []byte("root's"), 0o600))
	his := filepath.Join(place, fmt.Sprint("shmring-", stranger))
	d := shmtest.Got(shm.OpenDir(his)).Or(t)
	q := createQueue(t, d, "dead", cq.Options{Size: 4})
	must(t, q.Detach())
	must(t, d.Close())
	must(t, os.Symlink(victim, filepath.Join(his, "lure")))
	must(t, os.Symlink(filepath.Join(victim, "reader"), filepath.Join(his, "file")))
	must(t, filepath.WalkDir(his, func(path string, _ os.DirEntry, err error) error {
		must(t, err)
		return os.Lchown(path, stranger, stranger)
	}))

	text := ok(t, "ls", "--all-users")
	if !strings.Contains(text, "own ") || !strings.Contains(text, "dead ") ||
		!strings.Contains(text, fmt.Sprintf("(%d), %s", stranger, his)) {
		t.Errorf("ls:\n%s", text)
	}
	for line := range strings.Lines(ok(t, "ls", "--all-users", "-j")) {
		valid(t, line)
		if !strings.Contains(line, `"uid":0}`) &&
			!strings.Contains(line, fmt.Sprintf(`"uid":%d}`, stranger)) {
			t.Errorf("whose is it: %s", line)
		}
	}
	if text = ok(t, "show", "dead", "--all-users"); strings.Count(text, "user ") != 1 {
		t.Errorf("show:\n%s", text)
	}
	refused(t, "show nope --all-users", ctl.CodeNotFound)
	r := run(t, "gc", "-r", "--persistent-too", "dead", "--all-users")
	if _, err := os.Stat(filepath.Join(his, "dead")); err == nil {
		t.Errorf("it is still there: %s%s", r.stdout, r.stderr)
	}
	kept, err := os.ReadFile(filepath.Join(victim, "reader"))
	if err != nil || string(kept) != "root's" {
		t.Errorf("root's file: %q, %v", kept, err)
	}
}

// TestOthersHint: who finds nothing is told that others have something.
func TestOthersHint(t *testing.T) {
	shmtest.RequireRoot(t, "root", "a directory is given to another user")
	place := userDirs(t)
	if r := run(t, "show", "nope"); strings.Contains(r.stderr, "other users") {
		t.Error(r.stderr)
	}
	his := filepath.Join(place, fmt.Sprint("shmring-", stranger))
	must(t, os.MkdirAll(filepath.Join(his, "queue"), 0o700))
	must(t, os.Chown(his, stranger, stranger))
	for _, line := range []string{"show nope", "signal nope", "tail nope"} {
		if r := run(t, strings.Fields(line)...); !strings.Contains(r.stderr,
			"1 other users have some: as root, shmctl ls --all-users") {
			t.Errorf("%s: %s", line, r.stderr)
		}
	}
	p := newPTY(t, 120, 24)
	t.Setenv(shm.EnvDir, filepath.Join(place, "empty"))
	if code := Main(t.Context(), []string{"ls"}, strings.NewReader(""), p.tty, p.tty); code != 0 {
		t.Fatal(code)
	}
	eventually(t, "the hint", func() bool { return strings.Contains(p.text(), "1 other users have") })
}
