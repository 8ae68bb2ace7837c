package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// leftovers collects the bells that the dead left, and returns what is there beside.
func (s *supervisor) leftovers() (left []string) {
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		return []string{err.Error()}
	}
	defer d.Close()
	entries, err := os.ReadDir(d.Path())
	if err != nil {
		return append(left, err.Error())
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "bell-") && removeDead(d, e.Name()) == nil {
			continue
		}
		left = append(left, "file "+e.Name())
	}
	return left
}

// scratchLeft collects the queues of churners.
func scratchLeft(s *supervisor) (left []string) {
	for i := range scratchNames {
		left = append(left, s.collectAll(scratchName(i))...)
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
	if cq.RemoveDead(d, name) == nil {
		return nil
	}
	q, err := cq.Adopt(d, name, cq.Options{})
	if err == nil {
		err = q.Close()
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, cq.ErrClosed) {
		err = nil
	}
	if err = errors.Join(err, cq.RemoveDead(d, name)); err != nil {
		return []string{fmt.Sprintf("%s cannot be collected: %v", name, err)}
	}
	return nil
}

// removeDead removes an object of a process that is dead.
func removeDead(d *shm.Dir, name string) error {
	o, err := d.Open(name, shm.ReadWrite)
	if err != nil {
		return err
	}
	defer o.Close()
	if err := o.Claim(nil); err != nil {
		return err
	}
	return o.Unlink()
}
