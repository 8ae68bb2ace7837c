package cq_test

import (
	"errors"
	"fmt"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest/flip"
	"github.com/shmring/shmring/shm"
)

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
