// Package shmtest helps the tests of packages that use shared memory: a private directory for
// objects, a gate against leaks, roles for child processes, and honest skips.
package shmtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/scratch"
)

const (
	envRole    = "SHMRING_TEST_ROLE"
	envDir     = "SHMRING_DIR"
	envRequire = "SHMRING_REQUIRE"
	// envEmulator runs the children of tests that were themselves started by "go test -exec".
	envEmulator = "SHMRING_EMULATOR"
	// envPeer lists test binaries, as of another commit, that play the roles of children in turn.
	envPeer = "SHMRING_PEER"
)

// Main is the body of a TestMain. In a process that [Child] started it runs the function of that
// role and exits. Otherwise it points SHMRING_DIR to a fresh private directory, runs the tests,
// and exits with 1 and a list if descriptors, mappings of objects, files, threads in other
// namespaces, or child processes are left, or if a row of testdata/conformance.tsv names a test of
// this package that did not run though no test was left out.
func Main(m *testing.M, roles ...map[string]func()) {
	if role := Role(); role != "" {
		os.Exit(play(role, roles))
	}
	os.Exit(run(m))
}

func play(role string, roles []map[string]func()) int {
	for _, r := range roles {
		if f := r[role]; f != nil {
			f()
			return 0
		}
	}
	fmt.Fprintf(os.Stderr, "shmtest: no role %q\n", role)
	return 2
}

// programs is "" before anybody wants it.
var programs string

// Scratch makes a directory for what several tests use one after the other. It goes when all have
// ended. Programs can be run from it, which not every machine allows below SHMRING_DIR.
func Scratch() (string, error) {
	var err error
	if programs == "" {
		programs, err = os.MkdirTemp("", "shmring-programs-")
	}
	return programs, err
}

func run(m *testing.M) int {
	flag.Parse()
	memory := "/dev/shm" // where there is such a file system
	if _, err := os.Stat(memory); err != nil {
		memory = os.TempDir()
	}
	dir, remove, err := scratch.Make(memory, "test")
	if err != nil {
		fmt.Fprintln(os.Stderr, "shmtest:", err)
		return 1
	}
	defer remove()
	if err := os.Setenv(envDir, dir); err != nil {
		fmt.Fprintln(os.Stderr, "shmtest:", err)
		return 1
	}
	defer func() { _ = os.RemoveAll(programs) }()
	startPoller()
	before, home := Descriptors(), ownNamespaces()
	_ = packagePath() // before a test goes elsewhere
	code := m.Run()
	left := settle(func() []string {
		return slices.Concat(newDescriptors(before), mappings(dir), files(dir),
			strayThreads(home), children())
	})
	if len(left) > 0 {
		fmt.Fprintf(os.Stderr, "shmtest: left behind:\n\t%s\n", strings.Join(left, "\n\t"))
		return 1
	}
	if rows := unproved(); code == 0 && len(rows) > 0 {
		fmt.Fprintf(os.Stderr, "shmtest: not proved:\n\t%s\n", strings.Join(rows, "\n\t"))
		return 1
	}
	return code
}

// startPoller makes the runtime open the descriptors of its own that it opens only when needed.
func startPoller() {
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
}

// settleTries bounds how long goroutines that are closing something may take, on a machine that is
// short of time: a minute.
var settleTries = 2400

// settle gives goroutines that are closing something time.
func settle(look func() []string) []string {
	for range settleTries {
		if len(look()) == 0 {
			return nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	return look()
}

// Descriptors returns what each open descriptor points to, nothing where there is no /proc.
func Descriptors() map[int]string {
	const dir = "/proc/self/fd/"
	out := map[int]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out
	}
	for _, e := range entries {
		// The descriptor of this very listing is closed by now and has no target.
		fd, err := strconv.Atoi(e.Name())
		if target, err2 := os.Readlink(dir + e.Name()); errors.Join(err, err2) == nil {
			out[fd] = target
		}
	}
	return out
}

func newDescriptors(before map[int]string) []string {
	now := Descriptors()
	var out []string
	for _, fd := range slices.Sorted(maps.Keys(now)) {
		if before[fd] != now[fd] {
			out = append(out, fmt.Sprint("descriptor ", fd, " -> ", now[fd]))
		}
	}
	return out
}

// mappings lists what is still mapped of the directory or of memfds of objects.
func mappings(dir string) []string {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, dir+"/") || strings.Contains(line, "/memfd:shmring:") {
			out = append(out, "mapping "+strings.TrimSpace(line))
		}
	}
	return out
}

// files lists what is left in the directory. What [Dir] made goes if it is empty.
func files(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []string{err.Error()}
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !e.IsDir() || os.Remove(path) != nil {
			out = append(out, "file "+path)
			more, _ := filepath.Glob(path + "/*")
			out = append(out, more...)
		}
	}
	return out
}

// apart says that each test has a directory of its own.
var apart bool

// Apart has the tests of the package, with their children, each use the directory that [Dir] makes,
// so that tests which run at the same time may give the same names, and lets n of them run at the
// same time unless -parallel says otherwise. It is called before [Main].
func Apart(n int) {
	apart = true
	_ = flag.Set("test.parallel", strconv.Itoa(n))
}

// Dir is the directory for the objects of this test, of its cases, and of its children.
func Dir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv(envDir)
	if !apart {
		return dir
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	dir = filepath.Join(dir, test)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// rootGives are the features that an ordinary user lacks and root has.
var rootGives = []string{"bpf", "cgroups", "clock", "mount", "netns", "pidns", "root", "timens",
	"xdp"}

// Require skips the test with err as the reason and what to run where root would have the feature,
// unless err is nil or SHMRING_REQUIRE, a list with commas, names the feature: then the test fails.
func Require(t testing.TB, feature string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if requires(feature) {
		t.Fatalf("%s is required but not there: %v", feature, err)
	}
	remedy := ""
	if os.Geteuid() != 0 && slices.Contains(rootGives, feature) {
		test, _, _ := strings.Cut(t.Name(), "/")
		remedy = fmt.Sprintf("; run as root: go test ./%s -run '^%s$'", packagePath(), test)
	}
	t.Skipf("needs %s: %v%s", feature, err, remedy)
}

// RequireRoot is Require of what only root may do; why says what that is.
func RequireRoot(t testing.TB, feature, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Require(t, feature, errors.New(why))
	}
}

func requires(feature string) bool {
	return slices.Contains(strings.Split(os.Getenv(envRequire), ","), feature)
}

// Some are the first n rows of a table with -short, and all of them otherwise.
func Some[T any](n int, rows []T) []T {
	if testing.Short() {
		return rows[:min(n, len(rows))]
	}
	return rows
}

// Long skips a test with -short: it takes seconds, and others show less of the same.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: run it without -short")
	}
}

// Role returns the role of this process, empty in the one that runs the tests.
func Role() string { return os.Getenv(envRole) }

// Child prepares this test binary to run in a role, with env ("KEY=value") added. The caller
// starts it. It is killed when the test ends, should it still run then.
func Child(t testing.TB, role string, env ...string) *exec.Cmd {
	t.Helper()
	cmd, err := Command(t.Context(), role, append([]string{envDir + "=" + Dir(t)}, env...)...)
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

var commands atomic.Int64 // that were prepared

// Command is Child for an example, which has no testing.TB. The process is killed when the context
// ends.
func Command(ctx context.Context, role string, env ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if peers := filepath.SplitList(os.Getenv(envPeer)); len(peers) > 0 {
		exe = peers[int(commands.Add(1)-1)%len(peers)]
	}
	cmd := exec.CommandContext(ctx, exe, "-test.run=^$")
	if emulator := os.Getenv(envEmulator); emulator != "" { // the kernel cannot run what we are
		cmd = exec.CommandContext(ctx, emulator, exe, "-test.run=^$")
	}
	// Where races are looked for, a process would take a second to exit.
	cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0", envRole+"="+role), env...)
	cmd.Stderr = os.Stderr
	return cmd, nil
}
