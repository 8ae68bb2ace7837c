//go:build !linux

package endpoint

import (
	"errors"
	"net/netip"

	"github.com/shmring/shmring/internal/drive"
)

// Rest is never called.
func (run) Rest(int64, *drive.Sleep) {}

func joinGroup(int, int, netip.Addr) (int, error) { return -1, errors.ErrUnsupported }

func inNamespaceOf(_ int, f func() error) error { return f() }

func closeFD(int) error { return nil }
