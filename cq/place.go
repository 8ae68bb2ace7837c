package cq

import (
	"cmp"
	"net"
	"strings"

	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// Place says where an object is, or is to be: the first argument of everything that makes, opens or
// joins one. Not every place makes sense for every call:
//
//	          queue, event queue              counter                   address vector
//	Create    Named, Unnamed                  Named, Unnamed            Named, Unnamed
//	Open      Named                           -                         Named
//	Attach    Named, Over                     Named, FromFD             Named, FromFD
//
// Create makes an object. Open takes over one that its owner left or died over, or makes it. Attach
// joins one that is somebody's: as a writer, as one more user of a counter, or to look things up. A
// place that makes no sense, the zero value too, is ErrInvalid. A Place may be used any number of
// times, from anywhere; what it was made of stays the caller's.
type Place struct {
	form placeForm
	dir  *shm.Dir
	name string
	conn *net.UnixConn
	fd   int
}

type placeForm uint32

const (
	placeNamed placeForm = 1 << iota
	placeUnnamed
	placeOver
	placeFromFD
)

// String returns the names of the bits.
func (f placeForm) String() string {
	var names []string
	for i, name := range []string{"Named", "Unnamed", "Over", "FromFD"} {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if names == nil {
		return "no place"
	}
	return strings.Join(names, " or ")
}

// Named is a name in a directory, where processes of the directory's user find the object. All
// kinds of objects share the names of a directory: who creates is refused with fs.ErrExist while
// something of any kind has the name, who opens or attaches with [shm.ErrKind] for another kind. A
// name has 1 to 64 bytes, printable and without a slash, and no dot in front. Nobody can create
// "bell-..." or "new-<uuid>", nor what ends in ".lock" or "~collected". All else is [shm.ErrName].
func Named(d *shm.Dir, name string) Place {
	if d == nil {
		return Place{name: name}
	}
	return Place{form: placeNamed, dir: d, name: name}
}

// Unnamed is memory without a name in any file system: sealed memfds, which nobody can truncate or
// find. It goes with the last process that has it. name, of up to 64 bytes, shows in /proc and in
// errors only; two objects may have the same. Others get a queue over a socket, see [Queue.Accept],
// and a counter or an address vector by its descriptor, see [Counter.ObjectFD].
func Unnamed(name string) Place { return Place{form: placeUnnamed, name: name} }

// Over is the queue whose reader calls Accept or Serve at the other end of a connected socket, a
// stream or a seqpacket; the other end may be in this process.
func Over(conn *net.UnixConn) Place {
	if conn == nil {
		return Place{}
	}
	return Place{form: placeOver, conn: conn}
}

// FromFD is the counter or address vector behind a descriptor that another process sent: see
// [Counter.ObjectFD]. fd stays the caller's. name shows in errors; "" is the object's own.
func FromFD(fd int, name string) Place { return Place{form: placeFromFD, fd: fd, name: name} }

// only refuses a place that a call has no use for.
func (p Place) only(op string, forms placeForm) error {
	if p.form&forms != 0 {
		return nil
	}
	return kind.Refuse(op, p.name, "Place", p.form, forms, ErrInvalid)
}

// creates is only for a call that makes an object, whatever there is.
func (p Place) creates(op string, forms placeForm, existing bool) error {
	if err := p.only(op, forms); err != nil || !existing {
		return err
	}
	return kind.Refuse(op, p.name, "Existing", true, "false, or a call of Open", ErrInvalid)
}

// make creates an object without rows that others may sit in: a counter or an address vector.
func (p Place) make(spec shm.Spec, init func(*shm.Object) error) (*shm.Object, error) {
	if p.form == placeNamed {
		return collect.Create(p.dir, p.name, spec, init)
	}
	return place.Sealed(spec, shm.SealShrink|shm.SealGrow|shm.SealSeal, init)
}

// find opens such an object, and says what it is called.
func (p Place) find(op string) (*shm.Object, string, error) {
	if p.form == placeNamed {
		obj, err := p.dir.Open(p.name, shm.ReadOnly)
		return obj, p.name, failed(op, p.name, err)
	}
	obj, err := shm.OpenFD(p.fd, cmp.Or(p.name, "descriptor"), shm.ReadOnly)
	if err != nil {
		return nil, "", failed(op, cmp.Or(p.name, "descriptor"), err)
	}
	return obj, cmp.Or(p.name, obj.Header().Name), nil
}
