package cq_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/barrier"
	"github.com/shmring/shmring/shm"
)

func init() { roles["restarted"] = childRestarted }

// restartCase is one object of the table: made with one value, and asked for another.
type restartCase struct {
	restartField
	kind  objectKind
	asks  string // same, zero or other
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
	d, err := shm.OpenDir("")
	need(err)
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
	if s := killed.line(t); s != "ready" {
		t.Fatal(s)
	}
	killed.kill()
	for i, c := range restartCases() {
		for _, how := range []string{"left", "killed"} {
			for verb, open := range c.kind.again {
				if how == "killed" && verb == "adopt" && len(c.kind.again) > 1 {
					continue // there is one of each, and open takes over
				}
				t.Run(fmt.Sprintf("%v/%s-%s", c, how, verb), func(t *testing.T) {
					name := fmt.Sprintf("%s-%d", how, i)
					if how == "left" {
						q, err := c.kind.create(cq.Named(d, name), c.with(c.made))
						must(t, err)
						must(t, q.leave())
					}
					q, err := open(cq.Named(d, name), c.asking())
					c.check(t, q, err)
					if err != nil {
						q, err = open(cq.Named(d, name), c.kind.zero())
						must(t, err)
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

// TestRestartedFlags: a successor that asks for it gets no other flags than those guaranteed.
func TestRestartedFlags(t *testing.T) {
	d, q := create(t, cq.Options{Size: 8, NotifyFlagsOnly: true})
	w := attach(t, d, q.Name())
	for range 2 {
		must(t, w.Post(&cq.Entry{Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagRemoteCQData}))
	}
	for _, only := range []bool{true, false} {
		must(t, q.Detach())
		var err error
		q, err = cq.Open(cq.Named(d, q.Name()), cq.Options{NotifyFlagsOnly: only})
		must(t, err)
		var e [1]cq.Msg
		_, err = cq.Read(q, e[:])
		must(t, err)
		if got := e[0].Flags == cq.FlagRemoteCQData; got != only {
			t.Errorf("only guaranteed flags asked for: %v, flags %v", only, e[0].Flags)
		}
	}
	must(t, q.Close())
}
