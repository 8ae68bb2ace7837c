package cq_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestConformanceCQOpen is fi_cq_open and its attributes.
func TestConformanceCQOpen(t *testing.T) {
	conform(t, "size-is-a-minimum", cq.Options{Size: 5}, cqOpenSizeIsAMinimum)
	unset := cq.Options{Affinity: cq.Affinity{CPU: -1}} // which is refused where it counts
	conform(t, "affinity-without-the-flag", unset, func(t *testing.T, r *rig) {
		if got := r.q.Options().Affinity; got.Valid {
			t.Errorf("hint %+v", got)
		}
		r.post(t, 1, 2)
		wantContexts(t, "a vector that does not count", read(t, r.q, 4), 1)
	})
	for _, cpu := range []int{0, 1, 1 << 20} {
		name := "affinity-is-a-hint"
		conformOnce(t, fmt.Sprint(name, "/", cpu), func(t *testing.T) {
			o := cq.Options{Affinity: cq.Affinity{Valid: true, CPU: cpu}}
			d, q := create(t, o)
			if got := q.Options().Affinity; got != o.Affinity {
				t.Errorf("hint %+v", got)
			}
			must(t, attach(t, d, q.Name()).Post(&cq.Entry{Context: 1}))
			wantContexts(t, "a processor that there need not be", read(t, q, 4), 1)
		})
	}
	conformOnce(t, "sizes", cqOpenSizes)
	conformOnce(t, "greatest", cqOpenGreatest)
}

func cqOpenSizes(t *testing.T) {
	d := openDir(t)
	for size := 0; size <= 65536; size = max(1, 2*size) {
		q, err := cq.Create(cq.Named(d, "q"), cq.Options{Size: size, MaxLanes: 1})
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if got := q.Options().Size; got < size {
			t.Errorf("size %d became %d", size, got)
		}
		must(t, q.Close())
	}
}

// cqOpenGreatest asks what the greatest queue would take: few have the memory to make it.
func cqOpenGreatest(t *testing.T) {
	var before uint64
	for _, size := range []int{1, cq.MaxCapacity / 2, cq.MaxCapacity} {
		n, err := cq.Plan(cq.Options{Size: size, MaxLanes: 1}, 1)
		if err != nil || n < before+64*uint64(size)/2 {
			t.Errorf("size %d takes %d bytes, %v; the one before took %d", size, n, err, before)
		}
		before = n
	}
	_, err := cq.Plan(cq.Options{Size: cq.MaxCapacity + 1}, 1)
	wantErr(t, "one more", err, cq.ErrInvalid, syscall.EINVAL)
}

func cqOpenSizeIsAMinimum(t *testing.T, r *rig) {
	size := uint64(r.q.Options().Size)
	if size < 5 {
		t.Errorf("size %d, asked for 5", size)
	}
	r.post(t, 0, size)
	wantErr(t, "one more than the size", r.w.Post(&cq.Entry{}), cq.ErrFull)
}

// TestConformanceCQClose is fi_close of a queue.
func TestConformanceCQClose(t *testing.T) {
	conform(t, "releases", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.q.Close())
		must(t, r.w.Close())
		left, err := os.ReadDir(filepath.Join(r.d.Path(), r.q.Name()))
		if len(left) != 0 || err != nil && !os.IsNotExist(err) {
			t.Errorf("left behind: %v, %v", left, err)
		}
		if maps, _ := os.ReadFile("/proc/self/maps"); strings.Contains(string(maps),
			"/"+r.q.Name()+"/") {
			t.Errorf("still mapped")
		}
		_, err = cq.Read(r.q, make([]cq.Msg, 1))
		wantErr(t, "read", err, cq.ErrClosed, os.ErrClosed)
	})
	conformOnce(t, "releases-memfds", func(t *testing.T) {
		q, w := pairWithoutName(t, cq.Options{Size: 8}) // what the process makes once is made now
		must(t, errors.Join(q.Close(), w.Close()))
		fds, maps := held(t)
		for range 4 {
			q, w := pairWithoutName(t, cq.Options{Size: 8, Wait: cq.WaitFD})
			if f, m := held(t); f <= fds || m <= maps {
				t.Errorf("an open queue holds %d descriptors and %d mappings", f-fds, m-maps)
			}
			must(t, q.Close())
			must(t, w.Close())
			eventually(t, "descriptors and mappings as before", func() bool {
				f, m := held(t)
				return f == fds && m == maps
			})
		}
	})
	conform(t, "unread-are-lost", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.post(t, 0, 3)
		r.postError(t, 3)
		must(t, r.q.Close())
		wantErr(t, "post", r.w.Post(&cq.Entry{}), cq.ErrClosed)
		must(t, r.w.Close())
		_, err := cq.Open(cq.Named(r.d, r.q.Name()), cq.Options{Existing: true})
		wantErr(t, "adopt", err, fs.ErrNotExist)
		q := shmtest.Got(cq.Create(cq.Named(r.d, r.q.Name()), cq.Options{})).Or(t)
		wantContexts(t, "a new queue of that name", drain(t, q))
		must(t, q.Close())
	})
}

// held counts the descriptors of this process, and its mappings of memfds.
func held(t testing.TB) (fds, maps int) {
	t.Helper()
	text := shmtest.Got(os.ReadFile("/proc/self/maps")).Or(t)
	return len(shmtest.Descriptors()), strings.Count(string(text), "/memfd:")
}

// pairWithoutName is a queue on memfds and its writer. The caller closes them.
func pairWithoutName(t *testing.T, o cq.Options) (*cq.Queue, *cq.Writer) {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Unnamed(queueName(t)), o)).Or(t)
	return q, join(t, q)
}

// TestConformanceCQReadFrom is fi_cq_readfrom.
func TestConformanceCQReadFrom(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8}
	conform(t, "source", o, func(t *testing.T, r *rig) {
		shmtest.Got(r.w.PostBatch([]cq.Entry{{Context: 1, Src: cq.From(4)}, {Context: 2, Src: cq.From(0)},
			{Context: 3, Src: cq.From(9)}})).Or(t)
		dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
		n, err := cq.ReadFrom(r.q, dst, src)
		if n != 3 || err != nil || !slices.Equal(src[:3], []cq.Addr{4, 0, 9}) {
			t.Errorf("%d, %v, %v", n, err, src)
		}
		wantContexts(t, "entries", contexts(dst[:n]), 1, 2, 3)
	})
	conform(t, "nobody-said", cq.Options{Size: 32}, nobodySaid)
	conform(t, "lengths-differ", o, func(t *testing.T, r *rig) {
		r.post(t, 0, 1)
		for _, lens := range [][2]int{{2, 0}, {2, 1}, {2, 3}, {1, 0}, {0, 1}} {
			dst, src := make([]cq.Context, lens[0]), make([]cq.Addr, lens[1])
			err := errOf(cq.ReadFrom(r.q, dst, src))
			wantErr(t, "readfrom", err, cq.ErrInvalid, syscall.EINVAL)
			wantField(t, err, "len(src)")
			if lens[1] == 0 { // no source is asked for
				continue
			}
			err = errOf(sreadFrom(r.q, dst, src, 0))
			wantErr(t, "sreadfrom", err, cq.ErrInvalid)
			wantField(t, err, "len(Source)")
		}
		err := errOf(cq.ReadContext(t.Context(), r.q, make([]cq.Context, 1),
			cq.ReadOptions{Flags: cq.FlagPeek}))
		wantErr(t, "flags", err, cq.ErrInvalid)
		wantField(t, err, "Flags")
		wantContexts(t, "nothing was taken", read(t, r.q, 2), 0)
		wantErr(t, "empty", errOf(cq.ReadFrom(r.q, make([]cq.Context, 1), make([]cq.Addr, 1))),
			cq.ErrWouldBlock)
	})
	conformSource(t, "source-in-address-vector", o, cqReadFromSourceInAddressVector)
	conformSource(t, "user-id", o, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{UserID: true})
		shmtest.Got(v.Insert(sockaddrs(0, 1), cq.InsertOptions{IDs: []cq.Addr{4711}})).Or(t)
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(0), v, false))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != 4711 {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conformSource(t, "unknown-peer", o, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{})
		_ = insert(t, v, sockaddr(0))
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(5), v, false))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != cq.AddrNotAvail {
			t.Errorf("%d, %v, %v", n, err, src)
		}
		must(t, r.w.PostFrom(&cq.Entry{Context: 2}, sockaddr(5), v, true))
		if got := takeAll(t, r.q); !slices.Equal(got, []string{"E2"}) || v.Len() != 1 {
			t.Errorf("%v, and %d addresses are in", got, v.Len())
		}
	})
	conformSource(t, "source-err", o, sourceErr)
}

// conformSource is conform for a case that needs an address vector on the writer's side: a vector
// is for one user, so that a writer of another one has its own, which is no matter of the queue.
func conformSource(t *testing.T, name string, o cq.Options, f func(t *testing.T, r *rig)) {
	t.Helper()
	conform(t, name, o, func(t *testing.T, r *rig) {
		if !r.others || !r.far {
			f(t, r)
		}
	})
}

func cqReadFromSourceInAddressVector(t *testing.T, r *rig) {
	v := newVector(t, site{}, cq.AddressOptions{})
	got := insert(t, v, sockaddrs(0, 3)...)
	for _, sourceErr := range []bool{false, true} {
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(2), v, sourceErr))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != got[2] {
			t.Errorf("%v: %d, %v, %v; want %d", sourceErr, n, err, src, got[2])
		}
	}
}

// nobodySaid: what was posted without a source has none, however it was posted and is read.
func nobodySaid(t *testing.T, r *rig) {
	must(t, r.w.Bind(cq.FlagTransmit|cq.FlagRecv))
	e := &cq.Entry{Flags: cq.FlagSend}
	postAll := func() {
		must(t, r.w.Post(e))
		shmtest.Got(r.w.PostBatch([]cq.Entry{*e, *e})).Or(t)
		must(t, r.w.Credit(1))
		must(t, r.w.PostCredited(e))
		must(t, r.w.Begin(cq.FlagSend))
		must(t, r.w.Complete(e, cq.FlagSend))
	}
	const posts = 5
	ctx, dst, src := soon(t), make([]cq.Entry, 2*posts), make([]cq.Addr, 2*posts)
	for name, read := range map[string]func() (int, error){
		"readfrom": func() (int, error) { return cq.ReadFrom(r.q, dst, src) },
		"sreadfrom": func() (int, error) {
			return sreadFrom(r.q, dst, src, tooLong, posts)
		},
		"context": func() (int, error) {
			return cq.ReadContext(ctx, r.q, dst,
				cq.ReadOptions{Source: src})
		},
		"peek": func() (int, error) {
			es, err := r.q.Peek(2 * posts)
			for i := range es {
				dst[i], src[i] = es[i], es[i].Src.Addr()
			}
			return len(es), errors.Join(err, r.q.Release(len(es)))
		},
		"entries": func() (n int, err error) {
			for e, err := range r.q.Entries(0) {
				must(t, err)
				dst[n], src[n] = *e, e.Src.Addr()
				n++
			}
			return n, nil
		},
	} {
		postAll()
		n, err := read()
		if n != posts || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		for i := range n {
			if src[i] != cq.AddrNotAvail || dst[i].Src.Addr() != cq.AddrNotAvail {
				t.Errorf("%s: entry %d came from %v, %v", name, i, src[i], dst[i].Src)
			}
		}
	}
	failed := &cq.ErrorEntry{Flags: cq.FlagSend, Err: cq.EOther}
	must(t, r.w.PostError(failed))
	must(t, r.w.Credit(1))
	must(t, r.w.PostErrorCredited(failed))
	must(t, r.w.Begin(cq.FlagSend))
	must(t, r.w.Fail(failed, cq.FlagSend))
	for i := range 3 {
		got := cq.ErrorEntry{Src: cq.From(7)}
		must(t, r.q.ReadErr(&got))
		if got.Src.Addr() != cq.AddrNotAvail {
			t.Errorf("failure %d came from %v", i, got.Src)
		}
	}
}

// sourceErr: data came well from a peer that is not in the vector. The error entry says so, and
// what it carries makes the peer known.
func sourceErr(t *testing.T, r *rig) {
	v := newVector(t, site{}, cq.AddressOptions{})
	e := cq.Entry{Context: 1, Flags: cq.FlagRecv | cq.FlagTagged, Len: 7, Data: 8, Tag: 9}
	got := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
	for i := range 2 { // of both families
		raw := sockaddr(i)
		must(t, r.w.PostFrom(&e, raw, v, true))
		_, err := cq.ReadFrom(r.q, make([]cq.Context, 1), make([]cq.Addr, 1))
		wantErr(t, "readfrom", err, cq.ErrAvail)
		must(t, r.q.ReadErr(&got))
		wantErr(t, "entry", &got, syscall.EADDRNOTAVAIL)
		if got.Context != 1 || got.Flags != e.Flags || got.Len != 7 || got.Data != 8 || got.Tag != 9 ||
			got.Src != cq.From(cq.AddrNotAvail) {
			t.Errorf("%+v", got)
		}
		if !slices.Equal(got.ErrData, raw) {
			t.Errorf("raw address %x, want %x", got.ErrData, raw)
		}
		at := insert(t, v, got.ErrData)
		must(t, r.w.PostFrom(&e, raw, v, true))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != at[0] {
			t.Errorf("once inserted: %d, %v, %v; want %v", n, err, src, at)
		}
	}
}

// TestConformanceMisuse: what makes no sense is refused with a reason, where other libraries crash.
func TestConformanceMisuse(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8, Wait: cq.WaitFD, UserContext: 0}
	conform(t, "arguments", o, func(t *testing.T, r *rig) {
		s, p, c := waitSet(t, r.d, cq.WaitSetOptions{}), pollSet(t, r.d), channel(t, r.d)
		for name, err := range map[string]error{
			"wait set: nothing":     s.Add(nil),
			"wait set: nil":         s.Add((*cq.Queue)(nil)),
			"wait set: nil events":  s.Add((*cq.EventQueue)(nil)),
			"wait set: nil counter": s.Add((*cq.Counter)(nil)),
			"wait set: remove nil":  s.Remove(nil),
			"poll set: nothing":     p.Add(nil),
			"poll set: nil counter": p.Add((*cq.Counter)(nil)),
			"poll set: remove nil":  p.Remove((*cq.Counter)(nil)),
			"trywait: nothing":      cq.TryWait(nil),
			"trywait: nil":          cq.TryWait(r.q, (*cq.EventQueue)(nil)),
			"channel: attach nil":   c.Attach(nil),
			"channel: arm nil":      c.RequestNotify(nil, cq.NotifyAny),
			"channel: arm for none": c.RequestNotify(r.q, 0),
			"channel: arm for more": c.RequestNotify(r.q, 3),
			"channel: ack nil":      c.Ack(nil, 1),
			"channel: detach nil":   c.Detach(t.Context(), nil),
			"channel: inject nil":   c.Inject(nil),
			"release of nothing":    r.q.Release(1),
			"release of less":       r.q.Release(-1),
			"peek of none":          errOf(r.q.Peek(0)),
			"bind nil":              bindNil(r.q),
			"credit of less":        r.w.Credit(-1),
			"sources differ":        errOf(cq.ReadFrom(r.q, make([]cq.Msg, 2), nil)),
		} {
			wantErr(t, name, err, cq.ErrInvalid)
		}
		for name, err := range map[string]error{"arm": c.RequestNotify(r.q, cq.NotifyAny),
			"ack":    c.Ack(r.q, 1),
			"inject": c.Inject(r.q), "detach": c.Detach(t.Context(), r.q), "set": s.Remove(r.q),
			"poll set": p.Remove(r.q)} {
			wantErr(t, name+" of what is not there", err, fs.ErrNotExist)
		}
		r.post(t, 1, 2)
		wantContexts(t, "it goes on", read(t, r.q, 4), 1)
	})
	conform(t, "closed", o, func(t *testing.T, r *rig) {
		s, c := waitSet(t, r.d, cq.WaitSetOptions{}), channel(t, r.d)
		must(t, r.w.Credit(1))
		r.post(t, 0, 2)
		other := r.another(t, 1, o)
		other.post(t, 0, 2)
		if !r.far {
			closedWriter(t, r.attach(t).(*nearWriter).Writer)
		}
		must(t, r.q.Close())
		for name, err := range map[string]error{
			"post":           r.w.Post(&cq.Entry{}),
			"error":          r.w.PostError(&cq.ErrorEntry{}),
			"batch":          errOf(r.w.PostBatch(make([]cq.Entry, 2))),
			"credit":         r.w.Credit(1),
			"credited":       r.w.PostCredited(&cq.Entry{}),
			"error credited": r.w.PostErrorCredited(&cq.ErrorEntry{}),
		} {
			wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
		}
		closedQueue(t, r.q, s, c)
		must(t, errors.Join(r.w.Close(), r.w.Close()))
		if r.memfd {
			return // nobody could take it over
		}
		must(t, errors.Join(other.q.Detach(), other.q.Detach()))
		closedQueue(t, other.q, s, c)
		q := shmtest.Got(cq.Open(cq.Named(r.d, other.q.Name()), cq.Options{Existing: true})).Or(t)
		must(t, q.Close())
	})
}

// closedWriter calls everything of a writer that was closed.
func closedWriter(t *testing.T, w *cq.Writer) {
	t.Helper()
	must(t, w.Credits().Add(1))
	slot, _, err := w.Reserve(1)
	must(t, err)
	slot[0] = cq.Entry{}
	must(t, errors.Join(w.Close(), w.Close()))
	for name, err := range map[string]error{
		"post":           w.Post(&cq.Entry{}),
		"batch":          errOf(w.PostBatch(make([]cq.Entry, 1))),
		"commit":         w.Commit(1),
		"error":          w.PostError(&cq.ErrorEntry{}),
		"credit":         w.Credits().Add(1),
		"credited":       w.Credits().Post(&cq.Entry{}),
		"error credited": w.Credits().PostError(&cq.ErrorEntry{}),
	} {
		wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
	}
	_, _, err = w.Reserve(1)
	wantErr(t, "reserve", err, cq.ErrClosed)
	if w.Stats() != (cq.WriterStats{}) || w.Free() != 0 || w.Next() != 0 {
		t.Errorf("%+v, %d free", w.Stats(), w.Free())
	}
	w.Credits().Return(1)
}

// closedQueue calls everything of a queue that was closed or detached.
func closedQueue(t *testing.T, q *cq.Queue, s *cq.WaitSet, c *cq.Channel) {
	t.Helper()
	dst := make([]cq.Msg, 1)
	for name, err := range map[string]error{
		"read":        errOf(cq.Read(q, dst)),
		"readfrom":    errOf(cq.ReadFrom(q, dst, make([]cq.Addr, 1))),
		"sread":       errOf(sread(q, dst, -1)),
		"threshold":   errOf(sread(q, dst, -1, 2)),
		"context":     errOf(cq.ReadContext(t.Context(), q, dst, cq.ReadOptions{})),
		"peek":        errOf(q.Peek(1)),
		"peekcontext": errOf(q.PeekContext(t.Context(), 1)),
		"readerr":     q.ReadErr(&cq.ErrorEntry{}),
		"release":     q.Release(1),
		"signal":      q.Signal(),
		"signal all":  q.SignalAll(),
		"trywait":     cq.TryWait(q),
		"control":     errOf(q.GetWait()),
		"writer":      errOf(q.Writer()),
		"bind":        errOf(q.Bind(&feeder{again: -1}, true)),
		"set":         s.Add(q),
		"channel":     c.Attach(q),
	} {
		wantErr(t, name, err, cq.ErrClosed, os.ErrClosed, syscall.ESHUTDOWN)
	}
	for _, err := range q.Entries(0) {
		wantErr(t, "iterator", err, cq.ErrClosed)
	}
	must(t, q.Close())
	if q.Stats() != (cq.Stats{}) || waitFD(q) != -1 || q.Name() == "" || q.Options().Size != 8 ||
		q.Redelivered() {
		t.Errorf("descriptor %d, %+v", waitFD(q), q.Stats())
	}
}

// TestConformanceMisuseClosed is the same for event queues and counters.
func TestConformanceMisuseClosed(t *testing.T) {
	t.Parallel()
	conformEQ(t, "event-queue", cq.EventOptions{Wait: cq.WaitFD}, func(t *testing.T, r *eqRig) {
		near := r.near(t)
		must(t, errors.Join(near.Close(), near.Close()))
		_, err := near.WriteErr(&cq.EventError{})
		wantErr(t, "write after the writer's close", err, cq.ErrClosed)
		must(t, r.e.Close())
		for name, err := range map[string]error{
			"read":    errOf(r.e.Read(&cq.Event{}, 0)),
			"sread":   errOf(eqSread(r.e, &cq.Event{}, -1)),
			"peek":    errOf(r.e.Read(&cq.Event{}, cq.FlagPeek)),
			"readerr": errOf(r.e.ReadErr(&cq.EventError{}, 0)),
			"write":   errOf(r.w.Write(&cq.Event{})),
			"signal":  r.e.Signal(),
			"trywait": cq.TryWait(r.e),
			"control": errOf(r.e.GetWait()),
			"purge":   r.e.Purge(fabric(1)),
			"set":     waitSet(t, r.d, cq.WaitSetOptions{}).Add(r.e),
		} {
			wantErr(t, name, err, cq.ErrClosed)
		}
		must(t, r.e.Close())
	})
	conformCounter(t, "counter", cq.CounterOptions{Wait: cq.WaitFD}, func(t *testing.T, r *countRig) {
		unbind := shmtest.Got(r.c.Bind(&feeder{again: -1})).Or(t)
		wantErr(t, "close while bound", r.c.Close(), cq.ErrBusy, syscall.EBUSY)
		must(t, r.c.Add(0)) // it is still open
		unbind()
		must(t, r.c.Close())
		for name, err := range map[string]error{
			"add":     r.c.Add(1),
			"adderr":  r.c.AddErr(1),
			"set":     r.c.Set(1),
			"seterr":  r.c.SetErr(1),
			"reached": cntrWait(r.c, 0, -1),
			"bind":    errOf(r.c.Bind(&feeder{again: -1})),
			"read":    errOf(r.c.Read()),
			"readerr": errOf(r.c.ReadErr()),
			"wait":    cntrWait(r.c, 5, -1),
			"trywait": cq.TryWait(r.c),
			"member":  waitSet(t, r.d, cq.WaitSetOptions{}).Add(r.c),
		} {
			wantErr(t, name, err, cq.ErrClosed, os.ErrClosed)
		}
		_, err := cq.AttachCounter(cq.FromFD(int(^uint(0)>>1), ""), cq.CounterOptions{})
		wantErr(t, "no descriptor", err, syscall.EBADF)
		must(t, r.w.Add(1)) // the other handle goes on
		if v, err := r.w.Read(); v != 1 || err != nil {
			t.Errorf("%d, %v", v, err)
		}
	})
}

func errOf[T any](_ T, err error) error { return err }

func bindNil(q *cq.Queue) error {
	_, err := q.Bind(nil, true)
	return err
}

// TestConformanceCQFlagsOnly is FI_NOTIFY_FLAGS_ONLY.
func TestConformanceCQFlagsOnly(t *testing.T) {
	only := cq.Options{Size: 8, NotifyFlagsOnly: true}
	conform(t, "notify-flags-only", only, func(t *testing.T, r *rig) {
		const kept = cq.FlagRemoteRead | cq.FlagRemoteWrite | cq.FlagRemoteCQData | cq.FlagMultiRecv
		for _, f := range []cq.Flags{cq.FlagSend | cq.FlagMsg, cq.FlagRMA | cq.FlagRemoteRead,
			cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData,
			cq.FlagRecv | cq.FlagMsg | cq.FlagMultiRecv | cq.FlagMore} {
			must(t, r.w.Post(&cq.Entry{Context: 1, Flags: f, Data: 9, Len: 8}))
			want := cq.Data{Context: 1, Flags: f & kept, Data: 9, Len: 8}
			if got, err := readOne[cq.Data](r.q); err != nil || got != want {
				t.Errorf("%v became %+v, %v", f, got, err)
			}
			must(t, r.w.Post(&cq.Entry{Flags: f &^ kept, Meta: cq.MetaNoContext}))
			if got, err := readOne[cq.Msg](r.q); err != nil || got.Flags != cq.FlagNoContext {
				t.Errorf("%v without a context became %v, %v", f, got.Flags, err)
			}
			must(t, r.w.PostError(&cq.ErrorEntry{Flags: f, Err: cq.ETrunc}))
			var e cq.ErrorEntry
			if err := r.q.ReadErr(&e); err != nil || e.Flags != f {
				t.Errorf("%v of a failure became %v, %v", f, e.Flags, err)
			}
		}
	})
}
