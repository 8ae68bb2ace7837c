package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
)

// sockaddr is the i-th of many different addresses, of both families.
func sockaddr(i int) []byte {
	if i%2 == 0 {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return cq.Sockaddr(netip.AddrPortFrom(ip, 4711))
	}
	ip := netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	return cq.Sockaddr(netip.AddrPortFrom(ip, 4711))
}

func sockaddrs(from, to int) (out [][]byte) {
	for i := from; i < to; i++ {
		out = append(out, sockaddr(i))
	}
	return out
}

// vectors makes an empty address vector in each of the places that one can be in.
func vectors(t *testing.T, o cq.AddressOptions, test func(*testing.T, *cq.AddressVector)) {
	t.Helper()
	for _, place := range []string{"named", "memfd"} {
		t.Run(place, func(t *testing.T) {
			var v *cq.AddressVector
			var err error
			if name := "av." + queueName(t); place == "named" {
				v, err = cq.CreateAddresses(openDir(t), name, o)
			} else {
				v, err = cq.CreateAnonymousAddresses(name, o)
			}
			must(t, err)
			t.Cleanup(func() { must(t, v.Close()) })
			test(t, v)
		})
	}
}

func insert(t testing.TB, v *cq.AddressVector, addrs ...[]byte) []cq.Addr {
	t.Helper()
	got, err := v.Insert(addrs)
	must(t, err)
	return got
}

// wantLookup checks both directions.
func wantLookup(t testing.TB, v *cq.AddressVector, a cq.Addr, want []byte) {
	t.Helper()
	buf := make([]byte, 64)
	n, err := v.Lookup(a, buf)
	if err != nil || !bytes.Equal(buf[:n], want) {
		t.Errorf("lookup of %d: %x, %v, want %x", a, buf[:n], err, want)
	}
	if got, ok := v.Resolve(want); !ok || got != a {
		t.Errorf("resolve %x: %d, %v, want %d", want, got, ok, a)
	}
}

// TestAddressCounts opens vectors of many sizes (T13).
func TestAddressCounts(t *testing.T) {
	d := openDir(t)
	for count := 1; count <= 65536; count *= 4 {
		for _, c := range []int{count, count + 1} {
			v, err := cq.CreateAddresses(d, queueName(t), cq.AddressOptions{Count: c})
			must(t, err)
			if v.Options().Count < c || v.Len() != 0 {
				t.Errorf("count %d: %d fit, %d are in", c, v.Options().Count, v.Len())
			}
			must(t, v.Close())
		}
	}
	v, err := cq.CreateAddresses(d, queueName(t), cq.AddressOptions{UserContext: "mine"})
	must(t, err)
	want := cq.AddressOptions{Count: 1024, AddrMaxBytes: 32, Format: cq.AddrSockaddr,
		UserContext: "mine"}
	if got := v.Options(); fmt.Sprint(got) != fmt.Sprint(want) || v.UserContext() != "mine" {
		t.Errorf("%+v", got)
	}
	if v.FID().Kind != cq.FIDAddresses || v.FID().ID == 0 || v.Name() != queueName(t) {
		t.Errorf("%v %q", v.FID(), v.Name())
	}
	must(t, v.Close())
}

func TestAddressBadOptions(t *testing.T) {
	for field, o := range map[string]cq.AddressOptions{
		"Count":        {Count: -1},
		"AddrMaxBytes": {AddrMaxBytes: 16}, // no room for IPv6
		"Format":       {Format: 99},
		"Lifetime":     {Lifetime: 9},
	} {
		_, err := cq.CreateAnonymousAddresses("bad", o)
		wantErr(t, field, err, cq.ErrInvalid, syscall.EINVAL)
		wantField(t, err, field)
	}
	for _, o := range []cq.AddressOptions{{Count: 1<<22 + 1}, {AddrMaxBytes: 257},
		{AddrMaxBytes: -1}} {
		_, err := cq.CreateAnonymousAddresses("bad", o)
		wantErr(t, "options", err, cq.ErrInvalid)
	}
}

// TestInsertGood: indices are the lowest free ones, from 0 on, and stable (T14 to T18).
func TestInsertGood(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 64}, func(t *testing.T, v *cq.AddressVector) {
		if n, err := v.InsertTo(nil, sockaddrs(0, 1)); n != 1 || err != nil {
			t.Fatal(n, err) // T15
		}
		if got := insert(t, v, sockaddrs(1, 3)...); !slices.Equal(got, []cq.Addr{1, 2}) {
			t.Error(got)
		}
		if got := insert(t, v, sockaddrs(3, 64)...); got[0] != 3 || got[60] != 63 {
			t.Error(got)
		}
		for i := range 64 {
			wantLookup(t, v, cq.Addr(i), sockaddr(i))
		}
		if v.Len() != 64 {
			t.Errorf("%d", v.Len())
		}
		_, err := v.Insert(sockaddrs(64, 65))
		wantErr(t, "insert into a full one", err, syscall.ENOMEM)
		for _, i := range []cq.Addr{40, 7, 9} {
			must(t, v.Remove(i))
		}
		if _, ok := v.Resolve(sockaddr(7)); ok {
			t.Error("a removed address has an index")
		}
		got := insert(t, v, sockaddrs(100, 103)...)
		if !slices.Equal(got, []cq.Addr{7, 9, 40}) {
			t.Errorf("not the lowest free ones: %v", got)
		}
		for i := range 64 {
			if i != 7 && i != 9 && i != 40 {
				wantLookup(t, v, cq.Addr(i), sockaddr(i))
			}
		}
		for i := range cq.Addr(64) {
			must(t, v.Remove(i)) // T18
		}
		if got := insert(t, v, sockaddr(5)); got[0] != 0 || v.Len() != 1 {
			t.Errorf("after all were removed: %v, %d", got, v.Len())
		}
		if n, err := v.InsertTo(nil, nil); n != 0 || err != nil {
			t.Error(n, err)
		}
		_, err = v.InsertTo(make([]cq.Addr, 1), sockaddrs(0, 2))
		wantErr(t, "slices that differ", err, cq.ErrInvalid)
	})
}

// TestInsertBad: what fails gets AddrNotAvail and its own error; the rest goes in (T19 to T21).
func TestInsertBad(t *testing.T) {
	refused := errors.New("not in this network")
	o := cq.AddressOptions{Count: 4, Check: func(raw []byte) error {
		if bytes.Equal(raw, sockaddr(99)) {
			return refused
		}
		return nil
	}}
	v6 := sockaddr(1)
	vectors(t, o, func(t *testing.T, v *cq.AddressVector) {
		for name, tt := range map[string]struct {
			raw  []byte
			want error
		}{
			"nil":        {nil, cq.ErrInvalid},
			"empty":      {[]byte{}, cq.ErrInvalid},
			"short":      {v6[:27], cq.ErrInvalid},
			"long":       {append(bytes.Clone(v6), 0), cq.ErrInvalid},
			"too long":   {make([]byte, 33), cq.ErrInvalid},
			"family":     {make([]byte, 16), cq.ErrInvalid},
			"v4 in 28":   {append(sockaddr(0), make([]byte, 12)...), cq.ErrInvalid},
			"no port":    {cq.Sockaddr(netip.MustParseAddrPort("10.0.0.1:0")), syscall.EADDRNOTAVAIL},
			"no host":    {cq.Sockaddr(netip.MustParseAddrPort("0.0.0.0:5")), syscall.EADDRNOTAVAIL},
			"no host v6": {cq.Sockaddr(netip.MustParseAddrPort("[::]:5")), syscall.EADDRNOTAVAIL},
			"refused":    {sockaddr(99), refused},
		} {
			got, err := v.Insert([][]byte{tt.raw})
			wantErr(t, name, err, tt.want)
			if len(got) != 1 || got[0] != cq.AddrNotAvail || v.Len() != 0 {
				t.Errorf("%s: %v, %d in the vector", name, got, v.Len())
			}
		}
		got, err := v.Insert([][]byte{sockaddr(0), nil, sockaddr(2), sockaddr(3), sockaddr(4),
			sockaddr(5)})
		var e *cq.InsertError
		if !errors.As(err, &e) || e.Inserted != 4 || e.Errs[0] != nil || e.Errs[1] == nil ||
			e.Errs[4] != nil || e.Errs[5] == nil || e.Error() == "" {
			t.Fatalf("%+v", err)
		}
		wantErr(t, "address 5", e.Errs[5], syscall.ENOMEM)
		wantErr(t, "insert", err, syscall.ENOMEM, syscall.EINVAL)
		if !slices.Equal(got, []cq.Addr{0, cq.AddrNotAvail, 1, 2, 3, cq.AddrNotAvail}) {
			t.Error(got)
		}
	})
}

// TestInsertTwice: an address has one index.
func TestInsertTwice(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 8}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddrs(0, 3)...)
		if got := insert(t, v, sockaddr(1), sockaddr(5), sockaddr(5)); !slices.Equal(got,
			[]cq.Addr{1, 3, 3}) || v.Len() != 4 {
			t.Errorf("%v, %d", got, v.Len())
		}
		must(t, v.Remove(1))
		wantErr(t, "remove again", v.Remove(1), cq.ErrInvalid)
		// Padding is no part of a sockaddr_in.
		padded := sockaddr(2)
		padded[12] = 0xff
		if got := insert(t, v, padded); got[0] != 2 {
			t.Error(got)
		}
		if got, ok := v.Resolve(padded); !ok || got != 2 {
			t.Error(got, ok)
		}
		wantLookup(t, v, 2, sockaddr(2))
	})
}

// TestUnsetIndices: T22 and T23.
func TestUnsetIndices(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 8}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddrs(0, 5)...)
		must(t, v.Remove(3))
		for _, a := range []cq.Addr{5, 3, 5 + 32, cq.AddrNotAvail, 8, 1 << 40} {
			_, err := v.Lookup(a, make([]byte, 64))
			wantErr(t, fmt.Sprint("lookup ", a), err, cq.ErrInvalid, syscall.EINVAL)
			wantErr(t, fmt.Sprint("remove ", a), v.Remove(a), cq.ErrInvalid, syscall.EINVAL)
		}
		for _, list := range [][]cq.Addr{{3, 0}, {0, 3}, {0, 1, 0}, {2, 2}, {4, 5 + 32}} {
			wantErr(t, fmt.Sprint("remove ", list), v.Remove(list...), cq.ErrInvalid)
		}
		if v.Len() != 4 {
			t.Errorf("%d left", v.Len())
		}
		for _, i := range []int{0, 1, 2, 4} {
			wantLookup(t, v, cq.Addr(i), sockaddr(i)) // nothing was removed
		}
		must(t, v.Remove(0, 1, 2, 4))
		must(t, v.Remove())
		if v.Len() != 0 {
			t.Errorf("%d left", v.Len())
		}
	})
}

func TestLookupTruncates(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 2}, func(t *testing.T, v *cq.AddressVector) {
		want := sockaddr(1)
		insert(t, v, want)
		for room := range len(want) + 4 {
			buf := bytes.Repeat([]byte{0xee}, 64)
			n, err := v.Lookup(0, buf[:room])
			if k := min(room, n); err != nil || n != len(want) || !bytes.Equal(buf[:k], want[:k]) ||
				buf[k] != 0xee {
				t.Errorf("room %d: %d, %v, % x", room, n, err, buf[:32])
			}
		}
		if n, err := v.Lookup(0, nil); n != len(want) || err != nil {
			t.Error(n, err)
		}
	})
}

func TestUserIDs(t *testing.T) {
	vectors(t, cq.AddressOptions{Count: 4, UserID: true}, func(t *testing.T, v *cq.AddressVector) {
		insert(t, v, sockaddrs(0, 2)...)
		want := func(i int, id cq.Addr) {
			t.Helper()
			if got, ok := v.Resolve(sockaddr(i)); !ok || got != id {
				t.Errorf("address %d: %d, %v, want %d", i, got, ok, id)
			}
		}
		want(1, 1)
		must(t, v.SetUserID(1, 1<<60))
		must(t, v.SetUserID(1, 1<<61))
		want(0, 0)
		want(1, 1<<61)
		got, err := v.InsertIDs(sockaddrs(1, 3), []cq.Addr{77, 78})
		if err != nil || !slices.Equal(got, []cq.Addr{1, 2}) {
			t.Error(got, err)
		}
		want(1, 77)
		want(2, 78)
		if n, err := v.Lookup(2, nil); n != len(sockaddr(2)) || err != nil {
			t.Error("the index is what lookup takes", n, err)
		}
		must(t, v.Remove(2))
		insert(t, v, sockaddr(2))
		want(2, 2) // an id goes with its address
		wantErr(t, "unset", v.SetUserID(3, 1), cq.ErrInvalid)
		_, err = v.InsertIDs(sockaddrs(0, 2), make([]cq.Addr, 1))
		wantErr(t, "lengths", err, cq.ErrInvalid)
	})
	v, err := cq.CreateAnonymousAddresses("plain", cq.AddressOptions{})
	must(t, err)
	insert(t, v, sockaddr(0))
	wantErr(t, "without UserID", v.SetUserID(0, 1), cq.ErrInvalid)
	_, err = v.InsertIDs(sockaddrs(0, 1), make([]cq.Addr, 1))
	wantErr(t, "without UserID", err, cq.ErrInvalid)
	must(t, v.Close())
}
