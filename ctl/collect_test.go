package ctl_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// TestCollectTaken: what another process took or removed under a collector's hands is no failure.
func TestCollectTaken(t *testing.T) {
	for _, err := range []error{cq.ErrBusy, &shm.BusyError{Name: "a", PID: 1}, shm.ErrStale,
		fs.ErrNotExist, syscall.ENOENT, &shm.Error{Op: "claim", Err: shm.ErrStale}} {
		if !ctl.Taken(fmt.Errorf("remove: %w", err)) {
			t.Errorf("%v is a failure", err)
		}
	}
	for _, err := range []error{shm.ErrCorrupt, shm.ErrOwner, syscall.EACCES, errors.New("other")} {
		if ctl.Taken(err) {
			t.Errorf("%v is none", err)
		}
	}
}
