package cq_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
)

// flipFull has a word of every scene flipped between instructions too, and all get more values.
var flipFull = flag.Bool("flip.full", false, "flip more words in more ways (a minute or more)")

func init() { roles["flip"] = flipScenes.Play }

// flipScenes are the calls that are attacked by TestFlip.
var flipScenes = flip.Scenes{}

// TestFlip changes every word that a peer of another user may write between any two loads that a
// call makes of it. The call gives what it gives for a value that stays, or gives the peer up.
func TestFlip(t *testing.T) {
	t.Parallel()
	flipScenes.Attack(t, testdata.FrozenFlip, func(i int, name string) (o flip.Options, ok bool) {
		switch {
		case strings.HasPrefix(name, "open"):
			o.Syscalls = true
		case *flipFull:
			o = flip.Options{Steps: 1, Values: flip.AllValues}
		case shmtest.Race: // which is other code than what is shipped, and ten times as much
			o.Values = 2
		case name == "read one lane":
			o.Steps = 1
		}
		return o, !testing.Short() || i%4 == 0 // a sample
	})
}

// selfMeet has a reader and a writer of this process meet.
func selfMeet(accept func(context.Context, *net.UnixConn) error,
	attach func(*net.UnixConn) error) error {
	a, b, err := shmtest.Sockets(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- accept(ctx, a) }()
	err = attach(b)
	return errors.Join(err, <-done)
}

// outcome says what an error of a call means. What is none of these is broken.
func outcome(what string, err error) (o flip.Outcome) {
	o.Shape = what
	small := new(cq.Error)
	switch {
	case err == nil:
	case errors.Is(err, cq.ETooSmall) && errors.As(err, &small):
		o.Shape += fmt.Sprintf(" needs %d", small.Want)
	case errors.Is(err, cq.ErrCorrupt):
		o.Poisoned = true
	case errors.Is(err, cq.ErrWouldBlock), errors.Is(err, cq.ErrAvail), errors.Is(err, cq.ErrFull),
		errors.Is(err, cq.ErrOverrun), errors.Is(err, cq.ErrClosed), errors.Is(err, cq.ErrPeerGone),
		errors.Is(err, syscall.EIO):
		o.Shape += " " + err.Error()
	default:
		o.Broken = fmt.Sprintf("%s: %T %v", what, err, err)
	}
	return o
}

// differ is 0 for words that are as they should be, and what they are for others.
func differ(is, want cq.Entry) []uint64 {
	data := make([]uint64, 0, 8)
	for _, w := range [][2]uint64{{is.Context, want.Context}, {uint64(is.Flags), uint64(want.Flags)},
		{is.Len, want.Len}, {uint64(is.Buf), uint64(want.Buf)}, {is.Data, want.Data},
		{is.Tag, want.Tag}, {is.Src.AddrPlus1, want.Src.AddrPlus1},
		{uint64(is.Meta), uint64(want.Meta)}} {
		if w[0] == w[1] {
			w[0] = 0
		}
		data = append(data, w[0])
	}
	return data
}

func init() {
	flipScenes["open"] = func() (flip.Scene, error) {
		s := &flipOpen{}
		return flip.Scene{Prepare: s.prepare, Call: s.call, Result: s.result}, nil
	}
}

// flipOpen opens the lane of a peer of another user, who changes its header meanwhile.
type flipOpen struct {
	peer *shm.Object
	fd   int
	obj  *flip.Object

	o     *shm.Object
	err   error
	shape string
}

func (s *flipOpen) prepare() []flip.Word {
	if s.peer == nil {
		s.obj = shmtest.Needs(flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (id int, err error) {
			s.peer = shmtest.Needs(shm.CreateMemfd(cq.LaneSpec(1, flipSize, shm.UUID{1}), nil))
			need(s.peer.Seal(shm.SealOthers))
			s.fd, err = s.peer.ShareFD()
			return 1, err
		}))
	}
	s.o, s.err, s.shape = nil, nil, ""
	var words []flip.Word
	for at := uint64(0); at < 512; at += 8 {
		words = append(words, s.obj.Header(at))
	}
	return words
}

// call goes on to what is done with an object that was opened.
func (s *flipOpen) call() {
	if s.o, s.err = shm.OpenPassed(s.fd, "flip", 1<<20); s.err != nil {
		return
	}
	h := s.o.Header()
	s.shape = fmt.Sprint(h.Kind, h.TotalBytes, len(s.o.Bytes()), len(h.Sections))
	for _, sect := range h.Sections {
		mem, _, err := s.o.Section(sect.Kind, sect.ID)
		s.err = errors.Join(s.err, err)
		s.shape += fmt.Sprint(" ", len(mem))
	}
}

func (s *flipOpen) result() flip.Outcome {
	if s.o != nil {
		need(s.o.Close())
	}
	if errors.Is(s.err, shm.ErrCorrupt) || errors.Is(s.err, shm.ErrVersion) ||
		errors.Is(s.err, shm.ErrTruncated) {
		return flip.Outcome{Poisoned: true}
	}
	o := flip.Outcome{Shape: s.shape}
	if s.err != nil {
		o.Broken = s.err.Error()
	}
	return o
}

func init() {
	for name, call := range map[string]func(*flipAddresses){
		"address lookup":  func(s *flipAddresses) { s.n, s.err = s.v.Lookup(flipRow, s.buf[:]) },
		"address resolve": func(s *flipAddresses) { s.at, s.found = s.v.Resolve(s.raw) },
		"address count":   func(s *flipAddresses) { s.n = s.v.Len() },
	} {
		flipScenes[name] = func() (flip.Scene, error) {
			s := &flipAddresses{raw: cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.2:7"))}
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
		d := shmtest.Needs(shm.OpenDir(""))
		s.obj = shmtest.Needs(flip.AddedWith(d.Path(), cq.SectAddrRows, func() (id int, err error) {
			s.owner = shmtest.Needs(cq.CreateAddresses(cq.Named(d, "flip"), cq.AddressOptions{Count: 4}))
			shmtest.Needs(s.owner.Insert([][]byte{
				cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.1:7")), s.raw}, cq.InsertOptions{}))
			s.v, err = cq.AttachAddresses(cq.Named(d, "flip"))
			return 0, err
		}))
		s.cell = uint64(cq.AddressHome(s.v, s.raw))
	}
	s.n, s.at, s.found, s.err = 0, 0, false, nil
	words := shmtest.Needs(s.obj.Words("vector", cq.SectAddrWords, 0, 0, 8, 16))
	row := uint64(flipRow) * (4 + 4) * 8 // four words, and 32 bytes of address
	more := shmtest.Needs(s.obj.Words("row", cq.SectAddrRows, 0, row, row+8, row+16, row+32, row+40))
	cell := shmtest.Needs(s.obj.Words("cell", cq.SectAddrIndex, 0, 8*s.cell))
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
		d := shmtest.Needs(shm.OpenDir(""))
		s.obj = shmtest.Needs(flip.AddedWith(d.Path(), cq.SectCounter, func() (id int, err error) {
			s.c, err = cq.CreateCounter(cq.Named(d, "flip"), cq.CounterOptions{Spin: -1})
			return 0, err
		}))
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

func attachEventsSelf(q *cq.EventQueue) (w *cq.EventWriter) {
	need(selfMeet(q.Accept, func(c *net.UnixConn) (err error) {
		w, err = cq.AttachEvents(context.Background(), cq.Over(c), cq.WriterOptions{Trust: cq.CrossUser})
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
	s.q = shmtest.Needs(cq.Create(cq.Unnamed("flip"), s.o))
	if s.honest {
		s.good = attachSelf(s.q)
	}
	s.lane = shmtest.Needs(flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (int, error) {
		s.bad = attachSelf(s.q)
		return s.bad.Lane(), nil
	}))
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
	slot, details := first%flipSize, 0
	if s.failed {
		details = 4
	}
	words := laneWords(s.lane, s.bad.Lane(), slot, slot*64, details)
	s.n, s.errors, s.err = 0, 0, nil
	return words
}

// laneWords are those that a writer may write of a lane, with one slot and some words of its
// detail.
func laneWords(obj *flip.Object, lane int, slot, detail uint64, details int) []flip.Word {
	id := uint32(lane)
	words := shmtest.Needs(obj.Words("lane", cq.SectLane, id, 0, 8, 16, 128, 256, 264, 272, 384, 392,
		512))
	for i := range 3 {
		words[i].Index = true
	}
	rows := func(what string, kind shm.SectionKind, from uint64, n int) {
		at := make([]uint64, n)
		for i := range at {
			at[i] = from + 8*uint64(i)
		}
		words = append(words, shmtest.Needs(obj.Words(what, kind, id, at...))...)
	}
	rows("slot", cq.SectSlots, slot*cq.SlotBytes, cq.SlotBytes/8)
	rows("detail", cq.SectErrors, detail, details)
	for i := range words { // names are the same for every slot
		words[i].Name = fmt.Sprint(i, " ", words[i].Name)
	}
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
