// Package syscalls counts the system calls of a thread from outside, for tests of what must make
// none. It stands beside shmtest as few of its users need package ebpf.
package syscalls

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
)

const numbers = 512

// Counter knows how often a thread made each system call.
type Counter struct {
	t      *testing.T
	counts *ebpf.Map
}

// Count begins to count those of this thread, to which the caller is locked, until the test ends.
func Count(t *testing.T) Counter {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8 * numbers,
		MaxEntries: 1}) // one value, so that one call reads all
	shmtest.Require(t, "bpf", err)
	t.Cleanup(func() { counts.Close() })
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord), // args[1]: the number
			asm.JGE.Imm(asm.R6, numbers, "exit"),
			asm.FnGetCurrentPidTgid.Call(),
			asm.LSh.Imm(asm.R0, 32),
			asm.RSh.Imm(asm.R0, 32), // the thread
			asm.JNE.Imm(asm.R0, int32(unix.Gettid()), "exit"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "exit"),
			asm.LSh.Imm(asm.R6, 3),
			asm.Add.Reg(asm.R0, asm.R6),
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
	return Counter{t, counts}
}

func (c Counter) read() (counts [numbers]uint64) {
	if err := c.counts.Lookup(uint32(0), &counts); err != nil {
		c.t.Fatal(err)
	}
	return counts
}

// Of returns how often the thread made the system call so far.
func (c Counter) Of(number int) uint64 { return c.read()[number] }

// All is the sum, without bpf(2), by which it is read, and without the return from a signal, by
// which the runtime preempts: on a busy machine one is in most rounds.
func (c Counter) All() (n uint64) {
	for number, made := range c.read() {
		if number != unix.SYS_BPF && number != unix.SYS_RT_SIGRETURN {
			n += made
		}
	}
	return n
}
