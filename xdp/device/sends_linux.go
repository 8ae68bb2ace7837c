package device

// sends remembers for whom the packets are that the kernel has not sent yet. The number of a row is
// the context of its packet.
type sends struct {
	rows []sendRow
	free []uint32
}

type sendRow struct {
	app     *app // nil once the application is gone
	context uint64
	slot    uint32 // of the application's payload memory
	inject  bool
}

func newSends(rows int) *sends {
	s := &sends{rows: make([]sendRow, rows), free: make([]uint32, 0, rows)}
	for i := rows; i > 0; i-- {
		s.free = append(s.free, uint32(i-1))
	}
	return s
}

func (s *sends) take(r sendRow) (row uint32, ok bool) {
	n := len(s.free)
	if n == 0 {
		return 0, false
	}
	row = s.free[n-1]
	s.free = s.free[:n-1]
	s.rows[row] = r
	return row, true
}

// end gives a row back and returns what stood in it.
func (s *sends) end(row uint64) (sendRow, bool) {
	if row >= uint64(len(s.rows)) {
		return sendRow{}, false
	}
	r := s.rows[row]
	s.rows[row] = sendRow{}
	s.free = append(s.free, uint32(row))
	return r, r.app != nil
}

// forget makes the rows of an application nobody's. They come back as the kernel sends them.
func (s *sends) forget(a *app) {
	for i := range s.rows {
		if s.rows[i].app == a {
			s.rows[i].app = nil
		}
	}
}
