package status

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/shmring/shmring/shm"
)

// Snapshot is what an outsider sees of an endpoint.
type Snapshot struct {
	Name, Path  string
	UUID        shm.UUID
	Owner       shm.Owner
	Life        shm.Life
	CreatedMono int64 // ns of CLOCK_MONOTONIC
	BootID      shm.UUID
	Info        Info
	Counters    Counters
	Words       []uint64 // the counters in the order of CounterNames
	Capture     shm.UUID // that a tool wants, zero for none
}

// Look looks at the object of an endpoint, from a read-only mapping. Errors are fs.ErrNotExist and
// those of opening shared memory.
func Look(d *shm.Dir, name string) (Snapshot, error) {
	obj, err := d.Open(name, shm.Inspect)
	if err != nil {
		return Snapshot{}, err
	}
	defer obj.Close()
	h := obj.Header()
	if err := h.CheckKind(shm.KindEndpoint); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Name: name, Path: filepath.Join(d.Path(), name), UUID: h.UUID, BootID: h.BootID,
		CreatedMono: h.CreatedMonoNs}
	if s.Life, err = obj.Life(); err != nil {
		return s, err
	}
	// Whoever made the file may cut it at any moment.
	if fault := shm.Guard(func() { err = s.read(obj) }); fault != nil {
		err = fault
	}
	return s, err
}

func (s *Snapshot) read(obj *shm.Object) error {
	s.Owner = obj.Owner()
	w, err := infoOf(obj)
	if err != nil {
		return err
	}
	private := *w
	if s.Info, err = private.info(); err != nil {
		return err
	}
	_, sect, err := obj.Section(sectCounters, 0)
	if err != nil {
		return err
	}
	if want := spec(s.UUID).Sections[1]; sect.LayoutHash != want.LayoutHash ||
		sect.Length != want.Length {
		return corrupt(obj, "layout of the counters", sect.LayoutHash)
	}
	counters, err := wordsOf(obj, sectCounters, len(counterNames))
	if err != nil {
		return err
	}
	for _, c := range counters {
		s.Words = append(s.Words, c.Load())
	}
	for i, w := range s.Counters.words() {
		*w = s.Words[i]
	}
	wish, err := wordsOf(obj, sectWish, wishBytes/8)
	if err != nil {
		return err
	}
	s.Capture = wishOf(wish)
	return nil
}

// List looks at all endpoints of a directory, having removed those whose process died.
func List(d *shm.Dir) ([]Snapshot, error) {
	if _, err := Sweep(d); err != nil {
		return nil, err
	}
	names, err := names(d)
	if err != nil {
		return nil, err
	}
	var out []Snapshot
	var first error
	for _, name := range names {
		s, err := Look(d, name)
		switch {
		case err == nil:
			out = append(out, s)
		case !errors.Is(err, fs.ErrNotExist) && first == nil:
			first = err
		}
	}
	return out, first
}

// SetWish asks the endpoint of an object to copy its packets to a capture; the zero id asks it to
// end that, if id is the one that is wanted now. The owner of the object sees it in its next round.
// Of two tools that ask at once the later one wins. Errors are those of opening shared memory.
func SetWish(d *shm.Dir, name string, old, id shm.UUID) (done bool, err error) {
	obj, err := d.Open(name, shm.ReadOnly)
	if err != nil {
		return false, err
	}
	defer obj.Close()
	if err := obj.Header().CheckKind(shm.KindEndpoint); err != nil {
		return false, err
	}
	mem, err := obj.MapWritable(sectWish, 0)
	if err != nil {
		return false, err
	}
	w, err := words(mem, wishBytes/8)
	if err != nil {
		return false, err
	}
	fault := shm.Guard(func() {
		if wishOf(w) != old {
			return
		}
		for i := range 2 {
			var v uint64
			for k := range 8 {
				v |= uint64(id[8*i+k]) << (8 * k)
			}
			w[wishID/8+i].Store(v)
		}
		w[wishGeneration/8].Add(1) // after the id: whoever sees it sees the id
		done = true
	})
	return done, fault
}
