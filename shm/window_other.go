//go:build !linux

package shm

func sysBlank([]byte) error { return errSystem }
