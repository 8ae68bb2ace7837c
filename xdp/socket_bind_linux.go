package xdp

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func (s *Socket) socketError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return s.error("open socket", refine(ErrNoCapability, err),
			"run as root, or with CAP_NET_RAW")
	case errors.Is(err, unix.EAFNOSUPPORT):
		return s.error("open socket", refine(errors.ErrUnsupported, err),
			"the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
	}
	return s.error("open socket", err, "")
}

// bindUMEM binds the socket to its queue with rings of its own, over memory that it registers, or
// that another socket has registered. It tries again while the queue is busy and nobody is known to
// have it: a socket that is gone holds it until the kernel has cleaned up. The UMEM is not locked
// between two tries, since one on it that is being closed, perhaps on this very queue, has to get
// past that lock.
func (s *Socket) bindUMEM(ctx context.Context, o Options) error {
	wait := s.newBusyWait(o)
	for {
		err := s.tryUMEM(o)
		if errors.Is(err, ErrQueueBusy) {
			if err = wait.again(ctx, err); err == nil {
				continue
			}
		}
		return err
	}
}

func (s *Socket) tryUMEM(o Options) error {
	u := s.umem
	u.mu.Lock() // so that the other one stays open meanwhile
	defer u.mu.Unlock()
	if len(u.bound) > 0 && !s.registered {
		first := u.bound[0]
		if o.MultiBuffer != first.chains || o.NoNeedWakeup == first.granted.NeedWakeup {
			return s.error("bind", fmt.Errorf("%w: MultiBuffer and NoNeedWakeup are to be those of "+
				"the first socket on the UMEM", ErrOptions), "")
		}
		if err := s.bindShared(first.fd); err != nil {
			return err
		}
	} else if err := s.bindFirst(o); err != nil {
		return err
	}
	s.granted.NeedWakeup, s.granted.MultiBuffer = !o.NoNeedWakeup, o.MultiBuffer
	u.bound = append(u.bound, s)
	return nil
}

func (s *Socket) register() error {
	if s.registered {
		return nil // by the try before this one: a socket does it once
	}
	g := s.umem.geo
	err := registerUMEM(s.fd, s.umem.region.Bytes(), g)
	if errors.Is(err, unix.ENOBUFS) {
		return s.error("register UMEM", refine(ErrMemlock, err), fmt.Sprintf(
			"%d KiB are to be locked beside what the user has locked already: raise \"ulimit -l\","+
				" take fewer frames, or run with CAP_IPC_LOCK", g.bytes()>>10))
	}
	if err != nil {
		return s.error("register UMEM", err, "")
	}
	s.registered = true
	return nil
}

func (s *Socket) bindFirst(o Options) error {
	if err := s.register(); err != nil {
		return err
	}
	sa := &unix.SockaddrXDP{Ifindex: uint32(s.ifindex), QueueID: s.queue}
	switch o.Mode {
	case BindCopy:
		sa.Flags |= unix.XDP_COPY
	case BindZeroCopy:
		sa.Flags |= unix.XDP_ZEROCOPY
	}
	if !o.NoNeedWakeup {
		sa.Flags |= unix.XDP_USE_NEED_WAKEUP
	}
	if o.MultiBuffer {
		sa.Flags |= unix.XDP_USE_SG
	}
	return s.bind(sa)
}

// bindShared binds a socket that uses what the one behind fd has registered. The kernel wants no
// other flags then.
func (s *Socket) bindShared(fd int) error {
	return s.bind(&unix.SockaddrXDP{Flags: unix.XDP_SHARED_UMEM, Ifindex: uint32(s.ifindex),
		QueueID: s.queue, SharedUmemFD: uint32(fd)})
}

func (s *Socket) bind(sa *unix.SockaddrXDP) error {
	if err := unix.Bind(s.fd, sa); err != nil {
		return s.bindError(err)
	}
	return nil
}

func (s *Socket) bindError(err error) error {
	op := fmt.Sprintf("bind queue %d of", s.queue)
	switch {
	case errors.Is(err, unix.EBUSY):
		return s.error(op, refine(ErrQueueBusy, err), "see \"ss --xdp -p\"; "+
			"stop the process that has it, or use another queue")
	case errors.Is(err, unix.EINVAL):
		return s.error(op, refine(ErrNoQueue, err),
			fmt.Sprintf("see \"ethtool -l %s\" for how many there are", s.ifname))
	case errors.Is(err, unix.ENODEV):
		return s.error(op, refine(ErrNoDevice, err), "")
	case errors.Is(err, unix.ENETDOWN):
		return s.error(op, refine(ErrLinkDown, err),
			fmt.Sprintf("try \"ip link set %s up\"", s.ifname))
	case errors.Is(err, unix.EOPNOTSUPP):
		return s.error(op, refine(ErrNoZeroCopy, err), "ask for copy mode")
	}
	return s.error(op, err, "")
}

// tune sets what makes copy mode faster and what an old kernel may not know, so errors are no
// failure; Granted tells.
func (s *Socket) tune(o Options) {
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, o.SendBufferBytes) != nil {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBufferBytes)
	}
	if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		s.granted.SendBufferBytes = n
	}
	// How many packets one system call may send. The smallest value is what it is anyway.
	s.granted.TxBudget = min(int(o.TxEntries), defaultTxBudget)
	if o.TxEntries > defaultTxBudget && !o.NoTxBudget && unix.SetsockoptInt(s.fd, unix.SOL_XDP,
		unix.XDP_MAX_TX_SKB_BUDGET, int(o.TxEntries)) == nil {
		s.granted.TxBudget = int(o.TxEntries)
	}
	s.busyPoll(o.BusyPoll)
}

// busyPoll asks for busy polling, and reads back what became of it.
func (s *Socket) busyPoll(b BusyPoll) {
	if b == (BusyPoll{}) {
		return
	}
	prefer := 0
	if b.Prefer {
		prefer = 1
	}
	set := func(option, value int) bool {
		if value == 0 {
			return false
		}
		err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, option, value)
		if err != nil {
			s.granted.BusyPollErr = errors.Join(s.granted.BusyPollErr,
				s.error("set busy polling of", err, "CAP_NET_ADMIN is needed"))
		}
		return err == nil
	}
	read := func(option int) int {
		n, _ := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, option)
		return n
	}
	set(unix.SO_PREFER_BUSY_POLL, prefer)
	set(unix.SO_BUSY_POLL, b.TimeoutUs)
	g := &s.granted.BusyPoll
	if set(unix.SO_BUSY_POLL_BUDGET, b.BudgetCount) {
		g.BudgetCount = b.BudgetCount // the kernel does not tell it
	}
	g.Prefer, g.TimeoutUs = read(unix.SO_PREFER_BUSY_POLL) == 1, read(unix.SO_BUSY_POLL)
}

// readGranted asks the bound socket for its mode.
func (s *Socket) readGranted() error {
	var flags uint32
	if _, err := getXDPOption(s.fd, unix.XDP_OPTIONS, &flags); err != nil {
		return s.error("read granted mode", err, "")
	}
	s.granted.Mode = BindCopy
	if flags&unix.XDP_OPTIONS_ZEROCOPY != 0 {
		s.granted.Mode = BindZeroCopy
	}
	s.noteRings()
	s.netns, _ = unix.GetsockoptUint64(s.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE) // from 5.14 on
	return nil
}
