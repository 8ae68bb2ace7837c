package collect

import (
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// LastLook is that of a collector who found no lanes, also at what waits.
func LastLook(at, dir *shm.Dir, name string, reader *shm.Object) func() error {
	t := &target{at: at, name: name, dir: dir, main: reader.Name(), o: Options{Waiting: true}}
	return (&lastLook{target: t, obj: reader}).look
}

// Found returns how a queue stands, and what removes that, whatever has its name by then.
func Found(t *testing.T, d *shm.Dir, name string) (Fate, func() error) {
	t.Helper()
	found := shmtest.Got(find(d, name, Options{})).Or(t)
	t.Cleanup(func() { _ = found.dir.Close() })
	r := shmtest.Got(found.assess()).Or(t)
	return r.Fate, found.remove
}

// HeldByOthers looks, for who found that an object cannot be had, whether it can in a moment.
func HeldByOthers(t *testing.T, d *shm.Dir, name string) (look func() bool) {
	t.Helper()
	return shmtest.Got(find(d, name, Options{})).Or(t).heldByOthers
}

// LeadsTo reports whether a name still leads to the directory that was opened by it.
func LeadsTo(d *shm.Dir, name string, sub *shm.Dir) (bool, error) { return leadsTo(d, name, sub) }
