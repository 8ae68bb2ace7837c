//go:build !linux

package collect

import (
	"errors"

	"github.com/shmring/shmring/shm"
)

func Bound(*shm.Dir, string) (bool, error)             { return false, errors.ErrUnsupported }
func RemoveUnbound(*shm.Dir, string) error             { return errors.ErrUnsupported }
func Truncated(*shm.Dir, string) (uint64, error)       { return 0, errors.ErrUnsupported }
func RemoveTruncated(*shm.Dir, string) error           { return errors.ErrUnsupported }
func links(*shm.Dir, string) (uint64, error)           { return 0, errors.ErrUnsupported }
func leadsTo(*shm.Dir, string, *shm.Dir) (bool, error) { return false, errors.ErrUnsupported }
