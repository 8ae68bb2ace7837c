package cq_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestDeadBellManyNames: a bell that its process left in several directories goes from each of them
// as soon as somebody has a set for it, or puts a queue of it into one.
func TestDeadBellManyNames(t *testing.T) {
	one := openDir(t)
	dirs := []*shm.Dir{one}
	for range 2 {
		path, err := os.MkdirTemp(filepath.Dir(one.Path()), "shmring-more-")
		must(t, err)
		t.Cleanup(func() { must(t, os.RemoveAll(path)) })
		d, err := shm.OpenDir(path)
		must(t, err)
		t.Cleanup(func() { must(t, d.Close()) })
		dirs = append(dirs, d)
	}
	spec := cq.BellSpec()
	spec.UUID = shm.NewUUID()
	name := "bell-" + spec.UUID.String()
	obj, err := one.Create(name, spec, nil)
	must(t, err)
	for _, d := range dirs[1:] {
		must(t, obj.LinkTo(d, name))
	}
	must(t, obj.Release())
	must(t, obj.Close())

	for _, d := range dirs[:2] {
		s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
		must(t, err)
		must(t, s.Close())
	}
	s := waitSet(t, one, cq.WaitSetOptions{})
	q, err := cq.Create(dirs[2], "q", cq.Options{})
	must(t, err)
	must(t, s.Add(q))
	must(t, s.Remove(q))
	must(t, q.Close())
	for i, d := range dirs {
		names, err := d.List()
		must(t, err)
		for _, n := range names {
			if strings.Contains(n.Name, spec.UUID.String()) {
				t.Errorf("directory %d still has %s", i, n.Name)
			}
		}
	}
}

// TestBellGoesWithoutDescriptors: a process that has no descriptor left takes its bell away.
func TestBellGoesWithoutDescriptors(t *testing.T) {
	d := openDir(t)
	bells := func() (n int) {
		names, err := d.List()
		must(t, err)
		for _, name := range names {
			if strings.HasPrefix(name.Name, "bell-") {
				n++
			}
		}
		return n
	}
	before := bells()
	s, err := cq.NewWaitSet(d, cq.WaitSetOptions{})
	must(t, err)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	err = s.Close()
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if n := bells(); err != nil || n != before {
		t.Errorf("%d bells, before there were %d; %v", n, before, err)
	}
}
