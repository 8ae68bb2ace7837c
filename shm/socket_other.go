//go:build !linux

package shm

func sysBound(int, string) (bool, error)     { return false, errSystem }
func sysLockDir(int) (int, error)            { return -1, errSystem }
func sysRenameNew(int, string, string) error { return errSystem }
func sysMoveNew(int, int, string) error      { return errSystem }

func giveUpDir(int) {}
