package xdp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xskernel"
)

// The offsets of four rings, with those of their flags. Kernels before 5.4 write less.
const mmapOffsetsBytes = 128

// mapRings sizes the four rings, maps them and lays the ends of core and pool over them.
func (s *Socket) mapRings(o Options) error {
	off, err := s.mapOwnRings(o)
	if err != nil {
		return err
	}
	pool := &s.pool.maps
	fill, fillSlots, err := mapRing[uint64](s, pool, unix.XDP_UMEM_FILL_RING,
		unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, o.FillEntries)
	if err != nil {
		return err
	}
	comp, compSlots, err := mapRing[uint64](s, pool, unix.XDP_UMEM_COMPLETION_RING,
		unix.XDP_UMEM_PGOFF_COMPLETION_RING, off.Cr, o.CompEntries)
	if err != nil {
		return err
	}
	s.fill, s.comp = newProducer(fill, fillSlots), newConsumer(comp, compSlots)
	return nil
}

// mapOwnRings does it for the receive and the transmit ring, which no two sockets share.
func (s *Socket) mapOwnRings(o Options) (off unix.XDPMmapOffsets, err error) {
	if off, err = s.ringOffsets(); err != nil {
		return off, err
	}
	rx, rxSlots, err := mapRing[xskernel.Desc](s, &s.maps, unix.XDP_RX_RING,
		unix.XDP_PGOFF_RX_RING, off.Rx, o.RxEntries)
	if err != nil {
		return off, err
	}
	tx, txSlots, err := mapRing[xskernel.Desc](s, &s.maps, unix.XDP_TX_RING,
		unix.XDP_PGOFF_TX_RING, off.Tx, o.TxEntries)
	if err != nil {
		return off, err
	}
	s.rx, s.tx = newConsumer(rx, rxSlots), newProducer(tx, txSlots)
	return off, nil
}

func (s *Socket) ringOffsets() (off unix.XDPMmapOffsets, err error) {
	n, err := getXDPOption(s.fd, unix.XDP_MMAP_OFFSETS, &off)
	if err != nil {
		return off, s.error("read ring offsets of", err, "")
	}
	if n != mmapOffsetsBytes {
		return off, s.error("read ring offsets of", fmt.Errorf("%d bytes, want %d", n,
			mmapOffsetsBytes), "a kernel of 5.4 or later is needed")
	}
	return off, nil
}

// mapRing sizes one ring, maps it and keeps the mapping in maps.
func mapRing[E uint64 | xskernel.Desc](s *Socket, maps *[][]byte, option int, pgoff int64,
	off unix.XDPRingOffset, entries uint32) (ringWords, []E, error) {
	if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, option, int(entries)); err != nil {
		return ringWords{}, nil, s.error("size ring of", fmt.Errorf("%d entries: %w", entries, err),
			"take smaller rings")
	}
	const saneBytes = 1 << 20 // of what precedes the entries
	if off.Desc > saneBytes {
		return ringWords{}, nil, s.error("map ring of", fmt.Errorf("entries at %d", off.Desc), "")
	}
	size := int(off.Desc) + int(entries)*entryBytes[E]()
	mem, err := unix.Mmap(s.fd, pgoff, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ringWords{}, nil, s.error("map ring of", err, "")
	}
	*maps = append(*maps, mem)
	w, slots, err := ringOverlay[E](mem, off, entries)
	if err != nil {
		return ringWords{}, nil, s.error("map ring of", err, "")
	}
	return w, slots, nil
}

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
	err := error(unix.EBADF)
	for i := 0; i < len(u.bound) && !s.registered && errors.Is(err, unix.EBADF); i++ {
		first := u.bound[i]
		if o.MultiBuffer != first.chains || o.NoNeedWakeup == first.granted.NeedWakeup {
			return s.error("bind", fmt.Errorf("%w: MultiBuffer and NoNeedWakeup are to be those of "+
				"the first socket on the UMEM", ErrOptions), "")
		}
		err = s.bindShared(first.fd) // EBADF: its device is gone
	}
	if errors.Is(err, unix.EBADF) {
		err = s.bindFirst(o)
	}
	if err != nil {
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
// failure; SocketInfo tells.
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

// busyBound is how long the queue of a socket that is gone is waited for. The kernel frees it
// when the last packet of the socket has left every queue on its way, and then from a work item
// that wants the lock that all changes of interfaces go through: tens of milliseconds where
// nothing else happens, seconds on a machine that is short of time.
var busyBound = 10 * time.Second

const (
	firstBusyPause = 2 * time.Millisecond
	lastBusyPause  = 50 * time.Millisecond
	// firstLook is how long after the first one the second look at who has a queue is. Who has it
	// by then too means to keep it; until then it may be a child that has not executed its program
	// yet, with a copy of a descriptor that this process has closed, or one that is about to leave.
	firstLook = 500 * time.Millisecond
)

// busyWait is the patience of one bind. The zero value of BusyTimeout waits for the kernel, and not
// for a process that lives; another one waits for whatever has the queue.
type busyWait struct {
	s        *Socket
	told     bool // how long to wait, by the caller
	deadline time.Time
	pause    time.Duration
	holder   func(ifindex int, queue uint32) (pid int, err error)
	now      func() time.Time
	blind    bool // the kernel does not tell who has a queue

	look time.Time     // when to look again at who has the queue
	gap  time.Duration // between the last look and that
	pid  int           // who had it at the last look
}

func (s *Socket) newBusyWait(o Options) *busyWait {
	bound := o.BusyTimeout
	if bound == 0 {
		bound = busyBound
	}
	return &busyWait{s: s, told: o.BusyTimeout != 0, deadline: time.Now().Add(bound),
		pause: firstBusyPause, holder: queueHolder, now: time.Now}
}

// again waits until it is time for one more try after err, an [ErrQueueBusy], or returns what the
// bind is to end with.
func (w *busyWait) again(ctx context.Context, err error) error {
	over := !w.now().Before(w.deadline)
	if over {
		if pid := w.living(); pid != 0 {
			return w.s.busyError(pid)
		}
		return err
	}
	if !w.told && w.stays() {
		return w.s.busyError(w.pid)
	}
	pause := time.NewTimer(w.pause)
	defer pause.Stop()
	w.pause = min(2*w.pause, lastBusyPause)
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), err)
	}
}

// stays reports that the process which has the queue had it at the look before. Looks become rare:
// each goes through the descriptors of all processes.
func (w *busyWait) stays() bool {
	now := w.now()
	if now.Before(w.look) {
		return false
	}
	w.gap = max(2*w.gap, firstLook)
	w.look = now.Add(w.gap)
	before := w.pid
	w.pid = w.living()
	return w.pid != 0 && w.pid == before
}

// living returns the process that has the queue and is not about to end; 0 if none is known. A
// kernel that cannot tell is asked once: each question has it look for a module.
func (w *busyWait) living() int {
	if w.blind {
		return 0
	}
	pid, err := w.holder(w.s.ifindex, w.s.queue)
	w.blind = err != nil
	if err != nil || pid == 0 || dying(pid) {
		return 0
	}
	return pid
}

func (s *Socket) busyError(pid int) error {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return s.error(fmt.Sprintf("bind queue %d of", s.queue), &BusyError{Err: ErrQueueBusy,
		Ifname: s.ifname, Queue: s.queue, PID: pid, Command: strings.TrimSpace(string(name))},
		"stop that process, or use another queue; see \"ss --xdp -p\"")
}

// queueHolder finds the process that has a socket bound to a queue of an interface in the network
// namespace of the calling thread: 0 if there is no such socket, or its process cannot be seen.
func queueHolder(ifindex int, queue uint32) (pid int, err error) {
	sockets, err := netlink.SocketDiagXDP()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return 0, err
	}
	for _, s := range sockets {
		if s.XDPInfo != nil && s.XDPDiagMsg != nil && s.XDPInfo.Ifindex == uint32(ifindex) &&
			s.XDPInfo.QueueID == queue {
			return socketOwner(s.XDPDiagMsg.Ino), nil
		}
	}
	return 0, nil
}

// socketOwner looks for a process with a descriptor of a socket, by the number of its inode.
func socketOwner(inode uint32) (pid int) {
	want := fmt.Sprintf("socket:[%d]", inode)
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir) // none of a process that has gone, or is another user's
		for _, fd := range fds {
			if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && to == want {
				return pid
			}
		}
	}
	return 0
}

// dying reports that a process is ended, or will be before it runs again: one that was killed keeps
// its descriptors until the kernel comes to it.
func dying(pid int) bool {
	path := fmt.Sprintf("/proc/%d/status", pid)
	switch field(path, "State:") {
	case "", "Z", "X":
		return true
	}
	pending := func(key string) bool {
		set, _ := strconv.ParseUint(field(path, key), 16, 64)
		return set&(1<<(unix.SIGKILL-1)) != 0
	}
	return pending("SigPnd:") || pending("ShdPnd:")
}
