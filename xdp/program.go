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

// String returns the mode in a word, or its number.
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

// ProgramInfo is an XDP program that is attached to an interface.
type ProgramInfo struct {
	ID   uint32 // as "bpftool prog" and "ip link" show it; 0 if the kernel does not say
	Name string // as its maker called it, cut to 15 bytes; empty when this process may not ask
	Mode AttachMode
	// Refused says of a [Program] why native mode was not granted; nil if it was, or was not asked
	// for.
	Refused error
}

// String returns number, name and mode, as in `7 "steer" (native)`.
func (i ProgramInfo) String() string {
	s := fmt.Sprintf("%d", i.ID)
	if i.Name != "" {
		s += fmt.Sprintf(" %q", i.Name)
	}
	return s + fmt.Sprintf(" (%v)", i.Mode)
}

// ProgramOptions say how to attach the steering program. The zero value is useful.
type ProgramOptions struct {
	Mode AttachMode
	// Sockets is the number of slots for sockets: one for each queue and group of rules. Zero
	// stands for 64.
	Sockets uint32
	// Rules is the number of rules that there may be at a time. Zero stands for 1024.
	Rules uint32
	// MultiBuffer says that frames may take several buffers (BPF_F_XDP_HAS_FRAGS), which drivers
	// ask for beyond some MTU. Sockets without multi-buffer support drop such frames.
	MultiBuffer bool
	// SteerSSH lets rules take TCP to port 22, which is the kernel's otherwise, so that a rule that
	// is too wide locks nobody out.
	SteerSSH bool
}

// Counters says what the steering program did with the frames that it saw.
type Counters struct {
	Redirected uint64 // given to a socket
	NoSocket   uint64 // for a socket by rule, but the queue had none: passed to the kernel
	OtherPort  uint64 // UDP that no rule matched: passed
	Fragment   uint64 // fragment of a datagram: passed
	Short      uint64 // ends inside a header: passed
	Other      uint64 // anything else that no rule matched: passed
	Kept       uint64 // ARP and whatever else [Rule] says the kernel needs: passed
	RulePassed uint64 // passed by a rule
	Dropped    uint64 // dropped by a rule
}

// counterOrder lists the fields in the order of the program's counts.
func (c *Counters) counterOrder() []*uint64 {
	return []*uint64{&c.Redirected, &c.NoSocket, &c.OtherPort, &c.Fragment, &c.Short, &c.Other,
		&c.Kept, &c.RulePassed, &c.Dropped}
}
