// Package barrier orders the memory accesses of other threads, so that these need not pay for it.
package barrier

import (
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	membarrierQuery                   = 0
	membarrierGlobalExpedited         = 1 << 1
	membarrierRegisterGlobalExpedited = 1 << 2
	membarrierPrivateExpedited        = 1 << 3
	membarrierRegisterPrivate         = 1 << 4
)

func membarrier(cmd uintptr) (uintptr, error) {
	r, _, errno := syscall.RawSyscall(unix.SYS_MEMBARRIER, cmd, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return r, nil
}

// Register makes this process one whose publishes a reader may order by [All]: a producer
// calls it when it attaches. An error means that the producer has to pay itself.
var Register = sync.OnceValue(func() error {
	have, err := membarrier(membarrierQuery)
	if err == nil && have&membarrierGlobalExpedited == 0 {
		err = syscall.ENOSYS
	}
	if err == nil {
		_, err = membarrier(membarrierRegisterGlobalExpedited)
	}
	if err != nil {
		return fmt.Errorf("doorbell: membarrier(REGISTER_GLOBAL_EXPEDITED): %w", err)
	}
	return nil
})

// All is a full memory barrier on every running thread of every process that called
// [Register]. What they had published before it is visible to the caller afterwards.
func All() error {
	if _, err := membarrier(membarrierGlobalExpedited); err != nil {
		return fmt.Errorf("doorbell: membarrier(GLOBAL_EXPEDITED): %w", err)
	}
	return nil
}

// RegisterPrivate prepares [Private].
var RegisterPrivate = sync.OnceValue(func() error {
	if _, err := membarrier(membarrierRegisterPrivate); err != nil {
		return fmt.Errorf("doorbell: membarrier(REGISTER_PRIVATE_EXPEDITED): %w", err)
	}
	return nil
})

// Private is a full memory barrier on every running thread of this process.
func Private() error {
	_, err := membarrier(membarrierPrivateExpedited)
	return err
}
