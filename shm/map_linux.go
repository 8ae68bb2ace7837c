package shm

import (
	"sync"

	"github.com/edsrzf/mmap-go"
	"golang.org/x/sys/unix"
)

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
	if err := again(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
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
