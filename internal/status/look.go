package status

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/shmring/shmring/internal/kind"
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
	if err := kind.CheckKind(h, shm.KindEndpoint); err != nil {
		return Snapshot{}, err
	}
	s := Snapshot{Name: name, Path: filepath.Join(d.Path(), name), UUID: h.UUID, BootID: h.BootID,
		CreatedMono: h.CreatedMonoNs}
	if s.Life, err = obj.Life(); err != nil {
		return s, err
	}
	// Whoever made the file may truncate it at any moment.
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
	if err := kind.CheckKind(obj.Header(), shm.KindEndpoint); err != nil {
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

// Invariants returns what holds of an endpoint's object, beyond what holds of every object.
//
// Of frames that is their numbers: each is in one state, so the numbers add up. Which frame is in
// which state only the process that owns the socket knows, in memory of its own where no peer could
// make two owners of one; and the rings of the socket are mapped there and in the kernel. So from
// outside a frame that is in two places is seen only by a sum that is wrong.
func Invariants() []shm.Invariant {
	return []shm.Invariant{
		{Name: "endpoint.layout", Exact: true, What: "the sections are those of an endpoint"},
		{Name: "endpoint.info", Exact: true, What: "what it says of itself is possible"},
		{Name: "endpoint.update", Exact: true, What: "no update of counters ended that did not begin"},
		{Name: "endpoint.frames", Exact: true, What: "every frame of the socket is in one state"},
	}
}

// Where the counters have the number of frames, and how many states follow it.
const (
	firstFrameWord = 9
	frameStates    = 7
)

// checkTries bounds how often counters are loaded that change meanwhile.
const checkTries = 64

// Check returns what of that does not hold. It is called while the object is mapped for reading,
// inside [shm.Guard]; the endpoint may count meanwhile.
func Check(obj *shm.Object) []shm.Violation {
	bad := func(name, section string, base, within uint64, got, want any) []shm.Violation {
		return []shm.Violation{{Invariant: name, Section: section, Offset: base + within,
			Within: within, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}}
	}
	const written = "what an endpoint writes"
	// What was made before there were updates does not say whether its counters are of one moment.
	sections := spec(obj.Header().UUID).Sections
	isUpdate := func(s shm.Section) bool { return s.Kind == sectUpdate }
	updates := slices.ContainsFunc(obj.Header().Sections, isUpdate)
	if !updates {
		sections = slices.DeleteFunc(sections, isUpdate)
	}
	for i, want := range sections {
		_, got, err := obj.Section(want.Kind, want.ID)
		if err == nil && (got.Length != want.Length || got.LayoutHash != want.LayoutHash) {
			err = corrupt(obj, "section", got.LayoutHash)
		}
		if err != nil {
			return bad("endpoint.layout", "header", 0, 0x180+64*uint64(i), err, written)
		}
	}
	w, err := infoOf(obj)
	if err != nil {
		return bad("endpoint.layout", "header", 0, 0x180, err, written)
	}
	private := *w
	info, err := private.info()
	if err != nil {
		_, s, _ := obj.Section(sectInfo, 0)
		return bad("endpoint.info", "info", s.Offset, 0, err, written)
	}
	if !updates {
		return nil
	}
	begun, ended, counters, same, err := moment(obj)
	_, update, _ := obj.Section(sectUpdate, 0)
	_, s, _ := obj.Section(sectCounters, 0)
	at := uint64(8 * firstFrameWord)
	switch {
	case err != nil:
		return bad("endpoint.layout", "header", 0, 0x180, err, written)
	case ended > begun:
		return bad("endpoint.update", "update", update.Offset, 8*updateEnded, ended,
			fmt.Sprintf("at most %d", begun))
	case !same:
		return nil
	}
	if want := frameFault(counters, &at, uint64(info.Geometry.Frames)); want != "" {
		return bad("endpoint.frames", "counters", s.Offset, at, counters[at/8], want)
	}
	return nil
}

// frameFault returns what the counter of frames at an offset should be, or nothing. No state has
// more frames than there are: numbers that add up only because one is below zero would do so too.
func frameFault(counters []uint64, at *uint64, umem uint64) string {
	frames, sum := counters[firstFrameWord], uint64(0)
	for i, n := range counters[firstFrameWord+1:][:frameStates] {
		if n > frames {
			*at = uint64(8 * (firstFrameWord + 1 + i))
			return fmt.Sprintf("at most %d, as many as there are", frames)
		}
		sum += n
	}
	switch {
	case sum != frames:
		return fmt.Sprintf("%d, which the states add up to", sum)
	case frames > umem:
		return fmt.Sprintf("at most %d, as many as the UMEM has", umem)
	}
	return ""
}

// moment loads the counters as they are between two updates. same is false if there is no such
// moment: the endpoint updates all the time, or its process died in an update.
func moment(obj *shm.Object) (begun, ended uint64, counters []uint64, same bool, err error) {
	update, err := wordsOf(obj, sectUpdate, updateWords)
	if err != nil {
		return 0, 0, nil, false, err
	}
	all, err := wordsOf(obj, sectCounters, len(counterNames))
	if err != nil {
		return 0, 0, nil, false, err
	}
	counters = make([]uint64, len(all))
	for range checkTries {
		ended = update[updateEnded].Load()
		for i, w := range all {
			counters[i] = w.Load()
		}
		if begun = update[updateBegun].Load(); begun == ended {
			return begun, ended, counters, true, nil
		}
	}
	return begun, ended, nil, false, nil
}
