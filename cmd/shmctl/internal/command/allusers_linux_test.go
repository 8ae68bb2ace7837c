package command

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// stranger is a user that is not this one.
const stranger = 65534

// userDirs makes a place where the directories of users stand, and the one of this user, with a
// queue that is left. Its own directory is what a verb looks at that is not told otherwise.
func userDirs(t *testing.T) (place string) {
	t.Helper()
	place, err := os.MkdirTemp("/dev/shm", "users-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(place)) })
	must(t, os.Chmod(place, 0o755))
	before := usersAt
	usersAt = place
	t.Cleanup(func() { usersAt = before })
	own := filepath.Join(place, fmt.Sprint("shmring-", os.Geteuid()))
	t.Setenv(shm.EnvDir, own)
	d, err := shm.OpenDir(own)
	must(t, err)
	defer d.Close()
	leave(t, d, "own", 1)
	return place
}

// TestAllUsersSkips: what is not a directory of just the user of its name is told of and skipped.
func TestAllUsersSkips(t *testing.T) {
	place := userDirs(t)
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
	for args, want := range map[string]string{
		"ls -w":         "--all-users looks once: leave --watch out, or have watch(1) repeat it",
		"show own -w":   "leave --watch out",
		"tail own -f":   "--all-users looks once: leave --follow out, or have watch(1) repeat it",
		"ls --dir x":    "--all-users and --dir exclude each other",
		"check --pid 1": "--all-users and --pid exclude each other",
	} {
		refused(t, args+" --all-users", ctl.CodeUsage, want)
	}
}

// TestAllUsersAsRoot: each user's objects are looked at and collected by a process of that user,
// wherever its files lead, and who finds nothing of his own is told of the others.
func TestAllUsersAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", fmt.Errorf("processes of another user are started"))
	}
	place := userDirs(t)
	victim := filepath.Join(place, "victim")
	must(t, os.Mkdir(victim, 0o755))
	must(t, os.WriteFile(filepath.Join(victim, "reader"), []byte("root's"), 0o600))
	his := filepath.Join(place, fmt.Sprint("shmring-", stranger))
	d, err := shm.OpenDir(his)
	must(t, err)
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
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", fmt.Errorf("a directory is given to another user"))
	}
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
