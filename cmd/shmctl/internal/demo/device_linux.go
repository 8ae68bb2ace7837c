package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

const deviceQueue = 0

// runDevice owns the AF_XDP socket. It is the only process that does, and the only one that needs a
// privilege.
func runDevice(l *line, c config) (err error) {
	defer os.RemoveAll(filepath.Dir(c.Socket))
	mode := xdp.AttachAuto
	if c.Generic {
		mode = xdp.AttachGeneric
	}
	s, err := wire.Serve(c.Socket, device.Config{Interface: c.Ends[0].Name,
		Queues: []uint32{deviceQueue}, Attach: mode, Resolver: c.Ends.Ways(0),
		NoObject: true}) // a run leaves nothing behind, killed or not
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var cancel context.CancelCauseFunc
	l.ctx, cancel = context.WithCancelCause(l.ctx)
	go func() { cancel(s.Wait()) }()
	err = l.phases(func(string) (uint64, error) { return 0, nil }, // it serves
		func() *result { return reportOf(s.Server) })
	if err == nil {
		<-l.ctx.Done()
	}
	return err
}

// reportOf sums up what the device process did.
func reportOf(server *device.Server) *result {
	s := server.Stats()
	r := &result{Notes: dropsOf(&s),
		Mode: s.Attached.String(), Queue: deviceQueue, Copy: s.Bound != xdp.BindZeroCopy,
		Wakes: s.Wakes, Publishes: s.Publishes, Syscalls: s.QueueCalls + s.Polls}
	for _, calls := range s.Syscalls {
		r.Syscalls += calls.Send + calls.Receive
	}
	return r
}

// openNetwork makes the wire: two namespaces and the pair between them.
func openNetwork() (*veth.Pair, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("not root: network namespaces and AF_XDP need it")
	}
	p, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, fmt.Errorf("no network namespaces: %w", err)
	}
	// Root of a container may have namespaces and still no raw sockets.
	if err := p.A.Do(tryRawSocket); err != nil {
		_ = p.Close()
		return nil, fmt.Errorf("no AF_XDP socket (CAP_NET_RAW is needed): %w", err)
	}
	return p, nil
}

func tryRawSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	return unix.Close(fd)
}

// socketPair returns two connected sockets that the runtime can wait on.
func socketPair() (pair [2]*os.File, err error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fds, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		pair[i] = os.NewFile(uintptr(fd), "socketpair")
	}
	return pair, nil
}
