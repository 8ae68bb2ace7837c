package device

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/file"
	"github.com/shmring/shmring/internal/netif"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// Server owns a device, and moves packets between it and applications. Its methods may be called
// from anywhere.
type Server struct {
	c          Config
	allow      shm.AllowList // all lines of the allow-list
	program    *xdp.Program
	watcher    *netif.Watcher // of the interface's own addresses
	reports    reports
	engine     *engine
	mtu        int // of the interface, as far as a frame has room
	maxPayload int // of a datagram over IPv4
	slotBytes  int
	// helloTimeoutNs is helloTimeout, which tests change.
	helloTimeoutNs atomic.Int64
	// parkedNs is the constant, which tests change.
	parkedNs atomic.Int64

	mu       sync.Mutex // guards what follows, and what is said so in app
	accounts []*account
	ports    map[uint16]*app
	rules    map[uint16]xdp.RuleID // of the same
	apps     map[*app]struct{}
	places   int         // connections, admitted or not
	meetings map[int]int // those that are not yet, by user
	refused  uint64
	admitted uint64
	last     uint64 // generation of the last UMEM
	reader   *app   // who reads frames in place, or nil
	closed   bool
	conns    map[*net.UnixConn]struct{}
	all      sync.WaitGroup
}

// NewServer opens the device: a socket on each queue, and the steering program on the interface. It
// needs the privileges of xdp.Open and xdp.Attach, whose errors it returns. Nothing arrives before
// an application has taken a port. It waits for queues of a server that was killed just now, as
// xdp.Options.BusyTimeout says and the context allows, which has no meaning afterwards.
func NewServer(ctx context.Context, c Config) (*Server, error) {
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	s := &Server{c: c, ports: map[uint16]*app{}, rules: map[uint16]xdp.RuleID{},
		apps: map[*app]struct{}{}, conns: map[*net.UnixConn]struct{}{}, meetings: map[int]int{},
		last: rand.Uint64N(1 << 48)}
	all := newHolders(c.Resolver)
	for _, a := range c.Allow {
		s.accounts = append(s.accounts, &account{Allow: a, ways: newWays(all, a.Destinations)})
		one := a.list()
		s.allow.UIDs = append(s.allow.UIDs, one.UIDs...)
		s.allow.GIDs = append(s.allow.GIDs, one.GIDs...)
	}
	s.reports.tell = c.Report
	s.helloTimeoutNs.Store(int64(helloTimeout))
	s.parkedNs.Store(parkedNs)
	s.engine = &engine{s: s, byPort: make([]*app, 1<<16), calls: make(chan func(), 16),
		ended: make(chan struct{}), dirty: true}
	if err := s.open(ctx); err != nil {
		_ = s.release()
		return nil, err
	}
	var until context.Context
	until, s.engine.stop = context.WithCancel(context.Background())
	go s.engine.run(until, spin.Budget(c.Spin))
	return s, nil
}

func (s *Server) open(ctx context.Context) (err error) {
	ifi, err := net.InterfaceByName(s.c.Interface)
	if err != nil {
		return failed("open", s.c.Interface, fmt.Errorf("%w: %w", xdp.ErrNoDevice, err),
			"see \"ip link\"; interfaces of other network namespaces are not seen")
	}
	if err := s.engine.loop.Open(); err != nil {
		return failed("open", s.c.Interface, err, "")
	}
	s.program, err = xdp.Attach(s.c.Interface, xdp.ProgramOptions{Mode: s.c.Attach,
		Sockets: maxQueues})
	if err != nil {
		return err
	}
	s.watcher, err = netif.Watch(ifi.Index, netif.WatchOptions{OnLocal: s.setLocal,
		OnEvent: s.changed})
	if err != nil {
		return err
	}
	if err := s.openQueues(ctx); err != nil {
		return err
	}
	// The longest datagram that fits the MTU and a frame of each queue.
	room := s.engine.queues[0].sock.Info().PacketBytes - packet.EthernetBytes
	s.mtu = min(ifi.MTU, room)
	s.maxPayload = s.mtu - packet.IPv4Bytes - packet.UDPBytes
	s.slotBytes = (s.maxPayload + 63) &^ 63
	return nil
}

// setLocal has packets to these destinations come from now on, and no others. What the engine
// knows the program knows too, if it has room.
func (s *Server) setLocal(l xdp.Local) (taken bool) {
	err := s.program.SetLocal(l)
	s.report(err)
	s.engine.local.Store(&l)
	return err == nil
}

// changed has applications know what became of the MTU, in case that is the change.
func (s *Server) changed(netif.Event) (taken bool) {
	select {
	case s.engine.calls <- s.engine.tellMTU:
		s.engine.loop.Wake()
		return true
	default: // without room for a call it comes again
		return false
	}
}

// maxQueues bounds the search for all queues of an interface.
const maxQueues = 64

func (s *Server) openQueues(ctx context.Context) error {
	queues := s.c.Queues
	every := len(queues) == 0
	if every {
		for i := range uint32(maxQueues) {
			queues = append(queues, i)
		}
	}
	for _, number := range queues {
		q, err := s.openQueue(ctx, number)
		if every && errors.Is(err, xdp.ErrNoQueue) && number > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		s.engine.queues = append(s.engine.queues, q)
	}
	return nil
}

func (s *Server) openQueue(ctx context.Context, number uint32) (*queue, error) {
	q := &queue{number: number, packets: make([]xdp.Received, s.c.RxBatch),
		sums: make([]packet.Checksum, s.c.RxBatch),
		done: make([]xdp.Sent, 64)}
	var err error
	if q.umem, err = xdp.NewUMEM(xdp.UMEMOptions{Name: "device", Frames: s.c.Frames}); err != nil {
		return nil, err
	}
	q.sends = make([]sendRow, q.umem.Geometry().Frames)
	q.sock, err = xdp.Open(ctx, s.c.Interface, number, q.umem, s.c.Socket)
	if err == nil {
		if err = q.sock.Register(s.program, 0); err != nil {
			_ = q.sock.Close()
		}
	}
	if err != nil {
		_ = q.umem.Close(context.Background())
		return nil, err
	}
	q.object = capture.Observe(s.c.NoObject, s.c.Directory, q.sock, status.Info{})
	return q, nil
}

// Stats returns counters that are a few milliseconds old at most while packets move.
func (s *Server) Stats() Stats {
	var out Stats
	if shown := s.engine.shown.Load(); shown != nil {
		out = *shown
	}
	out.Interface, out.Queues = s.c.Interface, len(s.engine.queues)
	out.Attached, out.Bound = s.program.Info().Mode, s.engine.queues[0].sock.Info().Mode
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Refused, out.Admitted = s.refused, s.admitted
	for a := range s.apps {
		if shown := a.shown.Load(); shown != nil {
			one := *shown
			one.Ports = append([]uint16(nil), a.ports...)
			out.Apps = append(out.Apps, one)
		}
	}
	return out
}

// Err returns why the server stopped moving packets, xdp.ErrDeviceGone for one; nil while it does,
// and after Close.
func (s *Server) Err() error {
	select {
	case <-s.engine.ended:
		return s.engine.err
	default:
		return nil
	}
}

// Close hangs up on every application, and gives the device back. Applications find the next server
// on the same path by themselves.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	for c := range s.conns {
		_ = c.CloseRead()
	}
	s.mu.Unlock()
	s.all.Wait()
	s.engine.stop()
	<-s.engine.ended
	err := s.watcher.Close() // it reports
	s.reports.close()
	return errors.Join(err, s.release())
}

// release gives back what open got. The engine does not run.
func (s *Server) release() error {
	var err error
	for _, q := range s.engine.queues {
		q.object.Close()
		err = errors.Join(err, q.sock.Close(), q.umem.Close(context.Background()))
	}
	if s.watcher != nil {
		err = errors.Join(err, s.watcher.Close())
	}
	if s.program != nil {
		err = errors.Join(err, s.program.Close())
	}
	s.engine.loop.Close()
	return err
}

func (s *Server) report(err error) {
	if err != nil {
		s.reports.add(err)
	}
}

// Listener is the socket of a device process at a path, and the proof that nobody else has it: a
// lock on the file beside it, which the kernel drops when the process ends, however it ends. What
// is removed is removed from the directory that the path led to first, whatever it leads to since.
type Listener struct {
	*net.UnixListener
	path string
	name string // the last part of the path
	dir  int    // descriptor of the directory
	lock int    // private descriptor, never sent, never an *os.File
	made unix.Stat_t
}

// Listen makes the socket that [Server.Serve] takes. A socket that a dead device process left at
// the path is replaced; that of a living one is [ErrServing]. Everybody may connect: the allow-list
// says who is served. The lock file, path + ".lock", stays when the listener is closed.
func Listen(path string) (*Listener, error) {
	const op = "listen at"
	l := &Listener{path: path, name: filepath.Base(path), dir: -1, lock: -1}
	hint, err := l.open()
	if err != nil {
		_ = l.Close()
		return nil, failed(op, path, err, hint)
	}
	return l, nil
}

func (l *Listener) open() (hint string, err error) {
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	l.dir, err = unix.Open(filepath.Dir(l.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		l.lock, err = unix.Openat(l.dir, l.name+shm.LockSuffix, unix.O_RDWR|unix.O_CREAT|flags, 0o600)
	}
	if err != nil {
		return "the directory must exist and be writable", err
	}
	if err := file.Lock(l.lock, file.Whole, true); err != nil {
		if file.Busy(err) {
			err = ErrServing
		}
		return "stop the other one, or choose another path", err
	}
	if err := l.clear(); err != nil {
		return "", err
	}
	// The kernel binds by a path only, and tools show that path: so it is the operator's and not one
	// below /proc. Whether it led to our directory is seen afterwards.
	l.UnixListener, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: l.path, Net: "unixpacket"})
	if err != nil {
		return "", err
	}
	l.SetUnlinkOnClose(false) // that is by the path
	return "", l.invite()
}

// invite lets everybody connect.
func (l *Listener) invite() error {
	fd, err := unix.Openat(l.dir, l.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &l.made); err != nil {
		return err
	}
	if l.made.Mode&unix.S_IFMT != unix.S_IFSOCK {
		l.made = unix.Stat_t{}
		return fmt.Errorf("%w: something else than a socket is there", unix.EEXIST)
	}
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), 0o666, 0)
}

// clear removes the socket of a predecessor. We have its lock, so it is dead, unless somebody
// removed the lock file; so the socket itself is asked too.
func (l *Listener) clear() error {
	var there unix.Stat_t
	err := unix.Fstatat(l.dir, l.name, &there, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if there.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%w: something else than a socket is there", unix.EEXIST)
	}
	at := fmt.Sprintf("/proc/self/fd/%d/%s", l.dir, l.name)
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err == nil {
		_ = c.Close()
		return ErrServing
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	return l.remove() // a collector may be faster
}

func (l *Listener) remove() error {
	if err := unix.Unlinkat(l.dir, l.name, 0); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes the socket, and then gives up the lock.
func (l *Listener) Close() error {
	var there unix.Stat_t
	var err error
	if l.made.Ino != 0 && unix.Fstatat(l.dir, l.name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		there.Ino == l.made.Ino && there.Dev == l.made.Dev {
		err = l.remove()
	}
	if l.UnixListener != nil {
		err = errors.Join(err, l.UnixListener.Close())
	}
	for _, fd := range []*int{&l.lock, &l.dir} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
	l.made = unix.Stat_t{}
	return err
}
