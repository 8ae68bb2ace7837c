//go:build !linux

package file

import "errors"

// MoveNew reports that the system is not supported, as Lock and Locked do.
func MoveNew(int, string, int, string) error { return errors.ErrUnsupported }

func Lock(int, int64, bool) error           { return errors.ErrUnsupported }
func Unlock(int, int64)                     {}
func Locked(int, int64, bool) (bool, error) { return false, errors.ErrUnsupported }
func GiveUp(int)                            {}
func Busy(error) bool                       { return false }
