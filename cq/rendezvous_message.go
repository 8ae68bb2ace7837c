package cq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

const opMeet = "rendezvous"

// A rendezvous is four messages over a connected socket, the writer's first. Each side
// may answer with a status instead of what the other one waits for; then it is over.
//
//	writer                        reader
//	ask                   ->
//	                      <-      offer: row; reader object, former lane of the row, eventfd, bell
//	lane: new lane object ->
//	                      <-      done: the reader knows the lane
//
// A message begins with the header of a conversation; the rest of it, little-endian:
//
//	16  descriptors that come along, u32 with a bit each, in the order of the bits; row u32
//	24  generation of the reader
//	32  uuid of the queue
//	48  kind of trust u32 (Trust)
//	52  zero
const messageBytes = 64

var rendezvous = place.Protocol{Pkg: kind.Pkg, Op: opMeet, Magic: "shmrdv\r\n", Version: 1,
	Bytes: messageBytes, Steps: []string{stepAsk: "ask", stepOffer: "offer", stepLane: "lane",
		stepDone: "done"}, MostFDs: fdCount, Count: countFDs, Wrong: ErrCorrupt,
	No: func(status uint32, _ []byte) error { return statusError(status) }}

// Steps of a rendezvous.
const (
	stepAsk uint16 = 1 + iota
	stepOffer
	stepLane
	stepDone
)

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

// countFDs counts the descriptors that a message names.
func countFDs(step uint16, b []byte) (n int, ok bool) {
	named := binary.LittleEndian.Uint32(b[16:])
	return bits.OnesCount32(named), named&^stepFDs[step] == 0
}

type message struct {
	step       uint16
	status     uint32
	fds        uint32
	row        uint32
	generation uint64
	queue      shm.UUID
	trust      Trust
}

func (m *message) encode() []byte {
	b := rendezvous.Message(m.step, m.status)[:place.HeaderBytes]
	b = binary.LittleEndian.AppendUint32(b, m.fds)
	b = binary.LittleEndian.AppendUint32(b, m.row)
	b = binary.LittleEndian.AppendUint64(b, m.generation)
	b = append(b, m.queue[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.trust))
	return b[:messageBytes]
}

// decodeMessage reads a message whose header is right.
func decodeMessage(b []byte) (message, error) {
	if !bytes.Equal(b[52:], make([]byte, messageBytes-52)) {
		return message{}, rendezvous.Refuse("reserved bytes", fmt.Sprintf("%x", b[52:]), 0)
	}
	return message{step: binary.LittleEndian.Uint16(b[10:]),
		status: binary.LittleEndian.Uint32(b[12:]), fds: binary.LittleEndian.Uint32(b[16:]),
		row: binary.LittleEndian.Uint32(b[20:]), generation: binary.LittleEndian.Uint64(b[24:]),
		queue: shm.UUID(b[32:48]), trust: Trust(binary.LittleEndian.Uint32(b[48:]))}, nil
}

// passed are the descriptors of a message, -1 where there is none.
type passed [fdCount]int

var noFDs = passed{-1, -1, -1, -1}

func (p *passed) close() {
	shm.CloseFDs(p[:])
	*p = noFDs
}

// meeting is one side of a rendezvous that is under way.
type meeting struct {
	*place.Conversation
	next uint16 // step that this side sends next, 0 if none: the peer waits for it, or will
}

// meet begins a rendezvous of the side that sends first; end must follow.
func meet(ctx context.Context, conn *net.UnixConn, first uint16) *meeting {
	return &meeting{rendezvous.Begin(ctx, conn), first}
}

// end ends it. With an error the peer is told, if there is room for that in its socket: it waits
// for it, so there is.
func (m *meeting) end(err error) {
	if err != nil && m.next != 0 {
		_ = m.SendNow(rendezvous.Message(m.next, statusOf(err)))
	}
	m.End()
}

// send sends a message with the descriptors that are not -1.
func (m *meeting) send(msg message, fds passed) error {
	var list []int
	for i, fd := range fds {
		if fd >= 0 {
			msg.fds |= 1 << i
			list = append(list, fd)
		}
	}
	crash.At(crash.MeetSending)
	err := m.Send(msg.encode(), list...)
	crash.At(crash.MeetSent)
	if err != nil {
		return m.why(err)
	}
	if m.next += 2; m.next > stepDone {
		m.next = 0
	}
	return nil
}

// receive returns the peer's next message, and the descriptors of it, which the caller closes.
func (m *meeting) receive(want uint16) (msg message, fds passed, err error) {
	fds = noFDs
	b, list, err := m.Receive(want)
	crash.At(crash.MeetReceived)
	if err == nil {
		msg, err = decodeMessage(b)
	}
	if err != nil {
		shm.CloseFDs(list)
		if errors.Is(err, errPeerRefused) {
			m.next = 0
		}
		return msg, fds, m.why(err)
	}
	for i, next := 0, 0; i < fdCount; i++ {
		if msg.fds>>i&1 != 0 {
			fds[i] = list[next]
			next++
		}
	}
	return msg, fds, nil
}

// why says what an error of the conversation means.
func (m *meeting) why(err error) error {
	switch {
	case m.Context().Err() != nil && err == context.Cause(m.Context()):
		return m.over()
	case place.HungUp(err):
		return &Error{Pkg: kind.Pkg, Op: opMeet, Err: ErrPeerGone,
			Hint: "it died, or closed the connection"}
	}
	return err
}

// over returns why the rendezvous has ended before its time.
func (m *meeting) over() error {
	switch cause := context.Cause(m.Context()); cause {
	case ErrClosed, errCrowded, errLate, errSilent: // not by the caller
		return cause
	}
	return ended(m.Context())
}

// errSilent: the peer began a rendezvous and did not go on.
var errSilent error = &Error{Pkg: kind.Pkg, Op: opMeet, Err: ErrTimedOut,
	Hint: "the peer went silent in the middle: close the connection"}

// errLate: the peer connected to a Serve and did not attach, as with a context of that deadline.
var errLate = fmt.Errorf("cq: wait: %w", context.DeadlineExceeded)

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

// turns bounds how many rendezvous of each user may have a row at a time. A row that was offered is
// nobody else's until the peer has brought a lane or given up, so a user who goes silent there
// would keep all rows from the others.
type turns struct {
	mu    sync.Mutex
	most  int
	users map[int]*turn
}

type turn struct {
	places chan struct{} // full while most of them have a row
	here   int           // that have one, or wait for it
}

// newTurns leaves three rows of four to the others.
func newTurns(lanes int) turns {
	return turns{most: max(1, lanes/4), users: map[int]*turn{}}
}

// take waits for a turn of this user, which done ends.
func (t *turns) take(ctx context.Context, user int) (done func(), err error) {
	t.mu.Lock()
	u := t.users[user]
	if u == nil {
		u = &turn{places: make(chan struct{}, t.most)}
		t.users[user] = u
	}
	u.here++
	t.mu.Unlock()
	select {
	case u.places <- struct{}{}:
		return func() {
			<-u.places
			t.leave(user, u)
		}, nil
	case <-ctx.Done():
		t.leave(user, u)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) leave(user int, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.here--; u.here == 0 {
		delete(t.users, user)
	}
}
