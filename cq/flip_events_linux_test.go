package cq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest/flip"
)

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
	var err error
	s.q, err = cq.CreateAnonymousEvents("flip", s.o)
	need(err)
	s.lane, err = flip.AddedWith("memfd:shmring:", cq.SectSlots, func() (int, error) {
		need(selfMeet(s.q.Accept, func(c *net.UnixConn) (err error) {
			s.w, err = cq.AttachEventsConn(context.Background(), c,
				cq.WriterOptions{Trust: cq.CrossUser})
			return err
		}))
		return s.w.Lane(), nil
	})
	need(err)
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
		_, err := s.w.Write(&cq.Event{Payload: pattern(flipDetail)})
		need(err)
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
	words, err := s.lane.Words("lane", cq.SectLane, uint32(s.w.Lane()), 0, 8, 16, 128, 256, 264, 272,
		384, 392, 512)
	need(err)
	for i := range 3 {
		words[i].Index = true
	}
	slot := at * cq.SlotBytes
	more, err := s.lane.Words("slot", cq.SectSlots, uint32(s.w.Lane()), slot, slot+8, slot+16, slot+24,
		slot+32, slot+40, slot+48, slot+56)
	need(err)
	words = append(words, more...)
	record := at * (flipDetail + 24)
	more, err = s.lane.Words("detail", cq.SectErrors, uint32(s.w.Lane()), record, record+8, record+16)
	need(err)
	return append(words, more...)
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
			_, err = s.q.ReadErr(&cq.EventError{}, 0)
			need(err)
		}
		if errors.Is(err, cq.ErrWouldBlock) {
			again++
		}
	}
	s.n = s.w.Stats().Posted
	return ""
}
