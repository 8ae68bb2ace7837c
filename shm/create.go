package shm

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/file"
)

// Create makes an object and gives it a name. It is born complete: memory is allocated for real,
// the header written, init called (it may be nil) to fill the sections, the lock taken, and only
// then the name appears. The caller is its owner until Release, Close or death.
//
// Errors: [ErrName]; fs.ErrExist (EEXIST) if the name is taken; [ErrNoSpace]; what init returned.
// After an error nothing is left.
func (d *Dir) Create(name string, spec Spec, init func(*Object) error) (*Object, error) {
	const op = "create"
	if err := checkNew(op, name, spec.Kind); err != nil {
		return nil, err
	}
	ref, err := d.use()
	if err != nil {
		return nil, named(op, name, err)
	}
	b := builder{name: name, spec: spec, dir: ref}
	o, err := b.build(init)
	return o, named(op, name, err)
}

// CreateIn makes an object in the directory sub of this one, and makes sub if it is not there. A
// collector may remove an empty directory at any moment, so CreateIn makes the object first, and
// then the directory, as often as it takes until the object has its name there. Errors are those of
// [Dir.Create] and [Dir.Sub]; fs.ErrExist also if sub is the name of something else.
func (d *Dir) CreateIn(sub, name string, spec Spec, init func(*Object) error) (*Object, *Dir,
	error) {
	const op = "create"
	if err := errors.Join(checkNew(op, sub, spec.Kind), checkName(op, name)); err != nil {
		return nil, nil, err
	}
	in, err := d.Sub(sub, false)
	err = taken(err)
	if err == nil { // what is wrong with it is found out before memory is taken
		err = in.lacks(name)
		_ = in.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, named(op, name, err)
	}
	ref, err := d.use()
	if err != nil {
		return nil, nil, named(op, name, err)
	}
	var made *Dir
	b := builder{name: name, spec: spec, dir: ref, link: func(o *Object) (err error) {
		made, err = d.linkIn(o, sub, name)
		return taken(err)
	}}
	o, err := b.build(init)
	return o, made, named(op, name, err)
}

// taken says of a name that leads to no directory what it means to who makes one.
func taken(err error) error {
	if errors.Is(err, ErrKind) {
		return syscall.EEXIST
	}
	return err
}

// lacks refuses a name that is taken.
func (d *Dir) lacks(name string) error {
	ref, err := d.use()
	if err != nil {
		return err
	}
	defer ref.drop()
	if _, err := sysStatAt(ref.at(name)); err == nil {
		return syscall.EEXIST
	}
	return nil
}

// CreateMemfd makes an object as [Dir.Create] does, without a name in the file system: peers get it
// by descriptor. spec.Name shows in /proc. Errors are those of Create.
func CreateMemfd(spec Spec, init func(*Object) error) (*Object, error) {
	b := builder{name: spec.Name, spec: spec}
	if b.name == "" {
		b.name = spec.Kind.String()
	}
	o, err := b.build(init)
	return o, named("create", b.name, err)
}

// builder holds what must be undone until the object stands.
type builder struct {
	name string
	spec Spec
	dir  *dirRef             // nil: a memfd
	link func(*Object) error // gives it its name; nil: in dir
}

func (b *builder) build(init func(*Object) error) (_ *Object, err error) {
	o := &Object{name: b.name, acc: ReadWrite, fd: -1, lockFD: -1, dir: b.dir}
	done := false
	defer func() { // also when init panics
		if !done {
			o.discard()
		}
	}()
	if err := b.plan(o); err != nil {
		return nil, err
	}
	if err := b.allocate(o); err != nil {
		return nil, err
	}
	crash.At(crash.CreateAllocated)
	encodeHeader(o.mem, &o.header)
	storeOwner(o.mem, o.header.Owner)
	o.gen = o.header.Owner.Generation
	if init != nil {
		if err := init(o); err != nil {
			return nil, err
		}
	}
	crash.At(crash.CreateFilled)
	o.claimed.set(o, whole)
	if err := file.Lock(o.lockFD, file.Whole, true); err != nil {
		return nil, err
	}
	crash.At(crash.CreateLocked)
	word(o.mem, offState).Store(stateReady)
	switch {
	case b.link != nil:
		err = b.link(o)
	case b.dir != nil:
		dirfd, at := b.dir.at(b.name)
		err = sysLink(o.lockFD, dirfd, at)
	}
	if err != nil {
		return nil, err
	}
	crash.At(crash.CreateLinked)
	done = true
	o.spareFD()
	return o, nil
}

// plan fills in the header.
func (b *builder) plan(o *Object) error {
	spec := b.spec
	if spec.Name == "" {
		spec.Name = b.name
	}
	if spec.HugePageBytes != 0 && b.dir != nil {
		return invalid("size of huge pages", spec.HugePageBytes, "0 for an object with a name")
	}
	sections, total, early, err := place(spec, max(pageBytes(), spec.HugePageBytes))
	if err != nil {
		return err
	}
	if spec.UUID == (UUID{}) {
		spec.UUID = NewUUID()
	}
	if spec.Generation == 0 {
		spec.Generation = firstGeneration(b.dir != nil)
	}
	owner := Self()
	owner.State, owner.Generation, owner.ClaimedNs = StateOwned, spec.Generation, monoNs()
	o.header = Header{ABIMajor: ABIMajor, ABIMinor: ABIMinor, Kind: spec.Kind, Name: spec.Name,
		UUID: spec.UUID, Generation: spec.Generation, BootID: owner.BootID,
		FeatCompat: spec.FeatCompat, FeatROCompat: spec.FeatROCompat,
		FeatIncompat: spec.FeatIncompat, Attrs: spec.Attrs,
		CreatorPID: owner.PID, CreatorPIDNS: owner.PIDNS, CreatorStart: owner.StartTicks,
		CreatedMonoNs: owner.ClaimedNs, CreatedRealNs: realNs(),
		TotalBytes: total, EarlyBytes: early, Sections: sections, Owner: owner}
	if early < total {
		o.header.FeatIncompat |= featLate
	}
	return nil
}

// firstGeneration is random without a name: no predecessor can be asked for its own.
func firstGeneration(hasName bool) uint64 {
	if hasName {
		return 1
	}
	return uint64(rand.Uint32())<<16 | uint64(1+rand.IntN(1<<16-1))
}

// allocate makes the file, its memory and the mapping.
func (b *builder) allocate(o *Object) error {
	if b.dir != nil && b.link == nil {
		// The link at the end decides; asking first saves the work.
		if _, err := sysStatAt(b.dir.at(b.name)); err == nil {
			return syscall.EEXIST
		}
	}
	total, early := o.header.TotalBytes, o.header.EarlyBytes
	huge := b.spec.HugePageBytes
	var err error
	if huge == 0 { // huge pages come out of what was reserved for them
		err = checkRoom(b.dir.onFS(), early)
	}
	if err != nil {
		return err
	}
	if b.dir != nil {
		o.lockFD, err = sysTmpfile(b.dir.at("."))
	} else {
		o.lockFD, err = sysMemfd(b.name, huge)
	}
	if err != nil {
		o.lockFD = -1
		return b.noSpace(err, early)
	}
	mode := b.spec.Mode
	if mode == 0 {
		mode = 0o600
	}
	if err := sysChmod(o.lockFD, mode); err != nil {
		return err
	}
	if err := sysResize(o.lockFD, total); err != nil {
		return b.noSpace(err, total)
	}
	if err := sysAllocate(o.lockFD, 0, early); err != nil {
		return b.noSpace(err, early)
	}
	// A mapping keeps its description, and that the lock: so it has another one.
	if o.fd, err = sysReopen(o.lockFD, true); err != nil {
		o.fd = -1
		return err
	}
	if o.mem, err = sysMap(o.fd, 0, total, true); err != nil {
		o.mem = nil
		return err
	}
	info, err := sysStat(o.fd)
	if err != nil {
		return err
	}
	o.ino, o.dev = info.ino, info.dev
	return sysPrepare(o.mem, early, true)
}

// noSpace adds the numbers to the kernel's bare refusal.
func (b *builder) noSpace(err error, needed uint64) error {
	if !lacksRoom(err) {
		return err
	}
	if huge := b.spec.HugePageBytes; huge != 0 {
		return &Error{Field: "huge pages", Got: "too few that are free", Want: needed / huge, Err: err,
			Hint: "see vm.nr_hugepages"}
	}
	return noRoom(b.dir.onFS(), needed)
}

// lacksRoom tells refusals for want of room: of the file system, of memory, of the user's quota,
// and of the sizes of files that this process may have (RLIMIT_FSIZE).
func lacksRoom(err error) bool {
	for _, is := range []error{syscall.ENOSPC, syscall.ENOMEM, syscall.EDQUOT, syscall.EFBIG} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// noRoom says which limit the kernel may have met.
func noRoom(dirfd int, needed uint64) error {
	r := tightest(sysRoom(dirfd, needed))
	if r.available >= needed { // in a container, or if others were quicker
		r = room{where: "a limit that cannot be seen here, or only a moment ago,"}
	}
	return roomError(r, needed)
}

// discard undoes a creation that failed. Nobody else has seen the object.
func (o *Object) discard() {
	if o.mem != nil {
		_ = sysUnmap(o.mem)
	}
	o.claimed.drop()
	for _, fd := range []int{o.fd, o.lockFD} {
		if fd >= 0 {
			sysClose(fd)
		}
	}
	o.dir.drop()
	o.mem, o.fd, o.lockFD, o.dir, o.closed = nil, -1, -1, nil, true
}

// A directory may vanish between our making it and our using it, which takes some microseconds.
const (
	// plainTries is how often it is made in its place. Others who tidy up in a row, whom the kernel
	// lets in one after the other, can win each time.
	plainTries = 16
	// moveTries bounds how often it may be there when we want to move ours, and gone when we want
	// to use it, and how often ours may be gone before there is anything in it. Each time means
	// that somebody else did something meanwhile.
	moveTries = 1000
)

// linkIn gives a new object its name in a directory that may come and go, and hands the object over
// to that.
func (d *Dir) linkIn(o *Object, sub, name string) (in *Dir, err error) {
	for range plainTries {
		in, err = d.inPlace(sub, o.linker(name))
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		in, err = d.linkAndMove(o, sub, name)
	}
	if err == nil {
		return in, o.handOver(in)
	}
	if !errors.Is(err, fs.ErrExist) {
		_ = d.RemoveSub(sub) // unless others use it
	}
	return nil, err
}

// linker links a new object into a directory.
func (o *Object) linker(name string) func(dirfd int) error {
	return func(dirfd int) error { return sysLink(o.lockFD, dirfd, name) }
}

// inPlace makes the directory if it is not there, and has put give the object its name in it.
func (d *Dir) inPlace(sub string, put func(dirfd int) error) (in *Dir, err error) {
	in, err = d.Sub(sub, true)
	if err != nil {
		return nil, err
	}
	if err := put(in.ref.fd); err != nil {
		_ = in.Close()
		return nil, err
	}
	return in, nil
}

// linkAndMove makes the directory under a name that nobody else knows and moves it, object and all,
// to its own: it is never seen empty. Where there is one already that is not empty, the object is
// moved into that: nobody removes it then, while there is something in it. It never has two names:
// whoever finds the one aside tells by it what becomes of the object.
func (d *Dir) linkAndMove(o *Object, sub, name string) (in *Dir, err error) {
	ref, err := d.use()
	if err != nil {
		return nil, err
	}
	defer ref.drop()
	var aside *Dir
	var odd string
	for range moveTries {
		odd = asidePrefix + NewUUID().String()
		if aside, err = d.inPlace(odd, o.linker(name)); !errors.Is(err, fs.ErrNotExist) {
			break // else one who lists the directory tidied this up too, while it was empty
		}
	}
	if err != nil {
		_ = sysRmdir(ref.fd, odd)
		return nil, err
	}
	crash.At(crash.CreateAside)
	move := func(dirfd int) error { // which it loses
		return file.MoveNew(aside.ref.fd, name, dirfd, name)
	}
	for range moveTries {
		if err = sysRename(ref.fd, odd, sub); err == nil {
			aside.path = filepath.Join(d.path, sub)
			return aside, nil
		}
		if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			break // the page allows either
		}
		if in, err = d.inPlace(sub, move); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	_ = sysUnlink(aside.ref.fd, name)
	_ = aside.Close()
	_ = sysRmdir(ref.fd, odd)
	return in, err
}

// handOver makes the directory the one that has the object's name.
func (o *Object) handOver(in *Dir) error {
	ref, err := in.use()
	if err != nil {
		return err
	}
	o.dir.drop()
	o.dir = ref
	return nil
}

// room is one limit that a new object meets.
type room struct {
	where     string
	available uint64 // bytes
}

// checkRoom refuses, with numbers, what cannot fit. It must come before the allocation: in a memory
// cgroup the kernel would rather kill the process than say no.
func checkRoom(dirfd int, needed uint64) error {
	r := tightest(sysRoom(dirfd, needed))
	if r.available >= needed {
		return nil
	}
	return roomError(r, needed)
}

func roomError(r room, needed uint64) error {
	return &Error{Field: "bytes left in " + r.where, Got: r.available, Want: needed, Err: ErrNoSpace,
		Hint: "make it smaller, remove old objects, or raise the limit"}
}

func tightest(rooms []room) room {
	least := room{where: "the machine", available: math.MaxUint64}
	for _, r := range rooms {
		if r.available < least.available {
			least = r
		}
	}
	return least
}

// ample remembers that there was far more memory than objects need: a program that makes many of
// them need not read the files of all its control groups, and of the machine, for each.
type ample struct {
	mu    sync.Mutex
	group string // the process's cgroups then
	until int64  // monotonic ns
	left  uint64 // bytes
}

// What goes on meanwhile takes no more than this in such a moment, not even the pages of all
// processes together.
const (
	ampleNs    = 10 * 1e6
	ampleBytes = 1 << 30
)

// limits returns what look does, or nothing if it would not come near. A process that was moved to
// other cgroups looks.
func (a *ample) limits(now int64, group string, needed uint64, look func() []room) []room {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now >= a.until || group != a.group || a.left < needed {
		rooms := look()
		least := tightest(rooms).available
		a.group, a.until, a.left = group, now+ampleNs, least-min(least, ampleBytes)
		if a.left < needed {
			a.until = now
			return rooms
		}
	}
	a.left -= needed
	return nil
}

// cgroupLimits returns what each memory cgroup from this process's own to the root still
// allows, or less if that is enough. read returns the content of a file, or nothing; it takes
// absolute paths.
func cgroupLimits(read func(path string) []byte, needed uint64) []room {
	var out []room
	lines := strings.Lines(string(read("/proc/self/cgroup")))
	for line := range lines {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "": // version 2
			out = append(out, walkCgroup(read, needed, "/sys/fs/cgroup", parts[2], cgroupV2)...)
		case hasField(parts[1], "memory"):
			out = append(out, walkCgroup(read, needed, "/sys/fs/cgroup/memory", parts[2], cgroupV1)...)
		}
	}
	return out
}

func hasField(list, want string) bool {
	for f := range strings.SplitSeq(list, ",") {
		if f == want {
			return true
		}
	}
	return false
}

// cgroupFiles are the names of one version's files.
type cgroupFiles struct{ limit, usage, reclaimable string }

var (
	cgroupV2 = cgroupFiles{"memory.max", "memory.current", "inactive_file"}
	cgroupV1 = cgroupFiles{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

const maxCgroupDepth = 64

// Of a memory cgroup a part is left for what a process needs beside its objects: page tables, and
// what it allocates when it is told that there is no room. Else the kernel kills it for the next
// page of its own.
const (
	cgroupReserveShare = 16
	cgroupReserveBytes = 1 << 20 // at most
)

func walkCgroup(read func(string) []byte, needed uint64, root, path string,
	names cgroupFiles) []room {
	var out []room
	for range maxCgroupDepth {
		dir := root + strings.TrimSuffix(path, "/")
		limit, ok1 := parseBytes(read(dir + "/" + names.limit))
		usage, ok2 := parseBytes(read(dir + "/" + names.usage))
		if ok1 && ok2 {
			reserve := min(limit/cgroupReserveShare, cgroupReserveBytes)
			left := limit - min(limit, usage+reserve)
			if left < needed {
				// File pages that nobody uses count as usage, but go when memory is wanted. They are
				// asked for last, since the kernel sums up a long page for that.
				usage -= min(usage, statField(read(dir+"/memory.stat"), names.reclaimable))
				left = limit - min(limit, usage+reserve)
			}
			out = append(out, room{"memory cgroup " + path, left})
		}
		cut := strings.LastIndexByte(strings.TrimSuffix(path, "/"), '/')
		if cut < 0 {
			break
		}
		path = path[:max(cut, 1)]
		if cut == 0 && dir == root {
			break
		}
	}
	return out
}

func parseBytes(b []byte) (uint64, bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil // "max" is no limit
}

// statField finds "name value" or "name: value" on a line of its own, value in the file's unit.
func statField(b []byte, name string) uint64 {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) >= 2 && strings.TrimSuffix(f[0], ":") == name {
			n, _ := strconv.ParseUint(f[1], 10, 64)
			return n
		}
	}
	return 0
}
