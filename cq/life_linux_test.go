package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/internal/collect"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// nothingLeft checks that the directory is empty.
func nothingLeft(t *testing.T, d *shm.Dir) {
	t.Helper()
	if left, err := d.List(); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// killedCreator leaves a queue of a dead reader.
func killedCreator(t *testing.T, name, lifetime string) {
	t.Helper()
	c := startChild(t, "creator", envQueue+"="+name, envCount+"="+lifetime)
	_ = c.Line(t)
	c.Kill()
}

// TestOpen creates, adopts, and lets exactly one of several win.
func TestOpen(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	for range 20 {
		var won atomic.Int32
		var winner atomic.Pointer[cq.Queue]
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				q, err := cq.Open(cq.Named(d, name), cq.Options{Size: 4})
				if err == nil {
					won.Add(1)
					winner.Store(q)
				} else if !errors.Is(err, syscall.EBUSY) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d won", won.Load())
		}
		must(t, winner.Load().Detach())
	}
	q := shmtest.Got(cq.Open(cq.Named(d, name), cq.Options{})).Or(t)
	must(t, q.Close())
	nothingLeft(t, d)
}

func TestAttachWaits(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	_, err := cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})
	wantErr(t, "no queue", err, fs.ErrNotExist, syscall.ENOENT)
	_, hint, _ := strings.Cut(err.Error(), "; ")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = cq.Attach(ctx, cq.Named(d, name), cq.WriterOptions{Wait: true})
	wantErr(t, "no queue in time", err, context.DeadlineExceeded)
	if hint == "" || !strings.HasSuffix(err.Error(), hint) {
		t.Errorf("%v, without the hint %q", err, hint)
	}
	got := make(chan *cq.Writer, 1)
	go func() {
		w, err := cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		got <- w
	}()
	time.Sleep(5 * time.Millisecond)
	shmtest.Have(cq.Create(cq.Named(d, name), cq.Options{Size: 4, Format: cq.FormatMsg})).In(t)
	w := <-got
	post(t, w, 0, 1)
	_, err = cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{Format: cq.FormatData})
	wantErr(t, "more detail than the queue keeps", err, cq.ErrFormat)
	must(t, w.Close())
}

func init() { roles["restarted"] = childRestarted }

// restartCase is one object of the table: made with one value, and asked for another.
type restartCase struct {
	restartField
	kind  objectKind
	asks  string // same, zero, rounded (up to what it is) or other
	made  any
	asked any
}

func (c restartCase) String() string {
	return fmt.Sprintf("%s/%s/%s/%v-%v", c.kind.name, c.name, c.asks, c.made, c.asked)
}

// restartCases are all of them, in an order that two processes agree on. Options that no object of
// this name can be made with are left out.
func restartCases() (out []restartCase) {
	for _, k := range objectKinds() {
		for _, f := range k.fields {
			zero := reflect.Zero(reflect.TypeOf(f.value)).Interface()
			if f.name != "Trust" && f.refused == nil {
				out = append(out, restartCase{f, k, "same", f.value, f.value},
					restartCase{f, k, "zero", f.value, zero})
			}
			if f.name == "Size" || f.name == "Count" {
				out = append(out, restartCase{f, k, "rounded", f.value, f.value.(int) - 1})
			}
			for _, made := range f.contrary {
				if f.name == "WritersPay" && barrier.All() != nil {
					continue // all of them do
				}
				out = append(out, restartCase{f, k, "other", made, f.value})
			}
		}
	}
	return out
}

// with returns the kind's options with the field set.
func (c restartCase) with(value any) any {
	o := reflect.New(reflect.TypeOf(c.kind.base)).Elem()
	o.Set(reflect.ValueOf(c.kind.base))
	o.FieldByName(c.name).Set(reflect.ValueOf(value))
	return o.Interface()
}

// asking returns options that say nothing but the field.
func (c restartCase) asking() any {
	o := reflect.New(reflect.TypeOf(c.kind.base)).Elem()
	o.FieldByName(c.name).Set(reflect.ValueOf(c.asked))
	return o.Interface()
}

// childRestarted makes an object for each case, and waits to be killed.
func childRestarted() {
	d := shmtest.Needs(shm.OpenDir(""))
	for i, c := range restartCases() {
		_, err := c.kind.create(cq.Named(d, fmt.Sprintf("killed-%d", i)), c.with(c.made))
		if err != nil {
			err = fmt.Errorf("%v: %w", c, err)
		}
		need(err)
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// TestRestartedOptions: who takes over what another left, or died with, has each option as it was
// fixed or as it gives it, and is refused by name what contradicts.
func TestRestartedOptions(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	killed := startChild(t, "restarted")
	killed.Says(t, "ready")
	killed.Kill()
	for i, c := range restartCases() {
		for _, how := range []string{"left", "killed"} {
			for verb, open := range c.kind.again {
				if how == "killed" && verb == "adopt" && len(c.kind.again) > 1 {
					continue // there is one of each, and open takes over
				}
				t.Run(fmt.Sprintf("%v/%s-%s", c, how, verb), func(t *testing.T) {
					name := fmt.Sprintf("%s-%d", how, i)
					if how == "left" {
						q := shmtest.Got(c.kind.create(cq.Named(d, name), c.with(c.made))).Or(t)
						must(t, q.leave())
					}
					q, err := open(cq.Named(d, name), c.asking())
					c.check(t, q, err)
					if err != nil {
						q = shmtest.Got(open(cq.Named(d, name), c.kind.zero())).Or(t)
					}
					must(t, q.close())
					if c.kind.name == "counter" {
						must(t, cq.Remove(cq.Named(d, name)))
					}
				})
			}
		}
	}
}

// check looks at what came of taking over.
func (c restartCase) check(t *testing.T, q object, err error) {
	t.Helper()
	if c.fixed && c.asks == "other" {
		refused := c.refused
		if refused == nil {
			refused = cq.ErrInvalid
		}
		wantErr(t, "refused", err, refused, syscall.EINVAL)
		wantField(t, err, c.name)
		var e *cq.Error
		if errors.As(err, &e) && (e.Got != c.made || e.Want != c.asked) {
			t.Errorf("got %v, want %v; it should say %v, %v", e.Got, e.Want, c.made, c.asked)
		}
		return
	}
	must(t, err)
	want := c.asked
	if c.fixed {
		want = c.made
	}
	got := reflect.ValueOf(q.options).FieldByName(c.name)
	if got.Kind() == reflect.Func {
		if got.IsNil() != reflect.ValueOf(want).IsNil() {
			t.Errorf("%s is there: %v", c.name, !got.IsNil())
		}
	} else if !reflect.DeepEqual(got.Interface(), want) {
		t.Errorf("%s is %v, want %v", c.name, got, want)
	}
}

// TestRestartedComplete: no field of the options is forgotten in the table.
func TestRestartedComplete(t *testing.T) {
	for _, k := range objectKinds() {
		of := reflect.TypeOf(k.base)
		var missing []string
		for i := range of.NumField() {
			name := of.Field(i).Name
			if name == "Existing" {
				continue // it asks for something, and is no option of the object
			}
			if !slices.ContainsFunc(k.fields, func(f restartField) bool { return f.name == name }) {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			t.Errorf("%s: %s", k.name, strings.Join(missing, ", "))
		}
	}
}

func init() { roles["without proc"] = childWithoutProc }

// TestWithoutProc: where there is no /proc each verb says so at once. It neither takes what is
// there for something that does not exist, nor waits for it.
func TestWithoutProc(t *testing.T) {
	shmtest.RequireRoot(t, "mount", "unmounting /proc needs root")
	d := openDir(t)
	for _, k := range objectKinds() {
		o := shmtest.Got(k.create(cq.Named(d, k.name), k.base)).Or(t)
		t.Cleanup(func() {
			must(t, errors.Join(o.close(), collect.Remove(d, k.name, collect.Options{Waiting: true})))
		})
	}
	cmd := shmtest.Child(t, "without proc")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	c := start(t, cmd)
	complaints(t, c)
	_ = c.Stop(t)
}

func childWithoutProc() {
	need(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	need(syscall.Unmount("/proc", syscall.MNT_DETACH))
	d := shmtest.Needs(shm.OpenDir(""))
	calls := map[string]func() error{
		"attach": func() error { // that would wait for ever
			_, err := cq.Attach(context.Background(), cq.Named(d, "queue"), cq.WriterOptions{Wait: true})
			return err
		},
		"signal": func() error { return cq.SignalQueue(cq.Named(d, "queue")) },
	}
	for _, k := range objectKinds() {
		at := func(call opening, p cq.Place) func() error {
			return func() error { _, err := call(p, k.base); return err }
		}
		for verb, call := range k.calls() {
			if verb == "create" || verb == "attach" && k.name == "addresses" {
				continue // it is there, and who looks things up needs no proof of anything
			}
			calls[verb+" "+k.name] = at(call, cq.Named(d, k.name))
		}
		calls["new "+k.name] = at(k.create, cq.Named(d, "new"))
		calls["unnamed "+k.name] = at(k.create, cq.Unnamed("new"))
	}
	for what, call := range calls {
		err := call()
		if !errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrNotExist) ||
			!strings.Contains(err.Error(), "/proc") {
			say("%s: %v", what, err)
		}
	}
	need(d.Close())
	say("done")
	untilTold()
}

// TestOwnWriterNeedsNoPermission: a process reaches its own bell also where the kernel lets nobody
// take descriptors from processes.
func TestOwnWriterNeedsNoPermission(t *testing.T) {
	c := startChild(t, "nogetfd", envQueue+"="+queueName(t))
	for _, kind := range []string{"with a name", "without one"} {
		line, err := c.Out.ReadString('\n')
		if err != nil || line != "cq: timed out 1 <nil>\n" {
			t.Errorf("%s: %q, %v", kind, line, err)
		}
	}
	must(t, c.Wait())
}

// TestBlockedReaderDies: a successor finds what came while the queue had no reader, and sleeps and
// wakes as its predecessor did.
func TestBlockedReaderDies(t *testing.T) {
	t.Parallel()
	for _, wait := range blocking {
		t.Run(wait.String(), func(t *testing.T) {
			d, q := create(t, cq.Options{Size: 8, Wait: wait, Spin: -1})
			w := attach(t, d, q.Name())
			_, err := sread(q, make([]cq.Msg, 1), time.Millisecond) // lanes are parked
			wantErr(t, "nothing", err, cq.ErrTimedOut)
			must(t, q.Detach())
			for i := range uint64(2) {
				c := startReader(t, namedSite)
				c.expect("steady", 0, "reading")
				post(t, w, 0, 4)
				eventually(t, "the child has read", func() bool { return w.Free() == 8 })
				c.Kill()
				post(t, w, 10*i+4, 10*i+6)
				q := shmtest.Got(cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true, Spin: -1})).Or(t)
				wantContexts(t, "drained", drain(t, q), upTo(10*i+4, 10*i+6)...)
				wait := later(func() { post(t, w, 99, 100) })
				if n, err := sread(q, make([]cq.Msg, 1), time.Minute); n != 1 || err != nil {
					t.Error(n, err)
				}
				wait()
				must(t, q.Detach())
			}
			q = shmtest.Got(cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})).Or(t)
			must(t, q.Close())
		})
	}
}
