package endpoint

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/shmring/shmring/internal/drive"
	"github.com/shmring/shmring/internal/spin"
)

// Run drives the endpoint until the context ends or the endpoint fails: it works while there is
// work, looks for Spin, and sleeps then. It holds an operating system thread while it sleeps, and
// wakes ten times a second when nothing happens. Others may use the endpoint meanwhile if it is
// Shared.
//
// It returns the context's error, wrapped, after which it can be called again; or an error of
// Progress. After Close it returns os.ErrClosed.
func (e *Endpoint) Run(ctx context.Context) error {
	if !e.drive.TryLock() {
		return fault("run", ErrDriven, "")
	}
	defer e.drive.Unlock()
	if e.closed.Load() {
		return fault("run", os.ErrClosed, "")
	}
	err := e.loop.Run(ctx, e.cfg.Spin, run{e})
	switch {
	case err == nil && e.closed.Load():
		err = os.ErrClosed
	case err == nil:
		err = ctx.Err()
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, err) {
			err = fmt.Errorf("%w: %w", err, cause)
		}
	}
	e.lock()
	e.publish(spin.Now())
	e.show(e.statsAt)
	e.unlock()
	return fault("run", err, "")
}

// run is the endpoint as its loop sees it.
type run struct{ *Endpoint }

// Round implements drive.Device.
func (r run) Round(now int64) (work int, err error) {
	r.lock()
	defer r.unlock()
	if err := r.usable(); err != nil {
		if r.closed.Load() {
			err = drive.ErrStopped
		}
		return 0, err
	}
	return r.turn(now)
}
