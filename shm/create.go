package shm

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
)

// Create makes an object and gives it a name. It is born complete: memory is allocated for real,
// the header written, init called (it may be nil) to fill the sections, the lock taken, and only
// then the name appears. The caller is its owner until Release, Close or death.
//
// Errors: [ErrName]; fs.ErrExist (EEXIST) if the name is taken; [ErrNoSpace] with a
// *NoSpaceError; what init returned. After an error nothing is left.
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
	if _, err := sysStatAt(ref.fd, name); err == nil {
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
	if err := sysLock(o.lockFD); err != nil {
		return nil, err
	}
	crash.At(crash.CreateLocked)
	word(o.mem, offState).Store(uint64(ObjectReady))
	switch {
	case b.link != nil:
		err = b.link(o)
	case b.dir != nil:
		err = sysLink(o.lockFD, b.dir.fd, b.name)
	}
	if err != nil {
		return nil, err
	}
	crash.At(crash.CreateLinked)
	done = true
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
	sections, total, err := place(spec, max(pageBytes(), spec.HugePageBytes))
	if err != nil {
		return err
	}
	if spec.UUID.IsZero() {
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
		TotalBytes: total, Sections: sections, State: ObjectReady, Owner: owner}
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
	dirfd := noDir
	if b.dir != nil {
		dirfd = b.dir.fd
		// The link at the end decides; asking first saves the work.
		if _, err := sysStatAt(dirfd, b.name); err == nil && b.link == nil {
			return syscall.EEXIST
		}
	}
	total := o.header.TotalBytes
	huge := b.spec.HugePageBytes
	var err error
	if huge == 0 { // huge pages come out of what was reserved for them
		err = checkRoom(dirfd, total)
	}
	if err != nil {
		return err
	}
	if b.dir != nil {
		o.lockFD, err = sysTmpfile(dirfd)
	} else {
		o.lockFD, err = sysMemfd(b.name, huge)
	}
	if err != nil {
		o.lockFD = -1
		return b.noSpace(err, total)
	}
	mode := b.spec.Mode
	if mode == 0 {
		mode = 0o600
	}
	if err := sysChmod(o.lockFD, mode); err != nil {
		return err
	}
	if err := sysAllocate(o.lockFD, total); err != nil {
		return b.noSpace(err, total)
	}
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
	return sysPrepare(o.mem, true)
}

// noSpace adds the numbers to the kernel's bare refusal.
func (b *builder) noSpace(err error, needed uint64) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	if huge := b.spec.HugePageBytes; huge != 0 {
		return &Error{Field: "huge pages", Got: "too few that are free", Want: needed / huge, Err: err,
			Hint: "see vm.nr_hugepages"}
	}
	dirfd := noDir
	if b.dir != nil {
		dirfd = b.dir.fd
	}
	r := tightest(sysRoom(dirfd))
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
