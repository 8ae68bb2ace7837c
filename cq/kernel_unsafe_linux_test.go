package cq_test

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func init() { roles["nogetfd"] = childNoGetFD }

// forbid takes a system call away from the process, as container runtimes do.
func forbid(call uint32) error {
	prog := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&f)))
	runtime.KeepAlive(prog)
	if errno != 0 {
		return errno
	}
	return nil
}

// noGetFD forbids pidfd_getfd to a child, which ends if that fails.
func noGetFD() {
	runtime.LockOSThread() // the thread that may filter all others
	if err := forbid(unix.SYS_PIDFD_GETFD); err != nil {
		fmt.Println("forbid:", err)
		os.Exit(1)
	}
}

// childNoGetFD waits on a set for what its own process posts, for a queue with a name and one
// without, and prints how that went.
func childNoGetFD() {
	noGetFD()
	d, err := shm.OpenDir("")
	need(err)
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	need(err)
	named, err := cq.Create(cq.Named(d, os.Getenv(envQueue)), cq.Options{})
	need(err)
	unnamed, err := cq.Create(cq.Unnamed("q"), cq.Options{})
	need(err)
	for _, q := range []*cq.Queue{named, unnamed} {
		need(s.Add(q))
		w, err := q.Writer()
		need(err)
		_, err = setWait(s, nil, 0) // all lanes are parked from here on
		wait := later(func() { need(w.Post(&cq.Entry{})) })
		var dst [1]cq.Waitable
		n, err2 := setWait(s, dst[:], time.Minute)
		wait()
		fmt.Println(err, n, err2)
		need(w.Close())
		need(s.Remove(q))
		need(q.Close())
	}
	need(s.Close())
	need(d.Close())
}

// sigaction is the kernel's of amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const saRestart = 0x10000000

// interrupts has the handler of a signal, which package signal installed, interrupt system calls
// for good. The runtime asks the kernel to begin most of them anew.
func interrupts(s syscall.Signal) error {
	var a sigaction
	if err := sigactionOf(s, nil, &a); err != nil {
		return err
	}
	a.flags &^= saRestart
	return sigactionOf(s, &a, nil)
}

func sigactionOf(s syscall.Signal, set, old *sigaction) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(old)), unsafe.Sizeof(set.mask), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
