package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// Two processes, whoever their users are, meet over a connected unix socket. Each has an endpoint
// without a name, of one row and one lane, and both say the same to each other:
//
//	objects   endpoint and outbox, which are sealed: nobody but their owner ever writes to them
//	ready     the lane to the other one is whole, and leads to what it has passed
//
// So row and lane are the peer's from the beginning, and are not claimed. Nobody marks: each side
// counts its rings in its own row and lane, as internal/wake has it of other users. A peer is dead
// if the kernel says so of its process and of its end of the connection.
const (
	stepObjects uint16 = 1 + iota
	stepReady
)

var meeting = place.Protocol{Pkg: pkg, Op: "meet", Magic: "shmfab\r\n", Version: 1,
	Bytes: place.HeaderBytes, Steps: []string{stepObjects: "objects", stepReady: "ready"}, MostFDs: 2,
	Count: func(step uint16, _ []byte) (n int, ok bool) { return 2 * int(stepReady-step), true },
	Wrong: ErrCorrupt, No: func(status uint32, _ []byte) error { return place.StatusError(status) }}

// met reports whether the endpoint is of [Meet]: it has one peer, which writes nothing of ours, and
// no directory.
func (e *Endpoint) met() bool { return e.dir == nil }

// mostPassed is how large objects of a peer are mapped at least; else as large as our own.
const mostPassed = 64 << 20

// Meet makes an endpoint whose only peer, under address 0, is the process at the other end of a
// connected unix socket, which calls Meet too. That may be one of another user, if allow has it:
// neither can write to memory of the other, and what it says of itself is not believed. No endpoint
// of a directory is reached, and none has the name of this one.
//
// It is as one of Open whose Peers is 1, and gets messages, tagged ones, references and loans in
// the same way. Remote, Events and Request are not for it, nor are groups. Of the peer's objects up
// to 64 MiB are mapped, or as much as ours have.
//
// The context ends the wait for a peer that says nothing; one that stops after a byte is waited for
// 10 seconds. The connection stays the caller's, and should be closed: nothing else can be said
// there, and deadlines that it had are taken back. Errors beside those of Open are shm.ErrOwner: a
// user that allow does not have; cq.ErrPeerGone, cq.ErrTimedOut; [ErrCorrupt] and shm.ErrVersion;
// ECONNREFUSED: the peer refuses, with the number why; [ErrType].
func Meet(ctx context.Context, conn *net.UnixConn, allow *shm.AllowList, o Options) (*Endpoint,
	error) {
	who, err := place.MeetPeer(conn, allow)
	return meet(ctx, conn, who, err, o)
}

// meet goes on with who that is, and closes that with the endpoint. With an error, also one of
// before, the peer is told that this is over, if it does not know.
func meet(ctx context.Context, conn *net.UnixConn, who *place.Peer, err error, o Options) (
	e *Endpoint, _ error) {
	o.Peers = 1
	talk := meeting.Begin(ctx, conn)
	defer talk.End()
	if err == nil && (o.Remote > 0 || o.Events != nil) {
		err = refuse("meet", "", "Remote, Events", "one of them", "none")
	}
	if err == nil {
		e, err = open(nil, "met", o)
	}
	if err == nil {
		if err = e.meet(talk, who); err == nil {
			return e, nil
		}
		_ = e.Close()
	}
	who.Close()
	if !errors.Is(err, place.ErrRefused) {
		_ = talk.SendNow(meeting.Message(stepObjects, place.StatusOf(err)))
	}
	if place.HungUp(err) {
		if err = talk.LastWord(2, 2); err == nil {
			err = cq.ErrPeerGone
		}
	}
	return nil, fault("meet", "", err)
}

// meet passes what is to be read, takes what the other one has, and has a lane each way.
func (e *Endpoint) meet(talk *place.Conversation, who *place.Peer) error {
	fds := [2]int{-1, -1}
	defer func() { shm.CloseFDs(fds[:]) }()
	for i, o := range []*shm.Object{e.obj, e.box} {
		var err error
		if fds[i], err = o.ShareFD(); err != nil {
			return err
		}
	}
	if err := talk.Send(meeting.Message(stepObjects, 0), fds[:]...); err != nil {
		return err
	}
	crash.At(crash.MeetPassed)
	if _, err := talk.Peek(); err != nil {
		return err
	}
	talk.Limit(place.MeetTimeout, place.ErrSilent) // from the first byte
	_, theirs, err := talk.Receive(stepObjects)
	if err != nil {
		return err
	}
	p, err := e.passedBy(who, theirs)
	shm.CloseFDs(theirs)
	if err != nil {
		return err
	}
	// Before the peer can believe that we meet: should we give up, it is told as one who is known.
	e.claims[0].Store(kind.FabricLaneID(p.addr.Outbox, 0, 1))
	if err = talk.Send(meeting.Message(stepReady, 0)); err != nil {
		return err
	}
	crash.At(crash.MeetLed)
	if _, _, err = talk.Receive(stepReady); err != nil {
		return err
	}
	crash.At(crash.MeetHeard)
	e.bell.Lock()
	defer e.bell.Unlock()
	e.bell.Consider(0)
	if p.in == nil {
		return ErrCorrupt
	}
	who.Watch(func() {
		if who.Gone() {
			p.died()
		}
	})
	p.unfollow = who.Close
	return nil
}

// passedBy maps what a peer has passed, and leads a lane to it.
func (e *Endpoint) passedBy(who *place.Peer, fds []int) (p *peer, err error) {
	most := max(mostPassed, e.box.Header().TotalBytes)
	name := fmt.Sprintf("uid-%d-pid-%d", who.UID, who.PID)
	obj, err := shm.OpenPassed(fds[0], name, most)
	if err != nil {
		return nil, err
	}
	e.bell.Lock()
	defer e.bell.Unlock()
	if e.passed, err = shm.OpenPassed(fds[1], name, most); err != nil {
		_ = obj.Close()
		return nil, err
	}
	h := obj.Header()
	f, err := kind.StoredFabric(name, h)
	if err == nil && (f.Rows != 1 || f.Remote != 0 || h.UUID == e.addr.UUID) {
		err = ErrCorrupt
	}
	if err != nil {
		_ = obj.Close()
		return nil, err
	}
	p = e.peerOf(Address{Outbox: f.Outbox, UUID: h.UUID, Generation: h.Generation})
	p.name, p.obj, p.window = name, obj, f.Window
	if p.words, err = mapEndpoint(obj, f, false); err != nil {
		return nil, err
	}
	e.insert(p)
	_, err = e.attach(p)
	return p, err
}

// ringer rings the peer, which is marked, or counts rings in a word of ours if it may not be.
func (p *peer) ringer(row *wake.Row, bit int, rung *atomic.Uint32) *wake.Ringer {
	c := wake.RingerConfig{Row: row, Arm: &p.words.page.Arm, Hints: p.words.hints, Bit: bit}
	if p.e.met() {
		c.Rung = rung
	}
	return wake.NewRinger(c)
}

// forwarded is a lane whose peer counts its rings: they are passed on to who sleeps here.
type forwarded struct{ silence func() }

// silent ends that. The peer's words are not looked at any more.
func (f *forwarded) silent() {
	if f.silence != nil {
		f.silence()
		f.silence = nil
	}
}

// Solicited implements wake.Source of both: nobody waits for less than everything.
func (f *forwarded) Solicited() uint64 { return 0 }

// arrived returns how far a lane has come at least, without a lock: the first message that no head
// has passed is there, or not.
func (l *inLane) arrived() uint64 {
	head := l.row.Head.Load()
	if l.slots[head&l.mask].Seq.Load() == head+1 {
		head++
	}
	return head
}
