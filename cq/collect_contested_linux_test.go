package cq_test

import (
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/shm"
)

// deadQueue leaves an ephemeral queue, with a lane, all of whose processes were killed.
func deadQueue(t *testing.T, d *shm.Dir, name string) {
	t.Helper()
	c := startChild(t, "creator", envQueue+"="+name)
	_ = c.line(t)
	w := startChild(t, "writer", envQueue+"="+name, envCount+"=3")
	_ = w.line(t)
	w.kill()
	c.kill()
	if r, err := collect.Assess(d, name, collect.Options{}); err != nil || r.Fate != collect.Garbage {
		t.Fatalf("%s of killed processes: %v, %v", name, r.Fate, err)
	}
}

// holdReader does what who collects a queue goes on with after its lanes, until release gives up.
func holdReader(d *shm.Dir, name string) (release func(), err error) {
	dir, err := d.Sub(name, false)
	if err != nil {
		return nil, err
	}
	obj, err := dir.Open(cq.ReaderFile, shm.ReadWrite)
	if err == nil {
		err = obj.Hold()
	}
	return func() {
		_ = errors.Join(obj.Close(), dir.Close())
	}, err
}

// patientContests has nobody give up on who removes a queue until restore.
func patientContests() (restore func()) {
	was := collect.ContestMost
	collect.ContestMost = time.Hour
	return func() { collect.ContestMost = was }
}

// TestCreateAwaitsCollector: Create makes room where a dead queue stands also while somebody who
// removes it has its locks, and gives up again.
func TestCreateAwaitsCollector(t *testing.T) {
	defer patientContests()()
	d := openDir(t)
	for name, hold := range map[string]func(*shm.Dir, string) (func(), error){
		"lanes": collect.HoldLanes, "reader": holdReader} {
		deadQueue(t, d, name)
		release, err := hold(d, name)
		must(t, err)
		if err := collect.Remove(d, name, collect.Options{}); !errors.Is(err, cq.ErrBusy) {
			t.Errorf("%s: removed while it was held: %v", name, err)
		}
		if r, err := collect.Assess(d, name, collect.Options{}); err != nil || r.Fate != collect.Living {
			t.Errorf("%s: held by somebody it is %v, %v", name, r.Fate, err)
		}
		made := make(chan error, 1)
		go func() {
			q, err := cq.Create(d, name, cq.Options{Size: 8})
			if err == nil {
				err = q.Close()
			}
			made <- err
		}()
		select {
		case err := <-made:
			t.Errorf("%s: did not wait: %v", name, err)
			made <- err
		case <-time.After(20 * time.Millisecond):
		}
		release()
		must(t, <-made)
	}
}

// TestCreateWaitsForNobody: where somebody lives, or a queue waits for a successor, Create does not
// wait, however patient it is.
func TestCreateWaitsForNobody(t *testing.T) {
	defer patientContests()()
	d := openDir(t)
	exists := func(what, name string) {
		t.Helper()
		_, err := cq.Create(d, name, cq.Options{Size: 8})
		wantErr(t, what, err, fs.ErrExist)
	}
	q, err := cq.Create(d, "q", cq.Options{Size: 8})
	must(t, err)
	exists("its reader lives", "q")
	w, err := cq.Attach(t.Context(), d, "q", cq.WriterOptions{})
	must(t, err)
	must(t, q.Detach())
	exists("its writer lives", "q")
	must(t, w.Close())
	exists("it was left", "q")
	must(t, collect.Remove(d, "q", collect.Options{Waiting: true}))
	c := startChild(t, "creator", envQueue+"=dead")
	_ = c.line(t)
	w, err = cq.Attach(t.Context(), d, "dead", cq.WriterOptions{})
	must(t, err)
	c.kill()
	exists("its reader is dead, and a writer lives", "dead")
	must(t, w.Close())
	must(t, collect.Remove(d, "dead", collect.Options{}))
}

// TestRemoveTogether: of those who remove a queue at once nobody is told of what the others
// removed under his hands.
func TestRemoveTogether(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	for range 40 {
		q, err := cq.Create(d, "q", cq.Options{Size: 8, MaxLanes: 4})
		must(t, err)
		var ws []*cq.Writer
		for range 4 {
			w, err := cq.Attach(t.Context(), d, "q", cq.WriterOptions{})
			must(t, err)
			ws = append(ws, w)
		}
		for _, w := range ws {
			must(t, w.Close())
		}
		must(t, q.Detach())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				err := collect.Remove(d, "q", collect.Options{Waiting: true})
				if err != nil && !errors.Is(err, cq.ErrBusy) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must(t, collect.Remove(d, "q", collect.Options{Waiting: true}))
	}
}
