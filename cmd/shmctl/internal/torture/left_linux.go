package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// leftovers collects what the dead left, and returns what is there beside.
func (s *supervisor) leftovers() (left []string) {
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		return []string{err.Error()}
	}
	defer d.Close()
	all, err := ctl.Collect(d, ctl.CollectOptions{Remove: true})
	if err != nil {
		return []string{err.Error()}
	}
	for _, r := range all {
		if r.Fate != ctl.FateRemoved {
			left = append(left, fmt.Sprintf("%s, which is %s: %s", r.Name, r.Fate, r.Reason))
		}
	}
	entries, err := os.ReadDir(d.Path())
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, "file "+e.Name())
	}
	return left
}

// scratchLeft collects what churners made.
func scratchLeft(s *supervisor) (left []string) {
	for i := range scratchNames {
		left = append(left, s.collectAll(scratchName(i))...)
	}
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		return append(left, err.Error())
	}
	defer d.Close()
	for i := range churners {
		left = append(left, exhume(d, i)...)
		left = append(left, collect(d, crowdedName(i))...)
	}
	return left
}

// collectAll removes a queue that the dead left, if there is one.
func (s *supervisor) collectAll(name string) []string {
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		return []string{err.Error()}
	}
	defer d.Close()
	return collect(d, name)
}

// collect removes a queue that the dead left. One that was persistent, or left to a successor, has
// to be adopted and destroyed.
func collect(d *shm.Dir, name string) []string {
	if cq.Remove(d, name) == nil {
		return nil
	}
	q, err := cq.Adopt(d, name, cq.Options{})
	if err == nil {
		err = q.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cq.ErrClosed) {
		err = nil
	}
	if err = errors.Join(err, cq.Remove(d, name)); err != nil {
		return []string{fmt.Sprintf("%s cannot be collected: %v", name, err)}
	}
	return nil
}
