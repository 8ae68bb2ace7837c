package place

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/shmring/shmring/shm"
)

// Peer is the process that connected the other end of a unix socket, as the kernel knows it:
// nothing here is what the peer says. It keeps a descriptor of the connection and one of the
// process, so that the caller may close its own, or use it for more. All methods may be called from
// anywhere.
type Peer struct {
	// PID is the process, in our PID namespace, or 0 if it cannot be seen from there; UID, GID and
	// Groups are its effective user and groups when it connected.
	PID, UID, GID int
	Groups        []int

	conn, process *os.File
	state         atomic.Uint32
	stopped       sync.Once
	watchers      sync.WaitGroup
}

// What became of a peer; both together prove its death.
const (
	peerHungUp = 1 << iota // no descriptor of its end of the connection is open anywhere
	peerExited             // the process has ended
	peerGone   = peerHungUp | peerExited
)

// MeetPeer finds out who is at the other end of a connected socket, and refuses those who are not
// on the list: [shm.ErrOwner]. A peer that has died already is [shm.ErrStale]. Close must follow.
//
// For a connection that was made by socketpair the kernel names who made it, at both ends.
func MeetPeer(c *net.UnixConn, allow *shm.AllowList) (*Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, failedMeeting(err)
	}
	p := &Peer{}
	if cerr := raw.Control(func(fd uintptr) { err = p.identify(int(fd)) }); cerr != nil {
		err = cerr
	}
	if err == nil && !Allows(allow, p.UID, p.GID, p.Groups) {
		err = &shm.Error{Field: "user", Got: p.UID, Want: allowed(allow), Err: shm.ErrOwner,
			Hint: "add its uid or a group of it to the list of those who are allowed"}
	}
	if err != nil {
		p.Close()
		return nil, failedMeeting(err)
	}
	return p, nil
}

// Allows reports whether a process with these credentials is on the list, which may be nil.
func Allows(a *shm.AllowList, uid, gid int, groups []int) bool {
	if isEmpty(a) {
		return uid == os.Geteuid()
	}
	return slices.Contains(a.UIDs, uid) || slices.Contains(a.GIDs, gid) ||
		slices.ContainsFunc(groups, func(g int) bool { return slices.Contains(a.GIDs, g) })
}

func isEmpty(a *shm.AllowList) bool { return a == nil || len(a.UIDs) == 0 && len(a.GIDs) == 0 }

func allowed(a *shm.AllowList) any {
	if isEmpty(a) {
		return os.Geteuid()
	}
	return *a
}

// Watch calls changed, from a goroutine that is not the caller's, when the connection ends and when
// the process does; HungUp and Gone tell what it was. It may be called once, before Close.
func (p *Peer) Watch(changed func()) {
	tell := func(bit uint32) {
		p.state.Or(bit)
		changed()
	}
	p.watchers.Go(func() {
		if waitHangUp(p.conn) {
			tell(peerHungUp)
		}
	})
	p.watchers.Go(func() {
		if waitExit(p.process) {
			tell(peerExited)
		}
	})
}

// HungUp reports that the peer's end of the connection is closed. The process may live.
func (p *Peer) HungUp() bool { return p.state.Load()&peerHungUp != 0 }

// Gone reports that the peer is proved dead: its process has ended, and nobody holds its end of the
// connection. A stopped process is not, nor one that only hung up; nor one whose connection is
// still in the hands of a child, who may have been given more than that.
func (p *Peer) Gone() bool { return p.state.Load() == peerGone }

// Mute takes one message in b that the peer has sent and nobody has received; n is 0 if there is
// none. Unless that one is enough it ends the direction from the peer to us first, for everybody
// who has the connection: what it sends from then on fails at its end. It never blocks, whatever
// deadline the connection has, and does not need the connection that MeetPeer was given.
func (p *Peer) Mute(b []byte, enough func(message []byte) bool) (n int, err error) {
	return p.mute(b, enough)
}

// Close ends the watch, waits for a call of its function to return, so it must not be called from
// there, and closes both descriptors. It may be called again, and on nil.
func (p *Peer) Close() {
	if p == nil {
		return
	}
	p.stopped.Do(func() {
		stopWaiting(p.conn)
		stopWaiting(p.process)
		p.watchers.Wait()
		for _, f := range []*os.File{p.conn, p.process} {
			if f != nil {
				_ = f.Close()
			}
		}
	})
}

// CheckPeer refuses a connection whose other end was connected by another user: [shm.ErrOwner]. Who
// holds a descriptor of an object may map it, whatever the mode of the file says.
func CheckPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return failedMeeting(err)
	}
	var uid int
	if cerr := raw.Control(func(fd uintptr) { uid, err = peerUser(int(fd)) }); cerr != nil {
		err = cerr
	}
	if me := os.Geteuid(); err == nil && uid != me {
		err = &shm.Error{Field: "user", Got: uid, Want: me, Err: shm.ErrOwner,
			Hint: "run both as one user"}
	}
	return failedMeeting(err)
}

// failedMeeting says in an error what was tried.
func failedMeeting(err error) error {
	var e *shm.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		e.Op = "meet peer"
		return err
	}
	return &shm.Error{Op: "meet peer", Err: err}
}
