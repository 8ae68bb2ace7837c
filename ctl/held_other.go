//go:build !linux

package ctl

import (
	"errors"

	"github.com/shmring/shmring/cq"
)

// looked is one that can be looked into.
type looked struct{}

func openProcess(int) (*looked, error) { return nil, errors.ErrUnsupported }

func (p *looked) held() (all []cq.Held, part, err error) { return nil, nil, errors.ErrUnsupported }
func (p *looked) close()                                 {}
func closeHeld([]cq.Held)                                {}
