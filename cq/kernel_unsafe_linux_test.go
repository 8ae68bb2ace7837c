package cq_test

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func init() { roles["nogetfd"] = childNoGetFD }

// childNoGetFD waits on a set for what its own process posts, for a queue with a name and one
// without, and prints how that went.
func childNoGetFD() {
	need(shmtest.Forbid(unix.SYS_PIDFD_GETFD, unix.EPERM))
	d := shmtest.Needs(shm.OpenDir(""))
	s := shmtest.Needs(cq.NewWaitSet(d, cq.WaitSetOptions{}))
	named := shmtest.Needs(cq.Create(cq.Named(d, os.Getenv(envQueue)), cq.Options{}))
	unnamed := shmtest.Needs(cq.Create(cq.Unnamed("q"), cq.Options{}))
	for _, q := range []*cq.Queue{named, unnamed} {
		need(s.Add(q))
		w := shmtest.Needs(q.Writer())
		_, err := setWait(s, nil, 0) // all lanes are parked from here on
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
