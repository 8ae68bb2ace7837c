package shm

import (
	"os"

	"golang.org/x/sys/unix"
)

// sysRoom asks everything that can limit a new object; dirfd is noDir for a memfd, which no file
// system limits.
func sysRoom(dirfd int) []room {
	rooms := cgroupLimits(readOrNothing)
	info := readOrNothing("/proc/meminfo")
	if free := statField(info, "MemAvailable"); free != 0 {
		free += statField(info, "SwapFree")
		rooms = append(rooms, room{"the machine", free << 10})
	}
	var st unix.Statfs_t
	if dirfd == noDir || again(func() error { return unix.Fstatfs(dirfd, &st) }) != nil {
		return rooms
	}
	if st.Blocks != 0 { // 0: mounted without a limit
		rooms = append(rooms, room{"the file system", st.Bavail * uint64(st.Bsize)})
	}
	if st.Files != 0 && st.Ffree == 0 {
		rooms = append(rooms, room{"the file system (it has no inode left)", 0})
	}
	return rooms
}

func readOrNothing(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return b
}
