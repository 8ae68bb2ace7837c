package cq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// restartField is a field of an object's options, as whoever takes the object over may give it.
type restartField struct {
	name  string
	value any
	// contrary are values with which a queue is made that is asked for value later.
	contrary []any
	fixed    bool // when the object is made; else it is each reader's own
	// refused is what asking for something else is, if it is not ErrInvalid.
	refused error
}

// object is an object that was opened.
type object struct {
	options any
	leave   func() error // to a successor
	close   func() error
}

// opening is a call that opens an object, with options of the kind.
type opening func(p cq.Place, o any) (object, error)

// objectKind is a kind of object that processes share, and outlives who opened it.
type objectKind struct {
	name    string
	file    string // of an object, by which its name is taken
	base    any    // options that the rest is set in
	fields  []restartField
	create  opening
	again   map[string]opening // takes over what another left; an open may create
	attach  opening            // opens it beside its owner; options do not matter
	refused []refusedOption
}

// refusedOption are options with which there is no object, and the field that is to blame.
type refusedOption struct {
	field   string
	options any
}

// creates says whether a call of again creates what is not there.
func (k objectKind) creates(verb string) bool { return verb == "open" && k.name != "counter" }

// opener makes one of the calls that open objects a function of a table, adopter one with Existing,
// and beside one of those that only the name matters to.
func opener[O, Q any](call func(cq.Place, O) (Q, error), of func(Q) object) opening {
	return func(p cq.Place, o any) (object, error) {
		q, err := call(p, o.(O))
		if err != nil {
			return object{}, err
		}
		return of(q), nil
	}
}

func adopter[O, Q any](call func(cq.Place, O) (Q, error), of func(Q) object) opening {
	return opener(func(p cq.Place, o O) (Q, error) {
		reflect.ValueOf(&o).Elem().FieldByName("Existing").SetBool(true)
		return call(p, o)
	}, of)
}

func beside[Q io.Closer](call func(cq.Place) (Q, error)) opening {
	return func(p cq.Place, _ any) (object, error) {
		q, err := call(p)
		if err != nil {
			return object{}, err
		}
		return object{close: q.Close}, nil
	}
}

func objectKinds() []objectKind {
	queue := func(q *cq.Queue) object { return object{q.Options(), q.Detach, q.Close} }
	events := func(e *cq.EventQueue) object { return object{e.Options(), e.Detach, e.Close} }
	counter := func(c *cq.Counter) object { return object{c.Options(), c.Close, c.Close} }
	vector := func(v *cq.AddressVector) object { return object{v.Options(), v.Detach, v.Close} }
	type opens = map[string]opening
	return []objectKind{
		{"queue", "queue/reader", cq.Options{Size: 8}, queueFields(), opener(cq.Create, queue),
			opens{"open": opener(cq.Open, queue), "adopt": adopter(cq.Open, queue)},
			beside(attachQueue), refusedQueues()},
		{"events", "events/reader", cq.EventOptions{Size: 8}, eventFields(),
			opener(cq.CreateEvents, events),
			opens{"open": opener(cq.OpenEvents, events), "adopt": adopter(cq.OpenEvents, events)},
			beside(attachToEvents), refusedEvents()},
		{"counter", "counter", cq.CounterOptions{Lifetime: cq.Persistent}, counterFields(),
			opener(cq.CreateCounter, counter), opens{"open": opener(cq.AttachCounter, counter)},
			opener(cq.AttachCounter, counter), refusedCounters()},
		{"addresses", "addresses", cq.AddressOptions{Count: 8}, addressFields(),
			opener(cq.CreateAddresses, vector),
			opens{"open": opener(cq.OpenAddresses, vector), "adopt": adopter(cq.OpenAddresses, vector)},
			beside(cq.AttachAddresses), refusedVectors()},
	}
}

func attachQueue(p cq.Place) (*cq.Writer, error) {
	return cq.Attach(context.Background(), p, cq.WriterOptions{})
}

func attachToEvents(p cq.Place) (*cq.EventWriter, error) {
	return cq.AttachEvents(context.Background(), p, cq.WriterOptions{})
}

func refusedQueues() []refusedOption {
	return []refusedOption{
		{"Format", cq.Options{Format: cq.FormatTagged + 1}},
		{"Size", cq.Options{Size: -1}},
		{"Size", cq.Options{Size: cq.MaxCapacity + 1}},
		{"Size", cq.Options{Size: math.MaxInt}},
		{"MaxLanes", cq.Options{MaxLanes: -1}},
		{"MaxLanes", cq.Options{MaxLanes: cq.MaxLanes + 1}},
		{"Overrun", cq.Options{Overrun: cq.OverrunQueue + 1}},
		{"Lifetime", cq.Options{Lifetime: cq.Persistent + 1}},
		{"Wait", cq.Options{Wait: cq.WaitCritSecCond + 1}},
		{"Affinity", cq.Options{Affinity: cq.Affinity{Valid: true, CPU: -1}}},
	}
}

func refusedEvents() []refusedOption {
	return []refusedOption{
		{"Size", cq.EventOptions{Size: -1}},
		{"DataMaxBytes", cq.EventOptions{DataMaxBytes: 65513}},
		{"MaxLanes", cq.EventOptions{MaxLanes: 1025}},
		{"Overrun", cq.EventOptions{Overrun: 7}},
		{"Lifetime", cq.EventOptions{Lifetime: 7}},
		{"Wait", cq.EventOptions{Wait: 77}},
		{"Wait", cq.EventOptions{Wait: cq.WaitFD, Handler: func(*cq.Event, error) {}}},
		{"Affinity", cq.EventOptions{Affinity: cq.Affinity{Valid: true, CPU: -5}}},
	}
}

func refusedCounters() []refusedOption {
	return []refusedOption{
		{"Events", cq.CounterOptions{Events: 2}},
		{"Lifetime", cq.CounterOptions{Lifetime: 2}},
		{"Wait", cq.CounterOptions{Wait: 99}},
	}
}

func refusedVectors() []refusedOption {
	return []refusedOption{
		{"Count", cq.AddressOptions{Count: -1}},
		{"Count", cq.AddressOptions{Count: 1<<22 + 1}},
		{"AddrMaxBytes", cq.AddressOptions{AddrMaxBytes: 16}}, // no room for IPv6
		{"AddrMaxBytes", cq.AddressOptions{AddrMaxBytes: 257}},
		{"AddrMaxBytes", cq.AddressOptions{AddrMaxBytes: -1}},
		{"Format", cq.AddressOptions{Format: 99}},
		{"Lifetime", cq.AddressOptions{Lifetime: 9}},
	}
}

// sharedFields are those that queues and event queues have alike.
func sharedFields() []restartField {
	return []restartField{
		{"Size", 64, []any{128, 32}, true, nil},
		{"MaxLanes", 3, []any{5, 2}, true, nil},
		{"Overrun", cq.OverrunQueue, []any{cq.BackPressure}, true, nil},
		{"Lifetime", cq.Persistent, []any{cq.Ephemeral}, true, nil},
		{"Wait", cq.WaitYield, []any{cq.WaitFD, cq.WaitUnspec, cq.WaitNone}, true, nil},
		{"Trust", cq.CrossUser, []any{cq.SameUser}, true, nil},
		{"WritersPay", true, []any{false}, true, nil},
		{"Allow", &shm.AllowList{UIDs: []int{7}}, []any{(*shm.AllowList)(nil)}, false, nil},
		{"UserLanes", 2, []any{1}, false, nil},
		{"Spin", time.Microsecond, []any{time.Duration(-1)}, false, nil},
		{"Shared", true, []any{false}, false, nil},
		{"WaitSet", &cq.WaitSet{}, []any{(*cq.WaitSet)(nil)}, false, nil}, // only kept here
		{"Affinity", cq.Affinity{Valid: true, CPU: 1}, []any{cq.Affinity{}}, false, nil},
		{"UserContext", "a", []any{"b"}, false, nil},
	}
}

func queueFields() []restartField {
	return append(sharedFields(),
		restartField{"Format", cq.FormatMsg, []any{cq.FormatTagged, cq.FormatData}, true, nil},
		restartField{"Format", cq.FormatData, []any{cq.FormatContext, cq.FormatMsg}, true,
			cq.ErrFormat},
		restartField{"NotifyFlagsOnly", true, []any{false}, false, nil})
}

func eventFields() []restartField {
	handle := func(*cq.Event, error) {}
	return append(sharedFields(),
		restartField{"DataMaxBytes", 488, []any{232, 1000}, true, nil},
		restartField{"Write", true, []any{false}, false, nil},
		restartField{"Handler", handle, []any{(func(*cq.Event, error))(nil)}, false, nil})
}

func counterFields() []restartField {
	return []restartField{
		{"Events", cq.BytesCounter, []any{cq.CompletionsCounter}, true, nil},
		{"Lifetime", cq.Persistent, nil, true, nil}, // an ephemeral one goes with its last process
		{"Wait", cq.WaitFD, []any{cq.WaitYield}, false, nil},
		{"Spin", time.Microsecond, []any{time.Duration(-1)}, false, nil},
		{"UserContext", "a", []any{"b"}, false, nil},
	}
}

func addressFields() []restartField {
	check := func([]byte) error { return nil }
	return []restartField{
		{"Count", 64, []any{128, 32}, true, nil},
		{"AddrMaxBytes", 40, []any{32, 64}, true, nil},
		{"Format", cq.AddrSockaddrIn, []any{cq.AddrSockaddr, cq.AddrOpaque}, true, nil},
		{"Format", cq.AddrOpaque, []any{cq.AddrSockaddrIn6}, true, nil},
		{"UserID", true, []any{false}, true, nil},
		{"Lifetime", cq.Persistent, []any{cq.Ephemeral}, true, nil},
		{"Check", check, []any{(func([]byte) error)(nil)}, false, nil},
		{"UserContext", "a", []any{"b"}, false, nil},
	}
}

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
		q := shmtest.Got(k.create(cq.Named(d, "taken"), k.base)).Or(t)
		_, err := k.create(cq.Named(d, "taken"), k.base)
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
			q = shmtest.Got(call(cq.Named(d, "taken"), k.zero())).Or(t)
			must(t, errors.Join(q.leave(), q.leave())) // again is harmless
		}
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "taken")))
			return
		}
		q = shmtest.Got(k.again["adopt"](cq.Named(d, "taken"), k.zero())).Or(t)
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
	shmtest.Conforms(t)
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		q := shmtest.Got(k.create(cq.Named(d, "left"), k.base)).Or(t)
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
			q = shmtest.Got(call(cq.Named(d, "left"), k.zero())).Or(t)
			must(t, q.close())
			break
		}
		if k.name == "counter" {
			must(t, cq.Remove(cq.Named(d, "left")))
		}
	})
}

// forgeable are the layouts of objects of each kind, and values that their attributes cannot have.
func forgeable(t *testing.T, k objectKind) (shm.Spec, map[int][]uint64) {
	const format, capacity, lanes, overrun, lifetime, wait, detail = 0, 1, 2, 3, 4, 5, 8
	bad := map[int][]uint64{capacity: {0, 3, 8, 2, 1 << 40, 1 << 63}, lanes: {0, 1, 60, 1 << 40,
		^uint64(0)}, overrun: {5, 1 << 32}, lifetime: {7}, wait: {77}, detail: {0, ^uint64(0)}}
	switch k.name {
	case "queue":
		bad[format], bad[detail] = []uint64{0, 9}, append(bad[detail], 128)
		spec := shmtest.Got(cq.ReaderSpec("forged", cq.Options{Size: 4, MaxLanes: 2})).Or(t)
		return spec, bad
	case "events":
		e := shmtest.Have(cq.CreateEvents(cq.Unnamed("e"), cq.EventOptions{Size: 4, MaxLanes: 2})).In(t)
		return cq.EventReaderSpec(e), bad
	case "counter":
		return cq.CounterSpec("forged", cq.CounterOptions{}), map[int][]uint64{0: {9}, 1: {9}, 7: {1}}
	}
	spec := shmtest.Got(cq.AddressSpec("forged", cq.AddressOptions{Count: 8})).Or(t)
	bad = map[int][]uint64{}
	for i := range 8 {
		bad[i] = []uint64{0, 7, 9, 1 << 20, 1 << 40, ^uint64(0)}
	}
	return spec, bad
}

// forgeries are what a valid header can say that cannot be, and what opening such an object is.
func forgeries(of shm.Spec, bad map[int][]uint64,
	try func(name string, s shm.Spec, want ...error)) {
	corrupt := []error{cq.ErrCorrupt, shm.ErrCorrupt, syscall.EBADMSG}
	forge := func(name string, want []error, f func(s *shm.Spec)) {
		s := of
		s.Sections = slices.Clone(of.Sections)
		f(&s)
		try(name, s, want...)
	}
	for i, values := range bad {
		for _, v := range values {
			if v != of.Attrs[i] {
				forge(fmt.Sprint("attribute ", i, " is ", v), corrupt,
					func(s *shm.Spec) { s.Attrs[i] = v })
			}
		}
	}
	for i := range of.Sections {
		for _, n := range []uint64{8, 64} {
			forge(fmt.Sprint("section ", i, " of ", n, " bytes"), corrupt, func(s *shm.Spec) {
				s.Sections[i].Length, s.Sections[i].ElemSize, s.Sections[i].Capacity = n, 0, 0
			})
		}
		forge(fmt.Sprint("section ", i, " missing"), corrupt, func(s *shm.Spec) {
			s.Sections = slices.Delete(s.Sections, i, i+1)
		})
		forge(fmt.Sprint("section ", i, " of another kind"), corrupt, func(s *shm.Spec) {
			s.Sections[i].Kind = 0x900
		})
		forge(fmt.Sprint("section ", i, " of another layout"), []error{shm.ErrVersion,
			syscall.EPROTONOSUPPORT}, func(s *shm.Spec) { s.Sections[i].LayoutHash++ })
	}
	forge("no sections", corrupt, func(s *shm.Spec) { s.Sections = nil })
	forge("another kind", []error{shm.ErrKind, syscall.EINVAL}, func(s *shm.Spec) {
		s.Kind = shm.KindRegion
	})
}

// TestForged: what a valid header says that cannot be is opened by nobody, and in the way of who
// creates something.
func TestForged(t *testing.T) {
	eachKind(t, func(t *testing.T, d *shm.Dir, k objectKind) {
		of, bad := forgeable(t, k)
		forgeries(of, bad, func(name string, spec shm.Spec, want ...error) {
			in, file := d, "forged"
			if k.isDir() {
				in, file = shmtest.Have(d.Sub("forged", true)).In(t), cq.ReaderFile
			}
			obj := shmtest.Got(in.Create(file, spec, nil)).Or(t)
			wantForged(t, d, k, name, want)
			if !k.isDir() {
				_, err := k.attach(cq.FromFD(obj.FD(), ""), k.zero())
				wantErr(t, "by descriptor, with "+name, err, want...)
			}
			must(t, errors.Join(obj.Close(), os.RemoveAll(filepath.Join(d.Path(), "forged"))))
		})
	})
}

// wantForged checks what each call says of what nobody owns.
func wantForged(t *testing.T, d *shm.Dir, k objectKind, name string, want []error) {
	t.Helper()
	for what, call := range k.calls() {
		_, err := call(cq.Named(d, "forged"), k.zero())
		if what == "create" {
			wantErr(t, name, err, fs.ErrExist, syscall.EEXIST)
			continue
		}
		wantErr(t, what+" with "+name, err, want...)
		var e *shm.Error
		if errors.Is(err, shm.ErrVersion) && (!errors.As(err, &e) ||
			!strings.Contains(e.Hint, "one version")) {
			t.Errorf("%s: %v does not say what to do", what, err)
		}
	}
	if _, err := ctl.ShowObject(d, "forged"); k.name == "counter" &&
		!slices.Contains(want, error(shm.ErrKind)) { // which may be shown
		wantErr(t, "show with "+name, err, want...)
	}
}
