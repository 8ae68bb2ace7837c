package shm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/text"
)

// Dir is a directory of objects that is private to this user. Its methods are safe from any
// goroutine; objects stay usable after Close.
//
// The path leads to the directory once, in [OpenDir]. From then on everything is done through its
// descriptor, so that what is moved, replaced or made at the path since, or another working
// directory, changes nothing.
type Dir struct {
	path string
	mu   sync.Mutex
	ref  *dirRef // nil after Close
}

// dirRef is the descriptor of a directory, shared by its Dirs and the objects made through them,
// which need it to remove their name; or, of one that is nested, its name in another directory.
type dirRef struct {
	fd       int // -1 if it is nested
	dev, ino uint64
	in       *dirRef // nil unless it is nested
	sub      string  // its name there
	n        atomic.Int32
}

func (r *dirRef) drop() {
	switch {
	case r == nil || r.n.Add(-1) != 0:
	case r.in != nil:
		r.in.drop()
	default:
		sysClose(r.fd)
	}
}

// at returns the way to a name in the directory, for the *at calls of the system.
func (r *dirRef) at(name string) (dirfd int, path string) {
	if r.in == nil {
		return r.fd, name
	}
	return r.in.fd, r.sub + "/" + name
}

// onFS returns a descriptor of the file system that the directory is on; r may be nil.
func (r *dirRef) onFS() int {
	switch {
	case r == nil:
		return noDir
	case r.in != nil:
		return r.in.fd
	}
	return r.fd
}

// stat looks at the directory. A nested one that was moved or removed is fs.ErrNotExist.
func (r *dirRef) stat() (fileInfo, error) {
	if r.in == nil {
		return sysStat(r.fd)
	}
	info, err := sysStatAt(r.in.fd, r.sub)
	if err == nil && (info.ino != r.ino || info.dev != r.dev) {
		return fileInfo{}, fs.ErrNotExist
	}
	return info, err
}

// there is nil if the directory can still be reached.
func (r *dirRef) there() error {
	if r.in == nil {
		return nil
	}
	_, err := r.stat()
	return err
}

// EnvDir is the environment variable that says where objects live.
const EnvDir = "SHMRING_DIR"

// DefaultPath is $SHMRING_DIR, or /dev/shm/shmring- with the number of the effective user. Nothing
// else is asked, so that services and login shells agree.
func DefaultPath() string {
	if path := os.Getenv(EnvDir); path != "" {
		return path
	}
	return "/dev/shm/" + UserPrefix + strconv.Itoa(os.Geteuid())
}

// OpenDir opens the directory at path, or at [DefaultPath] if path is empty, and makes it if it is
// not there. It must be a directory of this user that nobody else may enter (else [ErrOwner], for
// others could have guessed the name), and live on tmpfs or hugetlbfs (errors.ErrUnsupported).
func OpenDir(path string) (*Dir, error) { return openDir(path, true) }

// FindDir is [OpenDir] of a directory that is there: it makes none, and fs.ErrNotExist says so.
func FindDir(path string) (*Dir, error) { return openDir(path, false) }

func openDir(path string, create bool) (*Dir, error) {
	path = filepath.Clean(cmp.Or(path, DefaultPath()))
	d, err := openDirAt(noDir, path, path, create)
	if !create && errors.Is(err, fs.ErrNotExist) {
		err = &Error{Err: fs.ErrNotExist, Hint: "it is made with the first queue"}
	}
	return d, named("open directory", path, err)
}

func openDirAt(dirfd int, name, path string, create bool) (*Dir, error) {
	if create {
		err := sysMkdir(dirfd, name)
		if lacksRoom(err) && !errors.Is(err, syscall.ENOMEM) { // that is the kernel's own, and passes
			return nil, noRoom(dirfd, pageBytes())
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	fd, err := sysOpenDir(dirfd, name)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENOTDIR) {
		if info, serr := sysStatAt(dirfd, name); serr == nil && !info.directory() {
			e := &Error{Field: "type", Got: "a link or file", Want: "a directory", Err: ErrKind,
				Hint: "name another directory, or remove what stands there"}
			if dirfd == noDir {
				e.Err = ErrOwner // others may be able to make names there
			}
			return nil, e
		}
	}
	if err != nil {
		return nil, err
	}
	info, err := sysStat(fd)
	if err == nil {
		err = checkDir(fd, info)
	}
	if err != nil {
		sysClose(fd)
		return nil, err
	}
	ref := &dirRef{fd: fd, dev: info.dev, ino: info.ino}
	ref.n.Store(1)
	return &Dir{path: path, ref: ref}, nil
}

func checkDir(fd int, info fileInfo) error {
	if err := checkPrivate(info); err != nil {
		return err
	}
	ok, magic, err := sysMemoryFS(fd)
	if err != nil {
		return err
	}
	if !ok {
		return &Error{Field: "file system type", Got: fmt.Sprintf("%#x", magic),
			Want: "tmpfs or hugetlbfs", Err: errors.ErrUnsupported,
			Hint: "set " + EnvDir + " to a directory below /dev/shm"}
	}
	return nil
}

// sticky marks directories that are shared on purpose, as /tmp is (S_ISVTX).
const sticky = 0o1000

// checkPrivate refuses what belongs to someone else or is open to others.
func checkPrivate(info fileInfo) error {
	if uid := os.Geteuid(); int(info.uid) != uid {
		return &Error{Field: "owner", Got: info.uid, Want: uid, Err: ErrOwner,
			Hint: "use a directory of your own, or run as that user"}
	}
	if perm := info.mode & 0o777; perm&0o077 != 0 {
		hint := "chmod go= it"
		if info.mode&sticky != 0 { // it is meant for everybody, and closing it would break others
			hint = "use a directory of your own below it"
		}
		return &Error{Field: "mode", Got: fmt.Sprintf("%#o", perm),
			Want: fmt.Sprintf("%#o", perm&0o700), Err: ErrOwner, Hint: hint}
	}
	return nil
}

// use returns the directory, which is there, with a reference that the caller drops.
func (d *Dir) use() (*dirRef, error) {
	ref, err := d.share()
	if err == nil {
		if err = ref.there(); err != nil {
			ref.drop()
			return nil, err
		}
	}
	return ref, err
}

func (d *Dir) share() (*dirRef, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ref == nil {
		return nil, os.ErrClosed
	}
	d.ref.n.Add(1)
	return d.ref, nil
}

// Path returns the path under which the directory was opened. It is for people: the directory may
// have been moved, and another one may stand there.
func (d *Dir) Path() string { return d.path }

// Dup returns another handle on the directory, which stays open when this one is closed. It takes
// no new descriptor. The Dup of a closed handle is closed, and the Dup of nil is nil.
func (d *Dir) Dup() *Dir {
	if d == nil {
		return nil
	}
	ref, _ := d.share()
	return &Dir{path: d.path, ref: ref}
}

// Nest gives the descriptor of a directory back, which [Dir.Sub] or [Dir.CreateIn] of another one
// opened. From then on it is reached by its name there, and its inode is looked at each time: if it
// is moved or removed, what needs it is fs.ErrNotExist. Nothing ties that look to what follows, so
// nest only the directory of an object that this process owns, and use it only for as long as that
// has its name in it: then nobody can remove it, and make another one. Call Nest before the
// directory is used by another goroutine. in may be closed earlier; if it is closed already, or
// nested, nothing changes.
func (d *Dir) Nest(in *Dir, name string) {
	above, err := in.share()
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ref == nil || d.ref.in != nil || above.in != nil {
		above.drop()
		return
	}
	sysClose(d.ref.fd)
	d.ref.fd, d.ref.in, d.ref.sub = -1, above, name
}

// Is reports whether both are handles on one directory, and open.
func (d *Dir) Is(other *Dir) bool {
	a, err := d.share()
	if err != nil {
		return false
	}
	defer a.drop()
	b, err := other.share()
	if err != nil {
		return false
	}
	defer b.drop()
	return a.dev == b.dev && a.ino == b.ino
}

// Close gives the descriptor back. It may be called again, and on nil.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ref.drop()
	d.ref = nil
	return nil
}

// Sub opens the directory of one queue, and makes it first if create is set. Errors: [ErrName],
// fs.ErrNotExist, [ErrKind] for what is no directory, and those of [OpenDir].
func (d *Dir) Sub(name string, create bool) (sub *Dir, err error) {
	err = d.at("open directory", name, checkSubName, func(dirfd int, at string) error {
		sub, err = openDirAt(dirfd, at, filepath.Join(d.path, name), create)
		return err
	})
	return sub, err
}

// RemoveSub removes the directory of one queue. errors.Is finds ENOTEMPTY while objects are in it.
func (d *Dir) RemoveSub(name string) error {
	return d.at("remove directory", name, checkSubName, sysRmdir)
}

// List returns all names in the directory, sorted, also those of things that are no objects.
func (d *Dir) List() ([]os.DirEntry, error) {
	ref, err := d.use()
	if err != nil {
		return nil, named("list", d.path, err)
	}
	defer ref.drop()
	entries, err := sysReadDir(ref.at("."))
	if err != nil {
		return nil, named("list", d.path, err)
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Owned reports whether a living process holds the lock of the object of that name, for the price
// of three system calls: of many names it finds those worth opening. It looks at nothing else, so
// false says neither that there is an object nor that it may be claimed. Errors: [ErrName],
// fs.ErrNotExist, and what the system refuses.
func (d *Dir) Owned(name string) (locked bool, err error) {
	err = d.at("probe", name, checkName, func(dirfd int, at string) error {
		fd, err := sysOpen(dirfd, at, false)
		if err != nil {
			return err
		}
		defer sysClose(fd)
		locked, err = file.Locked(fd, file.Whole, false)
		return err
	})
	return locked, err
}

// Stamp returns a number that changes when a name comes or goes, for the price of one system
// call. Kernels before 6.13 keep times in ticks of some milliseconds: there a removal and an
// addition within one tick can go unseen, so look with List now and then as well.
func (d *Dir) Stamp() (uint64, error) {
	ref, err := d.share()
	if err != nil {
		return 0, named("stat", d.path, err)
	}
	defer ref.drop()
	info, err := ref.stat()
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing comes or goes any more
		return 0, named("stat", d.path, err)
	}
	h := uint64(14695981039346656037)
	// On tmpfs the size of a directory follows its number of names.
	for _, v := range [...]uint64{uint64(info.mtimeNs), uint64(info.ctimeNs), uint64(info.size),
		info.nlink} {
		h = (h ^ v) * 1099511628211
		h ^= h >> 32
	}
	return h, nil
}

// Remove removes a name that is not a directory's, and checks nothing: use [Object.Unlink] for an
// object. Errors: [ErrName], fs.ErrNotExist, and what the system refuses.
func (d *Dir) Remove(name string) error {
	return d.at("remove", name, checkName, sysUnlink)
}

// at does something to a name, if it may be used, by the way to it.
func (d *Dir) at(op, name string, check func(op, name string) error,
	do func(dirfd int, at string) error) error {
	if err := check(op, name); err != nil {
		return err
	}
	ref, err := d.use()
	if err != nil {
		return named(op, name, err)
	}
	defer ref.drop()
	return named(op, name, do(ref.at(name)))
}

// At calls do with the way to a name in the directory, for the *at calls of the system: what a
// program asks of a name beyond the methods of Dir. The path is relative to the descriptor, which
// is the directory's and lasts as long as the call. The name is that of anything, object or not, or
// "." for the directory itself. Errors: [ErrName] for what is a path, fs.ErrNotExist if the
// directory is nested and gone, and what do returns.
func (d *Dir) At(name string, do func(dirfd int, path string) error) error {
	if name == "" || name == ".." || filepath.Base(name) != name {
		return &Error{Op: "look at", Name: name, Err: ErrName, Hint: "a name is not a path"}
	}
	ref, err := d.use()
	if err != nil {
		return named("look at", name, err)
	}
	defer ref.drop()
	return do(ref.at(name))
}

// maxNameBytes is what a header can hold; a file name could be longer.
const maxNameBytes = 64

// Names that mean something.
const (
	// UserPrefix is what [DefaultPath] has before the number of the user.
	UserPrefix = "shmring-"
	// BellPrefix marks bells, which stand beside the queues: a queue called like one would hide it.
	BellPrefix = "bell-"
	// LockSuffix is that of the file whose lock a listener holds who replaces dead sockets by
	// himself, as a device process does: whoever has it is the only one to bind or remove the name.
	LockSuffix = ".lock"
	// CollectedSuffix marks a socket that a collector has moved aside. Only who has locked the
	// directory gives or takes such a name, so that nothing can come to stand there while it is looked
	// at.
	CollectedSuffix = "~collected"

	// asidePrefix and a UUID name a directory on its way to its own name.
	asidePrefix = "new-"
)

// IsAside reports whether sub is the name of a queue's directory that has not got its own name yet.
// If the owner of such a queue is dead, nobody will ever look for it.
func IsAside(sub string) bool {
	id, ok := strings.CutPrefix(sub, asidePrefix)
	_, isUUID := parseUUID(id)
	return ok && isUUID
}

// checkName accepts names that are one visible path component and fit a header.
func checkName(op, name string) error {
	why := ""
	switch {
	case name == "":
		why = "give it at least one character"
	case len(name) > maxNameBytes:
		why = "use at most 64 bytes"
	case name[0] == '.':
		why = "let it not begin with a dot"
	case strings.ContainsRune(name, '/'):
		why = "leave out the slash: a name is not a path"
	case text.Printable(name) != name:
		why = "use printable characters only"
	default:
		return nil
	}
	return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
}

// checkNew refuses names that only this library gives, and nobody to an object of another kind.
func checkNew(op, name string, k Kind) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	why := ""
	switch {
	case strings.HasPrefix(name, BellPrefix) && k != KindBell:
		why = `names that begin with "bell-" belong to bells`
	case IsAside(name):
		why = `"new-" and a UUID name what is not finished`
	case strings.HasSuffix(name, CollectedSuffix), strings.HasSuffix(name, LockSuffix):
		why = fmt.Sprintf("names that end in %q and %q belong to sockets", CollectedSuffix, LockSuffix)
	default:
		return nil
	}
	return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
}

// checkSubName also keeps the names of bells free.
func checkSubName(op, name string) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	if strings.HasPrefix(name, BellPrefix) {
		const why = `names that begin with "bell-" belong to bells`
		return &Error{Op: op, Name: name, Err: ErrName, Hint: why}
	}
	return nil
}
