package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// config is what the supervisor tells a child when it starts it.
type config struct {
	Dir       string `json:"dir"`
	Queue     string `json:"queue"`    // the application's completion queue
	Commands  string `json:"commands"` // the device's command queue
	Count     uint64 `json:"count"`
	Interface string `json:"interface,omitempty"`
	Local     string `json:"local,omitempty"` // address and port of the device's end
	Remote    string `json:"remote,omitempty"`
	LocalMAC  string `json:"local_mac,omitempty"`
	RemoteMAC string `json:"remote_mac,omitempty"`
	Generic   bool   `json:"generic,omitempty"`
}

// order is a line from the supervisor to a child: "rx", "tx" or "report". The end of the stream is
// the order to leave at once.
type order struct {
	Do string `json:"do"`
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
	Detail    string `json:",omitempty"` // for people, when something was lost
}

// Descriptors that a child is started with, after the standard three.
const (
	fdPeerSocket   = 3 // application and device, to pass memory
	fdCreditSocket = 4 // application and peer, to pace each other
)

// line is a child's connection to the supervisor.
type line struct {
	ctx    context.Context // ends with the supervisor
	orders chan string
	mu     sync.Mutex
	out    *json.Encoder
}

// newLine starts listening to the supervisor; the context ends when it is gone.
func newLine(ctx context.Context, in io.Reader, out io.Writer) *line {
	ctx, cancel := context.WithCancelCause(ctx)
	l := &line{ctx: ctx, orders: make(chan string, 4), out: json.NewEncoder(out)}
	go func() {
		s := bufio.NewScanner(in)
		for s.Scan() {
			var o order
			if json.Unmarshal(s.Bytes(), &o) == nil {
				l.orders <- o.Do
			}
		}
		cancel(errSupervisorGone)
	}()
	return l
}

var errSupervisorGone = errors.New("supervisor ended the run")

func (l *line) send(e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.out.Encode(e) // a supervisor that is gone is noticed on the other pipe
}

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
