package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/place"
	"github.com/shmring/shmring/shm"
)

// A message begins with the header of a conversation; its status is the error number of a no. See
// the package comment for who says what when. The rest of it, little-endian:
//
//	16   frames u32, sends u32
//	24   generation u64 of the UMEM; in a hello the one before, 0 if there was none
//	32   number of ports u32, longest payload u32
//	40   lanes of received packets and of sends, u32 each
//	48   bytes of a send slot u32; in a hello and a grant flags u32, else zero
//	56   zero
//	64   ports, 32 of u16, the rest zero
//	128  text, padded with zeros: name of the application, or why not
//	224  zero
const (
	helloBytes = 256
	maxPorts   = 32
	offPorts   = 64
	offText    = 128
	offTextEnd = 224

	// Flags.
	helloWrongSums = 1 // datagrams with wrong checksums are wanted too
	helloInPlace   = 2 // frames are read where the kernel put them; also in a grant
	helloFlags     = helloWrongSums | helloInPlace
)

var protocol = place.Protocol{Pkg: pkg, Op: "read message", Magic: "shmrdev\n", Version: 1,
	Bytes: helloBytes, Steps: []string{stepHello: "hello", stepGrant: "grant", stepMemory: "memory",
		stepReady: "ready", stepStart: "start", stepTake: "take", stepDrop: "drop", stepDone: "done"},
	MostFDs: 2, Wrong: ErrProtocol,
	Count: func(step uint16, _ []byte) (int, bool) {
		return [...]int{stepGrant: 2, stepMemory: 1, stepDone: 0}[step], true
	},
	No: func(status uint32, b []byte) error {
		text := bytes.TrimRight(b[offText:offTextEnd], "\x00")
		return &refusedError{syscall.Errno(status), printable(string(text))}
	}}

const (
	stepHello  uint16 = 1 + iota // application: what it wants
	stepGrant                    // server: what it gets, with UMEM and status page
	stepMemory                   // application: its payload memory
	stepReady                    // server: all queues are joined
	stepStart                    // application: packets may come
	stepTake                     // application: one more port
	stepDrop                     // application: one port less
	stepDone                     // server: answer to the last two
)

type hello struct {
	step           uint16
	status         syscall.Errno
	frames, sends  uint32
	generation     uint64
	maxPayload     uint32
	rxLane, txLane uint32
	slotBytes      uint32
	wrongSums      bool
	inPlace        bool
	ports          []uint16
	text           string
}

func (h *hello) encode() []byte {
	b := protocol.Message(h.step, uint32(h.status))
	le := binary.LittleEndian
	le.PutUint32(b[16:], h.frames)
	le.PutUint32(b[20:], h.sends)
	le.PutUint64(b[24:], h.generation)
	le.PutUint32(b[32:], uint32(min(len(h.ports), maxPorts)))
	le.PutUint32(b[36:], h.maxPayload)
	le.PutUint32(b[40:], h.rxLane)
	le.PutUint32(b[44:], h.txLane)
	le.PutUint32(b[48:], h.slotBytes)
	var flags uint32
	if h.wrongSums {
		flags |= helloWrongSums
	}
	if h.inPlace {
		flags |= helloInPlace
	}
	le.PutUint32(b[52:], flags)
	for i, p := range h.ports[:min(len(h.ports), maxPorts)] {
		le.PutUint16(b[offPorts+2*i:], p)
	}
	copy(b[offText:offTextEnd], h.text)
	return b
}

// decodeHello reads one message. Nothing of it is believed but that it has a meaning: every number
// is still to be held against what the receiver allows.
func decodeHello(b []byte) (h hello, err error) {
	if _, _, err := protocol.Header(b); err != nil {
		return hello{}, err
	}
	bad := func(field string, got, want any) (hello, error) {
		return hello{}, protocol.Refuse(field, got, want)
	}
	le := binary.LittleEndian
	h = hello{step: le.Uint16(b[10:]), status: syscall.Errno(le.Uint32(b[12:])),
		frames: le.Uint32(b[16:]), sends: le.Uint32(b[20:]), generation: le.Uint64(b[24:]),
		maxPayload: le.Uint32(b[36:]), rxLane: le.Uint32(b[40:]), txLane: le.Uint32(b[44:]),
		slotBytes: le.Uint32(b[48:])}
	flags := le.Uint32(b[52:])
	h.wrongSums, h.inPlace = flags&helloWrongSums != 0, flags&helloInPlace != 0
	n := le.Uint32(b[32:])
	switch {
	case h.status > 4095:
		return bad("status", uint32(h.status), "an error number")
	case n > maxPorts:
		return bad("number of ports", n, maxPorts)
	case flags&^helloFlags != 0 || !zero(b[56:offPorts]) || !zero(b[offTextEnd:]) ||
		!zero(b[offPorts+2*n:offText]):
		return bad("unused bytes", "set", 0)
	}
	for i := range n {
		h.ports = append(h.ports, le.Uint16(b[offPorts+2*i:]))
	}
	text := b[offText:offTextEnd]
	h.text = string(bytes.TrimRight(text, "\x00"))
	if h.text != printable(h.text) {
		return bad("text", fmt.Sprintf("%q", h.text), "printable ASCII")
	}
	return h, nil
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// refusal is the no that stands for an error.
func refusal(s uint16, err error) hello {
	return hello{step: s, status: statusOf(err), text: printable(err.Error())}
}

// statusOf is the number that passes for an error.
func statusOf(err error) syscall.Errno {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.num
		}
	}
	for _, r := range sameAs {
		if errors.Is(err, r.err) {
			return r.num
		}
	}
	var num syscall.Errno
	if errors.As(err, &num) && num > 0 && num < 4096 {
		return num
	}
	return syscall.EPROTO
}

// printable keeps of a text what a message can carry.
func printable(s string) string {
	b := []byte(s[:min(len(s), offTextEnd-offText)])
	for i, c := range b {
		if c < 0x20 || c > 0x7e {
			b[i] = '?'
		}
	}
	return string(b)
}

// expect refuses a message of another step, and translates a no.
func (h *hello) expect(want uint16) error { return protocol.Expect(h.encode(), want) }

// Commands are entries of the submission queue. Their flags say which they are, and nothing else
// may be set.
//
//	             send                             return
//	Context      comes back with the completion   0
//	Buf          payload, in the application's    the frame, in its UMEM
//	Len          bytes of payload                 0
//	Data, Tag    destination address, 16 bytes    generation: the completion's sequence, 0
//	Src          destination port, own port << 16 0
const (
	sendFlags   = cq.FlagSend | cq.FlagMsg
	injectFlags = sendFlags | cq.FlagInject
	returnFlags = cq.FlagFrame
)

// sendCommand asks for a datagram to be sent.
func sendCommand(context uint64, flags cq.Flags, payload shm.Ref, n int, from uint16,
	to netip.AddrPort) cq.Entry {
	ip := to.Addr().As16()
	return cq.Entry{Context: context, Flags: flags, Len: uint64(n), Buf: payload,
		Data: binary.LittleEndian.Uint64(ip[:]), Tag: binary.LittleEndian.Uint64(ip[8:]),
		Src: cq.From(cq.Addr(to.Port()) | cq.Addr(from)<<16)}
}

// target is where a command wants a datagram to go, and from which port.
type target struct {
	to   netip.AddrPort
	from uint16
}

func targetOf(e *cq.Entry) target {
	var ip [16]byte
	binary.LittleEndian.PutUint64(ip[:], e.Data)
	binary.LittleEndian.PutUint64(ip[8:], e.Tag)
	addr := netip.AddrFrom16(ip).Unmap()
	ports := e.Src.Addr()
	return target{to: netip.AddrPortFrom(addr, uint16(ports)), from: uint16(ports >> 16)}
}

// returnCommand gives the frame of a receive completion back.
func returnCommand(e *cq.Entry) cq.Entry {
	return cq.Entry{Flags: returnFlags, Buf: e.Buf, Data: uint64(e.Meta.Seq()),
		Meta: cq.MetaNoContext}
}

// wire is a conversation between application and server. Rendezvous of package cq are conversations
// of their own on the same connection, before or after it.
type wire struct {
	*place.Conversation
}

// meet begins a conversation that lasts as long as the context, or to End.
func meet(ctx context.Context, conn *net.UnixConn) wire { return wire{protocol.Begin(ctx, conn)} }

func (w wire) send(h hello, fds ...int) error { return w.Send(h.encode(), fds...) }

// sendSoon sends one message, which may wait for room until the context ends.
func (w wire) sendSoon(ctx context.Context, h hello) error {
	err := w.SendNow(h.encode())
	if errors.Is(err, syscall.EAGAIN) {
		soon := meet(ctx, w.Conn)
		defer soon.End()
		err = soon.send(h)
	}
	return err
}

// receive returns the peer's next message with its descriptors, which the caller closes.
func (w wire) receive(want uint16) (h hello, fds []int, err error) {
	return decoded(w.Receive(want))
}

// next is receive of whatever step, for sides that are sent no descriptors: it closes them.
func (w wire) next() (hello, error) {
	h, fds, err := decoded(w.Next())
	shm.CloseFDs(fds)
	return h, err
}

func decoded(b []byte, fds []int, err error) (hello, []int, error) {
	var h hello
	if err == nil {
		h, err = decodeHello(b)
	}
	if err != nil {
		shm.CloseFDs(fds)
		return h, nil, err
	}
	return h, fds, nil
}

// objection waits until the server says something, and returns its no if it says no in place of a
// rendezvous.
func (w wire) objection() error {
	ours, err := w.Peek()
	if err != nil || !ours {
		return err
	}
	_, _, err = w.receive(stepGrant)
	if err == nil {
		err = fmt.Errorf("%w: a second grant", ErrProtocol)
	}
	return err
}

// lastWord returns the no that the other end said before it hung up, if it said one, in place of
// the error that this end noticed the end by: what is sent then fails before the no is read.
func lastWord(ctx context.Context, conn *net.UnixConn, err error) error {
	if !hungUp(err) || ctx.Err() != nil {
		return err
	}
	// A child may hold the connection of a server that is gone.
	ctx, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	w := meet(ctx, conn)
	defer w.End()
	if no := w.LastWord(lastWords, maxLastFDs); no != nil {
		return no
	}
	return err
}

// What of a rendezvous may be unread when the other end says no: a few messages, each with a few
// descriptors.
const (
	lastWords  = 8
	maxLastFDs = 8
)

// hungUp reports errors that say that the other end is gone.
func hungUp(err error) bool {
	return place.HungUp(err) || errors.Is(err, cq.ErrPeerGone) || errors.Is(err, net.ErrClosed)
}

// maxLaneBytes bounds what attaching to a queue of the peer's may take of memory: the peer says how
// large its lanes are, and we make them.
const maxLaneBytes = 16 << 20

// attachQueue becomes a writer of a queue of the peer's, for up to most bytes.
func attachQueue(ctx context.Context, conn *net.UnixConn, allow *shm.AllowList,
	most uint64) (*cq.Writer, error) {
	return cq.Attach(ctx, cq.Over(conn), cq.WriterOptions{Trust: cq.CrossUser, Allow: allow,
		MaxBytes: most})
}

// newCommands makes the queue that one application submits to. There is to be room for a return of
// every frame, a send from every slot, and a batch: slots of sends that are refused in it are free
// before its entries are. A return must never find the queue full.
func newCommands(entries int, allow *shm.AllowList) (*cq.Queue, error) {
	return cq.Create(cq.Unnamed("commands"), cq.Options{Size: entries, MaxLanes: 1, Wait: cq.WaitFD,
		Trust: cq.CrossUser, Allow: allow})
}

// newCompletions makes the queue that an application reads.
func newCompletions(o cq.Options, allow *shm.AllowList) (*cq.Queue, error) {
	o.Trust, o.Allow = cq.CrossUser, allow
	return cq.Create(cq.Unnamed("completions"), o)
}

// watch ends the reading of a connection when its other end hangs up, or when the process there is
// gone: a child of it may hold the connection.
func watch(p *place.Peer, conn *net.UnixConn) { p.Watch(func() { _ = conn.CloseRead() }) }

// hangUp ends a connection for the other side, whoever holds descriptors of ours. Queues do.
func hangUp(conn *net.UnixConn) error {
	_ = conn.CloseRead()
	_ = conn.CloseWrite()
	return conn.Close()
}
