package shm

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

// childTinyFS mounts a file system of 1 MiB that only it sees.
func childTinyFS() {
	path := os.Getenv(EnvDir)
	must(syscall.Mount("tmpfs", path, "tmpfs", 0, "size=1m,mode=0700"))
	d := childDir()
	spec := specFor("")
	spec.Sections[0].Length = 2 << 20
	_, err := d.Create("big", spec, nil)
	var no *NoSpaceError
	say("%v %v", errors.Is(err, ErrNoSpace) && errors.Is(err, syscall.ENOSPC), errors.As(err, &no))
	if no == nil {
		must(err)
	}
	say("needed %v available %v", no.Needed > 2<<20, no.Available == 1<<20)

	// The file system filled up after it was asked: the kernel's refusal gets the same face.
	b := builder{name: "big", spec: spec, dir: d.ref}
	fd, err := sysTmpfile(d.ref.fd)
	must(err)
	err = b.noSpace(sysAllocate(fd, 2<<20), 2<<20)
	sysClose(fd)
	say("%v", errors.Is(err, ErrNoSpace))

	left, err := d.List()
	must(err)
	o, err := d.Create("small", specFor(""), nil)
	say("left %d, then %v", len(left), err)
	must(errors.Join(o.Unlink(), o.Close(), d.Close(), syscall.Unmount(path, 0)))
	say("unmounted")
}

func TestTinyFileSystem(t *testing.T) {
	cmd := shmtest.Child(t, "tinyfs")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd, "mount")
	for _, want := range []string{"true true", "needed true available true", "true",
		"left 0, then <nil>", "unmounted"} {
		if got := c.line(t); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
