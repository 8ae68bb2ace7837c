//go:build !linux

package device

import (
	"errors"
	"net"
)

func checkMemfd(int, uint64) error { return errors.ErrUnsupported }

func watchPeer(*net.UnixConn) (stop func()) { return func() {} }
