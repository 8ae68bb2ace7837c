package xdp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/xskernel"
)

// membarrierGlobal waits until every thread, and every softirq, has been through a barrier
// (MEMBARRIER_CMD_GLOBAL).
const membarrierGlobal = 1

// sectionGrace is far longer than a driver is in one section that reads the program.
const sectionGrace = 20 * time.Millisecond

// Close takes the socket out of the steering program and gives the queue back, unless other sockets
// share it. The frames that the kernel had stay with this UMEM; nothing is received or sent any
// more, and calls do nothing, except that Reap may return what other sockets came upon, and Forfeit
// the rest.
func (s *Socket) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	var first error
	for _, e := range s.slots {
		if err := e.program.remove(e.slot, s); err != nil && first == nil {
			first = err
		}
	}
	s.slots = nil
	s.program.Store(nil)
	if err := s.release(); err != nil && first == nil {
		first = s.error("close socket", err, "")
	}
	return first
}

// release unmaps the rings first: each mapping holds the socket, and with it the queue, for ever.
func (s *Socket) release() error {
	last := s.pool == nil || s.pool.leave()
	if !last {
		s.takeBack()
	}
	s.rx, s.tx = deadConsumer[xskernel.Desc](), deadProducer[xskernel.Desc]()
	maps := s.maps
	s.maps = nil
	if last && s.pool != nil {
		s.fill, s.comp = deadProducer[uint64](), deadConsumer[uint64]()
		maps = append(maps, s.pool.maps...)
		s.pool.maps = nil
	}
	var first error
	for _, m := range maps {
		if err := unix.Munmap(m); err != nil && first == nil {
			first = err
		}
	}
	if s.sim != nil {
		s.sim.Unplug()
	}
	if s.holds {
		s.holds = false
		s.umem.drop(s)
	}
	if s.fd >= 0 {
		if err := unix.Close(s.fd); err != nil && first == nil {
			first = err
		}
		s.fd = -1
	}
	return first
}

// takeBack gives the others of the pool the frames that lie in the rings of this socket, which are
// never looked at again. It is out of the steering program by now.
func (s *Socket) takeBack() {
	if s.sim == nil {
		// A driver that saw the socket in the program may be about to write to its ring. It does so
		// within one section of what this call waits for (synchronize_rcu).
		_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
		if errno != 0 { // a filter of system calls refuses it: let the section end
			time.Sleep(sectionGrace)
		}
	}
	s.discard(int(s.rx.available(s.rx.mask + 1)))
	s.rx.release()
	s.abandonAll()
	if s.granted.Mode != BindZeroCopy {
		s.withdraw() // a driver takes what was flushed, and completes it
	}
}
