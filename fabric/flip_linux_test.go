package fabric_test

import (
	"cmp"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/testdata"
)

var (
	flipFull = flag.Bool("flip.full", false, "flip more words in more ways (minutes)")
	flipSeed = flag.Uint64("flip.seed", 0, "choose the scenes that are attacked; 0: anyhow")
)

// flipScenes are the calls that are attacked by TestFlip.
var flipScenes = flip.Scenes{}

// flipMaps are the scenes whose call maps what it looks at.
var flipMaps = []string{"adopt", "attach"}

// TestFlip changes every word that a peer writes between any two loads that a call of an endpoint
// makes of it. Once the peer is honest again all arrives, or it was cut off; who is honest all the
// time is served. Scenes are like each other: each run has some.
func TestFlip(t *testing.T) {
	t.Parallel()
	scenes := slices.Sorted(maps.Keys(flipScenes))
	if !*flipFull {
		seed := cmp.Or(*flipSeed, rand.Uint64())
		t.Logf("-flip.seed %d", seed)
		scenes = slices.DeleteFunc(scenes, func(s string) bool { return slices.Contains(flipMaps, s) })
		rand.New(rand.NewPCG(seed, 0)).Shuffle(len(scenes), func(i, j int) {
			scenes[i], scenes[j] = scenes[j], scenes[i]
		})
		some := 3
		if testing.Short() || shmtest.Race {
			some = 1
		}
		scenes = scenes[:some]
	}
	flipScenes.Attack(t, testdata.FrozenFabricFlip, func(_ int, name string) (flip.Options, bool) {
		o := flip.Options{Values: 2}
		if *flipFull {
			o = flip.Options{Steps: 1, Values: flip.AllValues}
		}
		o.Syscalls = slices.Contains(flipMaps, name)
		return o, slices.Contains(scenes, name)
	})
}

func init() {
	for name, s := range map[string]*flipEnds{
		"examine": {before: (*flipEnds).arrives, call: progress, meets: true},
		"store":   {before: (*flipEnds).arrives, call: progress, meets: true, late: true},
		"header": {before: func(s *flipEnds) error {
			return s.b.TSend(pattern(chunk+100), s.toA, 1, 0)
		}, call: progress, meets: true},
		"segment": {before: func(s *flipEnds) error {
			err := s.b.TSend(pattern(chunk+100), s.toA, 1, 0)
			return errors.Join(err, progress(s), s.moves(s.b))
		}, call: progress, meets: true},
		"reference": {before: (*flipEnds).refers, call: progress, meets: true},
		"loan":      {before: (*flipEnds).refers, call: progress, meets: true, lent: true},
		"commit":    {before: (*flipEnds).commits, call: progress, meets: true},
		"adopt": {before: func(s *flipEnds) error { return s.b.TSend(nil, s.toA, 1, 0) },
			call: progress},
		"send":   {call: (*flipEnds).sends, meets: true, out: true},
		"attach": {call: (*flipEnds).sends, out: true},
		"look": {before: func(s *flipEnds) error {
			return errors.Join(s.sends(), s.sends(), s.moves(s.b))
		}, call: progress, meets: true, out: true},
		"asked": {before: func(s *flipEnds) error {
			err := s.a.TSend(pattern(chunk+100), s.toB, 1, 0)
			s.sent++
			return errors.Join(err, s.moves(s.b))
		}, call: progress, meets: true, out: true},
		"close": {before: func(s *flipEnds) error { return errors.Join(s.arrives(), s.sends()) },
			call: func(s *flipEnds) error { return s.a.Endpoint.Close() }, meets: true, ends: true},
	} {
		flipScenes[name] = func() (flip.Scene, error) {
			s.flipMemory = &flipMemory{}
			return flip.Scene{Prepare: s.prepare, Call: func() { s.err = s.call(s) },
				Result: s.result}, nil
		}
	}
}

const (
	flipReceives = 3
	flipBytes    = 2 * chunk
	flipRemote   = 4096
)

// flipEnds is an endpoint a, whose peer b is attacked: what b writes are its two objects, and the
// mail of a. Another peer c is honest.
type flipEnds struct {
	before func(*flipEnds) error
	call   func(*flipEnds) error
	meets  bool // a and b know each other
	late   bool // receives are posted after the call
	lent   bool // and for loans
	out    bool // a sends
	ends   bool // a is closed

	rounds   int
	a, b, c  *end
	toA, toB cq.Addr
	posted   bool
	sent     int // by a
	err      error
	*flipMemory
}

// flipMemory is what the process of a scene has, and no other child.
type flipMemory struct {
	bufs  [flipReceives][flipBytes]byte
	taken [flipBytes]byte // by b, where nobody looks
}

func progress(s *flipEnds) error { return s.moves(s.a) }

func (s *flipEnds) moves(e *end) error {
	_, err := e.Progress()
	return err
}

// arrives has b send in each way that fits a slot or chunk.
func (s *flipEnds) arrives() error {
	return errors.Join(s.b.TSend(pattern(100), s.toA, 1, 0), s.b.TSend(pattern(300), s.toA, 2, 0),
		s.b.SendMsg(&fabric.Msg{Buf: pattern(32), Addr: s.toA, Flags: cq.FlagTagged |
			cq.FlagRemoteCQData, Tag: 3, Data: 9}))
}

// refers has b send by reference.
func (s *flipEnds) refers() error {
	mem, err := s.b.Alloc(5000)
	if err != nil {
		return err
	}
	copy(mem, pattern(5000))
	return s.b.TSend(mem, s.toA, 1, 0)
}

// commits has b write what is to last.
func (s *flipEnds) commits() error {
	r, err := s.a.Register(64, cq.FlagRemoteWrite)
	if err != nil {
		return err
	}
	return s.b.WriteMsg(&fabric.Msg{Buf: pattern(32), Addr: s.toA, Data: 9,
		Flags: lasts | cq.FlagRemoteCQData}, fabric.Remote{Key: r.Key()})
}

// within is a file that takes what lies within the memory that it stands for.
type within struct{}

func (within) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }
func (within) Sync() error                       { return nil }

func (within) WriteAt(b []byte, at int64) (int, error) {
	if at < 0 || at > flipRemote-int64(len(b)) {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

// sends has a send.
func (s *flipEnds) sends() error {
	err := s.a.Send(pattern(100), s.toB, 1)
	if err == nil {
		s.sent++
	}
	return err
}

// receive posts what a receives: of each tag one.
func (s *flipEnds) receive() error {
	s.posted = true
	for i := range s.bufs {
		m := fabric.Msg{Buf: s.bufs[i][:], Addr: fabric.Anybody, Flags: cq.FlagTagged,
			Tag: uint64(i + 1), Context: uint64(10 + i)}
		if s.lent {
			m.Buf, m.Flags = nil, m.Flags|cq.FlagFrame
		}
		if err := s.a.RecvMsg(&m); err != nil {
			return err
		}
	}
	return nil
}

func (s *flipEnds) prepare() []flip.Word {
	if s.a != nil {
		need(errors.Join(s.a.close(), s.b.close(), s.c.close()))
	}
	s.rounds++
	s.err, s.posted, s.sent = nil, false, 0
	for i := range s.bufs {
		clear(s.bufs[i][:])
	}
	names := [3]string{}
	for i, e := range []**end{&s.a, &s.b, &s.c} {
		var err error
		names[i] = fmt.Sprintf("end-%c-%d", 'a'+i, s.rounds)
		*e, err = openSized("", names[i], 64, fabric.Options{Peers: 4, Pool: chunk, Window: 64 << 10,
			Remote: flipRemote, RemoteFile: within{}})
		need(err)
	}
	s.toA = shmtest.Needs(s.b.Resolve(names[0]))
	if s.meets || s.out {
		s.toB = shmtest.Needs(s.a.Resolve(names[1]))
	}
	if s.out { // b takes what a sends
		for range 8 {
			need(errors.Join(s.b.Recv(s.taken[:], 2),
				s.b.TRecv(s.taken[:], fabric.Anybody, 1, 0, 2)))
		}
	}
	if s.meets {
		need(errors.Join(s.b.Inject(nil, s.toA), progress(s), s.a.Inject(nil, s.toB), s.moves(s.b),
			progress(s)))
	}
	if !s.late {
		need(s.receive())
	}
	toA := shmtest.Needs(s.c.Resolve(names[0]))
	if s.before != nil {
		need(s.before(s))
	}
	need(s.c.TSend(nil, toA, 7, 0))
	need(s.a.TRecv(nil, fabric.Anybody, 7, 0, 7))
	return s.words(names)
}

// words are those that b may write.
func (s *flipEnds) words(names [3]string) (all []flip.Word) {
	mapped := shmtest.Needs(flip.Mapped(s.a.d.Path()))
	add := func(of shm.Kind, end, name string, k shm.SectionKind, offsets ...uint64) {
		o := shmtest.Needs(flip.Of(mapped, of, end))
		if end == names[0] { // others have it too, and the engine watches four addresses
			o = o.Own()
		}
		words := shmtest.Needs(o.Words(name, k, 0, offsets...))
		all = append(all, words...)
	}
	b := names[1]
	add(shm.KindFabric, b, "page", kind.SectFabricPage, 0, 128)
	add(shm.KindFabric, b, "row", kind.SectFabricRows, 0, 8, 128, 136, 144, 168, 176, 184, 192)
	add(shm.KindOutbox, b, "lane", kind.SectFabricLanes, 0, 8, 128, 136, 144, 152, 160, 168, 176,
		184)
	for i := range uint64(4) {
		at := i * kind.FabricSlotBytes
		add(shm.KindOutbox, b, "slot", kind.SectFabricSlots, at, at+8, at+16, at+24, at+32, at+224,
			at+232)
	}
	claims := kind.FabricClaims(4)
	add(shm.KindFabric, names[0], "mail", kind.SectFabricMail, 0, 64, 128, 192, 256, 320, 384,
		claims, claims+8)
	for i := range all {
		all[i].Name = fmt.Sprint(i, " ", all[i].Name)
	}
	return all
}

// result has all move on, b honest again, and says what came of it.
func (s *flipEnds) result() (o flip.Outcome) {
	if s.ends {
		if s.err != nil {
			o.Broken = fmt.Sprint("close: ", s.err)
		}
		return o
	}
	o.Poisoned = errors.Is(s.err, fabric.ErrCorrupt) || errors.Is(s.err, fabric.ErrRefused)
	for _, known := range []error{fabric.ErrNoPeer, fabric.ErrPeers, cq.ErrFull} {
		if errors.Is(s.err, known) {
			o.Shape = known.Error()
		}
	}
	if s.err != nil && !o.Poisoned && o.Shape == "" {
		o.Broken = s.err.Error()
	}
	if !s.posted {
		need(s.receive())
	}
	_ = s.b.TSend(nil, s.toA, 7, 0) // it rings for what was flipped
	need(s.a.TRecv(nil, fabric.Anybody, 7, 0, 8))
	var got, sent, failed, others int
	o.Data = make([]uint64, 3*flipReceives)
	for range 8 {
		need(errors.Join(s.moves(s.b), s.moves(s.c), progress(s)))
		for {
			c, bad, ok := s.take(s.a)
			switch {
			case !ok:
			case bad.Err != 0:
				failed++
			case c.Context == 7 || c.Context == 8:
				others++
			case c.Flags&cq.FlagRecv == 0:
				sent++
			default:
				got++
				s.compare(&o, c)
			}
			if !ok {
				break
			}
		}
	}
	st := s.a.Stats()
	o.Poisoned = o.Poisoned || st.Corrupt > 0 || st.Refused > 0
	if others == 0 {
		o.Broken = "the honest one is not served"
	}
	o.Shape += fmt.Sprintf(" %d received, %d of %d sent, %d failed", got, sent, s.sent, failed)
	return o
}

// take reads a completion or error, if there is one.
func (s *flipEnds) take(e *end) (c cq.Entry, bad cq.ErrorEntry, ok bool) {
	var dst [1]cq.Entry
	n, err := cq.Read(e.q, dst[:])
	switch {
	case errors.Is(err, cq.ErrAvail):
		need(e.q.ReadErr(&bad))
		return c, bad, true
	case errors.Is(err, cq.ErrWouldBlock):
		return c, bad, false
	}
	need(err)
	return dst[0], bad, n == 1
}

// compare notes what is not as it was sent.
func (s *flipEnds) compare(o *flip.Outcome, c cq.Entry) {
	i := c.Context - 10
	mem := s.bufs[i][:]
	if s.lent {
		lent := shmtest.Needs(s.a.Payload(&c))
		mem = lent
	}
	if c.Len > uint64(len(mem)) {
		o.Broken = fmt.Sprintf("%d bytes in a buffer of %d", c.Len, len(mem))
		return
	}
	o.Data[3*i], o.Data[3*i+1] = c.Len, c.Data
	if c.Len >= 8 {
		if w := binary.LittleEndian.Uint64(mem); w != binary.LittleEndian.Uint64(pattern(int(c.Len))) {
			o.Data[3*i+2] = w
		}
	}
	if s.lent {
		need(s.a.Release(c))
	}
}
