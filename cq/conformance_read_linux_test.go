package cq_test

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
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
		if n, err := cq.Read(r.q, []cq.Msg{}); n != 0 || err != cq.ErrWouldBlock {
			t.Errorf("nothing left: %d, %v", n, err)
		}
		r.postError(t, 3)
		if n, err := cq.Read[cq.Msg](r.q, nil); n != 0 || err != nil {
			t.Errorf("at an error: %d, %v", n, err)
		}
		must(t, r.q.ReadErr(&cq.ErrorEntry{}))
	})
}

// TestConformanceCQReadErr is fi_cq_readerr, and what reads say while an error waits.
func TestConformanceCQReadErr(t *testing.T) {
	t.Parallel()
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
		for _, kinds := range []string{"e", "ece", "ccccceccccecee", "eccccccccce"} {
			var want []string
			for i, c := range kinds {
				if c == 'e' {
					r.postError(t, uint64(i))
					want = append(want, fmt.Sprint("E", i))
				} else {
					r.post(t, uint64(i), uint64(i)+1)
					want = append(want, fmt.Sprint(i))
				}
			}
			if got := takeAll(t, r.q); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
	})
	conform(t, "eavail-until-taken", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		r.postError(t, 0)
		r.post(t, 1, 2)
		for range 3 {
			dst := make([]cq.Tagged, 4)
			n, err := cq.Read(r.q, dst)
			wantErr(t, "read", err, cq.ErrAvail, cq.EAvail)
			if n != 0 || dst[0] != (cq.Tagged{}) {
				t.Errorf("read returned the failure: %d, %v", n, dst[0])
			}
			_, err = sread(r.q, dst, -1)
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
		e := cq.ErrorEntry{Context: 9, Len: 9, Buf: 9, Data: 9, Tag: 9, OverrunBytes: 9, ProvErrno: 9,
			Redelivered: true, ErrData: make([]byte, 8), ErrDataBytes: 9}
		must(t, r.q.ReadErr(&e))
		if e.Redelivered || e.ErrDataBytes != 0 || e.Src != (cq.ErrorEntry{}).Src {
			t.Errorf("stale: %+v", e)
		}
		if e.Context != 0 || e.Len != 0 || e.Buf != 0 || e.Data != 0 || e.Tag != 0 ||
			e.OverrunBytes != 0 || e.ProvErrno != 0 || len(e.ErrData) != 0 {
			t.Errorf("%+v", e)
		}
		if e.Flags != cq.FlagSend|cq.FlagNoContext {
			t.Errorf("flags %v", e.Flags)
		}
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

// everyField has something in every field.
var everyField = cq.Entry{Context: 1, Flags: cq.FlagRecv | cq.FlagTagged | cq.FlagRemoteCQData,
	Len: 3, Buf: 4, Data: 0x0102030405060708, Tag: 0x1122334455667788, Src: cq.From(7)}

// TestConformanceCQFormat is the format of fi_cq_attr and what reads return in each.
func TestConformanceCQFormat(t *testing.T) {
	t.Parallel()
	of := func(name string, f cq.Format, check func(t *testing.T, r *rig)) {
		conform(t, name, cq.Options{Size: 8, Format: f}, func(t *testing.T, r *rig) {
			if got := r.q.Options().Format; f != cq.FormatUnspec && got != f {
				t.Errorf("format %v, asked for %v", got, f)
			}
			check(t, r)
		})
	}
	for keeps, name := range map[cq.Format]string{cq.FormatContext: "context", cq.FormatMsg: "msg",
		cq.FormatData: "data"} {
		of(name, keeps, func(t *testing.T, r *rig) { readsUpTo(t, r, keeps) })
	}
	of("unspec", cq.FormatUnspec, func(t *testing.T, r *rig) {
		if got := r.q.Options().Format; got == cq.FormatUnspec {
			t.Error("what was chosen cannot be read")
		}
		readsUpTo(t, r, r.q.Options().Format)
	})
	of("own-and-smaller", cq.FormatTagged, func(t *testing.T, r *rig) {
		readsUpTo(t, r, cq.FormatTagged)
		must(t, r.w.Post(&everyField))
		got, err := readOne[cq.Entry](r.q)
		got.Meta = 0 // the sequence
		if err != nil || got != everyField {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// readsUpTo reads in each format: a queue gives what it keeps and less, and refuses more.
func readsUpTo(t *testing.T, r *rig, keeps cq.Format) {
	t.Helper()
	e := everyField
	readsAs(t, r, keeps, cq.FormatContext, cq.Context{Context: 1})
	readsAs(t, r, keeps, cq.FormatMsg, cq.Msg{Context: 1, Flags: e.Flags, Len: 3})
	readsAs(t, r, keeps, cq.FormatData,
		cq.Data{Context: 1, Flags: e.Flags, Len: 3, Buf: 4, Data: e.Data})
	readsAs(t, r, keeps, cq.FormatTagged,
		cq.Tagged{Context: 1, Flags: e.Flags, Len: 3, Buf: 4, Data: e.Data, Tag: e.Tag})
}

// readsAs posts an entry and checks what a read of that format returns. A queue that keeps less
// cannot be read so, and loses nothing.
func readsAs[T cq.Readable](t *testing.T, r *rig, keeps, format cq.Format, want T) {
	t.Helper()
	must(t, r.w.Post(&everyField))
	got, err := readOne[T](r.q)
	if format > keeps {
		wantErr(t, "read", err, cq.ErrFormat, syscall.EINVAL)
		wantField(t, err, "format")
		must(t, r.q.Signal()) // which a read takes that waits
		_, err = sread(r.q, make([]T, 2), tooLong, 2)
		wantErr(t, "for two", err, cq.ErrFormat, syscall.EINVAL)
		wantContexts(t, "the entry", read(t, r.q, 2), 1)
		_, err = sread(r.q, make([]cq.Context, 2), time.Second)
		wantErr(t, "it did not wait", err, cq.ErrSignaled)
	} else if err != nil || any(got) != any(want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// TestConformanceCQFields are the fields that are not a matter of the format.
func TestConformanceCQFields(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 8}
	one := func(t *testing.T, r *rig, e cq.Entry) cq.Entry {
		t.Helper()
		must(t, r.w.Post(&e))
		got := shmtest.Got(readOne[cq.Entry](r.q)).Or(t)
		return got
	}
	conform(t, "words", o, func(t *testing.T, r *rig) {
		for _, w := range []uint64{0, 1, 1 << 40, ^uint64(0)} {
			want := cq.Entry{Context: w, Flags: cq.FlagSend, Len: w, Buf: shm.Ref(w), Data: w, Tag: w}
			got := one(t, r, want)
			if got.Meta = 0; got != want { // the sequence
				t.Errorf("%+v, want %+v", got, want)
			}
		}
	})
	conform(t, "no-context", o, func(t *testing.T, r *rig) {
		got := one(t, r, cq.Entry{Flags: cq.FlagRMA | cq.FlagRemoteWrite | cq.FlagRemoteCQData,
			Data: 5, Meta: cq.MetaNoContext})
		if got.Context != 0 || got.Flags&cq.FlagNoContext == 0 || got.Data != 5 {
			t.Errorf("%+v", got)
		}
		must(t, r.w.Post(&cq.Entry{Context: 0, Flags: cq.FlagSend}))
		m, err := readOne[cq.Msg](r.q)
		if err != nil || m.Flags&cq.FlagNoContext != 0 {
			t.Errorf("a context of 0 is a context: %+v, %v", m, err)
		}
	})
}

// TestConformanceCQFlags are the completion flags.
func TestConformanceCQFlags(t *testing.T) {
	t.Parallel()
	o := cq.Options{Size: 32}
	conform(t, "kinds-and-directions", o, func(t *testing.T, r *rig) {
		const S, R, M, G = cq.FlagSend, cq.FlagRecv, cq.FlagMsg, cq.FlagTagged
		for _, f := range []cq.Flags{S | M, R | M, S | G, R | G, R | M | cq.FlagMulticast,
			cq.FlagRMA | cq.FlagRead, cq.FlagRMA | cq.FlagWrite, cq.FlagRMA | cq.FlagRemoteRead,
			cq.FlagRMA | cq.FlagRemoteWrite, cq.FlagAtomic | cq.FlagRead, cq.FlagAtomic | cq.FlagWrite,
			cq.FlagAtomic | cq.FlagRemoteRead, cq.FlagAtomic | cq.FlagRemoteWrite,
			R | M | cq.FlagRemoteCQData, R | M | cq.FlagMore, R | M | cq.FlagClaim} {
			must(t, r.w.Post(&cq.Entry{Flags: f}))
			if got, err := readOne[cq.Msg](r.q); err != nil || got.Flags != f {
				t.Errorf("got %v, %v; want %v", got.Flags, err, f)
			}
		}
		// The values are those of rdma/fabric.h.
		for f, bit := range map[cq.Flags]int{cq.FlagMsg: 1, cq.FlagRMA: 2, cq.FlagTagged: 3,
			cq.FlagAtomic: 4, cq.FlagMulticast: 5, cq.FlagRead: 8, cq.FlagWrite: 9, cq.FlagRecv: 10,
			cq.FlagSend: 11, cq.FlagRemoteRead: 12, cq.FlagRemoteWrite: 13, cq.FlagMultiRecv: 16,
			cq.FlagRemoteCQData: 17, cq.FlagMore: 18} {
			if f != 1<<bit {
				t.Errorf("%v is %#x, want bit %d", f, uint64(f), bit)
			}
		}
	})
	conform(t, "multi-receive", o, func(t *testing.T, r *rig) {
		es := []cq.Entry{{Context: 1, Flags: cq.FlagRecv | cq.FlagMsg, Len: 10, Buf: 100},
			{Context: 1, Flags: cq.FlagRecv | cq.FlagMsg | cq.FlagMultiRecv, Len: 20, Buf: 110},
			{Context: 2, Flags: cq.FlagMultiRecv}}
		shmtest.Got(r.w.PostBatch(es)).Or(t)
		dst := make([]cq.Data, 4)
		n, err := cq.Read(r.q, dst)
		if n != 3 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		for i, e := range es {
			if got := dst[i]; got.Context != e.Context || got.Flags != e.Flags || got.Buf != e.Buf ||
				got.Len != e.Len {
				t.Errorf("%d: %+v, want %+v", i, got, e)
			}
		}
	})
	conformOnce(t, "levels-exist", func(t *testing.T) {
		for _, c := range []struct {
			flag cq.Flags
			bit  int // of rdma/fabric.h
			name string
		}{
			{cq.FlagFence, 21, "FENCE"}, {cq.FlagCompletion, 24, "COMPLETION"},
			{cq.FlagInject, 25, "INJECT"}, {cq.FlagInjectComplete, 26, "INJECT_COMPLETE"},
			{cq.FlagTransmitComplete, 27, "TRANSMIT_COMPLETE"},
			{cq.FlagDeliveryComplete, 28, "DELIVERY_COMPLETE"},
			{cq.FlagCommitComplete, 30, "COMMIT_COMPLETE"},
			{cq.FlagMatchComplete, 31, "MATCH_COMPLETE"}, {cq.FlagRMAEvent, 56, "RMA_EVENT"},
			{cq.FlagPeek, 19, "PEEK"}, {cq.FlagMore, 18, "MORE"}, {cq.FlagDiscard, 58, "DISCARD"},
			{cq.FlagClaim, 59, "CLAIM"},
		} {
			if c.flag != 1<<c.bit || c.flag.String() != c.name {
				t.Errorf("%v is %#x, want bit %d, %s", c.flag, uint64(c.flag), c.bit, c.name)
			}
		}
	})
}

// TestConformanceCQErrno are the numbers of fi_errno.
func TestConformanceCQErrno(t *testing.T) {
	conformOnce(t, "numbers", func(t *testing.T) {
		for e, want := range map[cq.Errno]int{cq.EOther: 256, cq.ETooSmall: 257, cq.EOpBadState: 258,
			cq.EAvail: 259, cq.EBadFlags: 260, cq.ENoEQ: 261, cq.EDomain: 262, cq.ENoCQ: 263,
			cq.ECRC: 264, cq.ETrunc: 265, cq.ENoKey: 266, cq.ENoAV: 267, cq.EOverrun: 268,
			cq.ENoRx: 269, cq.ENoMR: 270, cq.EFirewallAddr: 271} {
			if int(e) != want || e.Error() == "" || strings.Contains(e.Error(), "errno") {
				t.Errorf("%d: %q, want %d", e, e.Error(), want)
			}
		}
	})
	conformOnce(t, "sentinels", errorsMatch)
}

// TestConformanceCQStrError is fi_cq_strerror.
func TestConformanceCQStrError(t *testing.T) {
	conform(t, "text", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		must(t, r.w.PostError(&cq.ErrorEntry{Err: cq.EOther, ProvErrno: 265, ErrData: []byte{0xab}}))
		e := cq.ErrorEntry{ErrData: make([]byte, 8)}
		must(t, r.q.ReadErr(&e))
		text := cq.StrError(e.ProvErrno, e.ErrData)
		if !strings.Contains(text, cq.ETrunc.Error()) || !strings.Contains(text, "ab") {
			t.Errorf("%q", text)
		}
		for n, want := range map[int32]string{int32(syscall.ENOENT): "no such file or directory",
			int32(cq.ETrunc): "truncation", -5: "provider error -5"} {
			if got := cq.StrError(n, nil); got != want {
				t.Errorf("%d: %q, want %q", n, got, want)
			}
		}
		got := cq.StrError(100000, []byte{1, 0xab})
		if want := "provider error 100000 (detail 01ab)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		for _, n := range []int32{0, -1, 1, 9999} {
			if cq.StrError(n, nil) == "" {
				t.Errorf("nothing is said of %d", n)
			}
		}
	})
}
