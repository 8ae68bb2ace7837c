package endpoint

import "github.com/shmring/shmring/internal/drive"

// Rest implements drive.Device.
func (r run) Rest(now int64, s *drive.Sleep) error {
	r.lock()
	defer r.unlock()
	s.AtMost(r.checkAt - now)
	if !r.rxBlocked { // else it is readable, and that is no news
		s.On(r.socket.FD())
	}
	if r.rxBlocked || r.sending > 0 {
		s.Briefly()
	}
	if r.unseen {
		r.show(now)
	}
	r.stats.Polls++
	return nil
}
