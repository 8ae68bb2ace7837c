package ctl

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/shm"
)

// errNoProcess is fs.ErrNotExist.
var errNoProcess = shm.Sentinel("no such process", syscall.ENOENT)

// CheckProcess checks the objects of this library that a process has open or mapped, with a name
// or without: memfds that it made or was given, and what lost its name since. They are found by
// what is in them, and read through /proc; nothing of the process changes, and it does not notice.
// Findings are named PID/FD and by the name in the object's header, after that of the queue for a
// lane.
//
// A lane is compared with the queue's words if the process reads that queue, else checked by
// itself. What the process closes meanwhile is not reported. An error says what could not be
// checked, beside what was found: fs.ErrNotExist if there is no such process, fs.ErrPermission for
// one of another user (it takes that user, or root), and for single objects of other users that a
// process was given. With more objects than descriptors for them, or than 16384, it is EMFILE, and
// those that there was room for are checked. What is mapped and not open takes root in any case.
// Where there is no /proc it is errors.ErrUnsupported.
func CheckProcess(o CheckOptions, pid int) (CheckReport, error) {
	r := CheckReport{Undecided: []string{}, Findings: []Finding{}}
	p, err := openProcess(pid)
	if err != nil {
		return r, processError(pid, err)
	}
	defer p.close()
	err = r.take("", func() (all []inspect.Checked, part, err error) {
		held, part, err := p.held()
		if err != nil {
			return nil, nil, err
		}
		defer closeHeld(held)
		all, err = inspect.CheckHeld(held, o.More)
		return all, errors.Join(part, err), nil
	})
	return r, processError(pid, err)
}

// processError says what to do about a process that cannot be looked at.
func processError(pid int, err error) error {
	e := &shm.Error{Pkg: "ctl", Op: "look into", Name: fmt.Sprintf("process %d", pid), Err: err}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		e.Err, e.Hint = errNoProcess, "it has ended, or is in another PID namespace; see: ps -e"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "run as root, or as the user of the process"
	case errors.Is(err, syscall.EMFILE):
		e.Hint = "each takes a descriptor, see: ulimit -n; more than 16384 are not checked"
	}
	return e
}
