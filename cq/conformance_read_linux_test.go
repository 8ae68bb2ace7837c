package cq_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQRead is fi_cq_read.
func TestConformanceCQRead(t *testing.T) {
	t.Parallel()
	conform(t, "empty", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		n, err := cq.Read(r.q, make([]cq.Tagged, 4))
		if n != 0 {
			t.Errorf("%d entries of an empty queue", n)
		}
		wantErr(t, "empty", err, cq.ErrWouldBlock, syscall.EAGAIN)
		r.post(t, 1, 2)
		wantContexts(t, "one", read(t, r.q, 4), 1)
		_, err = cq.Read(r.q, make([]cq.Tagged, 4))
		wantErr(t, "empty again", err, cq.ErrWouldBlock)
	})
	conform(t, "several", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.post(t, 10, 15)
		dst := make([]cq.Context, 8)
		n, err := cq.Read(r.q, dst)
		if n != 5 || err != nil {
			t.Fatalf("%d, %v; want 5", n, err)
		}
		wantContexts(t, "in order", contexts(dst[:n]), 10, 11, 12, 13, 14)
		if dst[5] != (cq.Context{}) {
			t.Errorf("wrote beyond what it returned: %v", dst)
		}
	})
	conform(t, "at-most-count", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.post(t, 0, 5)
		wantContexts(t, "first", read(t, r.q, 2), 0, 1)
		wantContexts(t, "second", read(t, r.q, 2), 2, 3)
		wantContexts(t, "rest", read(t, r.q, 2), 4)
	})
	conform(t, "count-zero", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		if n, err := cq.Read[cq.Msg](r.q, nil); n != 0 || err != nil && err != cq.ErrWouldBlock {
			t.Errorf("empty: %d, %v", n, err)
		}
		r.post(t, 0, 2)
		if n, err := cq.Read[cq.Msg](r.q, nil); n != 0 || err != nil {
			t.Errorf("two entries: %d, %v", n, err)
		}
		wantContexts(t, "nothing was taken", read(t, r.q, 4), 0, 1)
	})
	conform(t, "batches-with-errors", cq.Options{Size: 64}, batchesWithErrors)
}

// batchesWithErrors reads as fabtests' loop does: full buffers until there is nothing more, and
// readerr whenever a read says so.
func batchesWithErrors(t *testing.T, r *rig) {
	var want []string
	for i := range uint64(40) {
		if i%7 == 3 {
			r.postError(t, i)
			want = append(want, fmt.Sprint("E", i))
			continue
		}
		r.post(t, i, i+1)
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	dst := make([]cq.Context, 4)
	for {
		n, err := cq.Read(r.q, dst)
		for _, e := range dst[:n] {
			got = append(got, fmt.Sprint(e.Context))
		}
		if err == cq.ErrWouldBlock {
			break
		}
		if err == cq.ErrAvail {
			var e cq.ErrorEntry
			must(t, r.q.ReadErr(&e))
			got, err = append(got, fmt.Sprint("E", e.Context)), nil
		}
		must(t, err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestConformanceCQReadErr is fi_cq_readerr, and what reads say while an error waits.
func TestConformanceCQReadErr(t *testing.T) {
	t.Parallel()
	conform(t, "out-of-band", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.postError(t, 7)
		dst := make([]cq.Tagged, 4)
		n, err := cq.Read(r.q, dst)
		wantErr(t, "read", err, cq.ErrAvail, cq.EAvail)
		if n != 0 || dst[0] != (cq.Tagged{}) {
			t.Errorf("read returned the failure: %d, %v", n, dst[0])
		}
	})
	conform(t, "in-order", cq.Options{Size: 16}, func(t *testing.T, r *rig) {
		r.post(t, 0, 2)
		r.postError(t, 2)
		r.post(t, 3, 4)
		r.postError(t, 4)
		r.postError(t, 5)
		r.post(t, 6, 7)
		wantContexts(t, "short count ahead of the error", read(t, r.q, 8), 0, 1)
		got := takeAll(t, r.q)
		if want := []string{"E2", "3", "E4", "E5", "6"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	conform(t, "eavail-until-taken", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.postError(t, 0)
		r.post(t, 1, 2)
		for range 3 {
			_, err := cq.Read(r.q, make([]cq.Msg, 4))
			wantErr(t, "read", err, cq.ErrAvail)
			_, err = sread(r.q, make([]cq.Msg, 4), -1)
			wantErr(t, "sread", err, cq.ErrAvail)
		}
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		wantContexts(t, "after it", read(t, r.q, 4), 1)
	})
	conform(t, "no-error", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		wantErr(t, "empty", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrWouldBlock, syscall.EAGAIN)
		r.post(t, 0, 1)
		r.postError(t, 1)
		wantErr(t, "a completion is next", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrWouldBlock)
		_ = read(t, r.q, 1)
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
		wantErr(t, "a second time", r.q.ReadErr(&cq.ErrorEntry{}), cq.ErrWouldBlock)
	})
	conform(t, "every-field", cq.Options{Size: 8}, readErrFields)
	conform(t, "unknown-fields-are-zero", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.w.PostError(&cq.ErrorEntry{Flags: cq.FlagSend | cq.FlagNoContext,
			Err: cq.Errno(syscall.ECONNRESET)}))
		e := cq.ErrorEntry{Context: 9, Len: 9, Buf: 9, Data: 9, Tag: 9, OverrunBytes: 9, ProvErrno: 9}
		must(t, r.q.ReadErr(&e))
		if e.Context != 0 || e.Len != 0 || e.Buf != 0 || e.Data != 0 || e.Tag != 0 ||
			e.OverrunBytes != 0 || e.ProvErrno != 0 || len(e.ErrData) != 0 {
			t.Errorf("%+v", e)
		}
		if e.Flags != cq.FlagSend|cq.FlagNoContext {
			t.Errorf("flags %v", e.Flags)
		}
	})
	conform(t, "truncation", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.w.PostError(&cq.ErrorEntry{Context: 1, Flags: cq.FlagRecv | cq.FlagMsg, Len: 100,
			OverrunBytes: 28, Err: cq.ETrunc}))
		var e cq.ErrorEntry
		must(t, r.q.ReadErr(&e))
		if e.Len != 100 || e.OverrunBytes != 28 {
			t.Errorf("%+v", e)
		}
		wantErr(t, "entry", &e, cq.ETrunc, syscall.EMSGSIZE)
	})
}

func readErrFields(t *testing.T, r *rig) {
	in := cq.ErrorEntry{Context: 1, Flags: cq.FlagRecv | cq.FlagTagged, Len: 2, Buf: 3, Data: 4,
		Tag: 5, Src: cq.From(6), OverrunBytes: 7, Err: cq.Errno(syscall.EIO), ProvErrno: -8,
		ErrData: []byte("why")}
	must(t, r.w.PostError(&in))
	got := cq.ErrorEntry{ErrData: make([]byte, 16)}
	must(t, r.q.ReadErr(&got))
	in.ErrDataBytes = 3
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", in) {
		t.Errorf("got %+v, want %+v", got, in)
	}
	wantErr(t, "entry", &got, syscall.EIO)
	if got.Err <= 0 {
		t.Errorf("err %d is not positive", got.Err)
	}
}
