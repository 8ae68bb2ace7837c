package cq_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/shmtest/flip"
)

func init() {
	for name, s := range map[string]*flipWriter{
		"post":         {call: (*flipWriter).post},
		"post to full": {call: (*flipWriter).post, full: true},
		"post batch":   {call: (*flipWriter).batch},
		"post overrun": {call: (*flipWriter).batch, o: cq.Options{Overrun: cq.OverrunQueue}, full: true},
		"post error":   {call: (*flipWriter).fail},
		"reserve":      {call: (*flipWriter).reserve, full: true},
		"credit":       {call: (*flipWriter).credit, full: true},
	} {
		flipScenes[name] = s.scene
	}
	flipScenes["event write"] = (&flipEventWriter{}).scene
}

// flipWriter is a writer whose reader is attacked. What the reader may write is its object.
type flipWriter struct {
	call func(*flipWriter)
	full bool // as far as the writer knows: it has to look at the reader's index
	o    cq.Options

	q      *cq.Queue
	w      *cq.Writer
	obj    *flip.Object
	before int // entries that wait to be read
	n      int // and those that were posted
	err    error
	dst    [64]cq.Entry
	spent  bool
}

func (s *flipWriter) scene() (flip.Scene, error) {
	s.o.Size, s.o.Trust, s.o.Allow, s.o.Spin = flipSize, cq.CrossUser, bothUsers(), -1
	s.spent = true
	return flip.Scene{Prepare: s.prepare, Call: func() { s.call(s) }, Result: s.result}, nil
}

// readerWords are those that a writer may look at.
func readerWords(obj *flip.Object, lane int) []flip.Word {
	row := uint64(lane) * cq.RowBytes
	words, err := obj.Words("row", cq.SectRows, 0, row, row+8, row+128, row+136, row+144, row+152,
		row+160)
	need(err)
	more, err := obj.Words("queue", cq.SectQueue, 0, 0, 8, 16, 128, 256, 264, 384, 392, 400, 408, 416)
	need(err)
	for i := range words {
		words[i].Index = i >= 2
	}
	return append(words, more...)
}

func (s *flipWriter) prepare() []flip.Word {
	if s.spent {
		if s.q != nil {
			_ = s.w.Close()
			need(s.q.Close())
		}
		s.obj = shmtest.Needs(flip.AddedWith("memfd:shmring:", cq.SectRows, func() (row int, err error) {
			s.q = shmtest.Needs(cq.Create(cq.Unnamed("flip"), s.o))
			s.w = attachSelf(s.q)
			return 0, nil
		}))
		s.spent = false
	}
	if s.full {
		for range flipSize {
			need(s.w.Post(&cq.Entry{}))
		}
		shmtest.Needs(cq.Read(s.q, s.dst[:flipPosts]))
	}
	s.n, s.err = 0, nil
	s.before = 0
	if s.full {
		s.before = flipSize - flipPosts
	}
	return readerWords(s.obj, s.w.Lane())
}

func (s *flipWriter) post() { s.posted(s.w.Post(&cq.Entry{Context: 1})) }

func (s *flipWriter) fail() { s.posted(s.w.PostError(&cq.ErrorEntry{Err: cq.ETrunc})) }

func (s *flipWriter) posted(err error) {
	if s.err = err; err == nil {
		s.n = 1
	}
}

func (s *flipWriter) batch() { s.n, s.err = s.w.PostBatch(make([]cq.Entry, 2)) }

func (s *flipWriter) reserve() {
	a, b, err := s.w.Reserve(2)
	if s.err = err; err != nil {
		return
	}
	for i := range a {
		a[i] = cq.Entry{Context: 1}
	}
	for i := range b {
		b[i] = cq.Entry{Context: 1}
	}
	s.n = len(a) + len(b)
	s.err = s.w.Commit(s.n)
}

func (s *flipWriter) credit() {
	if s.err = s.w.Credits().Add(1); s.err == nil {
		s.posted(s.w.Credits().Post(&cq.Entry{Context: 1}))
	}
	s.w.Credits().Return(1)
}

func (s *flipWriter) result() flip.Outcome {
	o := outcome(fmt.Sprintf("%d posted", s.n), s.err)
	if free := s.w.Free(); free < 0 || free > s.w.Stats().Size {
		o.Broken = fmt.Sprintf("%d of %d are free", free, s.w.Stats().Size)
	}
	s.spent = s.spent || s.err != nil
	read, given := s.drain()
	if o.Broken == "" && !given && read != s.before+s.n {
		o.Broken = fmt.Sprintf("of %d entries %d were read", s.before+s.n, read)
	}
	s.spent = s.spent || given || s.w.Free() != s.w.Stats().Size
	return o
}

// drain reads what was posted, and reports whether that came to an end before. What the reader has
// in its own object may be anything: it goes by what it has for itself.
func (s *flipWriter) drain() (read int, given bool) {
	for again := 0; again < 3; {
		n, err := cq.Read(s.q, s.dst[:])
		read += n
		switch {
		case errors.Is(err, cq.ErrAvail):
			need(s.q.ReadErr(&cq.ErrorEntry{}))
			read++
		case err != nil:
			again++
			given = given || !errors.Is(err, cq.ErrWouldBlock)
		}
	}
	return read, given
}

// flipEventWriter is the same with events.
type flipEventWriter struct {
	q     *cq.EventQueue
	w     *cq.EventWriter
	obj   *flip.Object
	n     int
	err   error
	spent bool
}

func (s *flipEventWriter) scene() (flip.Scene, error) {
	s.spent = true
	return flip.Scene{Prepare: s.prepare, Call: s.call, Result: s.result}, nil
}

func (s *flipEventWriter) prepare() []flip.Word {
	if s.spent {
		if s.q != nil {
			_ = s.w.Close()
			need(s.q.Close())
		}
		s.obj = shmtest.Needs(flip.AddedWith("memfd:shmring:", cq.SectRows, func() (row int, err error) {
			s.q = shmtest.Needs(cq.CreateEvents(cq.Unnamed("flip"), cq.EventOptions{Size: flipSize,
				DataMaxBytes: flipDetail, Spin: -1, Trust: cq.CrossUser, Allow: bothUsers()}))
			s.w = attachEventsSelf(s.q)
			return 0, nil
		}))
		s.spent = false
	}
	for range flipSize { // it has to look at the reader's index
		shmtest.Needs(s.w.Write(&cq.Event{}))
	}
	for range flipPosts {
		shmtest.Needs(s.q.Read(&cq.Event{}, 0))
	}
	s.n, s.err = 0, nil
	return readerWords(s.obj, s.w.Lane())
}

func (s *flipEventWriter) call() {
	if _, s.err = s.w.Write(&cq.Event{Payload: pattern(flipPayload)}); s.err == nil {
		s.n++
	}
}

func (s *flipEventWriter) result() flip.Outcome {
	o := outcome(fmt.Sprintf("%d written", s.n), s.err)
	s.spent = s.spent || s.err != nil
	for again := 0; again < 3; {
		_, err := s.q.Read(&cq.Event{Payload: make([]byte, 0, flipDetail)}, 0)
		switch {
		case errors.Is(err, cq.ErrAvail):
			shmtest.Needs(s.q.ReadErr(&cq.EventError{}, 0))
		case err != nil:
			again++
			s.spent = s.spent || !errors.Is(err, cq.ErrWouldBlock)
		}
	}
	return o
}

func init() {
	for name, s := range map[string]*flipEvents{
		"event read":   {call: (*flipEvents).read},
		"event peek":   {call: (*flipEvents).peek},
		"event shared": {call: (*flipEvents).read, o: cq.EventOptions{Shared: true}},
		"event small":  {call: (*flipEvents).readSmall},
		"event error":  {call: (*flipEvents).readErr, failed: true},
	} {
		flipScenes[name] = s.scene
	}
}

// flipEvents is the reader of an event queue whose one writer is attacked. Each record of the lane
// holds more bytes than the event that is read has, and all of them are known.
type flipEvents struct {
	call   func(*flipEvents)
	failed bool
	o      cq.EventOptions

	q     *cq.EventQueue
	w     *cq.EventWriter
	lane  *flip.Object
	n     uint64
	spent bool

	ev    cq.Event
	bad   cq.EventError
	bytes []byte
	err   error
	buf   [flipDetail]byte
}

const (
	flipDetail  = 104 // bytes of payload that fit
	flipPayload = 5
	untouched   = 0xee // in buffers that nothing was copied to
)

func (s *flipEvents) scene() (flip.Scene, error) {
	s.o.Size, s.o.DataMaxBytes, s.o.Spin = flipSize, flipDetail, -1
	s.o.Trust, s.o.Allow = cq.CrossUser, bothUsers()
	s.spent = true
	return flip.Scene{Prepare: s.prepare, Call: func() { s.call(s) }, Result: s.result}, nil
}

func (s *flipEvents) renew() {
	if s.q != nil {
		_ = s.w.Close()
		need(s.q.Close())
	}
	s.q = shmtest.Needs(cq.CreateEvents(cq.Unnamed("flip"), s.o))
	s.lane = shmtest.Needs(flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (int, error) {
		s.w = attachEventsSelf(s.q)
		return s.w.Lane(), nil
	}))
	s.spent, s.n = false, 0
}

// pattern is what stands in every record.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + 1)
	}
	return b
}

// fill has the writer write to every record once, and all of that read.
func (s *flipEvents) fill() {
	for range flipSize {
		shmtest.Needs(s.w.Write(&cq.Event{Payload: pattern(flipDetail)}))
	}
	if broken := s.drain(); broken != "" {
		need(errors.New(broken))
	}
}

func (s *flipEvents) prepare() []flip.Word {
	if s.spent {
		s.renew()
	}
	s.fill()
	at := s.n % flipSize
	var err error
	if s.failed {
		_, err = s.w.WriteErr(&cq.EventError{Context: 1, Err: cq.ETrunc, ErrData: pattern(flipPayload)})
	} else {
		_, err = s.w.Write(&cq.Event{Context: 1, Data: 2, FID: cq.FID{Kind: 3, ID: 4, Generation: 5},
			Payload: pattern(flipPayload)})
	}
	need(err)
	for i := range s.buf {
		s.buf[i] = untouched
	}
	s.bytes, s.err = nil, nil
	return laneWords(s.lane, s.w.Lane(), at, at*(flipDetail+24), 3)
}

func (s *flipEvents) read()      { s.take(0, flipDetail) }
func (s *flipEvents) readSmall() { s.take(0, 2*flipPayload) }
func (s *flipEvents) peek()      { s.take(cq.FlagPeek, flipDetail) }

func (s *flipEvents) take(flags cq.Flags, room int) {
	s.ev = cq.Event{Payload: s.buf[:0:room]}
	n, err := s.q.Read(&s.ev, flags)
	if s.err = err; err == nil {
		s.bytes = s.ev.Payload
		if n != cq.EventHeaderBytes+len(s.bytes) {
			s.err = fmt.Errorf("%d bytes of an event with %d bytes of payload", n, len(s.bytes))
		}
	}
}

func (s *flipEvents) readErr() {
	s.bad = cq.EventError{ErrData: s.buf[:0:flipDetail]}
	if _, s.err = s.q.ReadErr(&s.bad, 0); s.err == nil {
		s.bytes = s.bad.ErrData
		if len(s.bytes) != s.bad.ErrDataBytes {
			s.err = fmt.Errorf("%d of %d bytes of detail", len(s.bytes), s.bad.ErrDataBytes)
		}
	}
}

func (s *flipEvents) result() flip.Outcome {
	o := outcome(fmt.Sprintf("%d bytes", len(s.bytes)), s.err)
	// An error zeroes what follows its detail.
	if b := bytes.ReplaceAll(s.bytes, []byte{0}, nil); !bytes.HasPrefix(s.bytes, pattern(min(
		flipPayload, len(s.bytes)))) || bytes.IndexByte(b, untouched) >= 0 ||
		!s.failed && string(b) != string(pattern(len(b))) {
		o.Broken = fmt.Sprintf("%d bytes that nobody wrote: %x", len(s.bytes), s.bytes)
	}
	if s.err == nil && !s.failed {
		e := &s.ev
		o.Data = differ(cq.Entry{Context: e.Context, Data: e.Data, Flags: cq.Flags(e.FID.Kind),
			Tag: e.FID.ID, Src: cq.Source{AddrPlus1: e.FID.Generation}},
			cq.Entry{Context: 1, Data: 2, Flags: 3, Tag: 4, Src: cq.Source{AddrPlus1: 5}})
		o.Data[1] = 0 // half of a word
	}
	s.spent = s.spent || o.Poisoned
	if broken := s.drain(); o.Broken == "" {
		o.Broken = broken
	}
	return o
}

func (s *flipEvents) drain() string {
	for again := 0; again < 3; {
		_, err := s.q.Read(&cq.Event{Payload: make([]byte, 0, flipDetail)}, 0)
		switch o := outcome("", err); {
		case o.Broken != "":
			return "afterwards: " + o.Broken
		case o.Poisoned:
			s.spent = true
		case errors.Is(err, cq.ErrAvail):
			shmtest.Needs(s.q.ReadErr(&cq.EventError{}, 0))
		}
		if errors.Is(err, cq.ErrWouldBlock) {
			again++
		}
	}
	s.n = s.w.Stats().Posted
	return ""
}
