// Package pcapng writes packet captures in the format of draft-ietf-opsawg-pcapng, with what this
// library knows of a packet: direction, queue, and how many were left out before it.
//
// It stands here although gopacket's pcapgo writes the same: that one takes four times as long for
// a packet and allocates (a capture that is too slow leaves packets out), does not see to it that
// names are UTF-8 and fit an option, begins no file without an interface, and brings the tables of
// all its protocols into each start of the tool.
package pcapng

import (
	"encoding/binary"
	"io"
	"strings"
	"unicode/utf8"
)

// Types of blocks.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockEnhanced   = 6
	blockStatistics = 5

	byteOrderMagic = 0x1a2b3c4d
	linkEthernet   = 1
)

// Options, by the block that they belong to.
const (
	optEnd = 0

	shbOS          = 3
	shbApplication = 4

	ifName        = 2
	ifDescription = 3
	ifTimeUnit    = 9

	epbFlags     = 2
	epbDropCount = 4
	epbQueue     = 6

	isbStart    = 2
	isbEnd      = 3
	isbReceived = 4
	isbDropped  = 5
)

// Directions, as the flags of a packet have them.
const (
	inbound  = 1
	outbound = 2
)

// Interface is where packets come from.
type Interface struct {
	Name, Description string
	SnapBytes         uint32 // of each packet are kept at most
}

// Packet is one packet.
type Packet struct {
	Interface int    // in the order of AddInterface
	UnixNs    uint64 // time of day
	Sent      bool
	Queue     uint32
	Len       uint32 // of the packet; Bytes may be shorter
	Dropped   uint64 // packets left out just before this one
	Bytes     []byte
}

// Statistics is what became of the packets of an interface.
type Statistics struct {
	Interface      int
	StartNs, EndNs uint64 // time of day
	Seen, Dropped  uint64
}

// Writer writes blocks, each with one call of the writer below. One goroutine uses it.
type Writer struct {
	w          io.Writer
	buf        []byte
	interfaces int
}

// NewWriter begins a section. application names the program that captures.
func NewWriter(w io.Writer, application string) (*Writer, error) {
	p := &Writer{w: w}
	p.begin(blockSection)
	p.u32(byteOrderMagic)
	p.u16(1) // version 1.0
	p.u16(0)
	p.u64(^uint64(0)) // length of the section is not known
	p.text(shbOS, "Linux")
	p.text(shbApplication, application)
	return p, p.end()
}

// AddInterface describes an interface and returns its number. Time stamps are in nanoseconds.
func (p *Writer) AddInterface(i Interface) (int, error) {
	p.begin(blockInterface)
	p.u16(linkEthernet)
	p.u16(0)
	p.u32(i.SnapBytes)
	p.text(ifName, i.Name)
	p.text(ifDescription, i.Description)
	p.option(ifTimeUnit, []byte{9})
	n := p.interfaces
	p.interfaces++
	return n, p.end()
}

// Write writes a packet.
func (p *Writer) Write(k *Packet) error {
	p.begin(blockEnhanced)
	p.u32(uint32(k.Interface))
	p.time(k.UnixNs)
	p.u32(uint32(len(k.Bytes)))
	p.u32(k.Len)
	p.buf = append(p.buf, k.Bytes...)
	p.pad()
	direction := uint32(inbound)
	if k.Sent {
		direction = outbound
	}
	p.option(epbFlags, binary.LittleEndian.AppendUint32(nil, direction))
	if k.Dropped > 0 {
		p.option(epbDropCount, binary.LittleEndian.AppendUint64(nil, k.Dropped))
	}
	p.option(epbQueue, binary.LittleEndian.AppendUint32(nil, k.Queue))
	return p.end()
}

// WriteStatistics says what became of the packets of an interface.
func (p *Writer) WriteStatistics(s *Statistics) error {
	p.begin(blockStatistics)
	p.u32(uint32(s.Interface))
	p.time(s.EndNs)
	stamp := func(code uint16, ns uint64) {
		b := binary.LittleEndian.AppendUint32(nil, uint32(ns>>32))
		p.option(code, binary.LittleEndian.AppendUint32(b, uint32(ns)))
	}
	stamp(isbStart, s.StartNs)
	stamp(isbEnd, s.EndNs)
	p.option(isbReceived, binary.LittleEndian.AppendUint64(nil, s.Seen))
	p.option(isbDropped, binary.LittleEndian.AppendUint64(nil, s.Dropped))
	return p.end()
}

func (p *Writer) begin(kind uint32) {
	p.buf = p.buf[:0]
	p.u32(kind)
	p.u32(0) // length, see end
}

func (p *Writer) u16(v uint16) { p.buf = binary.LittleEndian.AppendUint16(p.buf, v) }
func (p *Writer) u32(v uint32) { p.buf = binary.LittleEndian.AppendUint32(p.buf, v) }
func (p *Writer) u64(v uint64) { p.buf = binary.LittleEndian.AppendUint64(p.buf, v) }

// time puts the upper half first, whatever the byte order is.
func (p *Writer) time(ns uint64) {
	p.u32(uint32(ns >> 32))
	p.u32(uint32(ns))
}

func (p *Writer) pad() {
	for len(p.buf)%4 != 0 {
		p.buf = append(p.buf, 0)
	}
}

// text writes an option that is to be UTF-8. Names come from other processes, which may have any
// bytes in them; readers refuse a file for that.
func (p *Writer) text(code uint16, s string) {
	s = strings.ToValidUTF8(s, "\ufffd")
	if n := 1<<16 - 1; len(s) > n {
		for !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	if s != "" {
		p.option(code, []byte(s))
	}
}

func (p *Writer) option(code uint16, value []byte) {
	p.u16(code)
	p.u16(uint16(len(value)))
	p.buf = append(p.buf, value...)
	p.pad()
}

// end closes the options and the block, and writes it.
func (p *Writer) end() error {
	p.u32(optEnd)
	n := uint32(len(p.buf) + 4)
	p.u32(n)
	binary.LittleEndian.PutUint32(p.buf[4:], n)
	_, err := p.w.Write(p.buf)
	return err
}
