package doorbell

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
	"golang.org/x/sys/unix"
)

// syscallCounter counts the system calls of one thread from outside, by number.
type syscallCounter struct{ counts *ebpf.Map }

const syscallNumbers = 512

// countSyscalls attaches a program to the entry of every system call that counts those of this
// thread, to which the caller is locked.
func countSyscalls(t *testing.T) syscallCounter {
	t.Helper()
	_ = rlimit.RemoveMemlock() // needed before Linux 5.11 only; loading tells otherwise
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8,
		MaxEntries: syscallNumbers})
	shmtest.Require(t, "bpf", err)
	t.Cleanup(func() { counts.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord), // args[1]: the number
			asm.FnGetCurrentPidTgid.Call(),
			asm.LSh.Imm(asm.R0, 32),
			asm.RSh.Imm(asm.R0, 32), // the thread
			asm.JNE.Imm(asm.R0, int32(unix.Gettid()), "exit"),
			asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "exit"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
			asm.Return(),
		}})
	shmtest.Require(t, "bpf", err)
	defer prog.Close()
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: prog})
	shmtest.Require(t, "bpf", err)
	t.Cleanup(func() { l.Close() })
	return syscallCounter{counts}
}

// of returns how often the thread made the system call so far.
func (c syscallCounter) of(t *testing.T, number uint32) (n uint64) {
	t.Helper()
	if err := c.counts.Lookup(number, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// all is the sum, without bpf(2), by which it is read, and without the return from a signal, by
// which the runtime preempts: on a busy machine one is in most rounds.
func (c syscallCounter) all(t *testing.T) (n uint64) {
	t.Helper()
	for number := range uint32(syscallNumbers) {
		if number != unix.SYS_BPF && number != unix.SYS_RT_SIGRETURN {
			n += c.of(t, number)
		}
	}
	return n
}

// Counted by the kernel and not by the library: a producer whose reader is awake makes no system
// call. The runtime makes some of its own on any thread (preemption, timers), so the test looks at
// many short rounds: a call by the library would be in every one.
func TestNoSyscallWhileAwake(t *testing.T) {
	for _, o := range orders {
		t.Run(o.String(), func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			calls := countSyscalls(t)
			q := heapQueue(t, 1)
			watchdog(t, q.String)
			r := newReader(q, readerOptions{order: o})
			var stop atomic.Bool
			done := make(chan struct{})
			go func() { // awake all the time: it never parks
				defer close(done)
				for !stop.Load() {
					if r.read(laneSlots) == 0 {
						runtime.Gosched()
					}
				}
			}()
			w := q.writer(0, o)
			w.put(1)
			for q.row(0).Parked.Load() != 0 {
				runtime.Gosched()
			}
			quiet := rounds(t, calls, w)
			stop.Store(true)
			<-done
			if r.broken != nil || w.Wakes() != 0 {
				t.Errorf("%v; %d wakes", r.broken, w.Wakes())
			}
			slices.Sort(quiet)
			if median := quiet[len(quiet)/2]; median != 0 {
				t.Errorf("a round of %d publishes makes %d system calls", perRound, median)
			}
		})
	}
}

const perRound = laneSlots / 2

// rounds publishes in rounds and returns how many system calls each took. The reader empties the
// lane between them, so that a producer never waits for room, which is not what is counted.
func rounds(t *testing.T, calls syscallCounter, w *writer) (each []uint64) {
	for range 200 {
		for w.prod.Free() < laneSlots {
			runtime.Gosched()
		}
		before := calls.all(t)
		for range perRound {
			w.put(1)
		}
		each = append(each, calls.all(t)-before)
	}
	return each
}

// The counter does count: a publish to a reader that sleeps is one futex call, and to one that
// sleeps on its descriptor one write.
func TestSyscallsToWake(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	calls := countSyscalls(t)
	face := newFace(t, -1)
	for name, c := range map[string]struct {
		arm    uint64
		number uint32
	}{
		"futex":   {armDirect, unix.SYS_FUTEX},
		"eventfd": {armFD, unix.SYS_WRITE},
	} {
		q := heapQueue(t, 1)
		w := q.writer(0, ring.SeqCst, dup(face.EventFD()))
		const wakes = 50
		before := calls.of(t, c.number)
		for i := range uint64(wakes) {
			q.arm.Word.Store(c.arm | i + 1)
			w.put(1)
			w.Published(w.prod.Tail(), 0) // rung already
		}
		// The runtime may add futex calls of its own, and never takes any away.
		if got := calls.of(t, c.number) - before; got < wakes || got > wakes+wakes/2 {
			t.Errorf("%s: %d system calls for %d wakes", name, got, wakes)
		}
		if w.Wakes() != wakes {
			t.Errorf("%s: the producer counts %d", name, w.Wakes())
		}
		w.Close()
	}
}
