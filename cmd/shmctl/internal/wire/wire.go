// Package wire is the network in which tools play, and what they send over it: two interfaces, each
// in a namespace of its own, and payloads that say by themselves whether they are whole.
package wire

import (
	"context"
	"errors"
	"io/fs"
	"syscall"
	"time"

	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// Ends are the two ends of a pair, as processes are told of them: by convention the first is the
// device's.
type Ends [2]veth.End

// Ways resolves, at one of the ends, the address of the other one, and nothing else.
func (e Ends) Ways(at int) endpoint.Static {
	local, remote := e[at], e[1-at]
	return endpoint.Static{remote.Addr: xdp.Hop{LocalMAC: [6]byte(local.MAC),
		NextMAC: [6]byte(remote.MAC), Source: local.Addr, MTU: 1500, Generation: 1}}
}

// Dial connects to a device process at a path, as soon as there is one.
func Dial(ctx context.Context, path string, r device.Request) (*device.Endpoint, error) {
	for {
		e, err := device.Dial(ctx, path, r)
		if err == nil || ctx.Err() != nil ||
			!errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return e, err
		}
		time.Sleep(time.Millisecond)
	}
}
