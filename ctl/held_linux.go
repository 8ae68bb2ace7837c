package ctl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// looked is a process that is looked into, by its directory in /proc: when it is gone nothing is
// found there, also if another one has its number by then.
type looked struct {
	pid int
	dir int
}

func openProcess(pid int) (*looked, error) {
	p := &looked{pid: pid}
	var err error
	p.dir, err = file.Open(unix.AT_FDCWD, "/proc/"+strconv.Itoa(pid),
		unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	// One that has ended and was not waited for has nothing any more.
	if text, err := p.read("stat"); err == nil {
		_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
		if len(rest) > 0 && (rest[0] == 'Z' || rest[0] == 'X') {
			p.close()
			return nil, errNoProcess
		}
	}
	return p, nil
}

func (p *looked) close() { _ = unix.Close(p.dir) }

func closeHeld(all []inspect.Held) {
	for i := range all {
		_ = unix.Close(all[i].FD)
	}
}

func (p *looked) open(name string, flags int) (*os.File, error) {
	fd, err := file.Open(p.dir, name, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// read returns all of a file in the process's directory.
func (p *looked) read(name string) ([]byte, error) {
	f, err := p.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

func (p *looked) entries(name string) ([]fs.DirEntry, error) {
	f, err := p.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadDir(-1)
}

// link returns what a link of the process's directory says.
func (p *looked) link(name string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.dir, name, buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// inode tells files apart.
type inode struct {
	major, minor uint32
	number       uint64
}

// holdings are what was found so far.
type holdings struct {
	*looked
	all  []inspect.Held
	seen map[inode]int // which of them, or -1 for what is no object
	part error
	full bool         // no more descriptors can be had
	most int          // from which number on descriptors are left for the check itself
	ask  map[int]bool // of which of them it matters who owns it, and is not known yet
	text int          // bytes that may still be read to find that out
}

// What a process can make the check read and keep.
const (
	heldMost  = 1 << 14 // objects
	heldSpare = 64      // descriptors for the check itself
	lockBytes = 64 << 10
	locksMost = 16 << 20 // bytes of them all
	locksLong = 2 << 20  // what one counts that is longer than lockBytes: the kernel makes all of it
)

func (p *looked) newHoldings() *holdings {
	h := &holdings{looked: p, seen: map[inode]int{}, ask: map[int]bool{}, text: locksMost}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024
	}
	h.most = int(min(limit.Cur, 1<<30))
	h.most -= min(heldSpare, h.most/4)
	return h
}

// held opens, for reading, each object that the process has. part says what could not be opened.
func (p *looked) held() (all []inspect.Held, part, err error) {
	entries, err := p.entries("fd")
	if err != nil {
		return nil, nil, err
	}
	h := p.newHoldings()
	h.descriptors(entries)
	refused := h.mappings()
	if len(refused) == 0 {
		return h.all, h.part, nil
	}
	// An ordinary user may open descriptors alone. What was opened since they were read has one, and
	// what is being closed is unmapped before it has none.
	if entries, err := p.entries("fd"); err == nil {
		h.descriptors(entries)
	}
	for id, err := range h.mappings() {
		if refused[id] != nil {
			h.part = errors.Join(h.part, err)
		}
	}
	return h.all, h.part, nil
}

func (h *holdings) descriptors(entries []fs.DirEntry) {
	var numbers []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		if !h.full {
			h.descriptor(n)
		}
	}
}

func (h *holdings) descriptor(n int) {
	name := fmt.Sprintf("fd/%d", n)
	at, err := h.file(name, strconv.Itoa(n), h.link(name))
	h.part = errors.Join(h.part, err)
	if at < 0 || !h.ask[at] {
		return
	}
	f, err := h.open(fmt.Sprintf("fdinfo/%d", n), unix.O_RDONLY)
	if err != nil {
		return
	}
	info, _ := io.ReadAll(io.LimitReader(f, lockBytes))
	_ = f.Close()
	for line := range strings.Lines(string(info)) {
		h.all[at].Owned = h.all[at].Owned || strings.HasPrefix(line, "lock:") &&
			strings.Contains(line, "OFDLCK") && strings.Contains(line, "WRITE")
	}
	cost := len(info)
	if cost == lockBytes { // no object of ours has so many locks
		cost = locksLong
	}
	h.text -= cost
	if h.all[at].Owned || cost == locksLong {
		delete(h.ask, at)
	}
	if h.text <= 0 { // once: nothing is asked after it
		clear(h.ask)
		h.part = errors.Join(h.part, errors.New("its files have too many locks to find its own"))
	}
}

// mappings are of what the process has no descriptor of any more. It returns which of them could
// not be opened, and why.
func (h *holdings) mappings() (refused map[inode]error) {
	text, err := h.read("maps")
	if err != nil {
		h.part = errors.Join(h.part, ignoreGone(err))
		return nil
	}
	refused = map[inode]error{}
	for line := range strings.Lines(string(text)) {
		if h.full {
			break
		}
		// address perms offset dev inode path
		f := strings.Fields(line)
		if len(f) < 6 || !strings.HasSuffix(f[1], "s") || f[4] == "0" {
			continue
		}
		var from, to uint64
		var id inode
		if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil {
			continue
		}
		if _, err := fmt.Sscanf(f[3]+" "+f[4], "%x:%x %d", &id.major, &id.minor,
			&id.number); err != nil {
			continue
		}
		if _, known := h.seen[id]; known || refused[id] != nil {
			continue
		}
		area := fmt.Sprintf("%x-%x", from, to)
		if _, err := h.file("map_files/"+area, area, f[5]); h.full {
			h.part = errors.Join(h.part, err)
		} else if err != nil {
			refused[id] = err
		} else if _, known := h.seen[id]; !known {
			h.seen[id] = -1
		}
	}
	return refused
}

// file looks at one file, which may be anything, and keeps it if it is an object. It returns where
// that is, or -1, and why an object could not be opened.
func (h *holdings) file(name, short, target string) (at int, err error) {
	memfd := strings.HasPrefix(target, "/memfd:")
	ours := strings.HasPrefix(target, "/memfd:shmring:")
	failed := func(err error) (int, error) {
		if err = ignoreGone(err); err == nil || !ours && !kind.Starved(err) {
			return -1, nil
		}
		return -1, fmt.Errorf("%d/%s %s: %w", h.pid, short, strings.TrimPrefix(target, "/memfd:"), err)
	}
	// What opening a file does is not known before it is known what it is.
	path, err := file.Open(h.dir, name, unix.O_PATH, 0)
	if err != nil {
		return failed(err)
	}
	defer unix.Close(path)
	id, ok, err := inMemory(path)
	if err != nil || !ok {
		return failed(err)
	}
	if at, known := h.seen[id]; known && at >= 0 {
		return at, nil
	}
	h.seen[id] = -1
	fd, err := file.Open(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(path),
		unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return failed(err)
	}
	page, size, err := inspect.ReadPage(fd, "")
	if err != nil || !ours && !bytes.HasPrefix(page, []byte("shmring\x00")) {
		_ = unix.Close(fd)
		return failed(err)
	}
	// The lowest free number is given out: all below it are open.
	if fd >= h.most || len(h.all) == heldMost {
		_ = unix.Close(fd)
		h.full = true
		return -1, fmt.Errorf("part of its objects, only %d: %w", len(h.all), unix.EMFILE)
	}
	h.seen[id] = len(h.all)
	h.all = append(h.all, inspect.Held{Name: fmt.Sprintf("%d/%s", h.pid, short), FD: fd, Memfd: memfd,
		Path: fmt.Sprintf("/proc/%d/%s", h.pid, name), Inode: id.number, Born: born(path)})
	at = len(h.all) - 1
	if h.text > 0 && isReader(page, size) {
		h.ask[at] = true
	}
	return at, nil
}

// isReader reports whether it matters who owns an object.
func isReader(page []byte, size uint64) bool {
	header, err := shm.DecodeHeader(page, size)
	return err == nil && (header.Kind == shm.KindQueue || header.Kind == shm.KindEvents)
}

// inMemory reports whether a file is a regular one of a file system that objects live in.
func inMemory(fd int) (id inode, ok bool, err error) {
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return id, false, err
	}
	id = inode{unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino}
	var fsys unix.Statfs_t
	if err = unix.Fstatfs(fd, &fsys); err != nil {
		return id, false, err
	}
	return id, fsys.Type == unix.TMPFS_MAGIC || fsys.Type == unix.HUGETLBFS_MAGIC, nil
}

// born returns when a file was made. Where that is not kept, it is when the file last changed; a
// process that keeps changing it is not found out there.
func born(fd int) time.Time {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME|unix.STATX_CTIME,
		&st); err != nil {
		return time.Time{}
	}
	at := st.Ctime
	if st.Mask&unix.STATX_BTIME != 0 {
		at = st.Btime
	}
	return time.Unix(at.Sec, int64(at.Nsec))
}

// ignoreGone makes nothing of an error that says that the process closed or unmapped something.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
