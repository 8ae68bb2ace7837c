package cq_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// arrived is a completion of data with every field set.
func arrived(context uint64) *cq.Entry {
	return &cq.Entry{Context: context, Flags: cq.FlagRecv | cq.FlagTagged | cq.FlagRemoteCQData,
		Len: 2, Buf: shm.Ref(3), Data: 4, Tag: 5, Src: cq.From(6)}
}

// postFrom posts a completion of data from an address, as an endpoint of anybody's own does: the
// source is what the vector calls it (FI_SOURCE), and with sourceErr one that is not in there makes
// an error entry (FI_SOURCE_ERR).
func postFrom(w *cq.Writer, e *cq.Entry, raw []byte, v *cq.AddressVector, sourceErr bool) error {
	from, known := v.Resolve(raw)
	if !known && sourceErr {
		return w.PostError(&cq.ErrorEntry{Context: e.Context, Flags: e.Flags, Len: e.Len, Buf: e.Buf,
			Data: e.Data, Tag: e.Tag, Err: cq.Errno(syscall.EADDRNOTAVAIL), ErrData: raw})
	}
	c := *e
	c.Src = cq.From(from)
	return w.Post(&c)
}

// TestSources: what readfrom says of a source that is known and one that is not.
func TestSources(t *testing.T) {
	vectors(t, cq.AddressOptions{UserID: true}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddrs(0, 3)...)
		must(t, v.SetUserID(2, 1000))
		q, w := pair(t, cq.Options{Size: 16})
		for i, raw := range [][]byte{sockaddr(1), sockaddr(2), sockaddr(9), nil, {1}} {
			must(t, postFrom(w, arrived(uint64(i)), raw, v, false))
		}
		dst, src := make([]cq.Tagged, 16), make([]cq.Addr, 16)
		n, err := cq.ReadFrom(q, dst, src)
		must(t, err)
		no := cq.AddrNotAvail
		want := []cq.Addr{1, 1000, no, no, no}
		if !slices.Equal(src[:n], want) {
			t.Errorf("got %v, want %v", src[:n], want)
		}
		if e := arrived(1); dst[1] != (cq.Tagged{Context: 1, Flags: e.Flags, Len: 2, Buf: 3, Data: 4,
			Tag: 5}) {
			t.Errorf("%+v", dst[1])
		}
	})
}

// TestSourceErr: data from nobody known is an error entry that is valid in every field, and its
// detail goes into the vector as it is; from then on the source has an index.
func TestSourceErr(t *testing.T) {
	vectors(t, cq.AddressOptions{}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddr(1))
		q, w := pair(t, cq.Options{Size: 16})
		for i, from := range []int{1, 7, 1, 8} {
			must(t, postFrom(w, arrived(uint64(i)), sockaddr(from), v, true))
		}
		dst, src := make([]cq.Tagged, 16), make([]cq.Addr, 16)
		for _, failed := range []uint64{1, 3} {
			n, err := cq.ReadFrom(q, dst, src)
			if n != 1 || err != nil || dst[0].Context != failed-1 || src[0] != 0 {
				t.Fatalf("%d, %v, %+v from %d", n, err, dst[0], src[0])
			}
			_, err = cq.ReadFrom(q, dst, src)
			wantErr(t, "readfrom", err, cq.ErrAvail, cq.EAvail)
			e := cq.ErrorEntry{ErrData: make([]byte, cq.ErrDataMaxBytes)}
			must(t, q.ReadErr(&e))
			want := cq.ErrorEntry{Context: failed, Flags: arrived(0).Flags, Len: 2, Buf: 3, Data: 4,
				Tag: 5, Err: cq.Errno(syscall.EADDRNOTAVAIL),
				ErrData: sockaddr(map[uint64]int{1: 7, 3: 8}[failed])}
			want.ErrDataBytes = len(want.ErrData)
			if diff := cmp.Diff(want, e); diff != "" {
				t.Error(diff)
			}
			wantErr(t, "entry", &e, syscall.EADDRNOTAVAIL)
			insert(t, v, e.ErrData)
		}
		must(t, postFrom(w, arrived(9), sockaddr(8), v, true))
		if n, err := cq.ReadFrom(q, dst[:1], src[:1]); n != 1 || err != nil || src[0] != 2 {
			t.Errorf("after the insertion: %d, %v, from %d", n, err, src[0])
		}
	})
}
