package cq_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest/flip"
)

func init() {
	for name, s := range map[string]*flipRead{
		"read one lane":   {call: (*flipRead).read},
		"read around":     {call: (*flipRead).read, skip: 6},
		"read lanes":      {call: (*flipRead).readAll, honest: true},
		"read shared":     {call: (*flipRead).read, o: cq.Options{Shared: true}},
		"read overrun":    {call: (*flipRead).read, o: cq.Options{Overrun: cq.OverrunQueue}},
		"peek":            {call: (*flipRead).peek},
		"peek around":     {call: (*flipRead).peek, skip: 6},
		"peek lanes":      {call: (*flipRead).peekAll, honest: true},
		"read error":      {call: (*flipRead).readErr, failed: true},
		"errors of lanes": {call: (*flipRead).readAll, failed: true, honest: true},
	} {
		flipScenes[name] = s.scene
	}
}

// flipRead is a reader whose one writer is attacked, beside an honest one. What the attacked one
// may write is its lane.
type flipRead struct {
	call   func(*flipRead)
	honest bool // somebody else posts too
	failed bool // the first entry is an error
	skip   int  // entries before the first one that is read, each time
	o      cq.Options

	q         *cq.Queue
	good, bad *cq.Writer
	lane      *flip.Object // of the bad one
	posted    []cq.Entry
	next      uint64 // of the good one

	dst    [64]cq.Entry
	n      int
	errors int
	err    error
	e      cq.ErrorEntry
	bytes  [64]byte
	spent  bool // the bad one was given up
}

const (
	flipSize   = 8
	flipPosts  = 3
	flipHonest = 1 << 40 // the first context of the honest one
	unlike     = 0xdead
)

func (s *flipRead) scene() (flip.Scene, error) {
	s.o.Size, s.o.Trust, s.o.Allow, s.o.Spin = flipSize, cq.CrossUser, bothUsers(), -1
	s.spent = true
	return flip.Scene{Prepare: s.prepare, Call: func() { s.call(s) }, Result: s.result}, nil
}

func attachSelf(q *cq.Queue) (w *cq.Writer) {
	need(selfMeet(q.Accept, func(c *net.UnixConn) (err error) {
		w, err = cq.Attach(context.Background(), cq.Over(c), cq.WriterOptions{Trust: cq.CrossUser})
		return err
	}))
	return w
}

func (s *flipRead) renew() {
	if s.q != nil {
		_ = s.bad.Close()
		if s.good != nil {
			need(s.good.Close())
		}
		err := s.q.Close()
		for errors.Is(err, cq.ErrBusy) && s.q.Release(1) == nil {
			err = s.q.Close()
		}
		need(err)
	}
	var err error
	s.q, err = cq.Create(cq.Unnamed("flip"), s.o)
	need(err)
	if s.honest {
		s.good = attachSelf(s.q)
	}
	s.lane, err = flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (int, error) {
		s.bad = attachSelf(s.q)
		return s.bad.Lane(), nil
	})
	need(err)
	s.spent, s.next = false, 0
	s.fill(flipSize) // what lies behind the last entry looks like one
	s.fill(s.skip)
}

// fill has the bad one post entries that are read at once: reads go their usual way then, and the
// next entry is at the same place each time.
func (s *flipRead) fill(n int) {
	for range n {
		need(s.bad.Post(&cq.Entry{Context: unlike, Flags: unlike, Len: unlike, Buf: unlike,
			Data: unlike, Tag: unlike, Src: cq.Source{AddrPlus1: unlike}}))
	}
	if broken := s.drain(); broken != "" {
		need(errors.New(broken))
	}
}

func (s *flipRead) prepare() []flip.Word {
	if s.spent {
		s.renew()
	}
	first := s.bad.Next()
	s.posted = s.posted[:0]
	for i := range uint64(flipPosts) {
		e := cq.Entry{Context: first + i, Flags: cq.FlagRecv, Len: 5, Buf: 6, Data: 7, Tag: 8 + i,
			Src: cq.From(9), Meta: cq.Meta(1) | cq.Meta(first+i)<<32}
		if s.failed && i == 0 {
			need(s.bad.PostError(&cq.ErrorEntry{Context: e.Context, Err: cq.ETrunc,
				ErrData: []byte("12345")}))
			e.Meta++
		} else {
			need(s.bad.Post(&e))
		}
		s.posted = append(s.posted, e)
	}
	if s.honest {
		need(s.good.Post(&cq.Entry{Context: flipHonest + s.next}))
	}
	words, err := s.lane.Words("lane", cq.SectLane, uint32(s.bad.Lane()), 0, 8, 16, 128, 256, 264, 272,
		384, 392, 512)
	need(err)
	at := (first % flipSize) * cq.SlotBytes
	slot, err := s.lane.Words("slot", cq.SectSlots, uint32(s.bad.Lane()), at, at+8, at+16, at+24,
		at+32, at+40, at+48, at+56)
	need(err)
	words = append(words, slot...)
	if s.failed {
		at := (first % flipSize) * 64
		record, err := s.lane.Words("detail", cq.SectErrors, uint32(s.bad.Lane()), at, at+8, at+16,
			at+24)
		need(err)
		words = append(words, record...)
	}
	for i := range 3 {
		words[i].Index = true
	}
	for i := range words { // names are the same for every slot
		words[i].Name = fmt.Sprint(i, " ", words[i].Name)
	}
	s.n, s.errors, s.err = 0, 0, nil
	return words
}

func (s *flipRead) read() {
	n, err := cq.Read(s.q, s.dst[s.n:][:flipSize])
	s.n, s.err = s.n+n, err
}

func (s *flipRead) peek() {
	es, err := s.q.Peek(flipSize)
	if s.n, s.err = s.n+copy(s.dst[s.n:], es), err; err == nil {
		s.err = s.q.Release(len(es))
	}
}

func (s *flipRead) readErr() {
	for i := range s.bytes {
		s.bytes[i] = untouched
	}
	s.e = cq.ErrorEntry{ErrData: s.bytes[:]}
	if s.err = s.q.ReadErr(&s.e); s.err == nil {
		s.errors++
	}
}

func (s *flipRead) readAll() { s.all(s.read) }
func (s *flipRead) peekAll() { s.all(s.peek) }

// all takes what all lanes have, which does not depend on whose turn it is.
func (s *flipRead) all(call func()) {
	for range 7 {
		if call(); s.err == cq.ErrAvail {
			s.readErr()
		}
		if s.err != nil {
			return
		}
	}
}

func (s *flipRead) result() flip.Outcome {
	var data []uint64
	entries, honest := 0, 0
	for _, e := range s.dst[:s.n] {
		if s.good != nil && e.Context == flipHonest+s.next {
			s.next++
			honest++
			continue
		}
		entries++
		data = append(data, s.alike(e)...)
	}
	what := fmt.Sprintf("%d entries, %d errors", entries, s.errors)
	if s.failed && s.errors > 0 {
		what += fmt.Sprintf(" with %d bytes", len(s.e.ErrData))
		for i, b := range s.e.ErrData {
			if i < 5 && b != byte('1'+i) || b == untouched {
				what += fmt.Sprintf(" of which %d is %#x", i, b)
			}
		}
	}
	o := outcome(what, s.err)
	o.Data = data
	s.spent = s.spent || o.Poisoned
	if broken := s.rest(); o.Broken == "" {
		o.Broken = broken
	}
	if !s.spent {
		s.fill(flipSize - flipPosts)
	}
	return o
}

// alike compares an entry with the one of those posted that it is most alike. What lies in a slot
// that was not posted, which a writer that says so has read, is like anything.
func (s *flipRead) alike(e cq.Entry) []uint64 {
	best, most := make([]uint64, 8), 4
	for _, p := range s.posted {
		d := differ(e, p)
		if n := zeros(d); n > most {
			best, most = d, n
		}
	}
	return best
}

func zeros(d []uint64) (n int) {
	for _, w := range d {
		if w == 0 {
			n++
		}
	}
	return n
}

// rest reads what is left, and says what is wrong with that of the honest writer.
func (s *flipRead) rest() (broken string) {
	if broken = s.drain(); broken != "" || s.good == nil {
		return broken
	}
	err := s.good.Post(&cq.Entry{Context: flipHonest + s.good.Next()})
	if s.o.Overrun == cq.OverrunQueue && errors.Is(err, cq.ErrOverrun) {
		return ""
	}
	if broken = s.drain(); broken == "" && (err != nil || s.next != s.good.Next()) {
		broken = fmt.Sprintf("the honest writer: %v; %d of %d came", err, s.next, s.good.Next())
	}
	return broken
}

func (s *flipRead) drain() string {
	for again := 0; again < 3; {
		n, err := cq.Read(s.q, s.dst[:])
		for _, e := range s.dst[:n] {
			if s.good != nil && e.Context == flipHonest+s.next {
				s.next++
			}
		}
		switch o := outcome("", err); {
		case o.Broken != "":
			return "afterwards: " + o.Broken
		case o.Poisoned, errors.Is(err, cq.ErrOverrun):
			s.spent = true
		case errors.Is(err, cq.ErrAvail):
			need(s.q.ReadErr(&s.e))
		}
		if errors.Is(err, cq.ErrWouldBlock) || errors.Is(err, cq.ErrOverrun) {
			again++
		}
	}
	return ""
}
