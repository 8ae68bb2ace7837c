package xdp

import (
	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/eventfd"
	"github.com/shmring/shmring/internal/xskernel"
)

// Sockets on simulated devices are for the tests of this module, which get them from package
// xdptest.
func init() {
	xskernel.Simulate = func(umem, options any, d xskernel.Device) (any, *xskernel.Kernel, error) {
		s := &Socket{fd: -1, ifname: d.Name, queue: d.Queue, umem: umem.(*UMEM)}
		if err := s.simulate(options.(Options), d); err != nil {
			_ = s.release()
			return nil, nil, err
		}
		return s, s.sim, nil
	}
}

func (s *Socket) simulate(o Options, d xskernel.Device) error {
	o, err := o.resolve(s.umem.geo)
	if err != nil {
		return s.error(simOp, err, "")
	}
	if err := s.newPool(o); err != nil {
		return err
	}
	s.initCore(d.MTU, o)
	q := xskernel.NewQueue(o.FillEntries, o.CompEntries, d.StartIndex)
	s.fill = newProducer(wordsOf(q.Fill), q.Fill.Slots)
	s.comp = newConsumer(wordsOf(q.Comp), q.Comp.Slots)
	if err := s.plug(q, o, d.StartIndex); err != nil {
		return err
	}
	s.Fill(int(o.FillEntries))
	return nil
}

const simOp = "simulate socket"

// plug gives the socket its kernel's side and a descriptor.
func (s *Socket) plug(q *xskernel.Queue, o Options, start uint32) (err error) {
	if s.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return s.error(simOp, err, "")
	}
	fd := s.fd
	s.idle = s.quiet
	s.sim = simKernel(&s.core, q, o, start, func() { _ = eventfd.Write(fd) })
	s.granted = SocketInfo{Mode: BindCopy, NeedWakeup: !o.NoNeedWakeup, MultiBuffer: s.chains,
		TxBudget: defaultTxBudget, SendBufferBytes: o.SendBufferBytes}
	if o.Mode == BindZeroCopy {
		s.granted.Mode = BindZeroCopy
	}
	s.noteRings()
	return nil
}

// quiet makes the descriptor unreadable if nothing waits, as poll finds it with a real socket.
func (s *Socket) quiet() {
	if s.closed {
		return
	}
	var b [8]byte
	_, _ = unix.Read(s.fd, b[:]) // EAGAIN if nothing was signalled
	if s.sim.Rx.Used() > 0 {
		_ = eventfd.Write(s.fd) // it came in between
	}
}
