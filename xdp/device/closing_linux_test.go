package device_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp/device"
)

// TestSaysThatItCloses: whoever is connected to a server that ends is told that, however it ends
// and however far the two had come.
func TestSaysThatItCloses(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	ends := map[string]func(*rig){
		"by its context": func(r *rig) { r.cancel() },
		"by Close":       func(r *rig) { must(r.t, r.server.Close()) },
	}
	stages := map[string]func(*rig) *net.UnixConn{
		"greeted": func(r *rig) *net.UnixConn { return r.greeted() },
		"served": func(r *rig) *net.UnixConn {
			c := r.admitted()
			_, _, err := shm.RecvFDs(c, make([]byte, 256), 0) // done
			must(r.t, err)
			return c
		},
	}
	for how, end := range ends {
		for stage, come := range stages {
			t.Run(stage+", ended "+how, func(t *testing.T) {
				r := newRig(t, device.Config{})
				c := come(r)
				end(r)
				buf := make([]byte, 256)
				n, _, err := shm.RecvFDs(c, buf, 0)
				must(t, err)
				no := device.Refused(buf[:n])
				if !errors.Is(no, device.ErrClosing) || !errors.Is(no, syscall.ESHUTDOWN) {
					t.Errorf("it is told %v", no)
				}
			})
		}
	}
}

// greeted is the connection of an application that has its grant, and says nothing more.
func (r *rig) greeted() *net.UnixConn {
	c := r.raw()
	must(r.t, shm.SendFDs(c, device.Hello()))
	n, fds, err := shm.RecvFDs(c, make([]byte, 256), 2)
	must(r.t, err)
	shm.CloseFDs(fds)
	if n == 0 || len(fds) != 2 {
		r.t.Fatalf("a grant of %d bytes, %d descriptors", n, len(fds))
	}
	return c
}
