package device

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// checkMemfd refuses what is no sealed memfd of at most that size. Asking for seals reaches no file
// system of a stranger's making.
func checkMemfd(fd int, want uint64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 || seals&unix.F_SEAL_GROW == 0 {
		return fmt.Errorf("%w: payload memory is no memfd that is sealed against resizing",
			ErrProtocol)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(max(st.Size, 0)) != want {
		return fmt.Errorf("%w: payload memory of %d bytes, agreed are %d", ErrProtocol, st.Size,
			want)
	}
	return nil
}
