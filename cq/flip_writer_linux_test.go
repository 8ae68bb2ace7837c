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
		var err error
		s.obj, err = flip.AddedWith("memfd:shmring:", cq.SectRows, func() (row int, err error) {
			s.q, err = cq.CreateAnonymous("flip", s.o)
			need(err)
			s.w = attachSelf(s.q)
			return 0, nil
		})
		need(err)
		s.spent = false
	}
	if s.full {
		for range flipSize {
			need(s.w.Post(&cq.Entry{}))
		}
		_, err := cq.Read(s.q, s.dst[:flipPosts])
		need(err)
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
	if s.err = s.w.Credit(1); s.err == nil {
		s.posted(s.w.PostCredited(&cq.Entry{Context: 1}))
	}
	s.w.ReturnCredits(1)
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
		var err error
		s.obj, err = flip.AddedWith("memfd:shmring:", cq.SectRows, func() (row int, err error) {
			s.q, err = cq.CreateAnonymousEvents("flip", cq.EventOptions{Size: flipSize,
				DataMaxBytes: flipDetail, Spin: -1, Trust: cq.CrossUser, Allow: bothUsers()})
			need(err)
			return 0, selfMeet(s.q.Accept, func(c *net.UnixConn) (err error) {
				s.w, err = cq.AttachEventsConn(context.Background(), c,
					cq.WriterOptions{Trust: cq.CrossUser})
				return err
			})
		})
		need(err)
		s.spent = false
	}
	for range flipSize { // it has to look at the reader's index
		_, err := s.w.Write(&cq.Event{})
		need(err)
	}
	for range flipPosts {
		_, err := s.q.Read(&cq.Event{}, 0)
		need(err)
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
			_, err = s.q.ReadErr(&cq.EventError{}, 0)
			need(err)
		case err != nil:
			again++
			s.spent = s.spent || !errors.Is(err, cq.ErrWouldBlock)
		}
	}
	return o
}
