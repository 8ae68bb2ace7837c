package flip

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// offDebug is where struct user has the debug registers.
const offDebug = 848

const debugRegisters = 4

// watch has the thread stop after every access to eight bytes at addresses, until unwatch.
func (v *tracer) watch(addresses []uint64) error {
	if len(addresses) > debugRegisters {
		return fmt.Errorf("a word has %d addresses", len(addresses))
	}
	control := uint64(0)
	for i, at := range addresses {
		if err := v.debug(i, at&^7); err != nil {
			return err
		}
		const accesses, eightBytes = 3, 2
		control |= 1<<(2*i) | (accesses|eightBytes<<2)<<(16+4*i)
	}
	return v.debug(7, control)
}

// stack returns where the thread's next instructions find what they return to.
func (v *tracer) stack() (uint64, error) {
	var r unix.PtraceRegs
	err := unix.PtraceGetRegs(v.tid, &r)
	return r.Rsp, err
}

func (v *tracer) unwatch() error { return v.debug(7, 0) }

func (v *tracer) debug(register int, value uint64) error {
	_, _, no := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_POKEUSR, uintptr(v.tid),
		uintptr(offDebug+8*register), uintptr(value), 0, 0)
	if no != 0 {
		return fmt.Errorf("debug register %d: %w", register, no)
	}
	return nil
}

// accessed reports whether the thread has stopped because of an access, and not of a step only.
func (v *tracer) accessed() bool {
	var b [8]byte
	_, err := unix.PtracePeekUser(v.tid, offDebug+8*6, b[:])
	return err == nil && b[0]&(1<<debugRegisters-1) != 0
}
