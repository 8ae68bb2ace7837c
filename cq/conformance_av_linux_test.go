package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/feed"
	"github.com/shmring/shmring/internal/shmtest"
)

// conformAV runs a case for a vector that is changed here and read through look, at every site.
func conformAV(t *testing.T, name string, o cq.AddressOptions,
	f func(t *testing.T, v *cq.AddressVector, look lookup)) {
	t.Helper()
	eachSite(t, name, sites, func(t *testing.T, at site, p *peer) {
		v := newVector(t, at, o)
		f(t, v, lookAt(t, at, p, v))
	})
}

func newVector(t *testing.T, at site, o cq.AddressOptions) *cq.AddressVector {
	t.Helper()
	return shmtest.Have(cq.CreateAddresses(at.place(t, "av-"+queueName(t)), o)).In(t)
}

func lookAt(t *testing.T, at site, p *peer, v *cq.AddressVector) lookup {
	t.Helper()
	if at.far {
		if at.memfd {
			p.send(t, v.ObjectFD())
		}
		return p.open(t, OpenArgs{Kind: "vector", Name: v.Name(), FD: at.memfd})
	}
	place := cq.Named(openDir(t), v.Name())
	if at.memfd {
		place = cq.FromFD(v.ObjectFD(), v.Name())
	}
	return shmtest.Have(cq.AttachAddresses(place)).In(t)
}

// findsNot checks that an index is not set.
func findsNot(t *testing.T, look lookup, as ...cq.Addr) {
	t.Helper()
	for _, a := range as {
		_, err := look.Lookup(a, make([]byte, 64))
		wantErr(t, fmt.Sprint("lookup of ", a), err, cq.ErrInvalid, syscall.EINVAL)
	}
}

// TestConformanceAVOpen is fi_av_open.
func TestConformanceAVOpen(t *testing.T) {
	t.Parallel()
	conformOnce(t, "sizes", func(t *testing.T) {
		d := openDir(t)
		for count := 1; count <= 65536; count *= 2 {
			for _, c := range []int{count, count + 1} {
				v := shmtest.Got(cq.CreateAddresses(cq.Named(d, "v"), cq.AddressOptions{Count: c})).Or(t)
				if v.Options().Count < c || v.Len() != 0 {
					t.Errorf("count %d: %d fit, %d are in", c, v.Options().Count, v.Len())
				}
				must(t, v.Close())
			}
		}
		v, err := cq.CreateAddresses(cq.Named(d, "v"), cq.AddressOptions{UserContext: "mine"})
		must(t, err)
		want := cq.AddressOptions{Count: 1024, AddrMaxBytes: 32, Format: cq.AddrSockaddr,
			UserContext: "mine"}
		if got := v.Options(); fmt.Sprint(got) != fmt.Sprint(want) ||
			v.FID().Kind != cq.FIDAddresses || v.FID().ID == 0 || v.Name() != "v" {
			t.Errorf("%+v, %v, %q", got, v.FID(), v.Name())
		}
		must(t, v.Close())
	})
}

// TestConformanceAVInsert is fi_av_insert.
func TestConformanceAVInsert(t *testing.T) {
	t.Parallel()
	o := cq.AddressOptions{Count: 8, UserID: true}
	conformAV(t, "stages", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		for i := 0; i < 4; i += 2 {
			dst := []cq.Addr{99, 99}
			got, err := v.Insert(sockaddrs(i, i+2), cq.InsertOptions{Into: dst})
			if err != nil || &got[0] != &dst[0] {
				t.Errorf("%v, %v, %v", got, err, dst)
			}
			finds(t, look, dst[0], sockaddr(i))
			finds(t, look, cq.Addr(i+1), sockaddr(i+1))
		}
		finds(t, look, 0, sockaddr(0))
	})
	conformAV(t, "good-and-bad", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		dst := []cq.Addr{99, 99}
		_, err := v.Insert([][]byte{sockaddr(0), {1, 2, 3}}, cq.InsertOptions{Into: dst})
		if dst[0] != 0 || dst[1] != cq.AddrNotAvail {
			t.Error(dst)
		}
		wantErr(t, "insert", err, cq.ErrInvalid, syscall.EINVAL)
		var each *cq.InsertError
		if !errors.As(err, &each) || each.Inserted != 1 || each.Errs[0] != nil || each.Errs[1] == nil {
			t.Errorf("the error of each: %+v", err)
		}
		finds(t, look, 0, sockaddr(0))
		findsNot(t, look, 1)
	})
	conformAV(t, "no-output", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		wantAddrs(t, insert(t, v, sockaddrs(0, 1)...), 0)
		finds(t, look, 0, sockaddr(0))
		wantAddrs(t, insert(t, v))
		one := make([]cq.Addr, 1)
		for name, o := range map[string]cq.InsertOptions{"indices": {Into: one}, "ids": {IDs: one},
			"async with indices": {Async: true, Into: one}, "async with ids": {Async: true, IDs: one}} {
			_, err := v.Insert(sockaddrs(0, 2), o)
			wantErr(t, name, err, cq.ErrInvalid)
		}
	})
	conformAV(t, "lowest-free-index", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		wantAddrs(t, insert(t, v, sockaddrs(0, 5)...), 0, 1, 2, 3, 4)
		must(t, v.Remove(3, 1))
		wantAddrs(t, insert(t, v, sockaddrs(5, 8)...), 1, 3, 5)
		finds(t, look, 1, sockaddr(5))
		finds(t, look, 4, sockaddr(4))
		wantAddrs(t, insert(t, v, sockaddrs(8, 10)...), 6, 7)
		_, err := v.Insert(sockaddrs(10, 11), cq.InsertOptions{})
		wantErr(t, "one too many", err, syscall.ENOMEM)
		if v.Len() != 8 {
			t.Errorf("%d are in", v.Len())
		}
	})
	conformAV(t, "user-id", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		got := shmtest.Got(v.Insert(sockaddrs(0, 2), cq.InsertOptions{IDs: []cq.Addr{699, 701}})).Or(t)
		_, err := v.Insert(sockaddrs(0, 1),
			cq.InsertOptions{IDs: []cq.Addr{700}}) // it is there, and gets this one
		must(t, err)
		must(t, v.SetUserID(got[1], 800))
		for i, want := range []cq.Addr{700, 800} {
			if src, ok := look.Resolve(sockaddr(i)); !ok || src != want {
				t.Errorf("source %d, %v; want %d", src, ok, want)
			}
		}
		if n, err := look.Lookup(got[1], nil); n != len(sockaddr(1)) || err != nil {
			t.Errorf("the index is what lookup takes: %d, %v", n, err)
		}
		must(t, v.Remove(got[1]))
		wantAddrs(t, insert(t, v, sockaddr(1)), 1)
		if src, ok := look.Resolve(sockaddr(1)); !ok || src != 1 {
			t.Errorf("an id goes with its address: %d, %v", src, ok)
		}
		wantErr(t, "of none", v.SetUserID(5, 1), cq.ErrInvalid)
		_, err = v.Insert(sockaddrs(0, 2), cq.InsertOptions{IDs: make([]cq.Addr, 1)})
		wantErr(t, "lengths", err, cq.ErrInvalid)
	})
	conformAV(t, "no-user-id", cq.AddressOptions{}, func(t *testing.T, v *cq.AddressVector,
		_ lookup) {
		_ = insert(t, v, sockaddr(0))
		wantErr(t, "set", v.SetUserID(0, 1), cq.ErrInvalid)
		_, err := v.Insert(sockaddrs(0, 1), cq.InsertOptions{IDs: make([]cq.Addr, 1)})
		wantErr(t, "insert", err, cq.ErrInvalid)
	})
}

func wantAddrs(t *testing.T, got []cq.Addr, want ...cq.Addr) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestConformanceAVLookup is fi_av_lookup.
func TestConformanceAVLookup(t *testing.T) {
	o := cq.AddressOptions{Count: 16}
	conformAV(t, "same-bytes", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		for i, a := range insert(t, v, sockaddrs(0, 10)...) {
			finds(t, look, a, sockaddr(i))
		}
		want := sockaddr(3)
		for room := range len(want) + 4 {
			buf := bytes.Repeat([]byte{0xee}, 64)
			n, err := look.Lookup(3, buf[:room])
			if k := min(room, n); err != nil || n != len(want) || !bytes.Equal(buf[:k], want[:k]) ||
				k == room && buf[k] != 0xee {
				t.Errorf("room for %d: %d, %v, %x; want the whole length and the beginning", room, n, err, buf)
			}
		}
	})
	conformAV(t, "not-there", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		_ = insert(t, v, sockaddrs(0, 4)...)
		must(t, v.Remove(2))
		findsNot(t, look, 2, 4, 4+32, cq.AddrNotAvail, 16, 1<<40)
		if a, ok := look.Resolve(sockaddr(2)); ok || a != cq.AddrNotAvail && a != 0 {
			t.Errorf("a removed address: %d, %v", a, ok)
		}
	})
}

// TestConformanceAVRemove is fi_av_remove.
func TestConformanceAVRemove(t *testing.T) {
	o := cq.AddressOptions{Count: 16}
	conformAV(t, "each", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		for _, a := range insert(t, v, sockaddrs(0, 6)...) {
			must(t, v.Remove(a))
			findsNot(t, look, a)
		}
		wantAddrs(t, insert(t, v, sockaddr(3)), 0) // what was removed can come again
		finds(t, look, 0, sockaddr(3))
	})
	conformAV(t, "not-there", o, func(t *testing.T, v *cq.AddressVector, look lookup) {
		_ = insert(t, v, sockaddrs(0, 6)...)
		must(t, v.Remove(2))
		for _, as := range [][]cq.Addr{{6}, {cq.AddrNotAvail}, {6 + 32}, {2}, {2, 0}, {0, 2}, {1, 1},
			{0, 1, 0}, {16}, {1 << 40}} {
			wantErr(t, fmt.Sprint("remove ", as), v.Remove(as...), cq.ErrInvalid, syscall.EINVAL)
		}
		for _, i := range []int{0, 1, 3, 4, 5} {
			finds(t, look, cq.Addr(i), sockaddr(i)) // nothing was removed
		}
		must(t, v.Remove(0, 1, 3, 4, 5))
		must(t, v.Remove())
		if v.Len() != 0 {
			t.Errorf("%d left", v.Len())
		}
	})
}

// TestConformanceAVClose is fi_close of an address vector.
func TestConformanceAVClose(t *testing.T) {
	conform(t, "busy-while-bound", cq.Options{Size: 8}, func(t *testing.T, r *rig) {
		v := newVector(t, site{}, cq.AddressOptions{})
		own := shmtest.Got(r.q.Writer()).Or(t)
		b := shmtest.Got(feed.Bind(feed.Options{Queue: own, Flags: cq.FlagRecv, Addresses: v})).Or(t)
		wantErr(t, "close", v.Close(), cq.ErrBusy, syscall.EBUSY)
		must(t, b.Close())
		must(t, v.Close())
		_, err := v.Insert(sockaddrs(0, 1), cq.InsertOptions{})
		wantErr(t, "insert", err, cq.ErrClosed)
		must(t, own.Close())
	})
	conformAV(t, "seen-by-others", cq.AddressOptions{}, func(t *testing.T, v *cq.AddressVector,
		look lookup) {
		_ = insert(t, v, sockaddr(0))
		finds(t, look, 0, sockaddr(0))
		must(t, v.Close())
		_, err := look.Lookup(0, make([]byte, 64))
		wantErr(t, "lookup", err, cq.ErrClosed)
		if _, ok := look.Resolve(sockaddr(0)); ok {
			t.Error("an address of a closed vector is found")
		}
	})
}
