// Package demo is the program behind "shmctl demo": a frame on the wire becomes a completion in
// another process, and a send of that process becomes a frame on the wire.
//
//	peer                    device process                    application
//	kernel UDP socket       AF_XDP socket, frames             its own completion queue
//	  | datagrams  -- veth -->  posts  -- lane, bell -->  reads payload in place, returns frame
//	  | verifies   <-- veth --  sends  <-- lane, bell --  posts sends, reads completions
//
// The supervisor, which is the process that the user started, makes two network namespaces
// without names, starts the three others and adds up what they report. A child ends when its
// standard input does, so that nothing outlives the supervisor, however it died. Without the
// privilege for that, a producer process stands in for device and wire, with its payloads in shared
// memory of its own; the application is the same.
package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/stage"
)

const toolName = "demo"

// Tool is what the processes of a demonstration do.
var Tool = stage.Tool{Name: toolName, Play: func(c *stage.Child) error {
	l := &line{child: c, orders: make(chan string, 4)}
	l.ctx = c.Listen(l.orders)
	var cfg config
	err := c.Script(&cfg)
	if run, ok := roles[c.Role]; ok && err == nil {
		err = run(l, cfg)
	} else if err == nil {
		err = fmt.Errorf("no role %q", c.Role)
	}
	if err != nil {
		l.send(event{Is: "error", Error: err.Error()})
	}
	return err
}}

var roles = map[string]func(*line, config) error{
	"application": runApplication,
	"device":      runDevice,
	"producer":    runProducer,
	"peer":        runPeer,
}

// config is what the supervisor tells a child when it starts it.
type config struct {
	Dir      string    `json:"dir"`
	Queue    string    `json:"queue"`            // the application's completion queue
	Commands string    `json:"commands"`         // the producer's command queue
	Socket   string    `json:"socket,omitempty"` // where the device process listens
	Count    uint64    `json:"count"`
	Ends     wire.Ends `json:"ends"`
	Generic  bool      `json:"generic,omitempty"`
}

// Ports of the two ends. They are private to the namespaces.
const (
	devicePort = 7000
	peerPort   = 7001
)

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

// phases plays both directions, each when it is ordered, and reports when that is ordered.
func (l *line) phases(play func(phase string) (done uint64, err error),
	report func() *result) error {
	l.send(event{Is: "ready"})
	for _, phase := range []string{"rx", "tx"} {
		if err := l.await(phase); err != nil {
			return err
		}
		done, err := play(phase)
		if err != nil {
			return err
		}
		l.send(event{Is: "done", Phase: phase, Count: done})
	}
	if err := l.await("report"); err != nil {
		return err
	}
	l.send(event{Is: "report", Stats: report()})
	return nil
}

// pace is one end of the socket by which application and peer keep from running away from each
// other: in each direction the one that receives tells how many datagrams it has. A nil one tells
// nothing.
type pace struct {
	f     *os.File
	told  uint64
	heard atomic.Uint64
}

// creditEvery is after how many datagrams the other side is told.
const creditEvery = 32

// tell says how many of all are done, now and then.
func (p *pace) tell(done, all uint64) error {
	if p == nil || done-p.told < creditEvery && done != all {
		return nil
	}
	p.told = done
	if _, err := p.f.Write(binary.LittleEndian.AppendUint64(nil, done)); err != nil {
		return fmt.Errorf("credit: %w", err)
	}
	return nil
}

// follow hears until all are done, or the socket ends, and calls news each time.
func (p *pace) follow(all uint64, news func()) {
	var b [8]byte
	for p.heard.Load() < all {
		for n := 0; n < len(b); {
			k, err := p.f.Read(b[n:])
			if err != nil {
				return
			}
			n += k
		}
		p.heard.Store(binary.LittleEndian.Uint64(b[:]))
		news()
	}
}

func (p *pace) close() {
	if p != nil {
		_ = p.f.Close()
	}
}
