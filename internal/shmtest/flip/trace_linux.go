package flip

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tracer is the side that stops a victim. One goroutine has it, on one thread.
type tracer struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	mem     *os.File
	tid     int
	watches bool // there are debug registers
	ended   sync.Once
}

// errFault is an access to memory that the victim does not have.
var errFault = errors.New("an access outside of a mapping")

// patience ends a call that does not, but not one on a machine that stands still for a while.
const patience = 4 * time.Minute

// start starts a victim and takes hold of its thread.
func start(t testing.TB, cmd *exec.Cmd) *tracer {
	t.Helper()
	v := &tracer{cmd: cmd}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	var err error
	v.in, err = cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	t.Cleanup(v.stop)
	v.out = bufio.NewReader(out)
	line, err := v.out.ReadString('\n')
	must(err)
	v.tid, err = strconv.Atoi(strings.TrimSpace(line))
	must(err)
	v.mem, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid), os.O_RDWR, 0)
	must(err)
	return v
}

// stop ends the victim. A thread that is traced is a zombie until its tracer, which is this thread,
// has asked.
func (v *tracer) stop() { v.ended.Do(v.end) }

func (v *tracer) end() {
	_ = v.cmd.Process.Kill()
	for ended := v.tid == 0; !ended; {
		var ws unix.WaitStatus
		_, err := unix.Wait4(v.tid, &ws, unix.WALL, nil)
		ended = err != nil && err != unix.EINTR || err == nil && (ws.Exited() || ws.Signaled())
	}
	_ = v.in.Close()
	if v.cmd.Wait() != nil { // it may have been asked for above, and then keeps its descriptor
		_ = v.cmd.Process.Release()
	}
	if v.mem != nil {
		_ = v.mem.Close()
	}
}

// together keeps both threads on one processor, since only one of them runs at a time. The function
// that it returns undoes that.
func (v *tracer) together() (undo func()) {
	var all, one unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return func() {}
	}
	var cpus []int
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	one.Set(cpus[v.tid%len(cpus)])
	_, _ = unix.SchedSetaffinity(v.tid, &one), unix.SchedSetaffinity(0, &one)
	return func() { _ = unix.SchedSetaffinity(0, &all) }
}

// load and store reach a word of the victim, which stands still.
func (v *tracer) load(at uint64) uint64 {
	var b [8]byte
	_, _ = v.mem.ReadAt(b[:], int64(at))
	return binary.LittleEndian.Uint64(b[:])
}

func (v *tracer) store(at, value uint64) error {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], value)
	_, err := v.mem.WriteAt(b[:], int64(at))
	return err
}

// await waits until the victim's thread stops.
func (v *tracer) await() (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(v.tid, &ws, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return ws, fmt.Errorf("wait for the victim: %w", err)
		case !ws.Stopped():
			return ws, fmt.Errorf("the victim has ended: %v", ws)
		default:
			return ws, nil
		}
	}
}

// resume continues the thread with a signal, which is 0 for none.
func (v *tracer) resume(how int, signal unix.Signal) error {
	_, _, no := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(how), uintptr(v.tid), 0, uintptr(signal),
		0, 0)
	if no != 0 {
		return fmt.Errorf("ptrace %d: %w", how, no)
	}
	return nil
}

// ask has the victim prepare, and stops it where the call begins. It is traced during a call only:
// else it would stop for signals while this side waits for what it says.
func (v *tracer) ask() (words []Word, err error) {
	if _, err = io.WriteString(v.in, "\n"); err != nil {
		return nil, err
	}
	if err = v.answer(&words); err != nil {
		return nil, err
	}
	if err = unix.PtraceSeize(v.tid); err != nil {
		return nil, fmt.Errorf("trace the victim: %w", err)
	}
	if _, err = io.WriteString(v.in, "\n"); err != nil {
		return nil, err
	}
	for {
		ws, err := v.await()
		if err != nil {
			return nil, err
		}
		if ws.StopSignal() == signalBegin {
			return words, nil
		}
		if err = v.resume(unix.PTRACE_CONT, passed(ws)); err != nil {
			return nil, err
		}
	}
}

// passed is the signal that a stopped thread is to get.
func passed(ws unix.WaitStatus) unix.Signal {
	if s := ws.StopSignal(); ws>>16 == 0 && s != unix.SIGTRAP {
		return s
	}
	return 0
}

func (v *tracer) answer(to any) error {
	line, err := v.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the victim says nothing: %w", err)
	}
	return json.Unmarshal(line, to)
}

// call has the victim make its call to the end. stopped is told the number of stops before it goes
// on, and says how; end is called at the end of the call.
func (v *tracer) call(stopped func(n int) (how int, err error), end func() error) (n int, o Outcome,
	err error) {
	late := time.AfterFunc(patience, func() { _ = v.cmd.Process.Kill() })
	defer late.Stop()
	how, err := stopped(0)
	for signal := unix.Signal(0); err == nil; {
		if err = v.resume(how, signal); err != nil {
			break
		}
		ws, err := v.await()
		if err != nil {
			return n, o, err
		}
		signal = passed(ws)
		switch s := ws.StopSignal(); {
		case s == signalEnd:
			if err = end(); err == nil {
				err = v.resume(unix.PTRACE_DETACH, 0)
			}
			if err == nil {
				err = v.answer(&o)
			}
			return n, o, err
		case s == unix.SIGSEGV || s == unix.SIGBUS:
			return n, o, fmt.Errorf("%w: %v", errFault, s)
		case signal == 0:
			n++
			if how, err = stopped(n); err != nil {
				return n, o, err
			}
		}
	}
	return n, o, err
}

// feels reports whether the victim stops for an access to what is watched: its own stack, at the
// beginning of a call. A virtual machine may take debug registers and do nothing with them.
func (v *tracer) feels() (felt bool, err error) {
	if _, err = v.ask(); err != nil {
		return false, err
	}
	at, err := v.stack()
	if err == nil {
		err = v.watch([]uint64{at, at + 8})
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return false, err
	}
	_, _, err = v.call(func(n int) (int, error) {
		if n == 0 {
			return unix.PTRACE_CONT, nil
		}
		felt = true
		return unix.PTRACE_CONT, v.unwatch()
	}, v.unwatch)
	return felt, err
}

// Possible tells why calls cannot be attacked here, if they cannot.
func Possible() error {
	const emulator = "SHMRING_EMULATOR"
	if os.Getenv(emulator) != "" {
		return fmt.Errorf("an emulator has no threads to trace: %w", errors.ErrUnsupported)
	}
	return nil
}
