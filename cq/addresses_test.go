package cq_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
)

// sockaddr is the i-th of many different addresses, of both families.
func sockaddr(i int) []byte {
	if i%2 == 0 {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		return cq.AppendSockaddr(nil, netip.AddrPortFrom(ip, 4711))
	}
	ip := netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
	return cq.AppendSockaddr(nil, netip.AddrPortFrom(ip, 4711))
}

func sockaddrs(from, to int) (out [][]byte) {
	for i := from; i < to; i++ {
		out = append(out, sockaddr(i))
	}
	return out
}

// insertAsync begins an insertion that events report.
func insertAsync(v *cq.AddressVector, addrs [][]byte, context uint64) error {
	_, err := v.Insert(addrs, cq.InsertOptions{Async: true, Context: context})
	return err
}

func insert(t testing.TB, v *cq.AddressVector, addrs ...[]byte) []cq.Addr {
	t.Helper()
	got := shmtest.Got(v.Insert(addrs, cq.InsertOptions{})).Or(t)
	return got
}

// lookup is the reading side of an address vector, in this process or in another one.
type lookup interface {
	Lookup(a cq.Addr, buf []byte) (int, error)
	Resolve(raw []byte) (cq.Addr, bool)
}

// finds checks both directions.
func finds(t testing.TB, look lookup, a cq.Addr, want []byte) {
	t.Helper()
	buf := make([]byte, 64)
	n, err := look.Lookup(a, buf)
	if err != nil || !bytes.Equal(buf[:min(n, 64)], want) {
		t.Errorf("lookup of %d: %d bytes, %x, %v; want %x", a, n, buf, err, want)
	}
	if got, ok := look.Resolve(want); !ok || got != a {
		t.Errorf("resolve %x: %d, %v; want %d", want, got, ok, a)
	}
}

// TestInsertBad: what fails gets AddrNotAvail and its own error (T19 to T21).
func TestInsertBad(t *testing.T) {
	refused := errors.New("not in this network")
	o := cq.AddressOptions{Count: 4, Check: func(raw []byte) error {
		if bytes.Equal(raw, sockaddr(99)) {
			return refused
		}
		return nil
	}}
	v6 := sockaddr(1)
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("av"), o)).In(t)
	for name, tt := range map[string]struct {
		raw  []byte
		want error
	}{
		"nil":      {nil, cq.ErrInvalid},
		"empty":    {[]byte{}, cq.ErrInvalid},
		"short":    {v6[:27], cq.ErrInvalid},
		"long":     {append(bytes.Clone(v6), 0), cq.ErrInvalid},
		"too long": {make([]byte, 33), cq.ErrInvalid},
		"family":   {make([]byte, 16), cq.ErrInvalid},
		"v4 in 28": {append(sockaddr(0), make([]byte, 12)...), cq.ErrInvalid},
		"no port": {cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.1:0")),
			syscall.EADDRNOTAVAIL},
		"no host": {cq.AppendSockaddr(nil, netip.MustParseAddrPort("0.0.0.0:5")),
			syscall.EADDRNOTAVAIL},
		"no host v6": {cq.AppendSockaddr(nil, netip.MustParseAddrPort("[::]:5")), syscall.EADDRNOTAVAIL},
		"refused":    {sockaddr(99), refused},
	} {
		got, err := v.Insert([][]byte{tt.raw}, cq.InsertOptions{})
		wantErr(t, name, err, tt.want)
		if len(got) != 1 || got[0] != cq.AddrNotAvail || v.Len() != 0 {
			t.Errorf("%s: %v, %d in the vector", name, got, v.Len())
		}
	}
}

// TestInsertTwice: an address has one index. Padding is no part of a sockaddr_in.
func TestInsertTwice(t *testing.T) {
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("av"), cq.AddressOptions{Count: 8})).In(t)
	insert(t, v, sockaddrs(0, 3)...)
	padded := sockaddr(2)
	padded[12] = 0xff
	if got := insert(t, v, sockaddr(1), sockaddr(5), sockaddr(5), padded); !slices.Equal(got,
		[]cq.Addr{1, 3, 3, 2}) || v.Len() != 4 {
		t.Errorf("%v, %d", got, v.Len())
	}
	if got, ok := v.Resolve(padded); !ok || got != 2 {
		t.Error(got, ok)
	}
	finds(t, v, 2, sockaddr(2))
}

func TestAddressFormats(t *testing.T) {
	make := func(f cq.AddressFormat, bytes int) *cq.AddressVector {
		o := cq.AddressOptions{Format: f, AddrMaxBytes: bytes}
		return shmtest.Have(cq.CreateAddresses(cq.Unnamed("formats"), o)).In(t)
	}
	four, six := sockaddr(0), sockaddr(1)
	v := make(cq.AddrSockaddrIn, 16)
	insert(t, v, four)
	_, err := v.Insert([][]byte{six}, cq.InsertOptions{})
	wantErr(t, "IPv6", err, cq.ErrInvalid)
	v = make(cq.AddrSockaddrIn6, 0)
	insert(t, v, six)
	_, err = v.Insert([][]byte{four}, cq.InsertOptions{})
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
	_, err = v.Insert([][]byte{bytes.Repeat([]byte{1}, 105), {}}, cq.InsertOptions{})
	wantErr(t, "length", err, cq.ErrInvalid)
	if _, ok := v.Resolve(bytes.Repeat([]byte{1}, 105)); ok {
		t.Error("too long, and found")
	}
	if got := v.StrAddr([]byte{1, 0xff}); got != "01ff" {
		t.Error(got)
	}
}

func TestSockaddr(t *testing.T) {
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("text"), cq.AddressOptions{})).In(t)
	for _, s := range []string{"10.1.2.3:80", "[fe80::1%2]:65535", "[2001:db8::7]:1",
		"[::ffff:1.2.3.4]:9"} {
		raw := cq.AppendSockaddr(nil, netip.MustParseAddrPort(s))
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
	if cq.AppendSockaddr(nil, netip.AddrPort{}) != nil {
		t.Error("no address has bytes")
	}
	if got := v.StrAddr([]byte{9}); got != "not a sockaddr: 09" {
		t.Error(got)
	}
	got := cq.AddrSockaddrIn6.String() + cq.AddressFormat(77).String()
	if got != "sockaddr_in6format 77" {
		t.Error(got)
	}
}

// TestAddressNames: whoever reads a vector goes on while one owner follows another.
func TestAddressNames(t *testing.T) {
	d := openDir(t)
	name := queueName(t)
	v, err := cq.CreateAddresses(cq.Named(d, name),
		cq.AddressOptions{Count: 8, Lifetime: cq.Persistent})
	must(t, err)
	insert(t, v, sockaddrs(0, 3)...)
	r := shmtest.Got(cq.AttachAddresses(cq.Named(d, name))).Or(t)
	byFD := shmtest.Got(cq.AttachAddresses(cq.FromFD(v.ObjectFD(), "by descriptor"))).Or(t)
	for _, r := range []*cq.AddressVector{r, byFD} {
		finds(t, r, 2, sockaddr(2))
		_, err = r.Insert(sockaddrs(5, 6), cq.InsertOptions{})
		wantErr(t, "insert", err, cq.ErrReadOnly, syscall.EACCES, fs.ErrPermission)
		wantErr(t, "remove", r.Remove(0), cq.ErrReadOnly)
		if r.Len() != 3 || r.Options().Count != 8 || r.FID() != v.FID() {
			t.Errorf("%d of %d, %v", r.Len(), r.Options().Count, r.FID())
		}
	}
	must(t, v.Detach())
	finds(t, r, 1, sockaddr(1)) // it needs no owner
	next, err := cq.OpenAddresses(cq.Named(d, name), cq.AddressOptions{Existing: true, Count: 7})
	must(t, err)
	if next.FID().ID != v.FID().ID || next.FID().Generation <= v.FID().Generation {
		t.Errorf("%v, then %v", v.FID(), next.FID())
	}
	must(t, next.Remove(1))
	if got := insert(t, next, sockaddrs(10, 12)...); !slices.Equal(got, []cq.Addr{1, 3}) {
		t.Error(got)
	}
	finds(t, r, 3, sockaddr(11))
	must(t, next.Close())
	must(t, r.Close())
	must(t, byFD.Close())
	for what, call := range map[string]func() error{
		"Insert": func() error { _, err := next.Insert(sockaddrs(0, 1), cq.InsertOptions{}); return err },
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

func TestResolveAllocates(t *testing.T) {
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("alloc"), cq.AddressOptions{})).In(t)
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

// nextEvent waits for an event and writes it down: kind, context, data; an error event as its
// number, context, data.
func nextEvent(t testing.TB, eq *cq.EventQueue, about cq.FID) string {
	t.Helper()
	var ev cq.Event
	_, err := eq.ReadContext(t.Context(), &ev, cq.ReadOptions{})
	if errors.Is(err, cq.ErrAvail) {
		var e cq.EventError
		shmtest.Got(eq.ReadErr(&e, 0)).Or(t)
		if e.FID != about {
			t.Errorf("an error of %v, want %v", e.FID, about)
		}
		return fmt.Sprintf("%v %d %d", e.Err, e.Context, e.Data)
	}
	must(t, err)
	if ev.FID != about {
		t.Errorf("an event of %v, want %v", ev.FID, about)
	}
	return fmt.Sprintf("%v %d %d", ev.Event, ev.Context, ev.Data)
}

func wantEvents(t testing.TB, eq *cq.EventQueue, about cq.FID, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := nextEvent(t, eq, about); got != w {
			t.Errorf("event %q, want %q", got, w)
		}
	}
	if _, err := eq.Read(&cq.Event{}, 0); !errors.Is(err, cq.ErrWouldBlock) {
		t.Errorf("another event: %v", err)
	}
}

// TestInsertAsync: an error event an address that fails, then exactly one that counts the rest.
func TestInsertAsync(t *testing.T) {
	shmtest.Conforms(t)
	v := shmtest.Have(cq.CreateAddresses(cq.Unnamed("av"), cq.AddressOptions{Count: 4})).In(t)
	wantErr(t, "without a queue", insertAsync(v, sockaddrs(0, 1), 1), cq.ErrNoEQ, cq.ENoEQ)
	_, eq := createEvents(t, cq.EventOptions{Size: 8})
	wantErr(t, "none", v.BindEvents(nil), cq.ErrInvalid)
	must(t, v.BindEvents(eq))
	wantErr(t, "two", v.BindEvents(eq), cq.ErrBusy, syscall.EBUSY)
	wantErr(t, "close of the queue", eq.Close(), cq.ErrBusy, syscall.EBUSY)
	must(t, insertAsync(v, sockaddrs(0, 2), 7))
	wantEvents(t, eq, v.FID(), "addresses inserted 7 2")
	must(t, insertAsync(v, [][]byte{nil, sockaddr(2), sockaddr(0), sockaddr(3), sockaddr(4)}, 8))
	must(t, insertAsync(v, nil, 9))
	wantEvents(t, eq, v.FID(), "invalid argument 8 0", "cannot allocate memory 8 4",
		"addresses inserted 8 3", "addresses inserted 9 0")
	for i := range 4 {
		finds(t, v, cq.Addr(i), sockaddr(i))
	}
	err := insertAsync(v, sockaddrs(0, 8), 1)
	wantErr(t, "more than the queue can report", err, cq.ErrInvalid)
	must(t, insertAsync(v, sockaddrs(0, 7), 1))
	wantErr(t, "no room for two", insertAsync(v, sockaddrs(0, 7), 2), cq.ErrFull)
	wantEvents(t, eq, v.FID(), "cannot allocate memory 1 4", "cannot allocate memory 1 5",
		"cannot allocate memory 1 6", "addresses inserted 1 4")
	must(t, v.Close())
}

// TestInsertAsyncRefused: whatever Check says becomes a number.
func TestInsertAsyncRefused(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("no"):                    "unspecified error 1 0",
		syscall.EHOSTUNREACH:                "no route to host 1 0",
		cq.EFirewallAddr:                    "host address unreachable 1 0",
		fmt.Errorf("no: %w", cq.ErrInvalid): "invalid argument 1 0",
	} {
		check := func([]byte) error { return err }
		v := shmtest.Got(cq.CreateAddresses(cq.Unnamed("refused"), cq.AddressOptions{Check: check})).Or(t)
		_, eq := createEvents(t, cq.EventOptions{Size: 8, Lifetime: cq.Ephemeral})
		must(t, v.BindEvents(eq))
		must(t, insertAsync(v, sockaddrs(0, 1), 1))
		wantEvents(t, eq, v.FID(), want, "addresses inserted 1 0")
		must(t, v.Close())
		must(t, eq.Close())
	}
}

// TestInsertAsyncCanceled: Close ends insertions that are under way, and each of their addresses is
// accounted for.
func TestInsertAsyncCanceled(t *testing.T) {
	began, leave := make(chan struct{}), make(chan struct{})
	v, err := cq.CreateAddresses(cq.Unnamed("slow"), cq.AddressOptions{Check: func([]byte) error {
		began <- struct{}{}
		<-leave
		return nil
	}})
	must(t, err)
	_, eq := createEvents(t, cq.EventOptions{Size: 16})
	must(t, v.BindEvents(eq))
	must(t, insertAsync(v, sockaddrs(0, 3), 1))
	must(t, insertAsync(v, sockaddrs(3, 5), 2))
	<-began
	closed := make(chan error)
	go func() { closed <- v.Close() }()
	eventually(t, "the close has begun", func() bool {
		return errors.Is(insertAsync(v, sockaddrs(0, 100), 3), cq.ErrClosed) // else too many
	})
	close(leave)
	must(t, <-closed)
	wantEvents(t, eq, v.FID(), "operation canceled 1 1", "operation canceled 1 2",
		"addresses inserted 1 1", "operation canceled 2 0", "operation canceled 2 1",
		"addresses inserted 2 0")
}
