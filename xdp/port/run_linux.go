package port

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
)

// Run drives the port until the context ends or the port fails, as [endpoint.Endpoint.Run] does an
// endpoint: it sleeps when there is nothing to do, and a command ends that sleep.
//
// It returns the context's error, wrapped, after which it can be called again; or an error of
// Progress. After Close it returns os.ErrClosed.
func (p *Port) Run(ctx context.Context) error {
	if !p.drive.TryLock() {
		return fault("run", "", ErrDriven, "")
	}
	defer p.drive.Unlock()
	if err := p.usable(); err != nil {
		return err
	}
	return p.over(p.endpoint.RunWith(ctx, work{p}))
}

// work is the port as the goroutine that drives its endpoint sees it.
type work struct{ *Port }

// Round implements endpoint.Work.
func (w work) Round(now int64) (int, error) { return w.round(now) }

// Idle implements endpoint.Work: the descriptor tells of commands that come from now on.
func (w work) Idle() (fd int, ready bool, err error) {
	if w.blocked {
		return -1, false, nil
	}
	err = w.q.TryWait()
	switch {
	case err == nil:
		wait, err := w.q.GetWait()
		return wait.FD, false, err
	case err == cq.ErrWouldBlock, err == cq.ErrSignaled, w.lost(err):
		return -1, true, nil
	}
	return -1, false, err
}

// sealShrink makes sure that a memfd keeps its size.
func sealShrink(fd int) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK != 0 {
		return err
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	return err
}
