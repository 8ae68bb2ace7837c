//go:build !linux

package shm

func sysLockByte(int, int64, bool) error           { return errSystem }
func sysUnlockByte(int, int64)                     {}
func sysByteLocked(int, int64, bool) (bool, error) { return false, errSystem }
