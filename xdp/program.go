package xdp

import "fmt"

// AttachMode says where in the kernel the steering program runs.
type AttachMode uint8

const (
	// AttachAuto tries native mode and takes generic mode if the driver refuses. As the mode of a
	// program that is attached it stands for one that this package does not know.
	AttachAuto AttachMode = iota
	// AttachNative runs in the driver.
	AttachNative
	// AttachGeneric runs in the stack, with any driver.
	AttachGeneric
)

func (m AttachMode) String() string {
	switch m {
	case AttachAuto:
		return "auto"
	case AttachNative:
		return "native"
	case AttachGeneric:
		return "generic"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// ProgramOptions say how to attach the steering program. The zero value is useful.
type ProgramOptions struct {
	Mode AttachMode
	// Sockets is the number of slots for sockets: one for each queue and group of ports. Zero
	// stands for 64.
	Sockets uint32
	// Ports is the number of ports that can be steered. Zero stands for 1024.
	Ports uint32
}

// Counters says what the steering program did with the frames that it saw.
type Counters struct {
	Redirected uint64 // given to a socket
	NoSocket   uint64 // to a steered port, but the queue had no socket: passed to the kernel
	OtherPort  uint64 // UDP to a port that is not steered: passed
	Fragment   uint64 // fragment of a datagram: passed
	Short      uint64 // ends inside a header: passed
	Other      uint64 // anything else: passed
}

// counterOrder lists the fields in the order of the program's counts.
func (c *Counters) counterOrder() []*uint64 {
	return []*uint64{&c.Redirected, &c.NoSocket, &c.OtherPort, &c.Fragment, &c.Short, &c.Other}
}

// Seen is the number of all frames that the program saw.
func (c Counters) Seen() (n uint64) {
	for _, v := range c.counterOrder() {
		n += *v
	}
	return n
}
