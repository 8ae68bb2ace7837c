package cq_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/collect"
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
	_ = c.line(t)
	c.kill()
}

// TestCreateReplacesDead: an ephemeral queue of which everybody is dead is in nobody's way. One
// that has a living writer, and a persistent one, are.
func TestCreateReplacesDead(t *testing.T) {
	t.Parallel()
	d := openDir(t)
	t.Run("ephemeral", func(t *testing.T) {
		name := queueName(t)
		killedCreator(t, name, "0")
		q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 16})
		must(t, err)
		if q.Options().Size != 16 {
			t.Error("that is the old one")
		}
		must(t, q.Close())
		nothingLeft(t, d)
	})
	t.Run("with dead writer", func(t *testing.T) {
		name := queueName(t)
		killedCreator(t, name, "0")
		w := startChild(t, "writer", envQueue+"="+name)
		_ = w.line(t)
		_, err := cq.Create(cq.Named(d, name), cq.Options{})
		wantErr(t, "its writer lives", err, fs.ErrExist)
		wantErr(t, "its writer lives", collect.Remove(d, name, collect.Options{}), cq.ErrBusy)
		w.kill()
		q, err := cq.Create(cq.Named(d, name), cq.Options{})
		if err != nil {
			must(t, collect.Remove(d, name, collect.Options{}))
			t.Fatal(err)
		}
		must(t, q.Close())
		nothingLeft(t, d)
	})
	t.Run("removed", func(t *testing.T) {
		name := queueName(t)
		killedCreator(t, name, "0")
		w := attach(t, d, name)
		wantErr(t, "remove", collect.Remove(d, name, collect.Options{}), cq.ErrBusy, syscall.EBUSY)
		post(t, w, 0, 1) // nothing happened to it
		must(t, w.Close())
		must(t, collect.Remove(d, name, collect.Options{}))
		nothingLeft(t, d)
		must(t, collect.Remove(d, name, collect.Options{}))
	})
	t.Run("persistent", func(t *testing.T) {
		name := queueName(t)
		killedCreator(t, name, "1")
		_, err := cq.Create(cq.Named(d, name), cq.Options{})
		wantErr(t, "create", err, fs.ErrExist)
		wantErr(t, "remove", collect.Remove(d, name, collect.Options{}), cq.ErrBusy)
		q, err := cq.Open(cq.Named(d, name), cq.Options{Existing: true})
		must(t, err)
		must(t, q.Close())
		nothingLeft(t, d)
	})
}

func TestAdopt(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4, Lifetime: cq.Persistent})
	must(t, q.Detach())
	for _, want := range []cq.Options{{Size: 3}, {Format: cq.FormatTagged}, {MaxLanes: 64},
		{Lifetime: cq.Persistent}, {Spin: time.Second, Shared: true, UserContext: 5}} {
		want.Existing = true
		q, err := cq.Open(cq.Named(d, q.Name()), want)
		if err != nil {
			t.Fatalf("%+v: %v", want, err)
		}
		o := q.Options()
		if o.Size != 4 || o.Lifetime != cq.Persistent || o.Shared != want.Shared ||
			q.UserContext() != want.UserContext {
			t.Errorf("%+v became %+v", want, o)
		}
		must(t, q.Detach())
	}
	q, err := cq.Open(cq.Named(d, q.Name()), cq.Options{Existing: true})
	must(t, err)
	must(t, q.Close())

	_, small := create(t, cq.Options{Size: 4, Format: cq.FormatMsg})
	must(t, small.Detach())
	_, err = cq.Open(cq.Named(d, small.Name()), cq.Options{Existing: true, Format: cq.FormatTagged})
	wantErr(t, "a smaller format", err, cq.ErrFormat)
	small, err = cq.Open(cq.Named(d, small.Name()), cq.Options{Existing: true})
	must(t, err)
	must(t, small.Close())
}

// TestRedelivered: what a reader had in its hands comes again, marked, apart from the rest, and in
// every way to read.
func TestRedelivered(t *testing.T) {
	t.Parallel()
	reads := map[string]func(t *testing.T, q *cq.Queue) (got []uint64, again bool){
		"Read": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			dst := make([]cq.Msg, 9)
			n, err := cq.Read(q, dst)
			must(t, err)
			var got []uint64
			for _, e := range dst[:n] {
				got = append(got, e.Context)
				if (e.Flags&cq.FlagRedelivered != 0) != q.Redelivered() {
					t.Errorf("%+v, redelivered %v", e, q.Redelivered())
				}
			}
			return got, q.Redelivered()
		},
		"Read without flags": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			return read(t, q, 9), q.Redelivered()
		},
		"Read Entry": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			dst := make([]cq.Entry, 9)
			n, err := cq.Read(q, dst)
			must(t, err)
			return marked(t, dst[:n])
		},
		"Peek": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			es, err := q.Peek(9)
			must(t, err)
			if got := q.Redelivered(); got != (es[0].Flags&cq.FlagRedelivered != 0) {
				t.Errorf("%+v, redelivered %v", es[0], got)
			}
			defer func() { must(t, q.Release(len(es))) }()
			return marked(t, es)
		},
		"PeekContext in two": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			first, err := q.PeekContext(t.Context(), 1)
			must(t, err)
			rest, err := q.Peek(9)
			must(t, err)
			defer func() { must(t, q.Release(1+len(rest))) }()
			return marked(t, append(first, rest...))
		},
		"Entries": func(t *testing.T, q *cq.Queue) ([]uint64, bool) {
			var es []cq.Entry
			for e, err := range q.Entries(0) {
				must(t, err)
				if es = append(es, *e); len(es) == 3 || e.Context == 5 {
					break
				}
			}
			return marked(t, es)
		},
	}
	for name, readSome := range reads {
		for _, shared := range []bool{false, true} {
			redelivered(t, fmt.Sprintf("%s, shared %v", name, shared), shared, readSome)
		}
	}
}

// marked returns the contexts of entries that all have the mark of those that come again, or none.
func marked(t *testing.T, es []cq.Entry) (got []uint64, again bool) {
	t.Helper()
	for i, e := range es {
		got = append(got, e.Context)
		if m := e.Flags&cq.FlagRedelivered != 0; i > 0 && m != again {
			t.Errorf("entry %d of %v: marked %v", i, got, m)
		} else {
			again = m
		}
	}
	return got, again
}

func redelivered(t *testing.T, name string, shared bool,
	readSome func(t *testing.T, q *cq.Queue) (got []uint64, again bool)) {
	t.Run(name, func(t *testing.T) {
		d := openDir(t)
		queue := queueName(t)
		q, err := cq.Create(cq.Named(d, queue), cq.Options{Size: 8})
		must(t, err)
		w := attach(t, d, queue)
		must(t, q.Detach())
		c := startChild(t, "holder", envQueue+"="+queue)
		post(t, w, 0, 6)
		if got := c.line(t); got != "holds 4, released 1" {
			t.Fatal(got)
		}
		c.kill()
		q, err = cq.Open(cq.Named(d, queue), cq.Options{Existing: true, Shared: shared})
		must(t, err)
		if got, again := readSome(t, q); !slices.Equal(got, upTo(1, 4)) || !again {
			t.Errorf("%v, marked %v; want 1 to 3, marked", got, again)
		}
		if got, again := readSome(t, q); !slices.Equal(got, upTo(4, 6)) || again {
			t.Errorf("%v, marked %v; want 4 to 5, not marked", got, again)
		}
		must(t, w.Close())
		must(t, q.Close())
	})
}

// childHolder peeks four entries, releases one and keeps the others.
func childHolder() {
	d, err := shm.OpenDir("")
	need(err)
	q, err := cq.Open(cq.Named(d, os.Getenv(envQueue)), cq.Options{Existing: true})
	need(err)
	held := 0
	for held < 4 {
		es, err := q.PeekContext(context.Background(), 4-held)
		if err != cq.ErrWouldBlock {
			need(err)
		}
		held += len(es)
	}
	need(q.Release(1))
	say("holds %d, released 1", held)
	time.Sleep(time.Hour)
}

func init() { roles["holder"] = childHolder }

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
	q, err := cq.Open(cq.Named(d, name), cq.Options{})
	must(t, err)
	must(t, q.Close())
	nothingLeft(t, d)
}

func TestAttachWaits(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	_, err := cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{})
	wantErr(t, "no queue", err, fs.ErrNotExist, syscall.ENOENT)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = cq.Attach(ctx, cq.Named(d, name), cq.WriterOptions{Wait: true})
	wantErr(t, "no queue in time", err, context.DeadlineExceeded)
	got := make(chan *cq.Writer, 1)
	go func() {
		w, err := cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{Wait: true})
		if err != nil {
			t.Error(err)
		}
		got <- w
	}()
	time.Sleep(5 * time.Millisecond)
	q, err := cq.Create(cq.Named(d, name), cq.Options{Size: 4, Format: cq.FormatMsg})
	must(t, err)
	w := <-got
	post(t, w, 0, 1)
	_, err = cq.Attach(t.Context(), cq.Named(d, name), cq.WriterOptions{Format: cq.FormatData})
	wantErr(t, "more detail than the queue keeps", err, cq.ErrFormat)
	must(t, w.Close())
	must(t, q.Close())
}
