package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// TestConformanceEQWrite is fi_eq_write.
func TestConformanceEQWrite(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 4}
	conformEQ(t, "returns-bytes", o, func(t *testing.T, r *eqRig) {
		n, err := r.w.Write(&cq.Event{Event: cq.EventUser, Payload: make([]byte, 11)})
		if n != cq.EventHeaderBytes+11 || err != nil {
			t.Errorf("write: %d, %v", n, err)
		}
		n, err = r.w.WriteErr(&cq.EventError{Err: cq.EOther})
		if n != cq.EventErrorBytes || err != nil {
			t.Errorf("writeerr: %d, %v", n, err)
		}
	})
	conformEQ(t, "only-when-opened-for-it", o, func(t *testing.T, r *eqRig) {
		if !r.far {
			e := shmtest.Have(cq.CreateEvents(cq.Named(r.d, r.e.Name()+"-2"), cq.EventOptions{})).In(t)
			r.e = e
		}
		_, err := r.e.Write(&cq.Event{})
		wantErr(t, "write", err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, "Write")
		_, err = r.e.WriteErr(&cq.EventError{})
		wantErr(t, "writeerr", err, cq.ErrInvalid)
		must(t, cq.PromiseEvents(r.e, 2)) // what its library reports
		must(t, cq.KeepEvent(r.e, &cq.Event{Context: 1}))
		must(t, cq.KeepEventError(r.e, &cq.EventError{Context: 2}))
		wantContexts(t, "reports", drainEventsAnd(t, r.e), 1, 2)
	})
	conformEQ(t, "full", o, func(t *testing.T, r *eqRig) {
		writeEvents(t, r.w, 0, 4)
		_, err := r.w.Write(&cq.Event{})
		wantErr(t, "a fifth", err, cq.ErrFull, syscall.EAGAIN)
		wantContexts(t, "nothing was lost", drainEvents(t, r.e), 0, 1, 2, 3)
	})
	o.Overrun = cq.OverrunQueue
	conformEQ(t, "overrun", o, func(t *testing.T, r *eqRig) {
		quiet := r.near(t)
		writeEvents(t, quiet, 100, 102)
		writeEvents(t, r.w, 0, 4)
		for range 2 {
			_, err := r.w.Write(&cq.Event{})
			wantErr(t, "a fifth", err, cq.ErrOverrun, cq.EOverrun)
		}
		var got []uint64
		for range 6 {
			var ev cq.Event
			shmtest.Got(r.e.Read(&ev, 0)).Or(t)
			got = append(got, ev.Context)
		}
		slices.Sort(got)
		wantContexts(t, "what came before", got, 0, 1, 2, 3, 100, 101)
		for range 3 {
			_, err := r.e.Read(&cq.Event{}, 0)
			wantErr(t, "then", err, cq.ErrOverrun)
			_, err = eqSread(r.e, &cq.Event{}, tooLong)
			wantErr(t, "sread", err, cq.ErrOverrun)
			_, err = quiet.Write(&cq.Event{})
			wantErr(t, "write of another", err, cq.ErrOverrun)
			_, err = r.w.WriteErr(&cq.EventError{})
			wantErr(t, "writeerr", err, cq.ErrOverrun)
		}
	})
	several := cq.EventOptions{Size: 8, Spin: -1, MaxLanes: 4}
	conformEQ(t, "several-writers", several, func(t *testing.T, r *eqRig) { severalWriters(t, r, 1) })
	several.Shared = true
	conformEQ(t, "several-readers", several, func(t *testing.T, r *eqRig) { severalWriters(t, r, 3) })
}

// severalWriters has the queue's writer and two more write at once, each of two from several
// goroutines: every event comes once, and to one reader in its writer's order.
func severalWriters(t *testing.T, r *eqRig, readers int) {
	const each = uint64(100)
	ws := []eventWriter{r.w, r.near(t), r.near(t)}
	if readers > 1 { // the lane of a queue that is shared is too
		ws = append(ws, ws...)
	}
	var all sync.WaitGroup
	for i, w := range ws {
		all.Go(func() {
			for n := uint64(0); n < each; {
				payload := []byte("payload")[:n%8]
				_, err := w.Write(&cq.Event{Event: cq.EventUser, Context: uint64(i), Data: n,
					Payload: payload})
				switch {
				case err == nil:
					n++
				case errors.Is(err, cq.ErrFull):
					runtime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	var next [6]atomic.Uint64
	var left atomic.Int64
	left.Store(int64(each) * int64(len(ws)))
	for range readers {
		all.Go(func() {
			ev := cq.Event{Payload: make([]byte, 0, 8)}
			for left.Add(-1) >= 0 { // each goes on while there is one for it
				if _, err := eqSread(r.e, &ev, tooLong); err != nil {
					t.Error(err)
					return
				}
				at := next[ev.Context].Add(1) - 1
				if readers == 1 && at != ev.Data || string(ev.Payload) != "payload"[:ev.Data%8] {
					t.Errorf("writer %d: event %d with %q, want %d", ev.Context, ev.Data, ev.Payload, at)
				}
			}
		})
	}
	all.Wait()
	for i := range ws {
		if n := next[i].Load(); n != each {
			t.Errorf("writer %d: %d events", i, n)
		}
	}
}

// TestConformanceEQEvents are the kinds of events and what they carry.
func TestConformanceEQEvents(t *testing.T) {
	t.Parallel()
	o := cq.EventOptions{Size: 16}
	conformEQ(t, "kinds", o, func(t *testing.T, r *eqRig) {
		kinds := []cq.EventKind{cq.EventNotify, cq.EventConnReq, cq.EventConnected, cq.EventShutdown,
			cq.EventMRComplete, cq.EventAVComplete, cq.EventJoinComplete}
		seen := map[string]bool{}
		for i, k := range append(kinds, cq.EventPeerDeath, cq.EventPeerNew, cq.EventStarved,
			cq.EventLinkUp, cq.EventLinkDown, cq.EventMTU, cq.EventMAC, cq.EventAddressAdded,
			cq.EventAddressRemoved, cq.EventProgram, cq.EventQueues, cq.EventQueues+1, cq.EventUser,
			cq.EventUser+5, 99, 1<<32-1) {
			if i < len(kinds) && int(k) != i { // the numbers of rdma/fi_eq.h
				t.Errorf("%v is %d, want %d", k, k, i)
			}
			if seen[k.String()] {
				t.Errorf("two kinds are %q", k)
			}
			seen[k.String()] = true
			want := cq.Event{Event: k, FID: cq.FID{Kind: cq.FIDUser, ID: ^uint64(0)},
				Payload: []byte("mine")}
			shmtest.Got(r.w.Write(&want)).Or(t)
			ev := cq.Event{Payload: make([]byte, 0, 4)}
			shmtest.Got(r.e.Read(&ev, 0)).Or(t)
			sameEvent(t, k.String(), ev, want)
		}
	})
	cm := func(t *testing.T, r *eqRig, kind cq.EventKind, of cq.FIDKind, in cq.CMEntry) cq.CMEntry {
		t.Helper()
		payload := shmtest.Got(in.AppendTo(nil)).Or(t)
		_, err := r.w.Write(&cq.Event{Event: kind, FID: cq.FID{Kind: of, ID: 3}, Payload: payload})
		must(t, err)
		ev := cq.Event{Payload: make([]byte, 0, 200)}
		n, err := r.e.Read(&ev, 0)
		if err != nil || n != cq.EventHeaderBytes+len(payload) || ev.Event != kind || ev.FID.Kind != of {
			t.Fatalf("%v: %d, %v, %+v", kind, n, err, ev)
		}
		out := shmtest.Got(cq.ParseCMEntry(ev.Payload)).Or(t)
		if string(out.Info) != string(in.Info) || string(out.Data) != string(in.Data) {
			t.Errorf("%+v, want %+v", out, in)
		}
		for cut := range len(payload) - len(in.Data) {
			_, err := cq.ParseCMEntry(payload[:cut])
			wantErr(t, fmt.Sprint("cut to ", cut), err, cq.ErrCorrupt)
		}
		return out
	}
	conformEQ(t, "connection-entries", o, func(t *testing.T, r *eqRig) {
		got := cm(t, r, cq.EventConnReq, cq.FIDPassiveEndpoint, cq.CMEntry{Info: []byte("who")})
		if string(got.Info) != "who" || len(got.Data) != 0 {
			t.Errorf("request: %+v", got)
		}
		_ = cm(t, r, cq.EventConnected, cq.FIDEndpoint, cq.CMEntry{})
		_ = cm(t, r, cq.EventShutdown, cq.FIDEndpoint, cq.CMEntry{})
	})
	conformEQ(t, "connection-data", o, func(t *testing.T, r *eqRig) {
		for _, data := range []string{"", "hello", "data, with padding\x00\x00"} {
			got := cm(t, r, cq.EventConnected, cq.FIDEndpoint, cq.CMEntry{Info: []byte("x"),
				Data: []byte(data)})
			if string(got.Data) != data {
				t.Errorf("data %q, want %q", got.Data, data)
			}
		}
	})
}

// TestConformanceEQCQExchange: a completion and an event answer each other with every wait object.
func TestConformanceEQCQExchange(t *testing.T) {
	t.Parallel()
	name := "wait-objects"
	for _, eq := range []cq.WaitObject{cq.WaitNone, cq.WaitUnspec, cq.WaitFD} {
		for _, wait := range []cq.WaitObject{cq.WaitNone, cq.WaitUnspec, cq.WaitFD} {
			conform(t, fmt.Sprint(name, "/", eq, "-", wait), cq.Options{Wait: wait, Size: 4},
				func(t *testing.T, r *rig) {
					answers := &eqRig{site: r.site, p: r.p}
					answers.createAs(t, "answers", cq.EventOptions{Wait: eq, Size: 4, Write: !r.far})
					answers.w = answers.attach(t) // where the completions come from
					exchange(t, r, answers.e, answers.w)
				})
		}
	}
}

const exchanges = 8

// exchange has who posts completions wait for an event that answers each of them: the events come
// from its process too, so that no two steps are of one process alone.
func exchange(t *testing.T, r *rig, e *cq.EventQueue, w eventWriter) {
	var done sync.WaitGroup
	defer done.Wait()
	done.Go(func() { // completions are answered by events
		dst := make([]cq.Context, 1)
		for n := uint64(0); n < exchanges; {
			k, err := cq.Read(r.q, dst)
			if err == cq.ErrWouldBlock && r.q.Options().Wait != cq.WaitNone {
				k, err = sread(r.q, dst, tooLong)
			}
			if k == 1 {
				writeEvents(t, w, dst[0].Context, dst[0].Context+1)
				n++
			} else if err != cq.ErrWouldBlock {
				t.Error(err)
				return
			}
			runtime.Gosched()
		}
	})
	for i := range uint64(exchanges) {
		r.post(t, i, i+1)
		var ev cq.Event
		for {
			_, err := e.Read(&ev, 0)
			if err == cq.ErrWouldBlock && e.Options().Wait != cq.WaitNone {
				_, err = eqSread(e, &ev, tooLong)
			}
			if err == nil {
				break
			}
			wantErr(t, "read", err, cq.ErrWouldBlock)
			runtime.Gosched()
		}
		if ev.Context != i {
			t.Errorf("event %d, want %d", ev.Context, i)
		}
	}
}

// failing is a queue of either kind, as far as error data goes.
type failing struct {
	most int // that a failure can carry
	post func(data []byte) error
	// read takes a failure with an entry that has had this memory since it was made, or with the
	// entry of the last read if room is nil.
	read func(room []byte) (data []byte, dataBytes int)
}

// TestConformanceCQErrData is the err_data of fi_cq_readerr: whatever is copied is the caller's for
// good.
func TestConformanceCQErrData(t *testing.T) {
	t.Parallel()
	for name, f := range errDataCases {
		conform(t, name, cq.Options{Size: 8}, func(t *testing.T, r *rig) {
			var e cq.ErrorEntry
			f(t, &failing{most: cq.ErrDataMaxBytes,
				post: func(data []byte) error {
					return r.w.PostError(&cq.ErrorEntry{Err: cq.EOther, ErrData: data})
				},
				read: func(room []byte) ([]byte, int) {
					if room != nil {
						e = cq.ErrorEntry{ErrData: room, ErrDataBytes: 99}
					}
					must(t, r.q.ReadErr(&e))
					wantErr(t, "entry", &e, cq.EOther)
					return e.ErrData, e.ErrDataBytes
				}})
		})
	}
	conform(t, "refused-keeps-its-room", cq.Options{Size: 1}, func(t *testing.T, r *rig) {
		long := &cq.ErrorEntry{Flags: cq.FlagSend, Err: cq.EOther,
			ErrData: make([]byte, cq.ErrDataMaxBytes+1)}
		must(t, r.w.Credit(1))
		wantErr(t, "credited", r.w.PostErrorCredited(long), cq.ErrInvalid, syscall.EINVAL)
		long.ErrData = long.ErrData[1:]
		must(t, r.w.PostErrorCredited(long))
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		must(t, r.w.Bind(cq.FlagTransmit))
		must(t, r.w.Begin(cq.FlagSend))
		long.ErrData = make([]byte, cq.ErrDataMaxBytes+1)
		wantErr(t, "bound", r.w.Fail(long, cq.FlagSend), cq.ErrInvalid)
		long.ErrData = long.ErrData[1:]
		must(t, r.w.Fail(long, cq.FlagSend))
	})
}

// TestConformanceEQErrData is the err_data of fi_eq_readerr, for which the same holds.
func TestConformanceEQErrData(t *testing.T) {
	t.Parallel()
	for name, f := range errDataCases {
		conformEQ(t, name, cq.EventOptions{Size: 8}, func(t *testing.T, r *eqRig) {
			var e cq.EventError
			f(t, &failing{most: r.e.Options().DataMaxBytes,
				post: func(data []byte) error {
					_, err := r.w.WriteErr(&cq.EventError{Err: cq.EOther, ErrData: data})
					return err
				},
				read: func(room []byte) ([]byte, int) {
					if room != nil {
						e = cq.EventError{ErrData: room, ErrDataBytes: 99}
					}
					shmtest.Got(r.e.ReadErr(&e, 0)).Or(t)
					wantErr(t, "entry", &e, cq.EOther)
					return e.ErrData, e.ErrDataBytes
				}})
		})
	}
}

var errDataCases = map[string]func(t *testing.T, f *failing){
	"callers-memory": func(t *testing.T, f *failing) {
		must(t, f.post([]byte("first failure")))
		must(t, f.post([]byte("second")))
		memory := make([]byte, 8)
		first, n := f.read(memory[:0:5])
		second, m := f.read(make([]byte, 32)) // with other libraries the end of the first one's data
		if string(first) != "first" || n != 13 || string(memory) != "first\x00\x00\x00" {
			t.Errorf("room for 5: %q of %d, memory %q", first, n, memory)
		}
		if string(second) != "second" || m != 6 {
			t.Errorf("room for 32: %q of %d", second, m)
		}
	},
	"room-is-capacity": func(t *testing.T, f *failing) {
		for _, length := range []int{0, 3, 8} {
			must(t, f.post([]byte("failure")))
			if got, n := f.read(make([]byte, length, 8)); string(got) != "failure" || n != 7 {
				t.Errorf("length %d, capacity 8: %q of %d", length, got, n)
			}
		}
	},
	"used-again": func(t *testing.T, f *failing) {
		room := make([]byte, 16)
		for _, text := range []string{"first failure", "", "2", "third failure"} {
			must(t, f.post([]byte(text)))
			if got, n := f.read(room); string(got) != text || n != len(text) {
				t.Errorf("%q of %d, want %q", got, n, text)
			}
			room = nil
		}
	},
	"no-room": func(t *testing.T, f *failing) {
		must(t, f.post([]byte("why")))
		if got, n := f.read([]byte{}); len(got) != 0 || n != 3 {
			t.Errorf("%q of %d", got, n)
		}
	},
	"too-long-is-refused": func(t *testing.T, f *failing) {
		long := slices.Concat(bytes.Repeat([]byte{1}, f.most), []byte{2})
		wantErr(t, "one byte too many", f.post(long), cq.ErrInvalid, syscall.EINVAL)
		must(t, f.post(long[1:]))
		if got, n := f.read(make([]byte, 2*f.most)); !bytes.Equal(got, long[1:]) || n != f.most {
			t.Errorf("%x of %d, want %x", got, n, long[1:])
		}
	},
}
