package wire

import (
	"context"
	"errors"
	"fmt"

	"github.com/shmring/shmring/xdp/device"
)

// Served is a device process that serves.
type Served struct {
	*device.Server
	listener *device.Listener
	stop     context.CancelFunc
	done     chan struct{}
	err      error // why it does not serve any more, when done is closed
}

// Serve makes a device process that serves whoever connects to a path.
func Serve(path string, c device.Config) (*Served, error) {
	server, err := device.NewServer(context.Background(), c)
	if err != nil {
		return nil, err
	}
	l, err := device.Listen(path)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Served{Server: server, listener: l, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = server.Serve(ctx, l.UnixListener)
	}()
	return s, nil
}

// Wait waits until it does not serve any more, and returns why.
func (s *Served) Wait() error {
	<-s.done
	return s.err
}

// Stop has it admit nobody any more. The error is that it stopped before, for another reason.
func (s *Served) Stop() error {
	s.stop()
	if err := s.Wait(); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// Close ends the device process.
func (s *Served) Close() error {
	return errors.Join(s.Stop(), s.Server.Close(), s.listener.Close())
}
