package wake

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
)

func init() {
	roles["producer"] = func() {
		child(func(q *queue, o ring.Order) error {
			lane := int(envInt("BELL_LANE"))
			return q.writer(lane, o).run(envInt("BELL_TOTAL"), newPace(uint64(os.Getpid())))
		})
	}
	roles["reader"] = func() { child(readAll) }
}

// child does its work on the queue that the parent passed as descriptor 3.
func child(f func(q *queue, o ring.Order) error) {
	o := ring.SeqCst
	if os.Getenv("BELL_ORDER") == orderName(ring.Release) {
		o = ring.Release
	}
	q, err := mapQueue(os.NewFile(3, "queue"), int(envInt("BELL_LANES")))
	if err == nil {
		err = barrier.Register()
	}
	if err == nil {
		err = f(q, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func envInt(name string) uint64 { return must(strconv.ParseUint(os.Getenv(name), 10, 64)) }

func mapQueue(file *os.File, lanes int) (*queue, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, queueBytes(lanes), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return overlay(mem, lanes)
}

// sharedQueue lays a new queue over a memfd.
func sharedQueue(t *testing.T, lanes int) (*queue, *os.File) {
	t.Helper()
	fd := shmtest.Got(unix.MemfdCreate("shmring:bell-test", unix.MFD_CLOEXEC)).Or(t)
	file := os.NewFile(uintptr(fd), "queue")
	t.Cleanup(func() { file.Close() })
	shmtest.Must(t, file.Truncate(int64(queueBytes(lanes))))
	q := shmtest.Got(mapQueue(file, lanes)).Or(t)
	t.Cleanup(func() { shmtest.Must(t, unix.Munmap(q.mem)) })
	for bit := range lanes {
		q.row(bit).Parked.Store(Parked)
	}
	return q, file
}

// command is a process in a role on the queue in file, to be started.
func command(t *testing.T, role string, file *os.File, lanes int, o ring.Order,
	env ...string) *exec.Cmd {
	t.Helper()
	env = append(env, fmt.Sprintf("BELL_LANES=%d", lanes),
		"BELL_ORDER="+orderName(o))
	cmd := shmtest.Child(t, role, env...)
	cmd.ExtraFiles = []*os.File{file}
	return cmd
}

// readAll is a blocking reader without slices: a wake that is lost is a hang.
func readAll(q *queue, o ring.Order) error {
	r := newReader(q, readerOptions{order: o, lazy: true})
	total := envInt("BELL_TOTAL") * uint64(q.lanes)
	for r.count.Load() < total && r.broken == nil {
		r.sread(2*laneSlots, Wait{})
	}
	return r.broken
}

func everyOrderAndThreads(t *testing.T, f func(t *testing.T, o ring.Order, env []string)) {
	for _, o := range orders {
		for _, threads := range []string{"", "1"} {
			t.Run(fmt.Sprintf("%v/GOMAXPROCS=%s", o, threads), func(t *testing.T) {
				registered(t, o)
				var env []string
				if threads != "" {
					env = []string{"GOMAXPROCS=" + threads}
				}
				f(t, o, env)
			})
		}
	}
}

// Two producers and a blocking reader, each a process.
func TestProcesses(t *testing.T) {
	each := uint64(30_000)
	if testing.Short() || shmtest.Race {
		each /= 3
	}
	everyOrderAndThreads(t, func(t *testing.T, o ring.Order, env []string) {
		const lanes = 2
		q, file := sharedQueue(t, lanes)
		watchdog(t, q.String)
		env = append(env, fmt.Sprintf("BELL_TOTAL=%d", each))
		cmds := []*exec.Cmd{command(t, "reader", file, lanes, o, env...)}
		for lane := range lanes {
			own := append(env[:len(env):len(env)], fmt.Sprintf("BELL_LANE=%d", lane))
			cmds = append(cmds, command(t, "producer", file, lanes, o, own...))
		}
		for _, cmd := range cmds {
			shmtest.Must(t, cmd.Start())
		}
		for _, cmd := range cmds {
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %v", cmd.Args, err)
			}
		}
		for lane := range lanes {
			if q.head(lane).Load() != each {
				t.Error("not all was read: ", q)
			}
		}
		if q.hints.epoch.Load() == 0 {
			t.Error("nobody ever had to wake the reader, so this tests nothing")
		}
	})
}
