package cq_test

import (
	"bytes"
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

// TestSources: what readfrom says in each mode, of a source that is known and one that is not.
func TestSources(t *testing.T) {
	vectors(t, cq.AddressOptions{UserID: true}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddrs(0, 3)...)
		must(t, v.SetUserID(2, 1000))
		q, w := pair(t, cq.Options{Size: 16})
		for _, mode := range []cq.SourceMode{cq.SourceNone, cq.SourceAddr} {
			for i, raw := range [][]byte{sockaddr(1), sockaddr(2), sockaddr(9), nil, {1}} {
				must(t, w.PostFrom(arrived(uint64(i)), raw, v, mode))
			}
		}
		must(t, w.PostFrom(arrived(0), sockaddr(1), nil, cq.SourceAddr))
		dst, src := make([]cq.Tagged, 16), make([]cq.Addr, 16)
		n, err := cq.ReadFrom(q, dst, src)
		must(t, err)
		no := cq.AddrNotAvail
		want := []cq.Addr{no, no, no, no, no, 1, 1000, no, no, no, no}
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
			must(t, w.PostFrom(arrived(uint64(i)), sockaddr(from), v, cq.SourceErr))
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
		must(t, w.PostFrom(arrived(9), sockaddr(8), v, cq.SourceErr))
		if n, err := cq.ReadFrom(q, dst[:1], src[:1]); n != 1 || err != nil || src[0] != 2 {
			t.Errorf("after the insertion: %d, %v, from %d", n, err, src[0])
		}
	})
}

func TestSourceMisuse(t *testing.T) {
	v, err := cq.CreateAddresses(cq.Unnamed("misuse"), cq.AddressOptions{Format: cq.AddrOpaque,
		AddrMaxBytes: 64})
	must(t, err)
	q, w := pair(t, cq.Options{Size: 8})
	long := bytes.Repeat([]byte{7}, cq.ErrDataMaxBytes+1)
	insert(t, v, long)
	must(t, w.PostFrom(arrived(1), long, v, cq.SourceAddr))
	err = w.PostFrom(arrived(2), long, v, cq.SourceErr)
	wantErr(t, "an address that no error entry can hold", err, cq.ErrInvalid)
	wantField(t, err, "len(rawAddr)")
	wantErr(t, "mode", w.PostFrom(arrived(2), nil, v, 9), cq.ErrInvalid)
	wantErr(t, "no credit", w.PostFromCredited(arrived(2), nil, v, cq.SourceErr), cq.ErrNoCredit)
	must(t, w.Credits().Add(2))
	must(t, w.PostFromCredited(arrived(3), long, v, cq.SourceAddr))
	e := arrived(4)
	e.Meta = cq.MetaNoContext
	must(t, w.PostFromCredited(e, nil, nil, cq.SourceErr)) // it came from nobody
	if got := takeAll(t, q); !slices.Equal(got, []string{"1", "3", "E4"}) || w.Credits().Len() != 0 {
		t.Error(got, w.Credits().Len())
	}
	must(t, v.Close())
	must(t, w.PostFrom(arrived(5), long, v, cq.SourceAddr))
	src := make([]cq.Addr, 1)
	if n, err := cq.ReadFrom(q, make([]cq.Msg, 1), src); n != 1 || err != nil ||
		src[0] != cq.AddrNotAvail {
		t.Error("a closed vector knows a source", n, err, src)
	}
	if got := cq.SourceErr.String() + cq.SourceMode(9).String(); got != "errunknown" {
		t.Error(got)
	}
}

func BenchmarkPostFrom(b *testing.B) {
	v, err := cq.CreateAddresses(cq.Unnamed("bench"), cq.AddressOptions{})
	must(b, err)
	defer v.Close()
	insert(b, v, sockaddrs(0, 100)...)
	q, w := pair(b, cq.Options{})
	binding, err := cq.NewBinding(cq.BindingOptions{Queue: w, Flags: cq.FlagRecv, Addresses: v,
		Source: cq.SourceErr})
	must(b, err)
	defer binding.Close()
	raw, e, dst := sockaddr(51), arrived(1), make([]cq.Msg, 1)
	for name, post := range map[string]func() error{
		"plain": func() error { return w.Post(e) },
		"from":  func() error { return w.PostFrom(e, raw, v, cq.SourceErr) },
		"bound": func() error {
			if err := binding.Begin(0); err != nil {
				return err
			}
			return binding.CompleteFrom(e, 0, raw)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := post(); err != nil {
					b.Fatal(err)
				}
				if _, err := cq.Read(q, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
