package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"
)

func TestErrorText(t *testing.T) {
	for want, err := range map[string]error{
		`shm: open "x": size is 3, want 4: truncated object; make it anew`: &Error{Op: "open",
			Name: "x", Field: "size", Got: 3, Want: 4, Err: ErrTruncated, Hint: "make it anew"},
		`shm: list: file already closed`: named("list", "", fs.ErrClosed),
		`shm: create "a": needs 9 bytes, b has 7; make it smaller, remove old objects, or raise ` +
			`the limit`: named("create", "a", roomError(room{"b", 7}, 9)),
		`shm: claim "q": owned by living process 7; stop it first`: &BusyError{Name: "q", PID: 7},
		`shm: claim "q": owned by a living process; stop it first`: &BusyError{Name: "q"},
		`shm: open "x": name is a\x1b[2J\ufffd, want b\a: damaged object; see \u202e`: &Error{Op: "open",
			Name: "x", Field: "name", Got: "a\x1b[2J\xff", Want: "b\a", Err: ErrCorrupt,
			Hint: "see \u202e"},
		`needs 1 bytes, memory cgroup /\n\x1b has 0`: &NoSpaceError{Needed: 1,
			Where: "memory cgroup /\n\x1b"},
		`shm: open "x": no such file or directory; it is not made yet, was removed, or ` +
			`SHMRING_DIR differs from its owner's`: named("open", "x", syscall.ENOENT),
		`shm: create "x": file exists; open what is there, remove it when nobody uses it, or ` +
			`take another name`: named("create", "x", syscall.EEXIST),
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
