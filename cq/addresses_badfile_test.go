package cq_test

import (
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/shm"
)

// TestBadAddressFiles: a header whose checksum is right can still say what cannot be.
func TestBadAddressFiles(t *testing.T) {
	d := openDir(t)
	good, err := cq.AddressSpec("bad", cq.AddressOptions{Count: 8})
	must(t, err)
	change := func(f func(*shm.Spec)) shm.Spec {
		s := good
		s.Sections = append([]shm.Section(nil), good.Sections...)
		f(&s)
		return s
	}
	bad := map[string]shm.Spec{
		"kind":       change(func(s *shm.Spec) { s.Kind = shm.KindRegion }),
		"no index":   change(func(s *shm.Spec) { s.Sections = s.Sections[:2] }),
		"short rows": change(func(s *shm.Spec) { s.Sections[1].Length, s.Sections[1].Capacity = 64, 1 }),
	}
	for attr := range 8 {
		for _, v := range []uint64{0, 7, 9, 1 << 20, 1 << 40, ^uint64(0)} {
			if v != good.Attrs[attr] {
				bad[fmt.Sprint("attribute ", attr, " ", v)] = change(func(s *shm.Spec) { s.Attrs[attr] = v })
			}
		}
	}
	for name, spec := range bad {
		obj, err := d.Create("bad", spec, nil)
		must(t, err)
		_, err = cq.OpenAddresses(d, "bad")
		if err == nil {
			t.Errorf("%s: it opens", name)
		}
		_, err = cq.CreateAddresses(d, "bad", cq.AddressOptions{})
		wantErr(t, name+": create", err, fs.ErrExist)
		must(t, obj.Unlink())
		must(t, obj.Close())
	}
}

// TestAddressesClosedInUse closes a vector under every kind of use.
func TestAddressesClosedInUse(t *testing.T) {
	for range 20 {
		v, err := cq.CreateAnonymousAddresses("used", cq.AddressOptions{Count: 64})
		must(t, err)
		var all sync.WaitGroup
		var calls atomic.Int64
		for i := range 4 {
			all.Go(func() {
				buf := make([]byte, 32)
				for n := i; ; n += 4 {
					at, err := v.Insert([][]byte{sockaddr(n % 64)})
					calls.Add(1)
					if err != nil {
						wantErr(t, "insert", err, cq.ErrClosed)
						return
					}
					_, _ = v.Resolve(sockaddr((n + 1) % 64))
					_, _ = v.Lookup(cq.Addr(n%64), buf)
					_ = v.Remove(at[0]) // another goroutine may have
				}
			})
		}
		eventually(t, "it is in use", func() bool { return calls.Load() > 100 })
		must(t, v.Close())
		all.Wait()
	}
}

// TestAddressBeingWritten: a row is not there while its owner is in the middle of it, or died
// there.
func TestAddressBeingWritten(t *testing.T) {
	d := openDir(t)
	v, err := cq.CreateAddresses(d, queueName(t), cq.AddressOptions{Count: 16})
	must(t, err)
	defer v.Close()
	insert(t, v, sockaddrs(0, 3)...)
	_, rows, _ := addressMemory(t, d, v.Name())
	seq := rows[1*len(rows)/v.Options().Count:]
	was := peek64(seq, 0)
	poke(seq, 0, was|1)
	if a, ok := v.Resolve(sockaddr(1)); ok {
		t.Errorf("resolved to %d", a)
	}
	_, err = v.Lookup(1, make([]byte, 32))
	wantErr(t, "lookup", err, cq.ErrInvalid)
	poke(seq, 0, was+2)
	wantLookup(t, v, 1, sockaddr(1))
	if a, ok := v.Resolve(sockaddr(1)); !ok || a != 1 {
		t.Errorf("then resolved to %d, %v", a, ok)
	}
}
