//go:build !linux

package demo

import (
	"errors"
	"os"

	"github.com/shmring/shmring/internal/veth"
)

func runDevice(*line, config) error { return errors.ErrUnsupported }

func openNetwork() (*veth.Pair, error) { return nil, errors.ErrUnsupported }

func socketPair() ([2]*os.File, error) { return [2]*os.File{}, errors.ErrUnsupported }
