package demo

import (
	"context"
	"fmt"
	"os"

	"github.com/shmring/shmring/internal/stage"
)

// config is what the supervisor tells a child when it starts it.
type config struct {
	Dir       string `json:"dir"`
	Queue     string `json:"queue"`            // the application's completion queue
	Commands  string `json:"commands"`         // the producer's command queue
	Socket    string `json:"socket,omitempty"` // where the device process listens
	Count     uint64 `json:"count"`
	Interface string `json:"interface,omitempty"`
	Local     string `json:"local,omitempty"` // address and port of the device's end
	Remote    string `json:"remote,omitempty"`
	LocalMAC  string `json:"local_mac,omitempty"`
	RemoteMAC string `json:"remote_mac,omitempty"`
	Generic   bool   `json:"generic,omitempty"`
}

// event is a line from a child to the supervisor.
type event struct {
	Is    string  `json:"is"` // ready, progress, done, report, error
	Phase string  `json:"phase,omitempty"`
	Count uint64  `json:"count,omitempty"`
	Error string  `json:"error,omitempty"`
	Stats *result `json:"stats,omitempty"`
}

// result is what a child knows at the end; the supervisor adds them up.
type result struct {
	RX, TX    *Direction
	Mode      string
	Copy      bool
	Queue     uint32
	Syscalls  uint64
	Publishes uint64
	Wakes     uint64
	Notes     []string `json:",omitempty"` // for people, when something was lost
}

// Descriptors that a child is started with, after the standard three.
const (
	fdPeerSocket   = 3 // application and producer, to pass memory
	fdCreditSocket = 4 // application and peer, to pace each other
)

// line is a child's connection to the supervisor.
type line struct {
	child  *stage.Child
	ctx    context.Context // ends with the supervisor
	orders chan string     // "rx", "tx" or "report"; the end of the context is to leave at once
}

func newLine(c *stage.Child) *line {
	l := &line{child: c, orders: make(chan string, 4)}
	l.ctx = c.Listen(l.orders)
	return l
}

func (l *line) send(e event) { l.child.Send(e) }

// await returns when the supervisor gives the order.
func (l *line) await(what string) error {
	select {
	case got := <-l.orders:
		if got != what {
			return fmt.Errorf("supervisor ordered %q instead of %q", got, what)
		}
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// inherited wraps a descriptor that the child was started with.
func inherited(fd uintptr, name string) *os.File { return os.NewFile(fd, name) }
