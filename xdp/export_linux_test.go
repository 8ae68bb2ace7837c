package xdp

import "time"

// Tests whose machine is short of time on purpose wait longer for the kernel.
func init() { busyBound = time.Minute }

// ForgePost puts any descriptor into the transmit ring, as this package never does. If it names a
// frame that was acquired, the frame counts as posted.
func ForgePost(s *Socket, d Desc, context uint64) bool {
	if s.tx.room(s.built+1) <= s.built {
		return false
	}
	if id := s.frameOf(d.Addr); s.acquired(id) {
		s.built--
		s.inflight++
		s.put(id, d, context)
		return true
	}
	s.tx.put(d)
	return true
}

// SendOffset is where the packet of an acquired frame lies in the UMEM.
func SendOffset(s *Socket, frame uint32) uint64 { return s.sendOff(frame) }

// SentTo returns how far the kernel has read the transmit ring.
func SentTo(s *Socket) uint32 { return s.tx.cons.Load() }

// SendOnce makes one system call that sends.
func SendOnce(s *Socket) error {
	if e := s.sendto(1); e != 0 {
		return e
	}
	return nil
}
