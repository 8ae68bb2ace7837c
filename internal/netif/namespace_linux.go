package netif

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrNamespace: the thread could not go to the network namespace. It needs CAP_SYS_ADMIN.
var ErrNamespace = errors.New("cannot enter the network namespace of the interface")

const threadNamespace = "/proc/thread-self/ns/net"

// OpenNamespace returns the network namespace of the calling thread.
func OpenNamespace() (*os.File, error) { return os.Open(threadNamespace) }

// InNamespace calls f in a network namespace: on the calling thread if that is there already, or
// else on another one, which needs CAP_SYS_ADMIN. After ErrNamespace f was not called.
func InNamespace(ns int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var here, there unix.Stat_t
	err := errors.Join(unix.Stat(threadNamespace, &here), unix.Fstat(ns, &there))
	if err != nil || here.Ino == there.Ino && here.Dev == there.Dev {
		return f()
	}
	result := make(chan error, 1)
	go func() { result <- visit(ns, f) }()
	return <-result
}

// visit has the thread go back before anybody else can run on it. If it cannot, it ends with the
// goroutine.
func visit(ns int, f func() error) error {
	runtime.LockOSThread()
	home, err := OpenNamespace()
	if err == nil {
		defer home.Close()
		err = unix.Setns(ns, unix.CLONE_NEWNET)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("%w: %w", ErrNamespace, err)
	}
	err = f()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}
