package command

import (
	"os"

	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/shm"
)

// source is the directory that is looked at. While somebody watches it can go and come back.
type source struct {
	path    string // as the user gave it; empty is the default
	dir     *shm.Dir
	monitor *ctl.Monitor
	opened  os.FileInfo
}

// refresh opens what stands at the path now, unless that is open already.
func (s *source) refresh() error {
	path := s.path
	if path == "" {
		path = shm.DefaultPath()
	}
	info, err := os.Lstat(path)
	if s.monitor != nil && err == nil && os.SameFile(info, s.opened) {
		return nil
	}
	s.close()
	d, err := shm.FindDir(path)
	if err != nil {
		return err
	}
	// info may be of what was there a moment before: then the next refresh opens again.
	s.dir, s.monitor, s.opened = d, ctl.NewMonitor(d), info
	return nil
}

func (s *source) close() {
	if s.monitor != nil {
		_ = s.monitor.Close()
		_ = s.dir.Close()
	}
	s.dir, s.monitor = nil, nil
}
