package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/shmring/shmring/internal/place"
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
		return &RefusedError{Errno: syscall.Errno(status), Text: printable(string(text))}
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
