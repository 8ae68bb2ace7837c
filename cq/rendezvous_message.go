package cq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// A rendezvous is four messages of one size over a connected socket, the writer's first. Each side
// may answer with a status instead of what the other one waits for; then it is over.
//
//	writer                        reader
//	ask                   ->
//	                      <-      offer: row; reader object, former lane of the row, eventfd, bell
//	lane: new lane object ->
//	                      <-      done: the reader knows the lane
//
// A message, little-endian:
//
//	0   magic
//	8   version u16, step u16, status u32
//	16  descriptors that come along, u32 with a bit each, in the order of the bits; row u32
//	24  generation of the reader
//	32  uuid of the queue
//	48  kind of trust u32 (Trust)
//	52  zero
const (
	messageBytes   = 64
	messageMagic   = "shmrdv\r\n"
	messageVersion = 1
)

// step says which message of a rendezvous it is.
type step uint16

const (
	stepAsk step = 1 + iota
	stepOffer
	stepLane
	stepDone
)

func (s step) String() string {
	switch s {
	case stepAsk:
		return "ask"
	case stepOffer:
		return "offer"
	case stepLane:
		return "lane"
	case stepDone:
		return "done"
	}
	return fmt.Sprintf("step %d", uint16(s))
}

// Descriptors in a message, by bit.
const (
	fdReader = iota
	fdLane   // in an offer the former lane of the row, else a new one
	fdEvent  // the reader's eventfd; with CrossUser the writing end of a pipe
	fdBell   // of the reader's process
	fdCount
)

// stepFDs are the descriptors that may come with each step.
var stepFDs = [...]uint32{stepOffer: 1<<fdReader | 1<<fdLane | 1<<fdEvent | 1<<fdBell,
	stepLane: 1 << fdLane, stepDone: 0}

type message struct {
	step       step
	status     uint32
	fds        uint32
	row        uint32
	generation uint64
	queue      shm.UUID
	trust      Trust
}

func (m *message) encode() []byte {
	b := make([]byte, 0, messageBytes)
	b = append(b, messageMagic...)
	b = binary.LittleEndian.AppendUint16(b, messageVersion)
	b = binary.LittleEndian.AppendUint16(b, uint16(m.step))
	b = binary.LittleEndian.AppendUint32(b, m.status)
	b = binary.LittleEndian.AppendUint32(b, m.fds)
	b = binary.LittleEndian.AppendUint32(b, m.row)
	b = binary.LittleEndian.AppendUint64(b, m.generation)
	b = append(b, m.queue[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.trust))
	return b[:messageBytes]
}

// decodeMessage takes what a peer sent for this step, with so many descriptors.
func decodeMessage(b []byte, want step, got int) (message, error) {
	var m message
	bad := func(field string, got, want any, err error) (message, error) {
		return m, kind.Refuse(opMeet, "", field, got, want, err)
	}
	if len(b) != messageBytes || string(b[:8]) != messageMagic {
		return bad("message", fmt.Sprintf("%.8q", b), messageMagic, ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint16(b[8:]); v != messageVersion {
		return bad("version", v, messageVersion, shm.ErrVersion)
	}
	m = message{step: step(binary.LittleEndian.Uint16(b[10:])),
		status: binary.LittleEndian.Uint32(b[12:]), fds: binary.LittleEndian.Uint32(b[16:]),
		row: binary.LittleEndian.Uint32(b[20:]), generation: binary.LittleEndian.Uint64(b[24:]),
		queue: shm.UUID(b[32:48]), trust: Trust(binary.LittleEndian.Uint32(b[48:]))}
	switch {
	case m.step != want:
		return bad("step", m.step, want, ErrCorrupt)
	case m.fds&^stepFDs[want] != 0 || m.status != 0 && m.fds != 0:
		return bad("descriptors", fmt.Sprintf("%#x", m.fds), fmt.Sprintf("%#x", stepFDs[want]),
			ErrCorrupt)
	case bits.OnesCount32(m.fds) != got:
		return bad("number of descriptors", got, bits.OnesCount32(m.fds), ErrCorrupt)
	case !bytes.Equal(b[52:], make([]byte, messageBytes-52)):
		return bad("reserved bytes", fmt.Sprintf("%x", b[52:]), 0, ErrCorrupt)
	}
	return m, nil
}

// statuses are the reasons for which one side tells the other no; the number is the index.
// errRefused stands for every other one, and for numbers that are not here: a version adds to the
// end.
var statuses = [...]error{nil, ErrLanes, ErrClosed, ErrFormat, shm.ErrVersion, shm.ErrOwner,
	shm.ErrKind, shm.ErrNoSpace, ErrCorrupt, ErrInvalid, errRefused, ErrNoFiles, ErrTimedOut, ErrBusy}

const statusOther = 10 // errRefused

var errRefused = errors.New("for a reason that this version has no number for")

func statusOf(err error) uint32 {
	for i, s := range statuses {
		if s != nil && (errors.Is(err, s) || s == ErrCorrupt && errors.Is(err, shm.ErrCorrupt)) {
			return uint32(i)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return statusOf(ErrTimedOut)
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return statusOf(ErrNoFiles)
	}
	return statusOther
}

// statusError is what a peer's no means here.
func statusError(status uint32) error {
	if status == 0 {
		return nil
	}
	reason := errRefused
	if int64(status) < int64(len(statuses)) {
		reason = statuses[status]
	}
	return &Error{Pkg: kind.Pkg, Op: opMeet, Err: fmt.Errorf("%w: %w", errPeerRefused, reason)}
}

// errPeerRefused matches ECONNREFUSED: a no can be told from other errors also if its reason is
// none that we know.
var errPeerRefused error = kind.NewSentinel("the other side refused",
	Errno(syscall.ECONNREFUSED), nil)
