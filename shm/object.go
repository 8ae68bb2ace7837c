package shm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/file"
)

// Access says what an opener may do with an object.
type Access int

// Kinds of access.
const (
	ReadOnly  Access = iota // map read-only; single sections may be mapped writable later
	ReadWrite               // map writable; needed to claim
	Inspect                 // look only, also at objects with features that forbid using them
)

// Object is one shared memory object, mapped. It takes one descriptor, none after SpareFD, and a
// second one once FD was called while this process owns it.
// Header, Name, Bytes, Section, Seats, MapWritable, Generation, Owner, Deaths and OwnerDied may be
// used by any goroutine, but neither they nor what they return once Close has begun, for the memory
// goes away; all other methods are safe from anywhere.
type Object struct {
	name   string
	acc    Access
	header Header
	fd     int    // description that may be sent; while there is a lockFD, -1 until it is needed
	mem    []byte // the whole object
	dir    *dirRef
	ino    uint64
	dev    uint64

	mu      sync.Mutex
	lockFD  int       // description that holds the lock, -1 when not owned; never sent
	gen     uint64    // of our own claim
	sent    bool      // FD was called: its number may stand somewhere
	held    bool      // the lock, and the record is that of whoever had it before
	claimed claimNote // it is counted among those that this program has owned
	extra   []writable
	closed  bool
	lasting bool // see Outlast
}

// writable is a second mapping, of one section.
type writable struct {
	kind SectionKind
	id   uint32
	mem  []byte
}

// Seals are promises that the kernel enforces for a memfd.
type Seals uint

// Seals, see fcntl(2).
const (
	SealSeal        Seals = 1 << iota // no further seals
	SealShrink                        // the size cannot get smaller
	SealGrow                          // nor larger
	SealFutureWrite                   // mappings made from now on cannot be written, by anybody
)

// memfdPrefix begins the name of every memfd of this package, as /proc/PID/maps shows it.
const memfdPrefix = "shmring:"

// Header returns the private copy that was made and checked when the object was opened.
func (o *Object) Header() Header {
	h := o.header
	h.Sections = slices.Clone(h.Sections)
	return h
}

// Name returns the name in the directory, or the one given to a memfd.
func (o *Object) Name() string { return o.name }

// Bytes returns the whole mapping. Do not write to it after opening ReadOnly or Inspect: the
// process would get a fault.
func (o *Object) Bytes() []byte { return o.mem[:len(o.mem):len(o.mem)] }

// FD returns the descriptor that may be sent to a peer. It stays the object's. It is not the one
// that holds the lock. Of an object that was made or claimed by this process it is opened at the
// first call: -1 says that there is no descriptor left, or no /proc.
func (o *Object) FD() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = true
	fd, _ := o.openFD()
	return fd
}

// SpareFD gives back the descriptor of an object that was opened by its name, and is only looked at
// from now on. The memory stays. [Object.Life] opens the name again, and keeps the descriptor until
// the next SpareFD; it adds to its errors fs.ErrNotExist and, if another object has the name by
// now, [ErrStale]. What else needs the file fails with EBADF until then. Nothing happens if the
// object is owned or has no name, or FD was called.
func (o *Object) SpareFD() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lockFD < 0 && o.fd >= 0 && o.dir != nil { // else nothing leads there
		o.spareFD()
	}
}

// spareFD closes what is opened again where it is needed.
func (o *Object) spareFD() {
	if !o.sent {
		sysClose(o.fd)
		o.fd = -1
	}
}

// openFD returns a description that does not hold the lock.
func (o *Object) openFD() (fd int, err error) {
	if o.fd < 0 && o.lockFD >= 0 {
		if fd, err = sysReopen(o.lockFD, true); err != nil {
			return -1, err
		}
		o.fd = fd
	}
	return o.fd, nil
}

// anyFD returns a descriptor of the file, for what no lock matters to.
func (o *Object) anyFD() int {
	if o.fd < 0 {
		return o.lockFD
	}
	return o.fd
}

// locked reports whether anybody holds the lock, this object too. With the descriptor alone that
// took it, it takes it again, which changes nothing as long as it has it: its owner loses a lock
// only with the descriptor, whose number may mean another file then.
func (o *Object) locked() (bool, error) {
	if o.fd < 0 && o.lockFD < 0 {
		if err := o.reopen(); err != nil {
			return false, err
		}
	}
	if o.fd >= 0 {
		return file.Locked(o.fd, file.Whole, false)
	}
	info, err := sysStat(o.lockFD)
	if err != nil || info.ino != o.ino || info.dev != o.dev {
		return false, nil
	}
	err = file.Lock(o.lockFD, file.Whole, true)
	return err == nil || file.Busy(err), ignoreBusy(err)
}

// reopen gets what was spared again.
func (o *Object) reopen() error {
	dirfd, at := o.dir.at(o.name)
	fd, err := sysOpen(dirfd, at, o.acc == ReadWrite)
	if err != nil {
		return err
	}
	info, err := sysStat(fd)
	if err == nil {
		err = o.is(info)
	}
	if err != nil {
		sysClose(fd)
		return err
	}
	o.fd = fd
	return nil
}

// is refuses the file of another object.
func (o *Object) is(info fileInfo) error {
	if info.ino == o.ino && info.dev == o.dev {
		return nil
	}
	return &Error{Field: "inode", Got: info.ino, Want: o.ino,
		Err: ErrStale, Hint: "leave it: the name belongs to another object now"}
}

func ignoreBusy(err error) error {
	if file.Busy(err) {
		return nil
	}
	return err
}

// Section returns the memory of one section, with the capacity of the slice at its length. An
// error is [ErrKind]: the object has no such section.
func (o *Object) Section(k SectionKind, id uint32) ([]byte, Section, error) {
	s, ok := o.header.find(k, id)
	if !ok {
		return nil, Section{}, o.noSection(k, id)
	}
	end := s.Offset + s.Length
	return o.mem[s.Offset:end:end], s, nil
}

func (o *Object) noSection(k SectionKind, id uint32) error {
	return &Error{Op: "map section of", Name: o.name, Field: "section kind and id",
		Got: [2]uint32{uint32(k), id}, Want: "one that the object has", Err: ErrKind}
}

// MapWritable returns writable memory of one section of an object that was opened ReadOnly; asking
// again gives the same. Close unmaps it. It refuses sections that share a page with others, and
// objects that were opened to Inspect.
func (o *Object) MapWritable(k SectionKind, id uint32) ([]byte, error) {
	s, ok := o.header.find(k, id)
	if !ok {
		return nil, o.noSection(k, id)
	}
	if o.acc == ReadWrite {
		mem, _, err := o.Section(k, id)
		return mem, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.extra {
		if w.kind == k && w.id == id && !o.closed {
			return w.mem, nil
		}
	}
	mem, err := o.mapOwn(s)
	if err == nil {
		o.extra = append(o.extra, writable{kind: k, id: id, mem: mem})
	}
	return mem, err
}

// mapOwn maps a section of its own pages for writing. The caller has the lock.
func (o *Object) mapOwn(s Section) ([]byte, error) {
	const op = "map section of"
	switch {
	case o.closed:
		return nil, named(op, o.name, os.ErrClosed)
	case o.acc == Inspect:
		return nil, &Error{Op: op, Name: o.name, Err: syscall.EACCES,
			Hint: "open it ReadOnly instead of Inspect"}
	}
	if err := o.ownPages(s); err != nil {
		return nil, err
	}
	mem, err := mapAgain(o.anyFD(), s)
	return mem, named(op, o.name, err)
}

// Provide gives a late section of an object that was made or opened ReadWrite its memory, and does
// nothing if it has it. Until then nobody may touch the section. The error is [ErrNoSpace] if there
// is too little memory.
func (o *Object) Provide(k SectionKind, id uint32) error {
	s, ok := o.header.find(k, id)
	if !ok {
		return o.noSection(k, id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return named("provide", o.name, os.ErrClosed)
	}
	if s.Offset < o.header.EarlyBytes {
		return nil
	}
	return named("provide", o.name, o.provide(s))
}

func (o *Object) provide(s Section) error {
	page := pageBytes()
	from, to := s.Offset&^(page-1), alignUp(s.Offset+s.Length, page)
	fd := o.anyFD()
	info, err := sysStat(fd)
	if err == nil && (info.ino != o.ino || info.dev != o.dev) { // its number means another file
		err = syscall.EBADF
	}
	if err == nil {
		err = checkRoom(o.dir.onFS(), to-from)
	}
	if err != nil {
		return err
	}
	err = sysAllocate(fd, from, to)
	if lacksRoom(err) {
		err = noRoom(o.dir.onFS(), to-from)
	}
	if err != nil {
		return err
	}
	return sysPrepare(o.mem[from:to], to-from, true)
}

// ownPages refuses a section whose pages hold something else, which would become writable too.
func (o *Object) ownPages(s Section) error {
	page := pageBytes()
	end := alignUp(s.Offset+s.Length, page)
	shared := s.Offset%page != 0 || end > o.header.TotalBytes
	for _, other := range o.header.Sections {
		shared = shared || other.Offset > s.Offset && other.Offset < end
	}
	if !shared {
		return nil
	}
	return &Error{Op: "map section of", Name: o.name, Field: "section offset", Got: s.Offset,
		Want: "pages of its own", Err: syscall.EINVAL, Hint: "make the section with page alignment"}
}

func mapAgain(fd int, s Section) ([]byte, error) {
	wfd, err := sysReopen(fd, true)
	if err != nil {
		return nil, err
	}
	defer sysClose(wfd)
	mem, err := sysMap(wfd, s.Offset, s.Length, true)
	if err != nil {
		return nil, err
	}
	if err := sysPrepare(mem, uint64(len(mem)), true); err != nil {
		_ = sysUnmap(mem)
		return nil, err
	}
	return mem[:s.Length:s.Length], nil
}

// Seal adds seals to a memfd; a file gives EPERM or EINVAL. SealFutureWrite binds the owner too,
// whose mappings of before stay writable.
func (o *Object) Seal(s Seals) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return named("seal", o.name, os.ErrClosed)
	}
	return named("seal", o.name, sysSeal(o.anyFD(), s))
}

// CheckSealed refuses an object that does not have exactly these seals, with [ErrOwner], or that is
// shorter than its header says, with [ErrTruncated]. Without [SealShrink] a peer could truncate an
// object that it sent as a descriptor; without [SealSeal] it could keep others from writing.
func (o *Object) CheckSealed(want Seals) error {
	const op = "open"
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return named(op, o.name, os.ErrClosed)
	}
	got, exact, err := sysSealed(o.anyFD(), want)
	if err != nil {
		return named(op, o.name, err)
	}
	if !exact {
		return &Error{Op: op, Name: o.name, Field: "seals", Got: fmt.Sprintf("%#x", got),
			Want: fmt.Sprintf("%#x", sealBits(want)), Err: ErrOwner}
	}
	info, err := sysStat(o.anyFD()) // after the seal: from here on it cannot get less
	if err == nil && uint64(max(info.size, 0)) < o.header.TotalBytes {
		err = &Error{Field: "size", Got: info.size, Want: o.header.TotalBytes, Err: ErrTruncated}
	}
	return named(op, o.name, err)
}

// Linked reports whether the object still has its name. A memfd never has one.
func (o *Object) Linked() (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false, named("stat", o.name, os.ErrClosed)
	}
	info, err := sysStat(o.anyFD())
	return err == nil && info.nlink != 0, named("stat", o.name, err)
}

// Unlink removes the name. Only the owner may, and only while the name still means this object:
// else the error is [ErrStale]. The memory lives on until the last mapping is gone.
func (o *Object) Unlink() error {
	const op = "unlink"
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dir == nil && !o.closed {
		return &Error{Op: op, Name: o.name, Err: syscall.EINVAL, Hint: "close it: a memfd has no name"}
	}
	return named(op, o.name, o.unlinkFrom(o.dir, o.name))
}

// LinkTo gives the object one more name, in another directory of the same file system (else
// EXDEV; a memfd has no file system and gives that too). Only the owner may. Errors are those of
// [Dir.Create] for the name.
func (o *Object) LinkTo(d *Dir, name string) error {
	const op = "link"
	if err := checkName(op, name); err != nil {
		return err
	}
	ref, err := d.use()
	if err != nil {
		return named(op, name, err)
	}
	defer ref.drop()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.ownsLock(); err != nil {
		return named(op, name, err)
	}
	dirfd, at := ref.at(name)
	err = sysLink(o.anyFD(), dirfd, at)
	if lacksRoom(err) {
		err = noRoom(ref.onFS(), 1)
	}
	return named(op, name, err)
}

// UnlinkFrom removes a name that [Object.LinkTo] gave, as Unlink does.
func (o *Object) UnlinkFrom(d *Dir, name string) error {
	const op = "unlink"
	ref, err := d.use()
	if err != nil {
		return named(op, name, err)
	}
	defer ref.drop()
	o.mu.Lock()
	defer o.mu.Unlock()
	return named(op, name, o.unlinkFrom(ref, name))
}

// unlinkFrom removes a name while it means this object.
func (o *Object) unlinkFrom(dir *dirRef, name string) error {
	if err := o.ownsLock(); err != nil {
		return err
	}
	if err := dir.there(); err != nil {
		return err
	}
	info, err := sysStatAt(dir.at(name))
	if err != nil {
		return err
	}
	if err := o.is(info); err != nil {
		return err
	}
	return sysUnlink(dir.at(name))
}

// ownsLock asks the kernel whether this Object is still the owner.
func (o *Object) ownsLock() error {
	switch {
	case o.closed:
		return os.ErrClosed
	case o.lockFD < 0:
		return &Error{Err: syscall.ENOLCK, Hint: "claim it first"}
	}
	if locked, err := o.locked(); err != nil || !locked {
		return errors.Join(err, lockLost())
	}
	return nil
}

// Outlast makes the object's memory safe to load at any time, also during Close and afterwards, for
// whoever keeps the Object reachable. Close then puts zero pages of this process in the place of
// the memory, as [Window.Close] does, and the garbage collector gives the addresses back. So a
// reader must check after each load whether the object was closed. Call Outlast before the first
// such load.
func (o *Object) Outlast() { o.lasting = true }

// Close unmaps the object and gives up what it holds; an owner records before that it released
// the object, and drops the lock last. The name stays, see Unlink. It may be called again.
func (o *Object) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	o.closed = true
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if o.lockFD >= 0 {
		keep(o.leave())
	}
	for _, w := range o.extra {
		keep(sysUnmap(w.mem))
	}
	if o.lasting {
		keep(sysBlank(o.mem))
		runtime.AddCleanup(o, func(mem []byte) { _ = sysUnmap(mem) }, o.mem)
	} else {
		keep(sysUnmap(o.mem))
	}
	o.extra, o.mem = nil, nil
	o.claimed.drop()
	if o.fd >= 0 {
		sysClose(o.fd)
		o.fd = -1
	}
	o.dir.drop()
	o.dropLock() // our stores are over: now a successor may claim
	return named("close", o.name, first)
}

// Window is writable memory of one section that may be read and written at any time, also while
// another goroutine closes it and afterwards. It is for words that are looked at every few
// nanoseconds, where a lock against Close would cost more than the look.
//
// Close puts zero pages of this process alone in the place of the section: the kernel exchanges
// the two in one step, so that an access meets one or the other and never a hole. The addresses
// are given back when the garbage collector finds that nobody can reach the Window. So whoever
// uses the memory must keep the Window reachable until the access is over, and look afterwards
// whether it was closed meanwhile: then what was read are zeros, or what was written is lost.
type Window struct {
	mem []byte

	mu     sync.Mutex
	closed bool
}

// Window maps one section of its own pages for writing. It does not depend on the object, which may
// be closed before it. Errors are those of [Object.MapWritable].
func (o *Object) Window(k SectionKind, id uint32) (*Window, error) {
	s, ok := o.header.find(k, id)
	if !ok {
		return nil, o.noSection(k, id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	mem, err := o.mapOwn(s)
	if err != nil {
		return nil, err
	}
	return &Window{mem: mem}, nil
}

// Bytes returns the memory.
func (w *Window) Bytes() []byte { return w.mem }

// Close lets go of the section. It may be called again, and from anywhere.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	if err := sysBlank(w.mem); err != nil {
		return named("unmap", "window", err)
	}
	w.closed = true
	runtime.AddCleanup(w, func(mem []byte) { _ = sysUnmap(mem) }, w.mem)
	return nil
}

// fault is what the runtime panics with when a memory access fails at an address that is not nil.
type fault interface {
	error
	RuntimeError()
	Addr() uintptr
}

// Guard runs f and turns a memory fault in it into an error that is [ErrTruncated]. Tools read a
// file inside it if the owner may truncate that file meanwhile. f must hold no lock that a panic
// would leave locked. Other panics pass. It guards the calling goroutine only.
func Guard(f func()) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		switch r := recover().(type) {
		case nil:
		case fault:
			err = &Error{Op: "read", Field: "address", Got: r.Addr(), Want: "memory that exists",
				Err: ErrTruncated, Hint: "the file was truncated while it was mapped"}
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// guarded is Guard for an f that can fail by itself.
func guarded(f func() error) error {
	var inner error
	if err := Guard(func() { inner = f() }); err != nil {
		return err
	}
	return inner
}
