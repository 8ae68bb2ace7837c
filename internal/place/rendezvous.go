package place

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// OpMeet is the operation that errors of a rendezvous name.
const OpMeet = "rendezvous"

// MessageBytes is the size of a message. A rendezvous is four of them over a connected socket, the
// writer's first. Each side may answer with a status instead of what the other one waits for; then
// it is over.
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
//	48  kind of trust u32 (cq.Trust)
//	52  zero
const MessageBytes = 64

// Rendezvous is how they meet.
var Rendezvous = Protocol{Pkg: kind.Pkg, Op: OpMeet, Magic: "shmrdv\r\n", Version: 1,
	Bytes: MessageBytes, Steps: []string{StepAsk: "ask", StepOffer: "offer", StepLane: "lane",
		StepDone: "done"}, MostFDs: fdCount, Count: countFDs, Wrong: kind.ErrCorrupt,
	No: func(status uint32, _ []byte) error { return StatusError(status) }}

// Steps of a rendezvous.
const (
	StepAsk uint16 = 1 + iota
	StepOffer
	StepLane
	StepDone
)

// Descriptors in a message, by bit.
const (
	FDReader = iota
	FDLane   // in an offer the former lane of the row, else a new one
	FDEvent  // the reader's eventfd; with CrossUser the writing end of a pipe
	FDBell   // of the reader's process
	fdCount
)

// stepFDs are the descriptors that may come with each step.
var stepFDs = [...]uint32{StepOffer: 1<<FDReader | 1<<FDLane | 1<<FDEvent | 1<<FDBell,
	StepLane: 1 << FDLane, StepDone: 0}

// countFDs counts the descriptors that a message names.
func countFDs(step uint16, b []byte) (n int, ok bool) {
	named := binary.LittleEndian.Uint32(b[16:])
	return bits.OnesCount32(named), named&^stepFDs[step] == 0
}

// Message is one of a rendezvous.
type Message struct {
	Step       uint16
	Status     uint32
	FDs        uint32 // that come along, a bit each
	Row        uint32
	Generation uint64
	Queue      shm.UUID
	Trust      uint32
}

// Encode returns the bytes of a message.
func (m *Message) Encode() []byte {
	b := Rendezvous.Message(m.Step, m.Status)[:HeaderBytes]
	b = binary.LittleEndian.AppendUint32(b, m.FDs)
	b = binary.LittleEndian.AppendUint32(b, m.Row)
	b = binary.LittleEndian.AppendUint64(b, m.Generation)
	b = append(b, m.Queue[:]...)
	b = binary.LittleEndian.AppendUint32(b, m.Trust)
	return b[:MessageBytes]
}

// DecodeMessage reads a message whose header is right.
func DecodeMessage(b []byte) (Message, error) {
	if !bytes.Equal(b[52:], make([]byte, MessageBytes-52)) {
		return Message{}, Rendezvous.Refuse("reserved bytes", fmt.Sprintf("%x", b[52:]), 0)
	}
	return Message{Step: binary.LittleEndian.Uint16(b[10:]),
		Status: binary.LittleEndian.Uint32(b[12:]), FDs: binary.LittleEndian.Uint32(b[16:]),
		Row: binary.LittleEndian.Uint32(b[20:]), Generation: binary.LittleEndian.Uint64(b[24:]),
		Queue: shm.UUID(b[32:48]), Trust: binary.LittleEndian.Uint32(b[48:])}, nil
}

// Passed are the descriptors of a message, -1 where there is none.
type Passed [fdCount]int

// NoFDs come with a message that has none.
var NoFDs = Passed{-1, -1, -1, -1}

// Close closes them.
func (p *Passed) Close() {
	shm.CloseFDs(p[:])
	*p = NoFDs
}

// Meeting is one side of a rendezvous that is under way.
type Meeting struct {
	*Conversation
	next uint16 // step that this side sends next, 0 if none: the peer waits for it, or will
}

// Meet begins a rendezvous of the side that sends first; Finish must follow.
func Meet(ctx context.Context, conn *net.UnixConn, first uint16) *Meeting {
	return &Meeting{Rendezvous.Begin(ctx, conn), first}
}

// Finish ends it. With an error the peer is told, if there is room for that in its socket: it waits
// for it, so there is.
func (m *Meeting) Finish(err error) {
	if err != nil && m.next != 0 {
		_ = m.SendNow(Rendezvous.Message(m.next, StatusOf(err)))
	}
	m.End()
}

// Say sends a message with the descriptors that are not -1.
func (m *Meeting) Say(msg Message, fds Passed) error {
	var list []int
	for i, fd := range fds {
		if fd >= 0 {
			msg.FDs |= 1 << i
			list = append(list, fd)
		}
	}
	crash.At(crash.MeetSending)
	err := m.Send(msg.Encode(), list...)
	crash.At(crash.MeetSent)
	if err != nil {
		return m.why(err)
	}
	if m.next += 2; m.next > StepDone {
		m.next = 0
	}
	return nil
}

// Hear returns the peer's next message, and the descriptors of it, which the caller closes.
func (m *Meeting) Hear(want uint16) (msg Message, fds Passed, err error) {
	fds = NoFDs
	b, list, err := m.Receive(want)
	crash.At(crash.MeetReceived)
	if err == nil {
		msg, err = DecodeMessage(b)
	}
	if err != nil {
		shm.CloseFDs(list)
		if errors.Is(err, ErrRefused) {
			m.next = 0
		}
		return msg, fds, m.why(err)
	}
	for i, next := 0, 0; i < fdCount; i++ {
		if msg.FDs>>i&1 != 0 {
			fds[i] = list[next]
			next++
		}
	}
	return msg, fds, nil
}

// why says what an error of the conversation means.
func (m *Meeting) why(err error) error {
	switch {
	case m.Context().Err() != nil && err == context.Cause(m.Context()):
		return m.Over()
	case HungUp(err):
		return &shm.Error{Pkg: kind.Pkg, Op: OpMeet, Err: kind.ErrPeerGone,
			Hint: "it died, or closed the connection"}
	}
	return err
}

// Over returns why the rendezvous has ended before its time.
func (m *Meeting) Over() error {
	switch cause := context.Cause(m.Context()); cause {
	case kind.ErrClosed, ErrCrowded, ErrLate, ErrSilent: // not by the caller
		return cause
	}
	return kind.Ended(m.Context())
}

// ErrSilent: the peer began a rendezvous and did not go on.
var ErrSilent error = &shm.Error{Pkg: kind.Pkg, Op: OpMeet, Err: kind.ErrTimedOut,
	Hint: "the peer went silent in the middle: close the connection"}

// ErrLate: the peer connected to a Serve and did not attach, as with a context of that deadline.
var ErrLate = fmt.Errorf("cq: wait: %w", context.DeadlineExceeded)

// statuses are the reasons for which one side tells the other no; the number is the index.
// errNoNumber stands for every other one, and for numbers that are not here: a version adds to the
// end.
var statuses = [...]error{nil, kind.ErrLanes, kind.ErrClosed, kind.ErrFormat, shm.ErrVersion,
	shm.ErrOwner, shm.ErrKind, shm.ErrNoSpace, kind.ErrCorrupt, kind.ErrInvalid, errNoNumber,
	kind.ErrNoFiles, kind.ErrTimedOut, kind.ErrBusy}

const statusOther = 10 // errNoNumber

var errNoNumber = errors.New("for a reason that this version has no number for")

// StatusOf returns the number that an error has in a no.
func StatusOf(err error) uint32 {
	for i, s := range statuses {
		if s != nil && (errors.Is(err, s) || s == kind.ErrCorrupt && errors.Is(err, shm.ErrCorrupt)) {
			return uint32(i)
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return StatusOf(kind.ErrTimedOut)
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return StatusOf(kind.ErrNoFiles)
	}
	return statusOther
}

// StatusError is what a peer's no means here.
func StatusError(status uint32) error {
	if status == 0 {
		return nil
	}
	reason := errNoNumber
	if int64(status) < int64(len(statuses)) {
		reason = statuses[status]
	}
	return &shm.Error{Pkg: kind.Pkg, Op: OpMeet, Err: fmt.Errorf("%w: %w", ErrRefused, reason)}
}

// ErrRefused matches ECONNREFUSED: a no can be told from other errors also if its reason is
// none that we know.
var ErrRefused error = kind.NewSentinel("the other side refused", syscall.ECONNREFUSED, nil)

// Turns bounds how many rendezvous of each user may have a row at a time. A row that was offered is
// nobody else's until the peer has brought a lane or given up, so a user who goes silent there
// would keep all rows from the others.
type Turns struct {
	mu    sync.Mutex
	most  int
	users map[int]*turn
}

type turn struct {
	places chan struct{} // full while most of them have a row
	here   int           // that have one, or wait for it
}

// NewTurns leaves three rows of four to the others.
func NewTurns(lanes int) *Turns {
	return &Turns{most: max(1, lanes/4), users: map[int]*turn{}}
}

// Take waits for a turn of this user, which done ends.
func (t *Turns) Take(ctx context.Context, user int) (done func(), err error) {
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

// Here returns how many of a user have a turn or wait for one.
func (t *Turns) Here(user int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u := t.users[user]; u != nil {
		return u.here
	}
	return 0
}

func (t *Turns) leave(user int, u *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u.here--; u.here == 0 {
		delete(t.users, user)
	}
}

// Places are the connections that are served at once.
type Places struct {
	mu    sync.Mutex
	free  int
	taken []*Served     // oldest first
	freed chan struct{} // has room for one notice
}

// Served is a connection that has a place.
type Served struct {
	user   int
	cancel context.CancelCauseFunc
}

// NewPlaces returns so many.
func NewPlaces(most int) *Places {
	return &Places{free: most, freed: make(chan struct{}, 1)}
}

// Await waits until a place is free. Others may take it first.
func (p *Places) Await(ctx context.Context) error {
	for {
		p.mu.Lock()
		free := p.free
		p.mu.Unlock()
		if free > 0 {
			return nil
		}
		select {
		case <-p.freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Take gives a user's connection a place, which cancel ends. If none is free, it gets the oldest
// one of the user with the most of them, provided that these are more than the newcomer's user has:
// so one who is silent in any number of connections keeps nobody else out, and whoever attaches
// without delay is put out only as one of the greediest user's. Otherwise it is ErrCrowded.
func (p *Places) Take(user int, cancel context.CancelCauseFunc) (*Served, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 {
		loser := p.greediest(user)
		if loser == nil {
			return nil, ErrCrowded
		}
		p.remove(loser)
		loser.cancel(ErrCrowded)
	}
	p.free--
	c := &Served{user: user, cancel: cancel}
	p.taken = append(p.taken, c)
	return c, nil
}

// ErrCrowded is why a meeting ends whose place is needed.
var ErrCrowded error = &shm.Error{Pkg: kind.Pkg, Op: OpMeet, Field: "connections",
	Err: kind.ErrBusy, Hint: "too many of this user's processes attach at once, or begin to and " +
		"do not go on"}

// greediest returns the oldest place of whoever has most of them, if these are more than user has.
func (p *Places) greediest(user int) *Served {
	count := map[int]int{}
	for _, c := range p.taken {
		count[c.user]++
	}
	most, whose := count[user], user
	for _, c := range p.taken { // and not the map, which has no order
		if count[c.user] > most {
			most, whose = count[c.user], c.user
		}
	}
	i := slices.IndexFunc(p.taken, func(c *Served) bool { return c.user == whose && whose != user })
	if i < 0 {
		return nil
	}
	return p.taken[i]
}

// Leave ends the use of a place, also of one that was lost.
func (p *Places) Leave(c *Served) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(c)
}

func (p *Places) remove(c *Served) {
	i := slices.Index(p.taken, c)
	if i < 0 {
		return
	}
	p.taken = slices.Delete(p.taken, i, i+1)
	p.free++
	select {
	case p.freed <- struct{}{}:
	default:
	}
}
