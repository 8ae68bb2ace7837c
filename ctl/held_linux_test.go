package ctl_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

const memfdSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// hold makes this process have an image as a memfd.
func hold(t testing.TB, name string, image []byte, seals int) int {
	t.Helper()
	fd := shmtest.Got(unix.MemfdCreate("shmring:"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)).Or(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	for at := 0; at < len(image); {
		n := shmtest.Got(unix.Pwrite(fd, image[at:], int64(at))).Or(t)
		at += n
	}
	shmtest.Got(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)).Or(t)
	return fd
}

// lock takes the lock of an object as its owner does.
func lock(t testing.TB, fd int) {
	t.Helper()
	must(t, unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}))
}

// ofProcess checks this process and returns what is found, by descriptor.
func ofProcess(t testing.TB, o ctl.CheckOptions) (r ctl.CheckReport, byFD map[int][]ctl.Finding) {
	t.Helper()
	r = shmtest.Got(ctl.CheckProcess(o, os.Getpid())).Or(t)
	byFD = map[int][]ctl.Finding{}
	for _, f := range r.Findings {
		fd := shmtest.Got(strconv.Atoi(f.Path[strings.LastIndexByte(f.Path, '/')+1:])).Or(t)
		if want := fmt.Sprintf("%d/%d", os.Getpid(), fd); !strings.HasPrefix(f.Name, want) {
			t.Errorf("%s is named %s", f.Path, f.Name)
		}
		byFD[fd] = append(byFD[fd], f)
	}
	return r, byFD
}

// newQueue gives a reader's and a lane's image the uuid of a queue of their own.
func newQueue(reader, lane []byte) {
	u := shm.NewUUID()
	copy(reader[0x38:], u[:])
	binary.LittleEndian.PutUint64(lane[0x110:], binary.BigEndian.Uint64(u[:8]))
	binary.LittleEndian.PutUint64(lane[0x118:], binary.BigEndian.Uint64(u[8:]))
	seal(reader)
	seal(lane)
}

// TestCheckProcessFindsDamage: each damage that a check by name finds is found in a memfd too, at
// the same place. Only names are not judged.
func TestCheckProcessFindsDamage(t *testing.T) {
	d := ownDir(t)
	whole := specimens(t, d)
	bell := ""
	for path := range whole {
		if strings.HasPrefix(path, "bell-") {
			bell = path
		}
	}
	all := append(more(t, whole), damages(bell)...)
	all = append(all, damage{name: "object.attributes", file: "q/lane-0001", at: 0x100, word: 3})
	want := map[int][]string{}
	for _, g := range append(all, damage{file: "q/reader"}, damage{file: "count"}) {
		if g.name == "object.name" || g.name == "queue.kind" {
			continue
		}
		set := map[string][]byte{}
		for path, image := range whole {
			set[path] = slices.Clone(image)
		}
		newQueue(set["q/reader"], set["q/lane-0001"])
		files, at := set, uint64(0)
		if g.name != "" {
			files, at = g.apply(t, set)
		}
		holdDamaged(t, files, g, at, want)
	}
	r, byFD := ofProcess(t, ctl.CheckOptions{})
	if r.Objects < len(want) || len(r.Undecided) != 1 { // one has the state of an unfinished object
		t.Errorf("%d objects, undecided %v", r.Objects, r.Undecided)
	}
	got := map[int][]string{}
	for fd := range want {
		got[fd] = []string{}
		for _, f := range byFD[fd] {
			got[fd] = append(got[fd], label(f.Invariant, "", f.Offset))
		}
		delete(byFD, fd)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(byFD) > 0 {
		t.Errorf("beside these: %v", byFD)
	}
}

// holdDamaged has the damaged file, and what it is judged with.
func holdDamaged(t *testing.T, files map[string][]byte, g damage, at uint64,
	want map[int][]string) {
	t.Helper()
	names := []string{g.file}
	if strings.HasPrefix(g.file, "q/") {
		names = []string{"q/reader", "q/lane-0001"}
	}
	for _, name := range names {
		fd := hold(t, name, files[name], memfdSeals)
		want[fd] = []string{}
		if name == "q/reader" {
			lock(t, fd)
		}
		if name == g.file && g.name != "" && g.name != "header.state" {
			want[fd] = []string{label(g.name, "", &at)}
		}
	}
}

// TestCheckProcessSeals: an object without a name that its holders could cut is named, also if it
// says that it is yet to be made.
func TestCheckProcessSeals(t *testing.T) {
	d := ownDir(t)
	whole := specimens(t, d)
	want := map[int]string{}
	for _, name := range []string{"q/reader", "q/lane-0001", "ev/reader", "count", "peers"} {
		image := slices.Clone(whole[name])
		created := binary.LittleEndian.Uint64(image[0x78:])
		binary.LittleEndian.PutUint64(image[0x78:], created-2e9)
		fd := hold(t, name, seal(image), unix.F_SEAL_SEAL)
		want[fd] = "object.seals"
	}
	early := slices.Clone(whole["count"])
	binary.LittleEndian.PutUint64(early[0x78:], 1<<62)
	want[hold(t, "count", seal(early), unix.F_SEAL_SEAL)] = "object.seals"
	r, byFD := ofProcess(t, ctl.CheckOptions{})
	if len(byFD) != len(want) || len(r.Undecided) > 0 {
		t.Errorf("%v, undecided %v", byFD, r.Undecided)
	}
	for fd, name := range want {
		f := byFD[fd]
		if len(f) != 1 || f[0].Invariant != name || f[0].Offset != nil || f[0].Section != "file" ||
			f[0].Got != "0x1" || f[0].Want == "" {
			t.Errorf("%d: %+v, want %s", fd, f, name)
		}
	}
}

// holdAhead holds a queue and its lane as memory without a name. The queue's row is ahead of the
// lane. It returns the descriptor of the queue, and what the lane is.
func holdAhead(t *testing.T, whole map[string][]byte) (reader int, lane []byte) {
	t.Helper()
	rd := slices.Clone(whole["q/reader"])
	lane = slices.Clone(whole["q/lane-0001"])
	newQueue(rd, lane)
	binary.LittleEndian.PutUint64(rd[section(t, rd, sectRows)+rowBytes+128:], 7)
	reader = hold(t, "q", rd, memfdSeals)
	hold(t, "lane", lane, memfdSeals)
	return reader, lane
}

// TestCheckProcessStaleLane: only the process that reads a queue knows which lane is the row's, and
// of two it is not told.
func TestCheckProcessStaleLane(t *testing.T) {
	d := ownDir(t)
	reader, lane := holdAhead(t, specimens(t, d))
	if _, byFD := ofProcess(t, ctl.CheckOptions{}); len(byFD) > 0 {
		t.Errorf("a writer: %v", byFD)
	}
	lock(t, reader)
	_, byFD := ofProcess(t, ctl.CheckOptions{})
	if f := byFD[reader]; len(byFD) != 1 || len(f) != 1 || f[0].Invariant != "row.head" ||
		f[0].Name != fmt.Sprintf("%d/%d q", os.Getpid(), reader) {
		t.Errorf("the reader: %v", byFD)
	}
	hold(t, "lane", lane, memfdSeals)
	if _, byFD := ofProcess(t, ctl.CheckOptions{}); len(byFD) > 0 {
		t.Errorf("two lanes: %v", byFD)
	}
}

// TestCheckProcessStrangers: what a process has beside objects is left alone, what was cut is told,
// and one that is cut under the check is an error.
func TestCheckProcessStrangers(t *testing.T) {
	d := ownDir(t)
	whole := specimens(t, d)
	none := hold(t, "none", []byte("no object at all"), 0)
	empty := hold(t, "empty", nil, 0)
	short := hold(t, "short", whole["count"][:3000], 0)
	image := binary.LittleEndian.AppendUint32(slices.Clone(whole["count"][:0x14]), 4711)
	image = append(image, whole["count"][0x18:]...)
	cut := hold(t, "cut", seal(image), 0)
	pipe := make([]int, 2)
	must(t, unix.Pipe2(pipe, unix.O_CLOEXEC))
	defer func() { must(t, errors.Join(unix.Close(pipe[0]), unix.Close(pipe[1]))) }()
	again := shmtest.Got(unix.FcntlInt(uintptr(cut), unix.F_DUPFD_CLOEXEC, 0)).Or(t)
	defer unix.Close(again)

	r, byFD := ofProcess(t, ctl.CheckOptions{})
	if len(byFD) != 2 || byFD[none][0].Invariant != "file.size" ||
		byFD[short][0].Invariant != "file.size" {
		t.Errorf("%v", byFD)
	}
	if r.Objects < 4 || !slices.Equal(r.Undecided, []string{
		fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), empty)}) {
		t.Errorf("%+v", r)
	}

	seen := 0
	r, err := ctl.CheckProcess(ctl.CheckOptions{More: func(o *shm.Object) []shm.Violation {
		seen++
		must(t, unix.Ftruncate(cut, 4096))
		_ = bytes.Count(o.Bytes(), []byte("x"))
		t.Error("memory that is not there was read")
		return nil
	}}, os.Getpid())
	if seen != 1 || !errors.Is(err, shm.ErrTruncated) ||
		!strings.Contains(err.Error(), fmt.Sprintf("%d/%d count", os.Getpid(), cut)) {
		t.Errorf("%d looks, %v, %+v", seen, err, r)
	}
	_, byFD = ofProcess(t, ctl.CheckOptions{})
	if f := byFD[cut]; len(f) != 1 || f[0].Invariant != "file.size" {
		t.Errorf("%+v", f)
	}
}

// TestCheckProcessMapped: what is mapped and not open any more is found too, by who may.
func TestCheckProcessMapped(t *testing.T) {
	d := ownDir(t)
	image := specimens(t, d)["count"]
	image[section(t, image, sectCounter)+256+40] = 7
	fd := hold(t, "count", image, memfdSeals)
	mem := shmtest.Got(unix.Mmap(fd, 0, len(image), unix.PROT_READ, unix.MAP_SHARED)).Or(t)
	defer func() { must(t, unix.Munmap(mem)) }()
	must(t, unix.Close(fd))
	entries := shmtest.Got(os.ReadDir("/proc/self/map_files")).Or(t)
	_, may := os.Stat("/proc/self/map_files/" + entries[0].Name())
	r, err := ctl.CheckProcess(ctl.CheckOptions{}, os.Getpid())
	if errors.Is(may, fs.ErrPermission) {
		if !errors.Is(err, fs.ErrPermission) || len(r.Findings) > 0 {
			t.Errorf("without privilege: %v, %+v", err, r)
		}
		return
	}
	must(t, err)
	if f := r.Findings; len(f) != 1 || f[0].Invariant != "counter.standing" ||
		!strings.Contains(f[0].Path, "/map_files/") || !strings.HasSuffix(f[0].Name, " count") {
		t.Errorf("%+v", r)
	}
}

// TestCheckProcessRefused: who cannot be looked at is told apart.
func TestCheckProcessRefused(t *testing.T) {
	d := ownDir(t)
	c := startChild(t, d, "household")
	c.Line(t)
	pid := c.Process.Pid
	c.Kill()
	for _, pid := range []int{pid, 0, -1, 1 << 30} {
		_, err := ctl.CheckProcess(ctl.CheckOptions{}, pid)
		if p := ctl.NewProblem(err); !errors.Is(err, fs.ErrNotExist) || p.Hint == nil ||
			p.Code != ctl.CodeNotFound {
			t.Errorf("%d: %v, %+v", pid, err, p)
		}
	}
	cmd := childOf(t, d, "household")
	must(t, cmd.Start())
	must(t, cmd.Process.Kill())
	for { // dead, and not waited for
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			must(t, err)
			break
		}
	}
	_, err := ctl.CheckProcess(ctl.CheckOptions{}, cmd.Process.Pid)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	_ = cmd.Wait()

	other := childOf(t, d, "look at parent")
	out := shmtest.Got(other.Output()).Or(t)
	if os.Getuid() == 0 && string(out) != "may not\n" {
		t.Errorf("%q", out)
	}
}

func init() { roles["look at parent"] = lookAtParent }

// lookAtParent has no right to.
func lookAtParent() {
	parent := os.Getppid()
	if os.Getuid() == 0 {
		need(errors.Join(unix.Setgroups(nil), unix.Setgid(65534), unix.Setuid(65534)))
	}
	r, err := ctl.CheckProcess(ctl.CheckOptions{}, parent)
	if !errors.Is(err, fs.ErrPermission) {
		return
	}
	if p := ctl.NewProblem(err); r.Objects == 0 && p.Code == ctl.CodePermission && p.Hint != nil {
		say("may not")
	}
}
