package capture

import (
	"net/netip"

	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Follower is what tools see of a socket: its object (package status), and the capture that one of
// them wants. One goroutine uses it, the one that drives the socket.
type Follower struct {
	obj      *status.Object
	dir      *shm.Dir
	ours     bool // the directory was opened here
	socket   *xdp.Socket
	counters status.Counters
	tap      *Tap // nil most of the time
	askAt    int64
}

// askEveryNs is how often a follower looks whether the tool that captures still lives.
const askEveryNs = 100e6

// Follow makes the object of a socket in a directory, the default one if dir is nil. Of info it
// fills in what the socket knows. Errors are those of shared memory; a socket works without.
func Follow(dir *shm.Dir, s *xdp.Socket, info status.Info) (*Follower, error) {
	f := &Follower{dir: dir, socket: s}
	if dir == nil {
		var err error
		if f.dir, err = shm.OpenDir(""); err != nil {
			return nil, err
		}
		f.ours = true
	}
	i := s.Info()
	g := &i.Granted
	info.Interface, info.Index, info.Queue, info.NetNS = i.Interface, i.Index, i.Queue, i.NetNS
	info.Bind, info.NeedWakeup, info.MultiBuffer = g.Mode, g.NeedWakeup, g.MultiBuffer
	info.Geometry = s.UMEM().Geometry()
	info.Rings = status.RingSizes{Rx: g.RxEntries, Tx: g.TxEntries, Fill: g.FillEntries,
		Comp: g.CompEntries}
	if !info.Local.Addr().IsValid() {
		info.Local = netip.AddrPortFrom(i.Address, info.Local.Port())
	}
	info.UMEM = s.UMEM().Region().Object().Header().UUID
	var err error
	if f.obj, err = status.Create(f.dir, info); err != nil {
		f.leave()
		return nil, err
	}
	return f, nil
}

func (f *Follower) leave() {
	if f.ours {
		_ = f.dir.Close()
	}
}

// Name returns the name of the object.
func (f *Follower) Name() string { return f.obj.Name() }

// Close ends a capture and removes the object. The socket is still open.
func (f *Follower) Close() {
	f.untap()
	_ = f.obj.Close()
	f.leave()
}

// Update publishes counters.
func (f *Follower) Update(now int64, kernel *xdp.KernelStats, traffic *status.Traffic) {
	c, s := &f.counters, f.socket
	c.UpdatedNs = uint64(now)
	c.Program, c.Attach = 0, 0
	if p := s.Info().Program; p != nil {
		i := p.Info()
		c.Program, c.Attach = uint64(i.ID), uint64(i.Mode)
	}
	c.Kernel, c.Traffic = *kernel, *traffic
	c.Frames, c.Rings, c.Syscalls = s.FrameStats(), s.RingStats(), s.SyscallStats()
	f.obj.Update(c)
}

// Due reports whether a tool wants something else than before, or whether it is time to see that
// the one that captures lives: [Follower.Obey] is to be called. It costs a load and no system call.
func (f *Follower) Due(now int64) bool { return f.obj.Wanted() || f.tap != nil && now >= f.askAt }

// Obey does what tools want.
func (f *Follower) Obey(now int64) {
	f.askAt = now + askEveryNs
	if !f.obj.Wanted() {
		if !f.tap.Alive() {
			f.untap()
		}
		return
	}
	f.untap()
	id := f.obj.Wish()
	if id.IsZero() {
		return
	}
	tap, err := Attach(f.dir, id, f.socket.Info().Queue)
	if err != nil {
		return // the tool is gone by now, or is of another version
	}
	f.tap = tap
	f.socket.SetTap(tap)
}

func (f *Follower) untap() {
	if f.tap != nil {
		f.socket.SetTap(nil)
		f.tap.Close()
		f.tap = nil
	}
}
