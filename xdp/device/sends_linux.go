package device

import "github.com/shmring/shmring/internal/drive"

// sends remembers for whom the packets are that the kernel has not sent yet. The number of a row is
// the context of its packet.
type sends struct {
	rows []sendRow
	free drive.Free
}

type sendRow struct {
	app     *app // nil once the application is gone
	context uint64
	slot    uint32 // of the application's payload memory
	inject  bool
}

func newSends(rows int) *sends {
	return &sends{rows: make([]sendRow, rows), free: drive.NewFree(rows)}
}

func (s *sends) take(r sendRow) (row uint32, ok bool) {
	if row, ok = s.free.Take(); ok {
		s.rows[row] = r
	}
	return row, ok
}

// end gives a row back and returns what stood in it.
func (s *sends) end(row uint64) (sendRow, bool) {
	if row >= uint64(len(s.rows)) {
		return sendRow{}, false
	}
	r := s.rows[row]
	s.rows[row] = sendRow{}
	s.free.Give(uint32(row))
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
