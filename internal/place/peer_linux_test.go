package place

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

func dialParent() *net.UnixConn {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: os.Getenv("SOCKET"), Net: "unix"})
	if err != nil {
		os.Exit(3)
	}
	return c
}

// childPeer connects, hangs up when it is told to, and ends when it is told to.
func childPeer() {
	c := dialParent()
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		os.Exit(4)
	}
	_ = c.Close()
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// childHolder connects, gives its end to a process that outlives it, and ends.
func childHolder() {
	f, err := dialParent().File()
	if err != nil {
		os.Exit(3)
	}
	p, err := os.StartProcess("/bin/cat", []string{"cat"},
		&os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, f}})
	if err != nil {
		os.Exit(4)
	}
	_ = p.Release()
}

// meetChild starts a child that connects to us.
func meetChild(t *testing.T, role string) (stdin *os.File, p *Peer, changes chan struct{}) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l := shmtest.Have(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})).In(t)
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { w.Close() })
	cmd := shmtest.Child(t, role, "SOCKET="+path)
	cmd.Stdin = r
	must(t, cmd.Start())
	must(t, r.Close())
	go func() { _ = cmd.Wait() }()
	must(t, l.SetDeadline(time.Now().Add(time.Minute)))
	c := shmtest.Got(l.AcceptUnix()).Or(t)
	p = shmtest.Got(MeetPeer(c, nil)).Or(t)
	must(t, c.Close()) // the peer is watched all the same
	t.Cleanup(p.Close)
	if p.PID != cmd.Process.Pid || p.UID != os.Geteuid() || p.GID != os.Getegid() {
		t.Errorf("%+v is not %d", p, cmd.Process.Pid)
	}
	changes = make(chan struct{}, 2)
	p.Watch(func() { changes <- struct{}{} })
	return w, p, changes
}

var must = shmtest.Must

// TestPeerHangsUp: the end of a connection is no death; with the end of the process it is.
func TestPeerHangsUp(t *testing.T) {
	stdin, p, changes := meetChild(t, "peer")
	if p.HungUp() || p.Gone() {
		t.Error("gone at once")
	}
	shmtest.Got(stdin.Write([]byte{1})).Or(t)
	<-changes
	if !p.HungUp() || p.Gone() {
		t.Errorf("after it hung up: %v, gone %v", p.HungUp(), p.Gone())
	}
	shmtest.Got(stdin.Write([]byte{1})).Or(t)
	<-changes
	if !p.Gone() {
		t.Error("not gone after it ended")
	}
}

// TestPeerLeavesConnection: nor is the end of a process whose connection somebody else holds now,
// until that one lets go of it.
func TestPeerLeavesConnection(t *testing.T) {
	shmtest.Conforms(t)
	stdin, p, changes := meetChild(t, "holder")
	<-changes
	if p.HungUp() || p.Gone() {
		t.Errorf("after it ended: hung up %v, gone %v", p.HungUp(), p.Gone())
	}
	must(t, stdin.Close()) // which ends that one
	<-changes
	if !p.Gone() {
		t.Error("not gone")
	}
}

// TestPeerBytes: watching takes no bytes.
func TestPeerBytes(t *testing.T) {
	here, there := shmtest.Connected(t, unix.SOCK_STREAM)
	p := shmtest.Got(MeetPeer(here, &shm.AllowList{GIDs: []int{os.Getegid()}})).Or(t)
	changes := make(chan struct{}, 2)
	p.Watch(func() { changes <- struct{}{} })
	for range 100 {
		shmtest.Got(there.Write([]byte("abc"))).Or(t)
	}
	buf := make([]byte, 300)
	for n := 0; n < len(buf); {
		k := shmtest.Got(here.Read(buf[n:])).Or(t)
		n += k
	}
	must(t, there.Close())
	<-changes
	if !p.HungUp() || p.Gone() { // it is this process
		t.Errorf("hung up %v, gone %v", p.HungUp(), p.Gone())
	}
	p.Close()
	p.Close()
}

// TestAllowList: who is on a list, and that nobody but this user is on none.
func TestAllowList(t *testing.T) {
	me := os.Geteuid()
	for _, tt := range []struct {
		list   *shm.AllowList
		uid    int
		gid    int
		groups []int
		want   bool
	}{
		{nil, me, 5, nil, true},
		{nil, me + 1, 5, nil, false},
		{&shm.AllowList{}, me, 5, nil, true},
		{&shm.AllowList{}, me + 1, 0, nil, false},
		{&shm.AllowList{UIDs: []int{7}}, 7, 0, nil, true},
		{&shm.AllowList{UIDs: []int{7}}, me, 7, []int{7}, false},
		{&shm.AllowList{GIDs: []int{7}}, 7, 6, []int{8}, false},
		{&shm.AllowList{GIDs: []int{7}}, 1, 7, nil, true},
		{&shm.AllowList{GIDs: []int{7}}, 1, 6, []int{8, 7}, true},
	} {
		if got := Allows(tt.list, tt.uid, tt.gid, tt.groups); got != tt.want {
			t.Errorf("%+v allows %d %d %v: %v", tt.list, tt.uid, tt.gid, tt.groups, got)
		}
	}
}

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"peer": childPeer, "holder": childHolder})
}

// TestDescriptorOf: a descriptor comes from the very process that is meant.
func TestDescriptorOf(t *testing.T) {
	me := shm.Self()
	fd := shmtest.Got(descriptorOf(me, 0)).Or(t)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	must(t, unix.Close(fd))
	if _, err := descriptorOf(me, 9999); !errors.Is(err, unix.EBADF) {
		t.Errorf("no such descriptor: %v", err)
	}
	former := me
	former.StartTicks++
	if _, err := descriptorOf(former, 0); !errors.Is(err, shm.ErrStale) {
		t.Errorf("another process had the number: %v", err)
	}
	elsewhere := me
	elsewhere.PIDNS++
	if _, err := descriptorOf(elsewhere, 0); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("another namespace: %v", err)
	}
}
