package cq_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
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

const envScene = "SHMRING_TEST_SCENE"

func init() {
	roles["flip"] = func() {
		scene, err := flipScenes[os.Getenv(envScene)]()
		need(err)
		flip.Play(scene)
	}
}

// flipScenes are the calls that are attacked by TestFlip.
var flipScenes = map[string]func() (flip.Scene, error){}

// TestFlip changes every word that a peer of another user may write between any two loads that a
// call makes of it. The call gives what it gives for a value that stays, or gives the peer up.
func TestFlip(t *testing.T) {
	names := slices.Sorted(maps.Keys(flipScenes))
	if err := testdata.CheckFrozen(testdata.FrozenFlip, names); err != nil {
		t.Error(err)
	}
	for i, name := range names {
		if testing.Short() && i%4 != 0 {
			continue // a sample
		}
		t.Run(name, func(t *testing.T) {
			var o flip.Options
			switch {
			case strings.HasPrefix(name, "open"):
				o.Syscalls = true
			case *flipFull:
				o = flip.Options{Steps: 1, Values: flip.AllValues}
			case raceEnabled: // which is other code than what is shipped, and ten times as much
				o.Values = 2
			case name == "read one lane":
				o.Steps = 1
			}
			shmtest.Require(t, "children", flip.Possible())
			// What has a name outlives the child, which is killed in the end.
			dir, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "flip")
			must(t, err)
			t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
			s := flip.Attack(t, shmtest.Child(t, "flip", envScene+"="+name, shm.EnvDir+"="+dir,
				"GORACE=atexit_sleep_ms=0"), o)
			t.Log(&s)
			if s.Loaded == 0 && !t.Failed() {
				t.Error("the call looks at none of the words")
			}
		})
	}
}

// selfMeet has a reader and a writer of this process meet.
func selfMeet(accept func(context.Context, *net.UnixConn) error,
	attach func(*net.UnixConn) error) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a, err := socket(fds[0])
	need(err)
	defer a.Close()
	b, err := socket(fds[1])
	need(err)
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
	small := new(cq.TooSmallError)
	switch {
	case err == nil:
	case errors.As(err, &small):
		o.Shape += fmt.Sprintf(" needs %d", small.NeedBytes)
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
		var err error
		s.obj, err = flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (id int, err error) {
			s.peer, err = shm.CreateMemfd(cq.LaneSpec(1, flipSize, shm.UUID{1}), nil)
			need(err)
			need(s.peer.SealForOthers())
			s.fd, err = s.peer.ShareFD()
			return 1, err
		})
		need(err)
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
		d, err := shm.OpenDir("")
		need(err)
		s.obj, err = flip.AddedWith(d.Path(), cq.SectAddrRows, func() (id int, err error) {
			s.owner, err = cq.CreateAddresses(cq.Named(d, "flip"), cq.AddressOptions{Count: 4})
			need(err)
			_, err = s.owner.Insert([][]byte{
				cq.AppendSockaddr(nil, netip.MustParseAddrPort("10.0.0.1:7")), s.raw}, cq.InsertOptions{})
			need(err)
			s.v, err = cq.AttachAddresses(cq.Named(d, "flip"))
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
			s.c, err = cq.CreateCounter(cq.Named(d, "flip"), cq.CounterOptions{Spin: -1})
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
