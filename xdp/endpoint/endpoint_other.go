//go:build !linux

package endpoint

import (
	"errors"
	"io"
	"net/netip"

	"github.com/shmring/shmring/internal/drive"
)

// Rest is never called.
func (run) Rest(int64, *drive.Sleep) {}

func joinGroup(int, int, netip.Addr) (io.Closer, error) { return nil, errors.ErrUnsupported }

func inNamespaceOf(_ int, f func() error) error { return f() }
