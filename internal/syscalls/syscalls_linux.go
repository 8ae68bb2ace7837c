// Package syscalls counts the system calls of others from outside, in the kernel: for tests of what
// must make none, and for a bench of what makes few.
package syscalls

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const numbers = 512

// Counter knows how often some threads, or processes, made each system call.
type Counter struct {
	tasks  []int
	counts *ebpf.Map // by task
	link   link.Link
}

// Thread begins to count those of this thread, to which the caller is locked.
func Thread() (*Counter, error) { return count(thread, unix.Gettid()) }

// Processes begins to count those of processes, by their numbers in our namespace.
func Processes(pids ...int) (*Counter, error) { return count(process, pids...) }

// Where bpf_get_ns_current_pid_tgid puts both numbers of whoever makes a call.
const thread, process = -8, -4

func count(by int16, tasks ...int) (c *Counter, err error) {
	c = &Counter{tasks: tasks}
	c.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 8 * numbers,
		MaxEntries: uint32(len(tasks))}) // one value for all numbers, so that one call reads all
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		err = errors.Join(err, c.counts.Put(uint32(task), [numbers]uint64{}))
	}
	if err == nil {
		err = c.attach(by)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Counter) attach(by int16) error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return err
	}
	// The kernel's own encoding of a device number: 12 bits of major, 20 of minor.
	dev := unix.Major(st.Dev)<<20 | unix.Minor(st.Dev)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord), // args[1]: the number
			asm.JGE.Imm(asm.R6, numbers, "exit"),
			asm.LoadImm(asm.R1, int64(dev), asm.DWord),
			asm.LoadImm(asm.R2, int64(st.Ino), asm.DWord),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, thread),
			asm.Mov.Imm(asm.R4, 8),
			asm.FnGetNsCurrentPidTgid.Call(),
			asm.JNE.Imm(asm.R0, 0, "exit"),
			asm.LoadMapPtr(asm.R1, c.counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(by)),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "exit"),
			asm.LSh.Imm(asm.R6, 3),
			asm.Add.Reg(asm.R0, asm.R6),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
			asm.Return(),
		}})
	if err != nil {
		return err
	}
	defer prog.Close()
	c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: prog})
	return err
}

// Of returns how often all of them made a system call so far.
func (c *Counter) Of(number int) uint64 {
	return c.sum(func(is int) bool { return is == number })
}

// All is the sum but for some, for bpf(2), by which it is read, and for the return from a signal,
// by which the runtime preempts: on a busy machine one is in most rounds.
func (c *Counter) All(but ...int) uint64 {
	return c.sum(func(number int) bool {
		return number != unix.SYS_BPF && number != unix.SYS_RT_SIGRETURN &&
			!slices.Contains(but, number)
	})
}

func (c *Counter) sum(counts func(number int) bool) (n uint64) {
	for _, task := range c.tasks {
		var of [numbers]uint64
		if err := c.counts.Lookup(uint32(task), &of); err != nil {
			panic(fmt.Sprintf("syscalls: the kernel does not know task %d any more: %v", task, err))
		}
		for number, made := range of {
			if counts(number) {
				n += made
			}
		}
	}
	return n
}

// Close ends it.
func (c *Counter) Close() (err error) {
	if c.link != nil {
		err = c.link.Close()
	}
	return errors.Join(err, c.counts.Close())
}
