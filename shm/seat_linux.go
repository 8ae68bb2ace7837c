package shm

import "golang.org/x/sys/unix"

func lockByte(kind int16, at int64) unix.Flock_t {
	return unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1}
}

// sysLockByte locks one byte for the description behind fd; EAGAIN when others have it.
func sysLockByte(fd int, at int64, exclusive bool) error {
	kind := int16(unix.F_RDLCK)
	if exclusive {
		kind = unix.F_WRLCK
	}
	l := lockByte(kind, at)
	return again(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l) })
}

func sysUnlockByte(fd int, at int64) {
	l := lockByte(unix.F_UNLCK, at)
	_ = unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &l)
}

// sysByteLocked asks for a read lock, with which only a write lock conflicts, so that a reader of
// the file cannot fake a seat; or for a write lock, where shared ones are looked for.
func sysByteLocked(fd int, at int64, shared bool) (bool, error) {
	kind := int16(unix.F_RDLCK)
	if shared {
		kind = unix.F_WRLCK
	}
	l := lockByte(kind, at)
	err := again(func() error { return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &l) })
	return err == nil && l.Type != unix.F_UNLCK, err
}
