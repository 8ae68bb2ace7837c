package cq_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// addressMemory maps a vector's sections as a hostile owner would.
func addressMemory(t testing.TB, d *shm.Dir, name string) (words, rows, index []byte) {
	t.Helper()
	obj := shmtest.Have(d.Open(name, shm.ReadWrite)).In(t)
	s := scribbler{obj}
	return s.section(t, cq.SectAddrWords, 0), s.section(t, cq.SectAddrRows, 0),
		s.section(t, cq.SectAddrIndex, 0)
}

// TestHostileAddresses: whatever stands in a vector, looking things up ends without harm, and a
// successor makes it whole.
func TestHostileAddresses(t *testing.T) {
	const row = 64
	for name, do := range map[string]func(words, rows, index []byte){
		"row in the middle of a write": func(_, rows, _ []byte) { poke(rows, 2*row, 7) },
		"every row so": func(_, rows, _ []byte) {
			for at := 0; at < len(rows); at += row {
				poke(rows, at, ^uint64(0))
			}
		},
		"length beyond the row": func(_, rows, _ []byte) { poke(rows, 2*row+8, cq.AddrRowUsed|33) },
		"length of nothing":     func(_, rows, _ []byte) { poke(rows, 2*row+8, cq.AddrRowUsed) },
		"two rows, one address": func(_, rows, _ []byte) { copy(rows[2*row:3*row], rows[3*row:]) },
		"a length of no format": func(_, rows, _ []byte) { poke(rows, 4*row+8, cq.AddrRowUsed|24) },
		"a family of no format": func(_, rows, _ []byte) { poke(rows, 4*row+32, 9) },
		"an id where are none":  func(_, rows, _ []byte) { giveID(rows[4*row:], 6415) },
		"bytes behind the end":  func(_, rows, _ []byte) { rows[7*row+32+30] = 1 },
		"index leads nowhere":   func(_, _, index []byte) { fillWords(index, ^uint64(0)) },
		"cells lead behind the rows": func(_, _, index []byte) {
			for at := 0; at+8 <= len(index); at += 8 {
				if cell := peek64(index, at); cell != 0 {
					poke(index, at, cell|0x7fffffff) // of the same hash
				}
			}
		},
		"index leads to row 0":   func(_, _, index []byte) { fillWords(index, 1) },
		"one cell twice":         func(_, _, index []byte) { doubleCell(index) },
		"index is empty":         func(_, _, index []byte) { clear(index) },
		"index of random things": func(_, _, index []byte) { randomWords(index) },
		"everything is random": func(words, rows, index []byte) {
			randomWords(words[8:64])
			randomWords(rows)
			randomWords(index)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t)
			v, err := cq.CreateAddresses(cq.Named(d, queueName(t)), cq.AddressOptions{Count: 16})
			must(t, err)
			insert(t, v, sockaddrs(0, 10)...)
			r := shmtest.Have(cq.AttachAddresses(cq.Named(d, v.Name()))).In(t)
			do(addressMemory(t, d, v.Name()))
			for _, v := range []*cq.AddressVector{r, v} {
				lookAround(t, v)
			}
			_, _ = v.Insert(sockaddrs(5, 15), cq.InsertOptions{})
			_ = v.Remove(3, 5)
			_ = v.Remove(2)
			must(t, v.Detach())
			v = shmtest.Got(cq.OpenAddresses(cq.Named(d, v.Name()), cq.AddressOptions{Existing: true})).Or(t)
			wantWhole(t, v)
			wantSound(t, v)
			must(t, v.Close())
		})
	}
}

// giveID gives a row a user id.
func giveID(row []byte, id uint64) {
	poke(row, 16, id)
	poke(row, 8, peek64(row, 8)|cq.AddrRowHasID)
}

// doubleCell copies a cell to the empty one behind it, as a removal does before it goes on.
func doubleCell(index []byte) {
	for at := 0; at+16 <= len(index); at += 8 {
		if peek64(index, at) != 0 && peek64(index, at+8) == 0 {
			poke(index, at+8, peek64(index, at))
			return
		}
	}
}

// lookAround asks for everything that can be asked for.
func lookAround(t testing.TB, v *cq.AddressVector) {
	t.Helper()
	buf := make([]byte, 300)
	for a := range cq.Addr(v.Options().Count + 2) {
		n, err := v.Lookup(a, buf)
		if err != nil && !errors.Is(err, cq.ErrInvalid) && !errors.Is(err, cq.ErrClosed) {
			t.Error(err)
		}
		if err == nil && (n < 1 || n > v.Options().AddrMaxBytes) {
			t.Errorf("an address of %d bytes", n)
		}
	}
	for i := range 20 {
		if a, ok := v.Resolve(sockaddr(i)); ok && a >= cq.Addr(v.Options().Count) && !v.Options().UserID {
			t.Errorf("resolved to %d", a)
		}
	}
	if n := v.Len(); n > v.Options().Count {
		t.Errorf("%d addresses", n)
	}
}

// wantSound checks a vector that was adopted: it agrees with itself, and can be filled and emptied.
func wantSound(t *testing.T, v *cq.AddressVector) {
	t.Helper()
	n, buf := 0, make([]byte, 300)
	for a := range cq.Addr(v.Options().Count) {
		k, err := v.Lookup(a, buf)
		if err != nil {
			continue
		}
		n++
		if got, ok := v.Resolve(buf[:k]); !ok || got != a && !v.Options().UserID {
			t.Errorf("address %d resolves to %d, %v", a, got, ok)
		}
		must(t, v.Remove(a))
		if _, ok := v.Resolve(buf[:k]); ok {
			t.Errorf("address %d is there after its removal", a)
		}
		_, err = v.Lookup(a, nil)
		wantErr(t, "lookup", err, cq.ErrInvalid)
	}
	if v.Len() != 0 {
		t.Errorf("%d addresses, %d left", n, v.Len())
	}
	insert(t, v, sockaddrs(100, 100+v.Options().Count)...)
	for i := range v.Options().Count {
		finds(t, v, cq.Addr(i), sockaddr(100+i))
	}
}

// wantWhole checks that every address has one index, and the index of the search nothing else.
func wantWhole(t *testing.T, v *cq.AddressVector) {
	t.Helper()
	n, buf := 0, make([]byte, 256)
	for a := range cq.Addr(v.Options().Count) {
		k, err := v.Lookup(a, buf)
		if err != nil {
			continue
		}
		n++
		again, err := v.Insert([][]byte{buf[:k]}, cq.InsertOptions{})
		if err != nil || again[0] != a {
			t.Errorf("address %d, % x: index %v, %v", a, buf[:k], again, err)
		}
	}
	if cells := cq.AddressCells(v); v.Len() != n || cells != n {
		t.Errorf("%d addresses, says %d, %d cells", n, v.Len(), cells)
	}
}

func fillWords(mem []byte, w uint64) {
	for at := 0; at+8 <= len(mem); at += 8 {
		poke(mem, at, w)
	}
}

func randomWords(mem []byte) {
	for at := 0; at+8 <= len(mem); at += 8 {
		poke(mem, at, rand.Uint64()>>(rand.Uint32()%64))
	}
}

// FuzzAddresses has arbitrary bytes as a vector's rows and index.
func FuzzAddresses(f *testing.F) {
	d, err := shm.OpenDir("")
	if err != nil {
		f.Fatal(err)
	}
	defer d.Close()
	v, err := cq.CreateAddresses(cq.Named(d, "seed"), cq.AddressOptions{Count: 4})
	if err != nil {
		f.Fatal(err)
	}
	insert(f, v, sockaddrs(0, 3)...)
	words, rows, index := addressMemory(f, d, "seed")
	f.Add(bytes.Clone(words[:24]), bytes.Clone(rows), bytes.Clone(index))
	must(f, v.Remove(1))
	f.Add(bytes.Clone(words[:24]), bytes.Clone(rows), bytes.Clone(index))
	must(f, v.Close())
	f.Add([]byte{1}, bytes.Repeat([]byte{1}, 256), bytes.Repeat([]byte{1, 0, 0, 0}, 32))
	f.Add([]byte{3}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, words, rows, index []byte) {
		d := openDir(t)
		v := shmtest.Got(cq.CreateAddresses(cq.Named(d, "fuzz"), cq.AddressOptions{Count: 4})).Or(t)
		r := shmtest.Got(cq.AttachAddresses(cq.Named(d, "fuzz"))).Or(t)
		inWords, inRows, inIndex := addressMemory(t, d, "fuzz")
		copy(inWords[:64], words)
		copy(inRows, rows)
		copy(inIndex, index)
		lookAround(t, r)
		lookAround(t, v)
		_, _ = v.Insert(sockaddrs(0, 3), cq.InsertOptions{})
		_ = v.Remove(1)
		binary.LittleEndian.PutUint64(inWords, 1) // or it says that it was closed
		must(t, v.Detach())
		v = shmtest.Got(cq.OpenAddresses(cq.Named(d, "fuzz"), cq.AddressOptions{Existing: true})).Or(t)
		lookAround(t, r)
		wantSound(t, v)
		must(t, errors.Join(r.Close(), v.Close()))
		must(t, os.RemoveAll(d.Path()+"/fuzz"))
	})
}

// TestAddressBeingWritten: a row is not there while its owner is in the middle of it, or died
// there.
func TestAddressBeingWritten(t *testing.T) {
	d := openDir(t)
	v := shmtest.Have(cq.CreateAddresses(cq.Named(d, queueName(t)),
		cq.AddressOptions{Count: 16})).In(t)
	insert(t, v, sockaddrs(0, 3)...)
	_, rows, _ := addressMemory(t, d, v.Name())
	seq := rows[1*len(rows)/v.Options().Count:]
	was := peek64(seq, 0)
	poke(seq, 0, was|1)
	if a, ok := v.Resolve(sockaddr(1)); ok {
		t.Errorf("resolved to %d", a)
	}
	_, err := v.Lookup(1, make([]byte, 32))
	wantErr(t, "lookup", err, cq.ErrInvalid)
	poke(seq, 0, was+2)
	finds(t, v, 1, sockaddr(1))
	if a, ok := v.Resolve(sockaddr(1)); !ok || a != 1 {
		t.Errorf("then resolved to %d, %v", a, ok)
	}
}
