package shm

import (
	"cmp"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
)

// fileInfo is the part of stat(2) that the checks need.
type fileInfo struct {
	dev, ino, nlink uint64
	uid             uint32
	mode            uint32 // type and permission bits
	size            int64
	mtimeNs         int64
	ctimeNs         int64
}

func (i fileInfo) regular() bool   { return i.mode&unix.S_IFMT == unix.S_IFREG }
func (i fileInfo) directory() bool { return i.mode&unix.S_IFMT == unix.S_IFDIR }

const (
	noDir       = unix.AT_FDCWD
	openDirBits = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_RDONLY | unix.O_CLOEXEC
	// fallocate in steps: a signal makes some kernels undo the step under way, not all of it.
	allocateStepBytes  = 64 << 20
	allocateLeastBytes = 64 << 10
)

func sysOpenDir(dirfd int, name string) (int, error) {
	return file.Open(dirfd, name, openDirBits, 0)
}

func sysMkdir(dirfd int, name string) error { return unix.Mkdirat(dirfd, name, 0o700) }
func sysRmdir(dirfd int, name string) error {
	return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}
func sysUnlink(dirfd int, name string) error { return unix.Unlinkat(dirfd, name, 0) }
func sysClose(fd int)                        { _ = unix.Close(fd) }
func sysRename(dirfd int, from, to string) error {
	return unix.Renameat(dirfd, from, dirfd, to)
}

// sysReadDir lists a directory through a description of its own, to which the read offset belongs.
func sysReadDir(dirfd int, path string) ([]os.DirEntry, error) {
	fd, err := sysOpenDir(dirfd, path)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return f.ReadDir(-1)
}

func sysStat(fd int) (fileInfo, error) {
	var st unix.Stat_t
	if err := file.Again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return fileInfo{}, err
	}
	return infoOf(&st), nil
}

func sysStatAt(dirfd int, name string) (fileInfo, error) {
	var st unix.Stat_t
	err := file.Again(func() error {
		return unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return fileInfo{}, err
	}
	return infoOf(&st), nil
}

func infoOf(st *unix.Stat_t) fileInfo {
	return fileInfo{dev: st.Dev, ino: st.Ino, nlink: uint64(st.Nlink), uid: st.Uid, mode: st.Mode,
		size: st.Size, mtimeNs: st.Mtim.Nano(), ctimeNs: st.Ctim.Nano()}
}

// sysMemoryFS reports whether fd is on a file system that lives in memory.
func sysMemoryFS(fd int) (ok bool, magic int64, err error) {
	var st unix.Statfs_t
	if err := file.Again(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false, 0, err
	}
	magic = int64(st.Type)
	return magic == unix.TMPFS_MAGIC || magic == unix.HUGETLBFS_MAGIC, magic, nil
}

// sysOpen opens an object by name. O_NONBLOCK keeps a FIFO that stands there from blocking us.
func sysOpen(dirfd int, name string, write bool) (int, error) {
	return file.Open(dirfd, name, accessBits(write)|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
}

// sysDup returns another descriptor of the same description.
func sysDup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// sysUnsparse refuses a memfd that does not have all the memory that its size says, and one of huge
// pages, which are not counted like that.
func sysUnsparse(fd int, size uint64) error {
	if ok, magic, err := sysMemoryFS(fd); err != nil || !ok || magic != unix.TMPFS_MAGIC {
		return cmp.Or(err, notAnObject(ErrCorrupt))
	}
	return sysDense(fd, size)
}

// sysDense refuses a file with holes. Only tmpfs is known to count what it gave to a file.
func sysDense(fd int, size uint64) error {
	if _, magic, err := sysMemoryFS(fd); err != nil || magic != unix.TMPFS_MAGIC {
		return err
	}
	var st unix.Stat_t
	if err := file.Again(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return err
	}
	if have := uint64(st.Blocks) * 512; have < size {
		return &Error{Field: "allocated bytes", Got: have, Want: size, Err: ErrTruncated,
			Hint: "it is a copy, or was truncated and made longer; let its owner make it again"}
	}
	return nil
}

// sysReopen makes a new open file description of the file behind fd.
func sysReopen(fd int, write bool) (int, error) {
	if fd < 0 {
		return -1, unix.EBADF
	}
	own, err := file.Open(noDir, procFD(fd), accessBits(write), 0)
	return own, throughProc(err, fd)
}

func accessBits(write bool) int {
	if write {
		return unix.O_RDWR
	}
	return unix.O_RDONLY
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// throughProc tells an error of what a descriptor means from one of a system without /proc, which
// would say that something does not exist, and so that it may come.
func throughProc(err error, fd int) error {
	if err != unix.ENOENT && err != unix.ENOTDIR {
		return err
	}
	if _, e := sysStatAt(noDir, procFD(fd)); e != nil {
		return noProc()
	}
	return err
}

func noProc() error {
	return &Error{Field: "/proc/self/fd", Got: "not there", Want: "what descriptors mean",
		Err: unix.ENOSYS, Hint: "mount /proc"}
}

func sysTmpfile(dirfd int, path string) (int, error) {
	return file.Open(dirfd, path, unix.O_TMPFILE|unix.O_RDWR, 0o600)
}

func sysMemfd(name string, huge uint64) (int, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if huge != 0 {
		flags |= unix.MFD_HUGETLB | bits.TrailingZeros64(huge)<<unix.MFD_HUGE_SHIFT
	}
	fd, err := unix.MemfdCreate(memfdPrefix+name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(memfdPrefix+name, flags)
	}
	return fd, err
}

func sysChmod(fd int, mode os.FileMode) error { return unix.Fchmod(fd, uint32(mode.Perm())) }

func sysLink(fd, dirfd int, name string) error {
	err := unix.Linkat(noDir, procFD(fd), dirfd, name, unix.AT_SYMLINK_FOLLOW)
	return throughProc(err, fd)
}

// sysResize gives the file its size.
func sysResize(fd int, total uint64) error {
	return file.Again(func() error { return unix.Ftruncate(fd, int64(total)) })
}

// sysAllocate gives real memory to a part of the file.
func sysAllocate(fd int, from, to uint64) error {
	return inSteps(to-from, func(at, n uint64) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, int64(from+at), int64(n))
	})
}

// inSteps allocates in steps that get smaller as long as signals undo them: under a profiler they
// may come faster than a large one ends, again and again.
func inSteps(total uint64, allocate func(at, n uint64) error) error {
	step := uint64(allocateStepBytes)
	for at := uint64(0); at < total; {
		n := min(total-at, step)
		switch err := allocate(at, n); err {
		case nil:
			at += n
			step = min(2*step, allocateStepBytes)
		case unix.EINTR:
			step = max(n/2, allocateLeastBytes)
		default:
			return err
		}
	}
	return nil
}

// sysReadAt reads exactly len(b) bytes unless the file is shorter.
func sysReadAt(fd int, b []byte) (n int, err error) {
	err = file.Again(func() error {
		n, err = unix.Pread(fd, b, 0)
		return err
	})
	return max(n, 0), err
}

// populateTries bounds how often signals may make us begin again.
const populateTries = 16

// sysPrepare keeps the mapping out of forked children and brings its first n bytes in, so that the
// hot path does not fault. The memory exists already: a kernel that cannot populate is no error.
func sysPrepare(b []byte, n uint64, write bool) error {
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil && err != unix.EINVAL {
		return err
	}
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	for range populateTries {
		switch err := unix.Madvise(b[:n], advice); err {
		case unix.EINTR, unix.EAGAIN:
		case unix.EFAULT: // a page that the file does not have
			return ErrTruncated
		case nil, unix.EINVAL:
			return nil
		default:
			return err
		}
	}
	return nil
}

func sealBits(s Seals) int {
	bits := 0
	for _, m := range []struct {
		seal Seals
		bit  int
	}{{SealSeal, unix.F_SEAL_SEAL}, {SealShrink, unix.F_SEAL_SHRINK},
		{SealGrow, unix.F_SEAL_GROW}, {SealFutureWrite, unix.F_SEAL_FUTURE_WRITE}} {
		if s&m.seal != 0 {
			bits |= m.bit
		}
	}
	return bits
}

func sysSeal(fd int, s Seals) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealBits(s))
	return err
}

// sysSealed returns a file's seals, and whether they are just these. One against execution does
// not matter.
func sysSealed(fd int, want Seals) (bits int, exact bool, err error) {
	bits, err = unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == unix.EINVAL { // a file of a kind that cannot be sealed
		return 0, false, nil
	}
	return bits, err == nil && bits&^unix.F_SEAL_EXEC == sealBits(want), err
}

func sysClock(id int32) int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts) // both clocks always exist
	return ts.Nano()
}

func monoNs() int64 { return sysClock(unix.CLOCK_MONOTONIC) }
func realNs() int64 { return sysClock(unix.CLOCK_REALTIME) }

// Every mapping of an object stands between pages that nobody may touch. An index that a peer made
// up and that was not bounded then ends the process instead of reading what lies beside the object,
// and no other mapping can come to lie there. That costs a system call or two for each mapping, and
// no memory.

// reservations are the address ranges that mappings stand in, by the first byte of the mapping.
var (
	reservationsMu sync.Mutex
	reservations   = map[*byte]mmap.MMap{}
)

// sysMap maps a part of the file behind fd. The descriptor is needed only during the call.
func sysMap(fd int, offset, length uint64, write bool) ([]byte, error) {
	unit, err := mapUnit(fd)
	if err != nil {
		return nil, err
	}
	page := pageBytes()
	room := alignUp(length, unit) + 2*page
	if unit > page {
		room += unit
	}
	all, err := reserve(int(room))
	if err != nil {
		return nil, err
	}
	at := page + padding(all[page:], unit)
	b := all[at : at+length : at+length]
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	if err = mapOver(b, fd, int64(offset), prot); err != nil {
		_ = all.Unmap()
		return nil, err
	}
	reservationsMu.Lock()
	defer reservationsMu.Unlock()
	reservations[firstByte(b)] = all
	return b, nil
}

// reserve takes a range of addresses that nobody may touch. It is born like that: one that could be
// written to for a moment would count as promised memory for that moment, and be refused where none
// is left (vm.overcommit_memory=2, RLIMIT_DATA). mmap-go has no such protection, so it only unmaps.
func reserve(length int) (mmap.MMap, error) {
	return unix.Mmap(-1, 0, length, unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
}

// mapUnit returns what the address of a mapping must be a multiple of: the size of a huge page, if
// the file is made of those.
func mapUnit(fd int) (uint64, error) {
	var st unix.Statfs_t
	if err := file.Again(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, err
	}
	if st.Type == unix.HUGETLBFS_MAGIC {
		return uint64(st.Bsize), nil
	}
	return pageBytes(), nil
}

// sysUnmap ends a mapping of sysMap, with what stands around it.
func sysUnmap(b []byte) error {
	first := firstByte(b)
	reservationsMu.Lock()
	all, ok := reservations[first]
	delete(reservations, first)
	reservationsMu.Unlock()
	if !ok {
		return unix.EINVAL
	}
	return all.Unmap()
}

// memory is what this process knows of the memory's limits.
var memory ample

// sysRoom asks what can limit a new object that needs so much; dirfd is noDir for a memfd, which no
// file system limits. What does not come near may be left out.
func sysRoom(dirfd int, needed uint64) []room {
	group := string(readOrNothing("/proc/self/cgroup"))
	rooms := memory.limits(monoNs(), group, needed, func() []room {
		rooms := cgroupLimits(readOrNothing, needed)
		info := readOrNothing("/proc/meminfo")
		if free := statField(info, "MemAvailable"); free != 0 {
			free += statField(info, "SwapFree")
			rooms = append(rooms, room{"the machine", free << 10})
		}
		return rooms
	})
	var st unix.Statfs_t
	if dirfd == noDir || file.Again(func() error { return unix.Fstatfs(dirfd, &st) }) != nil {
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

// readOrNothing reads a file of the kernel's. Package os would ask of each whether one can wait for
// it, which takes twice as many system calls.
func readOrNothing(path string) []byte {
	var fd, n int
	err := file.Again(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	for b := make([]byte, 0, 4096); ; {
		b = slices.Grow(b, 512)
		err := file.Again(func() (err error) {
			n, err = unix.Read(fd, b[len(b):cap(b)])
			return err
		})
		if err != nil {
			return nil
		}
		if n == 0 {
			return b
		}
		b = b[:len(b)+n]
	}
}

const errNoData = syscall.ENODATA
