package cq_test

import (
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
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
	if r, err := cq.Remaining(d, name, cq.Removal{}); err != nil || r.Fate != cq.FateGarbage {
		t.Fatalf("%s of killed processes: %v, %v", name, r.Fate, err)
	}
}

// TestCreateAwaitsCollector: Create makes room where a dead queue stands also while somebody who
// removes it has its locks, and gives up again.
func TestCreateAwaitsCollector(t *testing.T) {
	defer cq.PatientContests()()
	d := openDir(t)
	for name, hold := range map[string]func(*shm.Dir, string) (func(), error){
		"lanes": cq.HoldLanes, "reader": cq.HoldReader} {
		deadQueue(t, d, name)
		release, err := hold(d, name)
		must(t, err)
		if err := cq.Remove(d, name, cq.Removal{}); !errors.Is(err, cq.ErrBusy) {
			t.Errorf("%s: removed while it was held: %v", name, err)
		}
		if r, err := cq.Remaining(d, name, cq.Removal{}); err != nil || r.Fate != cq.FateLiving {
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
	defer cq.PatientContests()()
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
	must(t, cq.Remove(d, "q", cq.Removal{Waiting: true}))
	c := startChild(t, "creator", envQueue+"=dead")
	_ = c.line(t)
	w, err = cq.Attach(t.Context(), d, "dead", cq.WriterOptions{})
	must(t, err)
	c.kill()
	exists("its reader is dead, and a writer lives", "dead")
	must(t, w.Close())
	must(t, cq.Remove(d, "dead", cq.Removal{}))
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
				err := cq.Remove(d, "q", cq.Removal{Waiting: true})
				if err != nil && !errors.Is(err, cq.ErrBusy) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		must(t, cq.Remove(d, "q", cq.Removal{Waiting: true}))
	}
}
