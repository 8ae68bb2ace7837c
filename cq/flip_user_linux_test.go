package cq_test

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
)

func init() {
	for name, call := range map[string]func(*flipAddresses){
		"address lookup":  func(s *flipAddresses) { s.n, s.err = s.v.Lookup(flipRow, s.buf[:]) },
		"address resolve": func(s *flipAddresses) { s.at, s.found = s.v.Resolve(s.raw) },
		"address count":   func(s *flipAddresses) { s.n = s.v.Len() },
	} {
		flipScenes[name] = func() (flip.Scene, error) {
			s := &flipAddresses{raw: cq.Sockaddr(netip.MustParseAddrPort("10.0.0.2:7"))}
			return flip.Scene{Prepare: s.prepare, Call: func() { call(s) }, Result: s.result}, nil
		}
	}
	for name, call := range map[string]func(*flipCounter){
		"counter add":   func(s *flipCounter) { s.err = s.c.Add(1) },
		"counter set":   func(s *flipCounter) { s.err = s.c.Set(1 << 40) },
		"counter error": func(s *flipCounter) { s.err = s.c.AddErr(1) },
		"counter read": func(s *flipCounter) {
			_, err := s.c.Read()
			_, err2 := s.c.ReadErr()
			s.err = errors.Join(err, err2)
		},
		"counter wait": func(s *flipCounter) { s.err = cntrWait(s.c, 0, 0) },
	} {
		flipScenes[name] = func() (flip.Scene, error) {
			s := &flipCounter{}
			return flip.Scene{Prepare: s.prepare, Call: func() { call(s) }, Result: s.result}, nil
		}
	}
}

const flipRow = 1 // of the address that is looked for

// flipAddresses is a user of an address vector whose owner is attacked.
type flipAddresses struct {
	owner, v *cq.AddressVector
	obj      *flip.Object
	cell     uint64
	raw      []byte

	n     int
	at    cq.Addr
	found bool
	err   error
	buf   [64]byte
}

func (s *flipAddresses) prepare() []flip.Word {
	if s.v == nil {
		d, err := shm.OpenDir("")
		need(err)
		s.obj, err = flip.AddedWith(d.Path(), cq.SectAddrRows, func() (id int, err error) {
			s.owner, err = cq.CreateAddresses(d, "flip", cq.AddressOptions{Count: 4})
			need(err)
			_, err = s.owner.Insert([][]byte{cq.Sockaddr(netip.MustParseAddrPort("10.0.0.1:7")), s.raw})
			need(err)
			s.v, err = cq.OpenAddresses(d, "flip")
			return 0, err
		})
		need(err)
		s.cell = uint64(cq.AddressHome(s.v, s.raw))
	}
	s.n, s.at, s.found, s.err = 0, 0, false, nil
	words, err := s.obj.Words("vector", cq.SectAddrWords, 0, 0, 8, 16)
	need(err)
	row := uint64(flipRow) * (4 + 4) * 8 // four words, and 32 bytes of address
	more, err := s.obj.Words("row", cq.SectAddrRows, 0, row, row+8, row+16, row+32, row+40)
	need(err)
	cell, err := s.obj.Words("cell", cq.SectAddrIndex, 0, 8*s.cell)
	need(err)
	return append(append(words, more...), cell...)
}

func (s *flipAddresses) result() flip.Outcome {
	o := outcome(fmt.Sprintf("%d, found %v at %d", s.n, s.found, s.at), s.err)
	if errors.Is(s.err, cq.ErrInvalid) {
		o = flip.Outcome{Shape: "no such address"}
	}
	if s.n < 0 || s.n > len(s.buf) {
		o.Broken = o.Shape
	}
	return o
}

// flipCounter is a counter that another process of its user attacks. Any value is one that it can
// have.
type flipCounter struct {
	c   *cq.Counter
	obj *flip.Object
	err error
}

func (s *flipCounter) prepare() []flip.Word {
	if s.c == nil {
		d, err := shm.OpenDir("")
		need(err)
		s.obj, err = flip.AddedWith(d.Path(), cq.SectCounter, func() (id int, err error) {
			s.c, err = cq.CreateCounter(d, "flip", cq.CounterOptions{Spin: -1})
			return 0, err
		})
		need(err)
	}
	s.err = nil
	words, err := s.obj.Words("counter", cq.SectCounter, 0, 0, cq.OffCounterErr, cq.OffCounterErr+8,
		cq.OffCounterBell, cq.OffCounterBell+8, cq.OffCounterBell+16, cq.OffCounterBell+24, 384, 392,
		cq.OffCounterRows, cq.OffCounterRows+8, cq.OffCounterRows+cq.CounterRowBytes)
	need(err)
	return words
}

func (s *flipCounter) result() flip.Outcome {
	if errors.Is(s.err, cq.ErrTimedOut) || errors.Is(s.err, cq.ErrAvail) {
		s.err = nil
	}
	return outcome("", s.err)
}
