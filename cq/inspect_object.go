package cq

import (
	"io/fs"
	"path/filepath"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// ObjectSnapshot is what an outsider sees of an object that stands beside the queues of a
// directory. At most one of Counter, Addresses and Bell is set; a kind that is not known has none.
type ObjectSnapshot struct {
	Name               string
	Path               string
	Mode               fs.FileMode // permissions
	UID                uint32
	Kind               shm.Kind
	UUID               shm.UUID
	ABIMajor, ABIMinor uint16
	Owner              shm.Owner // of a counter, which nobody owns, whoever made it
	Life               shm.Life
	Generation         uint64   // grows with every owner
	BootID             shm.UUID // of the boot in which it was made
	CreatedMonoNs      int64    // CLOCK_MONOTONIC of that boot
	CreatedRealNs      int64    // CLOCK_REALTIME
	SizeBytes          uint64

	Counter   *CounterSnapshot
	Addresses *AddressesSnapshot
	Bell      *BellSnapshot
}

// AddressesSnapshot is what an outsider sees of an address vector.
type AddressesSnapshot struct {
	Options AddressOptions // Check and UserContext are each handle's own
	Used    uint64         // addresses in it
	Closed  bool
}

// BellSnapshot is what an outsider sees of the bell of a reading process.
type BellSnapshot struct {
	Members  int  // queues and counters that can be members
	Sleeping bool // somebody waits on a set or channel
	Ready    int  // members that were marked and not looked at
	Epoch    uint32
}

// InspectObject looks at an object from outside, from a read-only mapping: no byte or lock is
// touched, and no party notices. Errors are fs.ErrNotExist and those of opening shared memory.
func InspectObject(d *shm.Dir, name string) (ObjectSnapshot, error) {
	const op = "inspect object"
	obj, err := d.Open(name, shm.Inspect)
	if err != nil {
		return ObjectSnapshot{}, failed(op, name, err)
	}
	defer obj.Close()
	h := obj.Header()
	s := ObjectSnapshot{Name: name, Path: filepath.Join(d.Path(), name), Kind: h.Kind, UUID: h.UUID,
		ABIMajor: h.ABIMajor, ABIMinor: h.ABIMinor, BootID: h.BootID, CreatedMonoNs: h.CreatedMonoNs,
		CreatedRealNs: h.CreatedRealNs, SizeBytes: h.TotalBytes}
	if s.Life, err = obj.Life(); err == nil {
		s.Mode, s.UID, err = obj.File()
	}
	if err != nil {
		return s, failed(op, name, err)
	}
	// Whoever made the file may cut it at any moment.
	fault := shm.Guard(func() {
		s.Owner, s.Generation = obj.Owner(), obj.Generation()
		err = s.content(op, obj)
	})
	if fault != nil {
		err = fault
	}
	if err != nil {
		return s, failed(op, name, err)
	}
	return s, nil
}

// content reads what the kind has of its own.
func (s *ObjectSnapshot) content(op string, obj *shm.Object) (err error) {
	switch s.Kind {
	case shm.KindCounter:
		var c CounterSnapshot
		if c, err = inspectCounter(op, s.Name, obj); err == nil {
			s.Counter = &c
		}
	case shm.KindAddresses:
		s.Addresses, err = inspectAddresses(op, s.Name, obj)
	case shm.KindBell:
		s.Bell, err = inspectBell(op, obj)
	}
	return err
}

func inspectAddresses(op, name string, obj *shm.Object) (*AddressesSnapshot, error) {
	o, err := storedAddresses(op, name, obj.Header())
	if err != nil {
		return nil, err
	}
	words, err := kind.WordsOf[kind.AddrWords](obj, kind.SectAddrWords, 0)
	if err != nil {
		return nil, err
	}
	return &AddressesSnapshot{Options: o, Used: min(words.Used.Load(), uint64(o.Count)),
		Closed: words.State.Load() == kind.StateClosed}, nil
}

func inspectBell(op string, obj *shm.Object) (*BellSnapshot, error) {
	h := obj.Header()
	if err := kind.HasSections(op, obj.Name(), h, kind.BellSpec()); err != nil {
		return nil, err
	}
	arm, hints, err := kind.BellMemory(obj, false)
	if err != nil {
		return nil, err
	}
	sleeping := arm.Word.Load() != 0
	v := doorbell.Inspect(0, hints)
	return &BellSnapshot{Members: kind.DomainBits, Sleeping: sleeping, Ready: v.Ready,
		Epoch: v.Epoch}, nil
}
