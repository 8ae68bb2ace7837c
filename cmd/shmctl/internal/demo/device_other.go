//go:build !linux

package demo

import "errors"

func runDevice(*line, config) error { return errors.ErrUnsupported }
