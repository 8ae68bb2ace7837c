package cq_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQReadFrom is fi_cq_readfrom.
func TestConformanceCQReadFrom(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8}
	conform(t, "source", o, func(t *testing.T, r *rig) {
		_, err := r.w.PostBatch([]cq.Entry{{Context: 1, Src: cq.From(4)}, {Context: 2, Src: cq.From(0)},
			{Context: 3, Src: cq.From(9)}})
		must(t, err)
		dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
		n, err := cq.ReadFrom(r.q, dst, src)
		if n != 3 || err != nil || !slices.Equal(src[:3], []cq.Addr{4, 0, 9}) {
			t.Errorf("%d, %v, %v", n, err, src)
		}
		wantContexts(t, "entries", contexts(dst[:n]), 1, 2, 3)
	})
	conform(t, "not-available", o, func(t *testing.T, r *rig) {
		must(t, r.w.Post(&cq.Entry{Context: 1}))
		src := []cq.Addr{1}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != ^cq.Addr(0) {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conform(t, "nobody-said", cq.Options{Size: 32}, nobodySaid)
	conform(t, "lengths-differ", o, func(t *testing.T, r *rig) {
		r.post(t, 0, 1)
		for _, room := range []int{0, 1, 3} {
			_, err := cq.ReadFrom(r.q, make([]cq.Context, 2), make([]cq.Addr, room))
			wantErr(t, "readfrom", err, cq.ErrInvalid, syscall.EINVAL)
			_, err = sreadFrom(r.q, make([]cq.Context, 2), make([]cq.Addr, room), 0)
			wantErr(t, "sreadfrom", err, cq.ErrInvalid)
		}
		wantContexts(t, "nothing was taken", read(t, r.q, 2), 0)
	})
	conformSource(t, "source-in-address-vector", o, cqReadFromSourceInAddressVector)
	conformSource(t, "user-id", o, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{UserID: true})
		_, err := v.InsertIDs(sockaddrs(0, 1), []cq.Addr{4711})
		must(t, err)
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(0), v, cq.SourceAddr))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != 4711 {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conformSource(t, "unknown-peer", o, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{})
		_ = insert(t, v, sockaddr(0))
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(5), v, cq.SourceAddr))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != cq.AddrNotAvail {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conformSource(t, "nothing-inserted", o, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{})
		for _, mode := range []cq.SourceMode{cq.SourceNone, cq.SourceAddr, cq.SourceErr} {
			must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(5), v, mode))
		}
		_ = takeAll(t, r.q)
		if n := v.Len(); n != 0 {
			t.Errorf("%d addresses were inserted", n)
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
	for _, mode := range []cq.SourceMode{cq.SourceAddr, cq.SourceErr} {
		must(t, r.w.PostFrom(&cq.Entry{Context: 1}, sockaddr(2), v, mode))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != got[2] {
			t.Errorf("%v: %d, %v, %v; want %d", mode, n, err, src, got[2])
		}
	}
}

// nobodySaid: what was posted without a source has none, however it was posted and is read. The
// first address of a vector is another thing.
func nobodySaid(t *testing.T, r *rig) {
	v := newVector(t, site{}, cq.AddressOptions{})
	_ = insert(t, v, sockaddr(0))
	must(t, r.w.Bind(cq.FlagTransmit|cq.FlagRecv)) // with SourceNone
	e := &cq.Entry{Flags: cq.FlagSend}
	postAll := func() {
		must(t, r.w.Post(e))
		_, err := r.w.PostBatch([]cq.Entry{*e, *e})
		must(t, err)
		must(t, r.w.Credit(1))
		must(t, r.w.PostCredited(e))
		must(t, r.w.Begin(cq.FlagSend))
		must(t, r.w.Complete(e, cq.FlagSend))
		if r.others { // who cannot open the vector
			must(t, r.w.Post(e))
			return
		}
		must(t, r.w.PostFrom(e, sockaddr(0), v, cq.SourceNone))
	}
	const posts = 6
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
		must(t, r.w.PostFrom(&e, raw, v, cq.SourceErr))
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
		must(t, r.w.PostFrom(&e, raw, v, cq.SourceErr))
		src := []cq.Addr{99}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != at[0] {
			t.Errorf("once inserted: %d, %v, %v; want %v", n, err, src, at)
		}
	}
}
