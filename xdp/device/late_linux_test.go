package device_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/xdp/device"
)

// TestLateApplication: an application that was stopped in a meeting, and says the next thing when
// the server has hung up, hears why, and not only that it cannot say it.
func TestLateApplication(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	e := r.dial(device.Request{})
	r.server.SetHelloTimeout(300 * time.Millisecond)
	var before uint64
	late := func() {
		await(t, "the end of it", func() bool { return r.server.Stats().Refused > before })
		time.Sleep(20 * time.Millisecond) // it hangs up right after it has counted
	}
	for what, step := range map[string][2]func(){
		"memory": {late, func() {}}, "start": {func() {}, late},
	} {
		// Before it begins: a grant that is slow to be read may be the last word.
		before = r.server.Stats().Refused
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := e.Late(ctx, step[0], step[1])
		cancel()
		if !errors.Is(err, device.ErrSlow) || !errors.Is(err, syscall.ETIMEDOUT) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestDialsOn: a Dial goes on however many attempts are late, also when that is at the last step.
func TestDialsOn(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, device.Config{})
	path := socketPath(t)
	l, err := device.Listen(path)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	served := make(chan error, 1)
	go func() {
		for range 6 { // each takes two of the queue's eight lanes
			c, err := l.AcceptUnix()
			if err == nil {
				err = r.server.TooLate(ctx, c)
			}
			if err != nil {
				served <- err
				return
			}
		}
		served <- r.server.Serve(ctx, l.UnixListener)
	}()
	e, err := device.Dial(ctx, path, device.Request{Ports: []uint16{5000}})
	if err == nil {
		err = e.Close()
	}
	if err != nil {
		t.Error(err)
	}
	cancel()
	_ = l.SetDeadline(time.Unix(1, 0)) // for whoever was not dialed so often
	if err := <-served; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, l.Close())
}
