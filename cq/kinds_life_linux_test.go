package cq_test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/shm"
)

// zero returns options that ask for nothing.
func (k objectKind) zero() any { return reflect.Zero(reflect.TypeOf(k.base)).Interface() }

// isDir says that a directory stands for an object, not a file.
func (k objectKind) isDir() bool { return strings.Contains(k.file, "/") }

// calls are all calls that open an object of the kind by name.
func (k objectKind) calls() map[string]opening {
	calls := map[string]opening{"create": k.create}
	maps.Copy(calls, k.again)
	calls["attach"] = k.attach
	return calls
}

// eachKind runs a test for each kind of object, in a directory in which nothing is left.
func eachKind(t *testing.T, f func(t *testing.T, d *shm.Dir, k objectKind)) {
	for _, k := range objectKinds() {
		t.Run(k.name, func(t *testing.T) {
			d := openDir(t)
			f(t, d, k)
			nothingLeft(t, d)
		})
	}
}

// TestNames: what cannot be a name is refused by each call that takes one.
func TestNames(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		for _, name := range []string{"", "a/b", "/a", "..", ".", ".x", "a\x00b",
			string(make([]byte, 300))} {
			for what, call := range k.calls() {
				_, err := call(cq.Named(d, name), k.zero())
				wantErr(t, what, err, shm.ErrName, syscall.EINVAL)
			}
			wantErr(t, "remove", cq.Remove(cq.Named(d, name)), shm.ErrName, syscall.EINVAL)
		}
		for _, name := range []string{"bell-x", "new-" + shm.NewUUID().String(), "x~collected",
			"x.lock"} {
			for what, call := range k.calls() {
				if what == "create" || k.creates(what) {
					_, err := call(cq.Named(d, name), k.zero())
					wantErr(t, what+" "+name+", which is reserved", err, shm.ErrName, syscall.EINVAL)
				}
			}
		}
	})
}

// TestNone: what is not there is opened by nobody, and left out by a removal.
func TestNone(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		for what, call := range k.calls() {
			if what != "create" && !k.creates(what) {
				_, err := call(cq.Named(d, "none"), k.zero())
				wantErr(t, what, err, fs.ErrNotExist, syscall.ENOENT)
			}
		}
		must(t, cq.Remove(cq.Named(d, "none")))
		must(t, collect.Remove(d, "none", collect.Options{}))
	})
}

// TestTaken: an object that has an owner, or waits for one, is made by nobody else; its owner is
// named to who would take it over.
func TestTaken(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		q, err := k.create(cq.Named(d, "taken"), k.base)
		must(t, err)
		_, err = k.create(cq.Named(d, "taken"), k.base)
		wantErr(t, "create", err, fs.ErrExist, syscall.EEXIST)
		for what, call := range k.again {
			if k.name == "counter" {
				continue // which belongs to all that have it open
			}
			_, err = call(cq.Named(d, "taken"), k.zero())
			var busy *shm.BusyError
			if !errors.As(err, &busy) || busy.PID != os.Getpid() {
				t.Errorf("%s: %v, want a BusyError of this process", what, err)
			}
		}
		must(t, q.leave())
		_, err = k.create(cq.Named(d, "taken"), k.base)
		wantErr(t, "create of one that was left", err, fs.ErrExist)
		for _, call := range k.again {
			q, err = call(cq.Named(d, "taken"), k.zero())
			must(t, err)
			must(t, errors.Join(q.leave(), q.leave())) // again is harmless
		}
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "taken")))
			return
		}
		q, err = k.again["adopt"](cq.Named(d, "taken"), k.zero())
		must(t, err)
		must(t, errors.Join(q.close(), q.close()))
		_, err = k.again["adopt"](cq.Named(d, "taken"), k.zero())
		wantErr(t, "a closed one", err, fs.ErrNotExist)
	})
}

// TestOtherKind: no object is opened as one of another kind.
func TestOtherKind(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		q, err := k.create(cq.Named(d, "other"), k.base)
		must(t, err)
		for _, other := range objectKinds() {
			for what, call := range other.calls() {
				if other.name != k.name {
					_, err = call(cq.Named(d, "other"), other.zero())
					wantOther(t, what+" as "+other.name, what, err)
				}
			}
		}
		must(t, q.close())
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "other")))
		}
	})
}

// wantOther checks that a call is refused for what stands there: its name is taken, or it is of
// another kind.
func wantOther(t *testing.T, what, verb string, err error) {
	t.Helper()
	if verb == "create" {
		wantErr(t, what, err, fs.ErrExist, syscall.EEXIST)
		return
	}
	wantErr(t, what, err, shm.ErrKind, syscall.EINVAL)
}

// TestWrongThing: what is no object of a kind at all is refused like one of another kind.
func TestWrongThing(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		at := filepath.Join(d.Path(), "wrong")
		for name, put := range map[string]func() error{
			"file":      func() error { return os.WriteFile(at, bytes.Repeat([]byte("text"), 2048), 0o600) },
			"directory": func() error { return os.MkdirAll(at+"/foreign", 0o700) },
			"FIFO":      func() error { return syscall.Mkfifo(at, 0o600) },
			"link":      func() error { return os.Symlink(at, at) },
			"dangling":  func() error { return os.Symlink("nothing", at) },
			"socket": func() error {
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
				if err == nil {
					l.SetUnlinkOnClose(false)
					err = l.Close()
				}
				return err
			},
			"region": func() error {
				region, err := d.Create("wrong", shm.Spec{Kind: shm.KindRegion}, nil)
				if err == nil {
					err = region.Close()
				}
				return err
			},
		} {
			if name == "directory" && k.isDir() {
				continue // in which there may be a queue beside other things
			}
			must(t, put())
			for what, call := range k.calls() {
				_, err := call(cq.Named(d, "wrong"), k.zero())
				if name == "file" && !k.isDir() && what != "create" {
					wantErr(t, what+" of a file", err, shm.ErrCorrupt) // as a damaged object is
					continue
				}
				wantOther(t, what+" of a "+name, what, err)
			}
			if name == "region" {
				wantErr(t, "removal of a region", cq.Remove(cq.Named(d, "wrong")), shm.ErrKind)
			}
			must(t, os.RemoveAll(at))
		}
	})
}

// TestInvalidOptions: whoever gives options that make no sense is told the field by every call.
func TestInvalidOptions(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		q, err := k.create(cq.Named(d, "left"), k.base)
		must(t, err)
		must(t, q.leave())
		for _, r := range k.refused {
			calls := map[string]func() (object, error){
				"create":  func() (object, error) { return k.create(cq.Named(d, "none"), r.options) },
				"unnamed": func() (object, error) { return k.create(cq.Unnamed("none"), r.options) },
			}
			for verb, call := range k.again {
				calls[verb] = func() (object, error) { return call(cq.Named(d, "left"), r.options) }
			}
			if o, ok := r.options.(cq.Options); ok {
				calls["plan"] = func() (object, error) { _, err := cq.Plan(o, 1); return object{}, err }
			}
			for name, call := range calls {
				_, err := call()
				if err == nil {
					t.Errorf("%s took %+v", name, r.options)
					continue
				}
				wantErr(t, name, err, cq.ErrInvalid, syscall.EINVAL)
				wantField(t, err, r.field)
			}
		}
		for _, call := range k.again {
			q, err = call(cq.Named(d, "left"), k.zero())
			must(t, err)
			must(t, q.close())
			break
		}
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "left")))
		}
	})
}
