package command

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/xdp"
)

func TestCheck(t *testing.T) {
	d := newDir(t)
	everything(t, d)
	must(t, os.WriteFile(filepath.Join(d.Path(), "notes"), []byte("no object"), 0o600))
	has(t, ok(t, "check"), "5 objects checked, 0 findings")
	has(t, ok(t, "check", "orders", d.Path()+"/sent"), "2 objects")
	has(t, ok(t, "check", "--list"), "slot.sequence", "quiet")
	// A copy, for the original is in use.
	kept := createQueue(t, d, "kept", cq.Options{Size: 8, Lifetime: cq.Persistent})
	must(t, kept.Detach())
	path := filepath.Join(d.Path(), "kept", "reader")
	image, err := os.ReadFile(path)
	must(t, err)
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
	q, err := cq.Create(cq.Unnamed("orders"), cq.Options{Size: 8})
	must(t, err)
	defer func() { must(t, q.Close()) }()
	e, err := cq.CreateEvents(cq.Unnamed("news"), cq.EventOptions{Size: 8})
	must(t, err)
	defer func() { must(t, e.Close()) }()
	u, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 2})
	must(t, err)
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

	fd, err := unix.MemfdCreate("shmring:none", unix.MFD_CLOEXEC)
	must(t, err)
	defer func() { must(t, unix.Close(fd)) }()
	_, err = unix.Pwrite(fd, bytes.Repeat([]byte{0xff}, 8192), 0)
	must(t, err)
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
	fd, err := unix.MemfdCreate("copy", unix.MFD_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { must(t, unix.Close(fd)) })
	n, err := unix.Pwrite(fd, image, 0)
	must(t, err)
	if n != len(image) {
		t.Fatal("it is not whole")
	}
	return fd
}
