package ctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/oserror"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// Finding is an invariant that an object breaks.
type Finding struct {
	Name      string  `json:"name"` // of the queue or object; of one of a process PID/FD before it
	Path      string  `json:"path"` // of the file
	Kind      *string `json:"kind"` // nil: not known
	Invariant string  `json:"invariant"`
	Section   string  `json:"section"`
	// Offset is that of the word in bytes from the start of the file; nil: it is no word.
	Offset *uint64 `json:"offset"`
	// SectionOffset is the same from the start of the section.
	SectionOffset *uint64 `json:"section_offset"`
	Got           string  `json:"got"`
	Want          string  `json:"want"`
}

// CheckReport is what a check found.
type CheckReport struct {
	Objects int `json:"objects"` // files that were checked
	// Undecided are objects that changed all the time, so that what holds for quiet ones only was not
	// checked.
	Undecided []string  `json:"undecided"`
	Findings  []Finding `json:"findings"`
}

// CheckOptions say what a check looks at.
type CheckOptions struct {
	// More checks what is in an object of a kind that package cq does not know, while it is mapped
	// for reading. nil: such an object is checked for what every object has.
	More func(*shm.Object) []shm.Violation

	pause time.Duration // the longest between two looks; 0: checkPause
}

// Invariants returns all invariants that this package knows.
func Invariants() []shm.Invariant { return append(shm.Invariants(), inspect.Invariants()...) }

// Check checks objects, queues (by their directories) and whole directories of both, with read-only
// mappings: no byte changes, no lock is taken, and nobody waits or notices. Who owns them does not
// matter, as long as they can be read. In a directory files that are no objects are left out. Each
// path is looked up when the check comes to it: what was moved there meanwhile is checked instead.
//
// Objects may be in use. What looks broken is looked at again, and counts if it is broken each time
// (see [shm.Invariant] for what is checked of an object that changes). What goes away meanwhile is
// not reported. An error says what could not be checked, beside what was found.
func Check(o CheckOptions, paths ...string) (CheckReport, error) {
	r := CheckReport{Undecided: []string{}, Findings: []Finding{}}
	var errs error
	for _, p := range paths {
		errs = errors.Join(errs, r.path(o, filepath.Clean(p)))
	}
	return r, errs
}

func (r *CheckReport) path(o CheckOptions, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if dir, base := filepath.Split(path); kind.IsQueueObject(base) {
			return r.queue(o, filepath.Clean(dir))
		}
		return r.object(o, path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if isQueue(entries) {
		return r.queue(o, path)
	}
	var errs error
	for _, e := range entries {
		errs = errors.Join(errs, gone(r.entry(o, filepath.Join(path, e.Name()), e)))
	}
	return errs
}

// entry checks what stands in a directory of objects, if it is one.
func (r *CheckReport) entry(o CheckOptions, path string, e os.DirEntry) error {
	switch {
	case e.IsDir():
		if inside, err := os.ReadDir(path); err != nil || !isQueue(inside) {
			return err
		}
		return r.queue(o, path)
	case !e.Type().IsRegular():
		return nil
	}
	if is, err := inspect.IsObject(path); err != nil || !is {
		return err
	}
	return r.object(o, path)
}

func isQueue(entries []os.DirEntry) bool {
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		return kind.IsQueueObject(e.Name())
	})
}

func (r *CheckReport) queue(o CheckOptions, path string) error {
	return r.take(o, filepath.Base(path), func() (all []inspect.Checked, part, err error) {
		if all, err = inspect.CheckQueue(path); all != nil {
			part, err = err, nil
		}
		return all, part, err
	})
}

func (r *CheckReport) object(o CheckOptions, path string) error {
	return r.take(o, filepath.Base(path), func() ([]inspect.Checked, error, error) {
		c, err := inspect.CheckObject(path, o.More)
		if err != nil {
			return nil, nil, err
		}
		return []inspect.Checked{c}, nil, nil
	})
}

// How often something that looks broken must be so, and the longest time between two looks.
const (
	checkLooks = 5
	checkPause = 20 * time.Millisecond
)

// look is one look at some objects. part says what could not be looked at beside all, err why there
// is nothing at all.
type look func() (all []inspect.Checked, part, err error)

// take adds what is found at every look.
func (r *CheckReport) take(o CheckOptions, name string, look look) error {
	all, part, err := look()
	if err != nil {
		return err
	}
	pause := cmp.Or(o.pause, checkPause) >> (checkLooks - 2)
	for range checkLooks - 1 {
		if !doubtful(all) {
			break
		}
		time.Sleep(pause)
		pause *= 2
		again, more, err := look()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it went meanwhile
		case err != nil:
			return err
		case part == nil:
			part = more
		}
		all = common(all, again)
	}
	r.Objects += len(all)
	for i := range all {
		c := &all[i]
		if c.Undecided {
			r.Undecided = append(r.Undecided, c.Path)
		}
		for _, v := range c.Violations {
			r.Findings = append(r.Findings, finding(cmp.Or(c.Name, name), c, v))
		}
	}
	return part
}

func doubtful(all []inspect.Checked) bool {
	return slices.ContainsFunc(all, func(c inspect.Checked) bool {
		return len(c.Violations) > 0 || c.Undecided
	})
}

// common returns what two looks agree on, of the files that the later one saw.
func common(before, now []inspect.Checked) []inspect.Checked {
	type file struct {
		path  string
		inode uint64
	}
	places := make(map[file]int, len(before))
	for i := range before {
		places[file{before[i].Path, before[i].Inode}] = i
	}
	for i := range now {
		c := &now[i]
		at, known := places[file{c.Path, c.Inode}]
		if !known { // it is new, and what is wrong with it was seen once
			c.Violations = nil
			continue
		}
		c.Undecided = c.Undecided && before[at].Undecided
		c.Violations = slices.DeleteFunc(c.Violations, func(v shm.Violation) bool {
			return !slices.ContainsFunc(before[at].Violations, func(b shm.Violation) bool {
				return b.Invariant == v.Invariant && b.Offset == v.Offset
			})
		})
	}
	return now
}

func finding(name string, c *inspect.Checked, v shm.Violation) Finding {
	f := Finding{Name: text.Printable(name), Path: text.Printable(c.Path), Invariant: v.Invariant,
		Section: v.Section, Got: text.Printable(v.Got), Want: text.Printable(v.Want)}
	if c.Kind != 0 {
		f.Kind = new(c.Kind.String())
	}
	if v.Section != "directory" && v.Section != "file" {
		f.Offset, f.SectionOffset = &v.Offset, &v.Within
	}
	return f
}

// gone makes nothing of an error that says that something went away.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// errNoProcess is fs.ErrNotExist.
var errNoProcess = oserror.New("no such process", syscall.ENOENT)

// CheckProcess checks the objects of this library that a process has open or mapped, with a name
// or without: memfds that it made or was given, and what lost its name since. They are found by
// what is in them, and read through /proc; nothing of the process changes, and it does not notice.
// Findings are named PID/FD and by the name in the object's header, after that of the queue for a
// lane.
//
// A lane is compared with the queue's words if the process reads that queue, else checked by
// itself. What the process closes meanwhile is not reported. An error says what could not be
// checked, beside what was found: fs.ErrNotExist if there is no such process, fs.ErrPermission for
// one of another user (it takes that user, or root), and for single objects of other users that a
// process was given. With more objects than descriptors for them, or than 16384, it is EMFILE, and
// those that there was room for are checked. What is mapped and not open takes root in any case.
// Where there is no /proc it is errors.ErrUnsupported.
func CheckProcess(o CheckOptions, pid int) (CheckReport, error) {
	r := CheckReport{Undecided: []string{}, Findings: []Finding{}}
	p, err := openProcess(pid)
	if err != nil {
		return r, processError(pid, err)
	}
	defer p.close()
	err = r.take(o, "", func() (all []inspect.Checked, part, err error) {
		held, part, err := p.held()
		if err != nil {
			return nil, nil, err
		}
		defer closeHeld(held)
		all, err = inspect.CheckHeld(held, o.More)
		return all, errors.Join(part, err), nil
	})
	return r, processError(pid, err)
}

// processError says what to do about a process that cannot be looked at.
func processError(pid int, err error) error {
	e := &shm.Error{Pkg: "ctl", Op: "look into", Name: fmt.Sprintf("process %d", pid), Err: err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		e.Err, e.Hint = errNoProcess, "it has ended, or is in another PID namespace; see: ps -e"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "run as root, or as the user of the process"
	case errors.Is(err, syscall.EMFILE):
		e.Hint = "each takes a descriptor, see: ulimit -n; more than 16384 are not checked"
	}
	return e
}
