package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		`shm: open "x": size is 3, want 4: truncated object; make it anew`: &Error{Op: "open",
			Name: "x", Field: "size", Got: 3, Want: 4, Err: ErrTruncated, Hint: "make it anew"},
		`shm: list: file already closed`: named("list", "", fs.ErrClosed),
		`shm: create "a": bytes left in b is 7, want 9: not enough shared memory; make it smaller, ` +
			`remove old objects, or raise the limit`: named("create", "a", roomError(room{"b", 7}, 9)),
		`shm: claim "q": owned by living process 7; stop it first`: &BusyError{Name: "q", PID: 7},
		`shm: claim "q": owned by a living process; stop it first`: &BusyError{Name: "q"},
		`shm: open "x": name is a\x1b[2J\ufffd, want b\a: damaged object; see \u202e`: &Error{Op: "open",
			Name: "x", Field: "name", Got: "a\x1b[2J\xff", Want: "b\a", Err: ErrCorrupt,
			Hint: "see \u202e"},
		`shm: : bytes left in memory cgroup /\n\x1b is 0, want 1: not enough shared memory; ` +
			`make it smaller, remove old objects, or raise the limit`: roomError(
			room{where: "memory cgroup /\n\x1b"}, 1),
		`shm: open "x": no such file or directory; it is not made yet, was removed, or ` +
			`SHMRING_DIR differs from its owner's`: named("open", "x", syscall.ENOENT),
		`shm: create "x": file exists; open what is there, remove it when nobody uses it, or ` +
			`take another name`: named("create", "x", syscall.EEXIST),
		`shm: open directory "/x": permission denied; it, or a directory above it, is another ` +
			`user's: set SHMRING_DIR to a directory of your own, or run as that user`: named(
			"open directory", "/x", syscall.EACCES),
	} {
		if got := err.Error(); got != want {
			t.Errorf("\n%s\n%s", got, want)
		}
	}
}

func TestErrorsMatchErrnos(t *testing.T) {
	all := []error{ErrName, ErrCorrupt, ErrVersion, ErrKind, ErrTruncated, ErrStale, ErrLockLost,
		ErrOwner, ErrNoSpace}
	for i, a := range all {
		wrapped := fmt.Errorf("cq: %w", named("open", "x", a))
		for j, b := range all {
			if errors.Is(wrapped, b) != (i == j) {
				t.Errorf("errors.Is(%v, %v)", a, b)
			}
		}
	}
	for err, errno := range map[error]error{ErrName: syscall.EINVAL, ErrStale: syscall.ESTALE,
		ErrLockLost: syscall.ENOLCK, ErrOwner: syscall.EPERM, ErrNoSpace: syscall.ENOSPC,
		ErrCorrupt: syscall.EBADMSG, ErrVersion: syscall.EPROTONOSUPPORT,
		&BusyError{}: syscall.EBUSY} {
		if !errors.Is(err, errno) {
			t.Errorf("%v is not %v", err, errno)
		}
	}
	if !errors.Is(ErrOwner, fs.ErrPermission) || errors.Is(ErrStale, fs.ErrPermission) {
		t.Error("fs.ErrPermission means ErrOwner")
	}
}

func TestCgroupLimits(t *testing.T) {
	const all = math.MaxUint64
	scarce := map[string]string{
		"/proc/self/cgroup":               "0::/a\n",
		"/sys/fs/cgroup/a/memory.max":     "1000\n",
		"/sys/fs/cgroup/a/memory.current": "900\n",
		"/sys/fs/cgroup/a/memory.stat":    "anon 3\ninactive_file 200\n",
	}
	for name, c := range map[string]struct {
		needed uint64
		files  map[string]string
		want   []room
	}{
		"v2": {all, map[string]string{
			"/proc/self/cgroup":                 "0::/a/b\n",
			"/sys/fs/cgroup/a/b/memory.max":     "max\n",
			"/sys/fs/cgroup/a/b/memory.current": "5\n",
			"/sys/fs/cgroup/a/memory.max":       "1000\n",
			"/sys/fs/cgroup/a/memory.current":   "900\n",
			"/sys/fs/cgroup/a/memory.stat":      "anon 3\ninactive_file 200\n",
			"/sys/fs/cgroup/memory.max":         "100\n",
			"/sys/fs/cgroup/memory.current":     "200\n",
		}, []room{{"memory cgroup /a", 300 - 1000/16}, {"memory cgroup /", 0}}},
		"v1": {all, map[string]string{
			"/proc/self/cgroup":                             "4:cpu,memory:/a\n0::/\nrubbish\n",
			"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "10\n",
			"/sys/fs/cgroup/memory/a/memory.usage_in_bytes": "4\n",
		}, []room{{"memory cgroup /a", 6}}},
		"large": {all, map[string]string{
			"/proc/self/cgroup":             "0::/\n",
			"/sys/fs/cgroup/memory.max":     "1073741824\n",
			"/sys/fs/cgroup/memory.current": "1048576\n",
		}, []room{{"memory cgroup /", 1<<30 - 1<<20 - 1<<20}}},
		"root only": {all, map[string]string{
			"/proc/self/cgroup":             "0::/\n",
			"/sys/fs/cgroup/memory.max":     "7\n",
			"/sys/fs/cgroup/memory.current": "0\n",
		}, []room{{"memory cgroup /", 7}}},
		"enough":     {38, scarce, []room{{"memory cgroup /a", 100 - 1000/16}}},
		"not enough": {39, scarce, []room{{"memory cgroup /a", 300 - 1000/16}}},
		"none":       {all, nil, nil},
	} {
		got := cgroupLimits(func(path string) []byte { return []byte(c.files[path]) },
			c.needed)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(room{})); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestAmple: limits are looked at again unless they were far away a moment ago, in the same cgroup,
// by what has been made since.
func TestAmple(t *testing.T) {
	const some, plenty = ampleBytes / 4, 2 * ampleBytes
	var a ample
	for i, c := range []struct {
		now          int64
		group        string
		needed, left uint64 // what is left if it is looked at; 0 if it is not
		far          bool   // so that nothing is said of it
	}{
		{1, "a", some, plenty, true},
		{1, "a", some, 0, true},
		{ampleNs, "a", some, 0, true},
		{ampleNs + 1, "a", some, plenty, true}, // a moment has passed
		{ampleNs + 2, "b", some, ampleBytes + some - 1, false},
		{ampleNs + 2, "b", 1, ampleBytes + some, true}, // that one may have taken what was left
		{ampleNs + 2, "b", some - 1, 0, true},
		{ampleNs + 2, "b", 1, ampleBytes, false},
		{ampleNs + 2, "b", 1, some, false},
	} {
		looked := false
		rooms := a.limits(c.now, c.group, c.needed, func() []room {
			looked = true
			return []room{{"x", c.left}}
		})
		if looked != (c.left != 0) || len(rooms) == 0 != c.far {
			t.Errorf("%d: looked: %v, and found %v", i, looked, rooms)
		}
	}
}

func TestNoRoomSaysHowMuch(t *testing.T) {
	err := named("create", "x", roomError(tightest([]room{{"a", 9}, {"b", 5}, {"c", 7}}), 6))
	var no *Error
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &no) {
		t.Fatal(err)
	}
	if no.Want != uint64(6) || no.Got != uint64(5) || no.Field != "bytes left in b" {
		t.Error(no)
	}
	if got := tightest(nil); got.available != math.MaxUint64 {
		t.Error(got)
	}
}

// TestRefusedBeyondWhatIsSeen: where the kernel says no and every limit that can be read says yes,
// the error does not claim that there was room.
func TestRefusedBeyondWhatIsSeen(t *testing.T) {
	const needed = 1 << 12
	for _, refusal := range []error{syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT} {
		err := (&builder{}).noSpace(refusal, needed)
		var no *Error
		if !errors.Is(err, ErrNoSpace) || !errors.As(err, &no) || no.Want != uint64(needed) ||
			no.Got.(uint64) >= needed {
			t.Errorf("%v: %v", refusal, err)
		}
	}
}
