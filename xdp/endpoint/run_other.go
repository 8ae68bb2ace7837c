//go:build !linux

package endpoint

import (
	"context"
	"errors"
	"net/netip"
)

// Run needs Linux.
func (e *Endpoint) Run(context.Context) error { return fault("run", errors.ErrUnsupported, "") }

// RunWith needs Linux.
func (e *Endpoint) RunWith(context.Context, Work) error {
	return fault("run", errors.ErrUnsupported, "")
}

func joinGroup(int, int, netip.Addr) (int, error) { return -1, errors.ErrUnsupported }

func inNamespaceOf(_ int, f func() error) error { return f() }

func closeFD(int) error { return nil }
