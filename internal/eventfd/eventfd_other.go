//go:build !linux

// Package eventfd is about the descriptors that a producer writes to, to wake a reader.
package eventfd

import "errors"

// Write reports that the system has no eventfd.
func Write(int) error { return errors.ErrUnsupported }

// Is returns false.
func Is(int) bool { return false }

// Dup returns -1.
func Dup(int) int { return -1 }

// Close does nothing.
func Close(int) {}

// NewPipe reports that the system is not supported.
func NewPipe() (read, write int, err error) { return -1, -1, errors.ErrUnsupported }

// IsPipe returns false.
func IsPipe(int) bool { return false }
