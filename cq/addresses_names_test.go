package cq_test

import (
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

func TestAddressFormats(t *testing.T) {
	make := func(f cq.AddressFormat, bytes int) *cq.AddressVector {
		o := cq.AddressOptions{Format: f, AddrMaxBytes: bytes}
		v, err := cq.CreateAnonymousAddresses("formats", o)
		must(t, err)
		t.Cleanup(func() { must(t, v.Close()) })
		return v
	}
	four, six := sockaddr(0), sockaddr(1)
	v := make(cq.AddrSockaddrIn, 16)
	insert(t, v, four)
	_, err := v.Insert([][]byte{six})
	wantErr(t, "IPv6", err, cq.ErrInvalid)
	v = make(cq.AddrSockaddrIn6, 0)
	insert(t, v, six)
	_, err = v.Insert([][]byte{four})
	wantErr(t, "IPv4", err, cq.ErrInvalid)

	v = make(cq.AddrOpaque, 100)
	var all [][]byte
	for n := 1; n <= 104; n++ {
		all = append(all, bytes.Repeat([]byte{0xab}, n), append(bytes.Repeat([]byte{0xab}, n-1), 0))
	}
	for i, a := range insert(t, v, all...) {
		buf := append([]byte(nil), all[i]...)
		clear(buf)
		if n, err := v.Lookup(a, buf); err != nil || n != len(buf) || !bytes.Equal(buf, all[i]) {
			t.Errorf("% x: % x, %v", all[i], buf, err)
		}
		if got, ok := v.Resolve(all[i]); !ok || got != a || int(a) != i {
			t.Errorf("% x: %d, %v", all[i], got, ok)
		}
	}
	_, err = v.Insert([][]byte{bytes.Repeat([]byte{1}, 105), {}})
	wantErr(t, "length", err, cq.ErrInvalid)
	if _, ok := v.Resolve(bytes.Repeat([]byte{1}, 105)); ok {
		t.Error("too long, and found")
	}
	if got := v.StrAddr([]byte{1, 0xff}); got != "01ff" {
		t.Error(got)
	}
}

func TestSockaddr(t *testing.T) {
	v, err := cq.CreateAnonymousAddresses("text", cq.AddressOptions{})
	must(t, err)
	defer v.Close()
	for _, s := range []string{"10.1.2.3:80", "[fe80::1%2]:65535", "[2001:db8::7]:1",
		"[::ffff:1.2.3.4]:9"} {
		raw := cq.Sockaddr(netip.MustParseAddrPort(s))
		a, ok := cq.ParseSockaddr(raw)
		if !ok || a.String() != s || v.StrAddr(raw) != s {
			t.Errorf("%s: %v, %v, %q", s, a, ok, v.StrAddr(raw))
		}
		for n := range raw {
			if _, ok := cq.ParseSockaddr(raw[:n]); ok {
				t.Errorf("%s: %d bytes of it are an address", s, n)
			}
		}
	}
	if cq.Sockaddr(netip.AddrPort{}) != nil {
		t.Error("no address has bytes")
	}
	if got := v.StrAddr([]byte{9}); got != "not a sockaddr: 09" {
		t.Error(got)
	}
	got := cq.AddrSockaddrIn6.String() + cq.AddressFormat(77).String()
	if got != "sockaddr_in6unknown" {
		t.Error(got)
	}
}

// TestAddressNames: one owner, a name that others take only when it is dead.
func TestAddressNames(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	v, err := cq.CreateAddresses(d, name, cq.AddressOptions{Count: 8, Lifetime: cq.Persistent})
	must(t, err)
	insert(t, v, sockaddrs(0, 3)...)
	_, err = cq.CreateAddresses(d, name, cq.AddressOptions{})
	wantErr(t, "create again", err, fs.ErrExist)
	var busy *shm.BusyError
	if _, err = cq.AdoptAddresses(d, name, cq.AddressOptions{}); !errors.As(err, &busy) {
		t.Errorf("adopt: %v", err)
	}
	r, err := cq.OpenAddresses(d, name)
	must(t, err)
	byFD, err := cq.OpenAddressesFD(v.ObjectFD(), "by descriptor")
	must(t, err)
	for _, r := range []*cq.AddressVector{r, byFD} {
		wantLookup(t, r, 2, sockaddr(2))
		_, err = r.Insert(sockaddrs(5, 6))
		wantErr(t, "insert", err, cq.ErrReadOnly, syscall.EACCES, fs.ErrPermission)
		wantErr(t, "remove", r.Remove(0), cq.ErrReadOnly)
		if r.Len() != 3 || r.Options().Count != 8 || r.FID() != v.FID() {
			t.Errorf("%d of %d, %v", r.Len(), r.Options().Count, r.FID())
		}
	}
	must(t, v.Detach())
	wantLookup(t, r, 1, sockaddr(1)) // it needs no owner
	_, err = cq.AdoptAddresses(d, name, cq.AddressOptions{Count: 9})
	wantErr(t, "another size", err, cq.ErrInvalid)
	_, err = cq.AdoptAddresses(d, name, cq.AddressOptions{UserID: true, Format: cq.AddrOpaque})
	wantErr(t, "others", err, cq.ErrInvalid)
	_, err = cq.CreateAddresses(d, name, cq.AddressOptions{})
	wantErr(t, "create over one that was left", err, fs.ErrExist)
	next, err := cq.AdoptAddresses(d, name, cq.AddressOptions{Count: 7})
	must(t, err)
	if next.FID().ID != v.FID().ID || next.FID().Generation <= v.FID().Generation {
		t.Errorf("%v, then %v", v.FID(), next.FID())
	}
	must(t, next.Remove(1))
	if got := insert(t, next, sockaddrs(10, 12)...); !slices.Equal(got, []cq.Addr{1, 3}) {
		t.Error(got)
	}
	wantLookup(t, r, 3, sockaddr(11))
	must(t, next.Close())
	_, err = r.Lookup(0, nil)
	wantErr(t, "lookup", err, cq.ErrClosed)
	if _, ok := r.Resolve(sockaddr(0)); ok {
		t.Error("a destroyed vector resolves")
	}
	_, err = cq.OpenAddresses(d, name)
	wantErr(t, "open", err, fs.ErrNotExist)
	must(t, r.Close())
	must(t, byFD.Close())
	for what, call := range map[string]func() error{
		"Insert": func() error { _, err := next.Insert(sockaddrs(0, 1)); return err },
		"Remove": func() error { return next.Remove(0) },
		"Lookup": func() error { _, err := next.Lookup(0, nil); return err },
	} {
		wantErr(t, what, call(), cq.ErrClosed, os.ErrClosed)
	}
	if _, ok := next.Resolve(sockaddr(0)); ok || next.Len() != 0 || next.ObjectFD() != -1 {
		t.Error("a closed vector resolves")
	}
	must(t, next.Close())
}

// TestAddressesAreNoQueue: an object of another kind is refused, both ways.
func TestAddressesAreNoQueue(t *testing.T) {
	d, q := create(t, cq.Options{Size: 4})
	if _, err := cq.OpenAddresses(d, q.Name()); err == nil {
		t.Error("a queue opens as an address vector")
	}
	sub, err := d.Sub(q.Name(), false)
	must(t, err)
	defer sub.Close()
	_, err = cq.OpenAddresses(sub, cq.ReaderFile)
	wantErr(t, "open", err, shm.ErrKind)
}

func TestResolveAllocates(t *testing.T) {
	v, err := cq.CreateAnonymousAddresses("alloc", cq.AddressOptions{})
	must(t, err)
	defer v.Close()
	insert(t, v, sockaddrs(0, 100)...)
	known, unknown, buf := sockaddr(51), sockaddr(500), make([]byte, 32)
	if n := testing.AllocsPerRun(100, func() {
		_, _ = v.Resolve(known)
		_, _ = v.Resolve(unknown)
		_, _ = v.Lookup(7, buf)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
