package cq_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// TestConformanceCQReadFrom is fi_cq_readfrom.
func TestConformanceCQReadFrom(t *testing.T) {
	o := cq.Options{Size: 8}
	conform(t, "source", o, func(t *testing.T, r *rig) {
		_, err := r.w.PostBatch([]cq.Entry{{Context: 1, Src: 4}, {Context: 2, Src: 0},
			{Context: 3, Src: 9}})
		must(t, err)
		dst, src := make([]cq.Context, 4), make([]cq.Addr, 4)
		n, err := cq.ReadFrom(r.q, dst, src)
		if n != 3 || err != nil || !slices.Equal(src[:3], []cq.Addr{4, 0, 9}) {
			t.Errorf("%d, %v, %v", n, err, src)
		}
		wantContexts(t, "entries", contexts(dst[:n]), 1, 2, 3)
	})
	conform(t, "not-available", o, func(t *testing.T, r *rig) {
		must(t, r.w.Post(&cq.Entry{Context: 1, Src: cq.AddrNotAvail}))
		src := []cq.Addr{1}
		if n, err := cq.ReadFrom(r.q, make([]cq.Context, 1), src); n != 1 || err != nil ||
			src[0] != ^cq.Addr(0) {
			t.Errorf("%d, %v, %v", n, err, src)
		}
	})
	conform(t, "lengths-differ", o, func(t *testing.T, r *rig) {
		r.post(t, 0, 1)
		for _, room := range []int{0, 1, 3} {
			_, err := cq.ReadFrom(r.q, make([]cq.Context, 2), make([]cq.Addr, room))
			wantErr(t, "readfrom", err, cq.ErrInvalid, syscall.EINVAL)
			_, err = cq.ReadFromTimeout(r.q, make([]cq.Context, 2), make([]cq.Addr, room), 0)
			wantErr(t, "sreadfrom", err, cq.ErrInvalid)
		}
		wantContexts(t, "nothing was taken", read(t, r.q, 2), 0)
	})
}
