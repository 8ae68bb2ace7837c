package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

func TestMain(m *testing.M) {
	if ok, code := stage.Enter(os.Args[1:], Tool); ok {
		os.Exit(code)
	}
	shmtest.Main(m, map[string]func(){"supervisor": supervisorRole})
}

// supervisorRole is a whole run in a process of its own, to be interrupted and killed.
func supervisorRole() {
	// As shmctl does; and a shell that starts the tests in the background has interrupts ignored.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGQUIT,
		syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	_, err := Run(ctx, Options{Path: os.Getenv("DEMO_PATH"), Count: 50_000_000,
		Progress: func(phase string, done, total uint64) { fmt.Println("progress", phase) }})
	fmt.Println(err)
	os.Exit(1)
}

var paths = []string{PathShm, PathAFXDP}

// needs skips what cannot run here: the device path needs root and network namespaces.
func needs(t *testing.T, path string) {
	t.Helper()
	if path != PathAFXDP {
		return
	}
	n, err := openNetwork()
	if err == nil {
		_ = n.Close()
	}
	shmtest.Require(t, "netns", err)
}

func TestEveryDatagramOnce(t *testing.T) {
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			needs(t, path)
			const count = 20_000
			progressed := false
			r, err := Run(t.Context(), Options{Path: path, Count: count,
				Progress: func(string, uint64, uint64) { progressed = true }})
			if err != nil {
				t.Fatalf("%v; report %+v", err, r)
			}
			if r.Path != path || !r.Good(count) || !progressed {
				t.Errorf("report %+v", r)
			}
			if shm := path == PathShm; (r.Mode == nil) != shm || (r.Reason != nil) != shm {
				t.Errorf("mode %v, reason %v on path %s", r.Mode, r.Reason, path)
			}
			if r.RX.Latency.P50 == nil || r.Wakes == nil || r.Syscalls1000 == nil {
				t.Errorf("unknown values in %+v", r)
			}
			var out bytes.Buffer
			r.Sheet().Print(&out)
			if !strings.Contains(out.String(), "20000 sent, 20000 completed, 0 lost") {
				t.Errorf("printed:\n%s", out.String())
			}
			leftNothing(t)
		})
	}
}

// childVerb is by what the processes of a demonstration are known.
const childVerb = "__demo"

// leftNothing fails if a run left a file or a process.
func leftNothing(t *testing.T) {
	t.Helper()
	var left string
	for range 600 {
		left = leftovers(t)
		if left == "" {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("left behind: %s", left)
}

func leftovers(t *testing.T) string {
	var found []string
	entries, err := os.ReadDir(os.Getenv("SHMRING_DIR"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		found = append(found, "file "+e.Name())
	}
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		line, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		if err == nil && bytes.Contains(line, []byte(childVerb)) &&
			bytes.Contains(line, []byte(os.Getenv("SHMRING_DIR"))) {
			found = append(found, fmt.Sprintf("process %s %.60q", p.Name(), line))
		}
	}
	return strings.Join(found, ", ")
}

// start starts a supervisor and waits until both ends are at work.
func start(t *testing.T, path string) (*exec.Cmd, map[string]int) {
	t.Helper()
	cmd := shmtest.Child(t, "supervisor", "DEMO_PATH="+path)
	cmd.Stderr = nil // what it prints when it is told to quit is of no interest
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out := shmtest.Got(cmd.StdoutPipe()).Or(t)
	shmtest.Must(t, cmd.Start())
	buf := make([]byte, 256)
	if _, err := out.Read(buf); err != nil {
		t.Fatalf("no progress: %v", err)
	}
	go func() {
		for {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	return cmd, childrenOf(t, cmd.Process.Pid)
}

// childrenOf returns the processes that a supervisor started, by role.
func childrenOf(t *testing.T, supervisor int) map[string]int {
	t.Helper()
	pids := map[string]int{}
	procs := shmtest.Got(os.ReadDir("/proc")).Or(t)
	for _, p := range procs {
		line, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		if err != nil {
			continue
		}
		arg := strings.Split(string(line), "\x00")
		if len(arg) < 4 || arg[1] != childVerb {
			continue
		}
		var c config
		if json.Unmarshal([]byte(arg[3]), &c) == nil &&
			c.Queue == fmt.Sprintf("demo-%d", supervisor) {
			var pid int
			if _, err := fmt.Sscan(p.Name(), &pid); err == nil {
				pids[arg[2]] = pid
			}
		}
	}
	return pids
}

// TestNothingIsLeft ends a run in the middle of it: by killing each of its processes, and by what a
// terminal sends to all of them.
func TestNothingIsLeft(t *testing.T) {
	const group = "group"
	victims := map[string][]string{
		PathShm:   {"supervisor", "application", "producer"},
		PathAFXDP: {"supervisor", "application", "device", "peer"},
	}
	for _, path := range paths {
		end := func(victim string, sig syscall.Signal) {
			t.Run(fmt.Sprintf("%s/%v %s", path, sig, victim), func(t *testing.T) {
				needs(t, path)
				cmd, pids := start(t, path)
				pids["supervisor"] = cmd.Process.Pid
				if len(pids) != len(victims[path]) {
					t.Errorf("processes %v", pids)
				}
				pids[group] = -cmd.Process.Pid
				if err := syscall.Kill(pids[victim], sig); err != nil {
					t.Error(err)
				}
				_ = cmd.Wait()
				leftNothing(t)
			})
		}
		for _, victim := range victims[path] {
			end(victim, syscall.SIGKILL)
		}
		end("supervisor", syscall.SIGTERM)
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
			end(group, sig)
		}
	}
}

func TestContextEndsRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, Options{Path: PathShm, Count: 50_000_000,
		Progress: func(string, uint64, uint64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("run ended with %v", err)
	}
	leftNothing(t)
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Path: "carrier pigeon"}, {Count: 1 << 60},
		{Dir: "/proc/self/no such directory"}} {
		if r, err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v: report %+v", o, r)
		}
	}
}

// TestFormerRunIsRemoved kills every process of a run at once, so that nobody is left to clean up;
// the next run does, and leaves alone what is alive.
func TestFormerRunIsRemoved(t *testing.T) {
	cmd, pids := start(t, PathShm)
	other, _ := start(t, PathShm)
	defer func(cmd *exec.Cmd) {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		leftNothing(t)
	}(other)
	_ = cmd.Process.Signal(syscall.SIGSTOP) // it must not see its children die first
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	var entries []os.DirEntry
	for range 50 { // until the kernel is done with the dead
		if _, err := Run(t.Context(), Options{Path: PathShm, Count: 1000}); err != nil {
			t.Fatal(err)
		}
		var err error
		if entries, err = os.ReadDir(os.Getenv("SHMRING_DIR")); err != nil {
			t.Fatal(err)
		}
		if len(entries) == 2 {
			return
		}
	}
	t.Errorf("%d queues, of which the run that goes on has two: %v", len(entries), entries)
}

func TestDrops(t *testing.T) {
	const table = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0
 veth0: 1048576    2048    0   12    0     0          0         0   262144    2048    0    3    0
`
	want := []string{"packets dropped by veth0 on receipt: 12",
		"packets dropped by veth0 when sending: 3"}
	if got := dropsIn(table); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	lost := device.Stats{Dropped: 1, Kernel: []xdp.KernelStats{{RxQueueFull: 2, TxRingEmpty: 7}}}
	got := dropsOf(&lost)
	want = []string{"packets dropped for want of a frame or of room: 1",
		"packets dropped for a full receive ring: 2"}
	if len(got) < 2 || !slices.Equal(got[:2], want) {
		t.Errorf("got %q", got)
	}
}

func TestTally(t *testing.T) {
	b := make([]byte, wire.PayloadMaxBytes)
	tl := newTally(10)
	for _, seq := range []uint64{0, 9, 3, 3, 10} {
		tl.add(b[:wire.Put(b, seq)])
	}
	b[20] ^= 1
	tl.add(b[:64])
	if tl.Arrived != 3 || tl.Duplicate != 1 || tl.Unexpected != 1 || tl.Corrupt != 1 {
		t.Errorf("%+v", tl)
	}
}
