package cq_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestOthersHostile: whatever another user's writer writes to its lane, it costs that writer its
// lane, with one typed error that names it, and nobody else anything. When the process is gone the
// row is free for another.
func TestOthersHostile(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	spoils := map[string][]string{ // offsets and values
		"tail far ahead":  {"lane 0 1099511627776"},
		"tail a bit more": {"lane 0 9"},
		"tail back":       {"lane 0 18446744073709551615"},
		"no entry":        {"slot 56 255", "lane 0 1"},
		"overrun":         {"lane 264 1"},
	}
	var qs []*cq.Queue
	for range spoils {
		qs = append(qs, anonymousOthers(t, cq.Options{Size: 8, MaxLanes: 2, Spin: -1}))
	}
	h := startWriters(t, othersSite, nil, qs...)
	dst := make([]cq.Context, 4)
	for i, name := range slices.Sorted(maps.Keys(spoils)) {
		q := qs[i]
		good := join(t, q)
		h.do(t, "use", uint64(i))
		for _, store := range spoils[name] {
			h.tell(t, store, "done")
		}
		h.do(t, "ring", 1)
		_, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})
		wantErr(t, name, err, cq.ErrCorrupt)
		if bad := new(cq.LaneError); !errors.As(err, &bad) || bad.PID != h.Process.Pid ||
			bad.Lane != 1 {
			t.Errorf("%s: %v is not about lane 1 of %d", name, err, h.Process.Pid)
		}
		for i := range uint64(20) {
			post(t, good, i, i+1)
			h.do(t, "lane 0", i*3)
			h.do(t, "ring", 1)
			n, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{})
			if n != 1 || err != nil || dst[0].Context != i {
				t.Fatalf("%s: another writer's: %d, %v, %v", name, n, err, dst)
			}
		}
		if s := q.Stats(); s.GivenUp != 1 || s.Retired != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	h.Kill()
	for _, q := range qs {
		rowComesFree(t, q)
		post(t, join(t, q), 77, 78)
		if n, err := cq.ReadContext(soon(t), q, dst, cq.ReadOptions{}); n != 1 || err != nil ||
			dst[0].Context != 77 {
			t.Errorf("%d, %v, %v", n, err, dst)
		}
	}
}

// TestOthersHostileDetail: the detail of an error entry is bounded, whatever length it claims.
func TestOthersHostileDetail(t *testing.T) {
	q := anonymousOthers(t, cq.Options{Size: 8, Spin: -1})
	h := startWriter(t, othersSite, q, nil)
	h.do(t, "slot 56", 2) // an error entry
	h.do(t, "detail 16", 1<<50)
	h.do(t, "lane 8", 1<<60) // sol
	h.do(t, "lane 16", 1<<61)
	h.do(t, "lane 256", 1) // the order of publishes
	h.do(t, "lane 0", 1)
	h.do(t, "ring", 1)
	dst := make([]cq.Context, 4)
	_, err := sread(q, dst, short, 3)
	wantErr(t, "read", err, cq.ErrAvail)
	e := cq.ErrorEntry{ErrData: make([]byte, 1<<10)}
	must(t, q.ReadErr(&e))
	if len(e.ErrData) > cq.ErrDataMaxBytes {
		t.Errorf("%d bytes of detail", len(e.ErrData))
	}
}

// TestOthersFlood: a writer that rings without end and posts nothing wakes a sleeping reader a few
// times, whatever that sleeps on. Nobody listens to one that was given up, whatever its tail does
// and it writes to the pipe of the descriptor; that it has gone is noticed all the same.
func TestOthersFlood(t *testing.T) {
	shmtest.Conforms(t)
	shmtest.Long(t)
	for name, o := range map[string]cq.Options{"sread": {}, "shared": {Shared: true},
		"set": {}, "descriptor": {Wait: cq.WaitFD}} {
		t.Run(name, func(t *testing.T) {
			o.Size, o.Spin = 8, -1
			q := anonymousOthers(t, o)
			h := startWriter(t, othersSite, q, nil)
			floods(t, q, flooded(t, name, q), 150, func() {
				for stop := time.Now().Add(150 * time.Millisecond); time.Now().Before(stop); {
					h.do(t, "flood", 2000)
					h.do(t, "pipe", 200)
				}
			})
		})
		t.Run(name+", given up", func(t *testing.T) {
			o.Size, o.Spin = 8, -1
			q := anonymousOthers(t, o)
			h := startWriter(t, othersSite, q, nil)
			h.do(t, "lane 0", 1<<40)
			h.do(t, "ring", 1)
			eventually(t, "it is given up", func() bool {
				_, err := cq.Read(q, make([]cq.Context, 1))
				return errors.As(err, new(*cq.LaneError))
			})
			wait := flooded(t, name, q)
			if cq.Forwards(q, h.lane) {
				t.Error("its rings are passed on")
			}
			floods(t, q, wait, 50, func() {
				for range 100 {
					h.do(t, "swing", 1)
					h.do(t, "pipe", 1)
				}
			})
			h.Kill()
			rowComesFree(t, q)
		})
	}
}

// floods waits again and again while a writer does something, which is to wake nobody more often.
func floods(t *testing.T, q *cq.Queue, wait func(), most int, flood func()) {
	t.Helper()
	looks, sleeps, end := 0, q.Stats().Sleeps, make(chan struct{})
	go func() {
		defer close(end)
		flood()
	}()
	for ended := false; !ended; looks++ {
		wait()
		select {
		case <-end:
			ended = true
		default:
		}
	}
	if looks += int(q.Stats().Sleeps - sleeps); looks > most {
		t.Errorf("%d looks", looks)
	}
}

// flooded returns one wait, of at most 50 ms.
func flooded(t *testing.T, how string, q *cq.Queue) func() {
	t.Helper()
	const most = 50 * time.Millisecond
	switch how {
	case "set":
		s := waitSet(t, openDir(t), cq.WaitSetOptions{})
		addTo(t, s, q)
		return func() { _, _ = setWait(s, make([]cq.Waitable, 1), most) }
	case "descriptor":
		return func() {
			if q.TryWait() == nil {
				p := []unix.PollFd{{Fd: int32(waitFD(q)), Events: unix.POLLIN}}
				_, _ = unix.Poll(p, int(most.Milliseconds()))
			}
		}
	}
	return func() { _, _ = sread(q, make([]cq.Context, 1), most) }
}

// forbidden are the ways to write to another user's memory, or to take it away. Each is tried on a
// descriptor of it, and on a mapping, and must fail; what it returns is why it did.
var forbidden = []struct {
	name string
	try  func(fd int, mem []byte) error
	want []error // any of them
}{
	{"write", func(fd int, _ []byte) error {
		_, err := unix.Pwrite(fd, []byte{1}, 0)
		return err
	}, []error{unix.EBADF, unix.EPERM}},
	{"map writable", func(fd int, _ []byte) error { return mapped(fd, unix.MAP_SHARED) },
		[]error{unix.EACCES, unix.EPERM}},
	{"make the mapping writable", func(_ int, mem []byte) error {
		return unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE)
	}, []error{unix.EACCES}},
	{"cut", func(fd int, _ []byte) error { return unix.Ftruncate(fd, 0) },
		[]error{unix.EINVAL, unix.EPERM}},
	{"grow", func(fd int, mem []byte) error { return unix.Ftruncate(fd, 1<<30) },
		[]error{unix.EINVAL, unix.EPERM}},
	{"punch a hole", func(fd int, _ []byte) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	}, []error{unix.EBADF, unix.EPERM}},
	{"zero a range", func(fd int, _ []byte) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 0, 4096)
	}, []error{unix.EBADF, unix.EPERM, unix.EOPNOTSUPP}},
	{"remove pages", func(_ int, mem []byte) error { return unix.Madvise(mem, unix.MADV_REMOVE) },
		[]error{unix.EACCES, unix.EPERM}},
	{"seal", func(fd int, _ []byte) error {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
		return err
	}, []error{unix.EPERM}},
	{"open for writing and map", reopenAndMap, []error{unix.EACCES, unix.EPERM}},
	{"open for writing and write", reopenAndWrite, []error{unix.EACCES, unix.EPERM}},
	{"splice into it", spliceInto, []error{unix.EBADF, unix.EPERM}},
	{"copy a file range into it", func(fd int, _ []byte) error {
		_, err := unix.CopyFileRange(fd, new(int64), fd, ptr(int64(4096)), 8, 0)
		return err
	}, []error{unix.EBADF, unix.EPERM, unix.EINVAL}},
	{"change its mode", func(fd int, _ []byte) error { return unix.Fchmod(fd, 0o666) },
		[]error{unix.EPERM}},
}

func ptr[T any](v T) *T { return &v }

func mapped(fd, how int) error {
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, how)
	if err == nil {
		mem[0]++
	}
	return err
}

func reopen(fd int) (int, error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR|unix.O_CLOEXEC, 0)
}

func reopenAndMap(fd int, _ []byte) error {
	rw, err := reopen(fd)
	if err != nil {
		return err
	}
	defer unix.Close(rw)
	return mapped(rw, unix.MAP_SHARED)
}

func reopenAndWrite(fd int, _ []byte) error {
	rw, err := reopen(fd)
	if err != nil {
		return err
	}
	defer unix.Close(rw)
	_, err = unix.Pwrite(rw, []byte{1}, 0)
	return err
}

func spliceInto(fd int, _ []byte) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if _, err := unix.Write(p[1], make([]byte, 8)); err != nil {
		return err
	}
	_, err := unix.Splice(p[0], nil, fd, ptr(int64(0)), 8, 0)
	return err
}

// tryForbidden tries everything on a descriptor of another user's object.
func tryForbidden(what string, fd int) (bad []string) {
	mem, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return []string{what + ": " + err.Error()}
	}
	defer unix.Munmap(mem)
	for _, f := range forbidden {
		err, fine := f.try(fd, mem), false
		for _, want := range f.want {
			fine = fine || err == want
		}
		if !fine {
			bad = append(bad, fmt.Sprintf("%s: %s: %v", what, f.name, err))
		}
	}
	return bad
}

// theirs returns the descriptors of memfds of this process that are owned by another user.
func theirs() (fds []int) {
	for fd, to := range shmtest.Descriptors() {
		var st unix.Stat_t
		if strings.Contains(to, "memfd:shmring:") && unix.Fstat(fd, &st) == nil &&
			int(st.Uid) != os.Geteuid() {
			fds = append(fds, fd)
		}
	}
	return fds
}

// writableMaps counts mappings of memfds that can be written to, beside those of its own objects.
func writableMaps() (n int) {
	text := shmtest.Needs(os.ReadFile("/proc/self/maps"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "memfd:shmring:") && strings.Contains(line, " rw") {
			n++
		}
	}
	return n
}

// triesForbidden tries everything on what is another user's, and says what it was.
func triesForbidden() string {
	fds := theirs()
	var bad []string
	for _, fd := range fds {
		bad = append(bad, tryForbidden("object", fd)...)
	}
	return fmt.Sprintf("tried %d, writable mappings %d%s", len(fds), writableMaps(),
		strings.Join(bad, "; "))
}

// TestOthersForbidden: another user's process can write to no memory of ours, and cut none, as the
// writer of a queue and as its reader. The kernel refuses each way.
func TestOthersForbidden(t *testing.T) {
	shmtest.Conforms(t)
	const want = "tried 1, writable mappings 1"
	t.Run("as writer", func(t *testing.T) {
		q := anonymousOthers(t, cq.Options{Size: 8, Wait: cq.WaitFD})
		startWriter(t, othersSite, q, nil).tell(t, "forbidden", want)
	})
	t.Run("as reader", func(t *testing.T) {
		r := startReader(t, othersSite)
		shmtest.Have(r.attach(), nil).In(t)
		r.expect("forbidden", 0, want)
	})
}

// TestOthersForbiddenToOwner: not even the owner, root with every right, can write to an object in
// another way than through the mapping that it had first. So it is the seals that forbid it, not
// the mode of a file or of a descriptor.
func TestOthersForbiddenToOwner(t *testing.T) {
	shmtest.Conforms(t)
	q := anonymousOthers(t, cq.Options{Size: 8})
	_ = join(t, q)
	tried := 0
	for fd, to := range shmtest.Descriptors() {
		if !strings.Contains(to, "memfd:shmring:lane") && !strings.Contains(to, queueName(t)) {
			continue
		}
		rw := shmtest.Got(reopen(fd)).Or(t)
		tried++
		for _, bad := range tryForbidden(to, rw) {
			if !strings.Contains(bad, "change its mode: <nil>") {
				t.Error(bad)
			}
		}
		must(t, unix.Close(rw))
	}
	if tried < 2 {
		t.Errorf("tried %d", tried)
	}
	// Those of a queue that was there before may go late: who watches a peer does that.
	eventually(t, "the queue and the lane alone can be written to", func() bool {
		return writableMaps() == 2
	})
}
