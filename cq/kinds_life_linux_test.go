package cq_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
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
		if k.name != "addresses" { // which can be called so, and is no bell for it
			_, err := k.create(cq.Named(d, "bell-x"), k.zero())
			wantErr(t, "the name of a bell", err, shm.ErrName)
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
		region, err := d.Create("region", shm.Spec{Kind: shm.KindRegion}, nil)
		must(t, err)
		wantErr(t, "removal of a region", cq.Remove(cq.Named(d, "region")), shm.ErrKind)
		for _, other := range objectKinds() {
			for what, call := range other.calls() {
				_, err := call(cq.Named(d, "region"), other.zero())
				wantOther(t, what+" a region as "+other.name, what, err, !other.isDir())
				if other.name != k.name {
					_, err = call(cq.Named(d, "other"), other.zero())
					wantOther(t, what+" as "+other.name, what, err, other.isDir() == k.isDir())
				}
			}
		}
		must(t, errors.Join(region.Unlink(), region.Close(), q.close()))
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "other")))
		}
	})
}

// wantOther checks that a call is refused for what stands there: an object of another kind, or a
// file where a directory should be, or the other way round.
func wantOther(t *testing.T, what, verb string, err error, alike bool) {
	t.Helper()
	switch {
	case verb == "create" && errors.Is(err, fs.ErrExist):
	case !alike:
		if bad := (*shm.Error)(nil); !errors.As(err, &bad) || bad.Want == nil {
			t.Errorf("%s: %v does not say what it wants", what, err)
		}
	default:
		wantErr(t, what, err, shm.ErrKind, syscall.EINVAL)
	}
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
