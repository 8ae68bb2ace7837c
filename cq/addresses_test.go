package cq_test

import (
	"bytes"
	"errors"
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
