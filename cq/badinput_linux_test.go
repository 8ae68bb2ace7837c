package cq_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// TestRefusedQueues: a queue that cannot be used is one typed error for everybody who comes, which
// says what to do, and nothing in the directory changes by asking.
func TestRefusedQueues(t *testing.T) {
	const nobody = 65534
	privacy := []error{shm.ErrOwner, syscall.EPERM}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  []error
		hint  string
	}{
		"missing": {func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) },
			[]error{fs.ErrNotExist, syscall.ENOENT}, shm.EnvDir},
		"loose object": {func(t *testing.T, dir string) { must(t, os.Chmod(reader(dir), 0o640)) },
			privacy, "chmod"},
		"loose queue": {func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o755)) },
			privacy, "chmod"},
		"their object": {func(t *testing.T, dir string) { chown(t, reader(dir), nobody) },
			privacy, "that user"},
		"their queue": {func(t *testing.T, dir string) { chown(t, dir, nobody) },
			privacy, "that user"},
		"truncated": {func(t *testing.T, dir string) { must(t, os.Truncate(reader(dir), 5000)) },
			[]error{shm.ErrTruncated}, "owner"},
		"other version": {func(t *testing.T, dir string) { patch(t, reader(dir), offABIMajor, 9) },
			[]error{shm.ErrVersion, syscall.EPROTONOSUPPORT}, "one version"},
		"half written": {func(t *testing.T, dir string) { patch(t, reader(dir), offState, 0) },
			[]error{shm.ErrCorrupt, syscall.EBADMSG}, "remove"},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			queue := queueName(t)
			q, err := cq.Create(d, queue, cq.Options{Size: 4, Lifetime: cq.Persistent})
			must(t, err)
			must(t, q.Detach())
			dir := filepath.Join(d.Path(), queue)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			c.spoil(t, dir)
			before := contents(t, d.Path())
			for what, use := range users(t, d, queue) {
				if what == "open" && (name == "missing" || name == "truncated") {
					continue // it creates the queue
				}
				err := use()
				wantErr(t, what, err, c.want...)
				var e *shm.Error
				if !errors.As(err, &e) || !strings.Contains(e.Hint, c.hint) {
					t.Errorf("%s: %v does not say what to do: want %q", what, err, c.hint)
				}
				if after := contents(t, d.Path()); after != before {
					t.Errorf("%s: before:\n%s\nafter:\n%s", what, before, after)
				}
			}
		})
	}
}

// TestOtherSlots: a queue whose slots have another meaning is refused as one of another version.
func TestOtherSlots(t *testing.T) {
	d, queue := openDir(t), queueName(t)
	spec, err := cq.ReaderSpec(queue, cq.Options{Size: 4, Lifetime: cq.Persistent})
	must(t, err)
	for i := range spec.Sections {
		if spec.Sections[i].Kind == cq.SectSlots {
			spec.Sections[i].LayoutHash = 1
		}
	}
	obj, dir, err := d.CreateIn(queue, cq.ReaderFile, spec, nil)
	must(t, err)
	t.Cleanup(func() {
		must(t, errors.Join(dir.Close(), os.RemoveAll(filepath.Join(d.Path(), queue))))
	})
	must(t, errors.Join(obj.Release(), obj.Close()))
	for what, use := range users(t, d, queue) {
		err := use()
		wantErr(t, what, err, shm.ErrVersion, syscall.EPROTONOSUPPORT)
		var e *shm.Error
		if !errors.As(err, &e) || !strings.Contains(e.Hint, "one version") {
			t.Errorf("%s: %v does not say what to do", what, err)
		}
	}
}

// Where the version and the state stand in the header of every object.
const (
	offABIMajor = 0x0c
	offState    = 0xa00
)

func reader(dir string) string { return filepath.Join(dir, cq.ReaderFile) }

// patch overwrites a byte of a file.
func patch(t *testing.T, path string, at int64, b byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte{b}, at)
	must(t, err)
}

func chown(t *testing.T, path string, uid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		shmtest.Require(t, "root", errors.New("nobody else may give files away"))
	}
	must(t, os.Chown(path, uid, uid))
}

// contents lists a directory and all below it, with the sizes and the modes.
func contents(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			b.WriteString(fs.FormatFileInfo(info) + " " + path + "\n")
		}
		return err
	}))
	return b.String()
}
