//go:build !linux

package demo

import (
	"errors"
	"os"
	"runtime"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
)

func runDevice(*line, config) error { return errors.ErrUnsupported }

type network struct{}

func openNetwork() (*network, error)           { return nil, errors.ErrUnsupported }
func (n *network) ends() wire.Ends             { return wire.Ends{} }
func (n *network) device(f func() error) error { return f() }
func (n *network) peer(f func() error) error   { return f() }
func (n *network) close()                      {}

func socketPair() ([2]*os.File, error) { return [2]*os.File{}, errors.ErrUnsupported }
func kernelRelease() string            { return runtime.GOOS }
