package xdp

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"strings"

	"github.com/shmring/shmring/shm"
)

// Finding is one thing that Probe found out about a device or the kernel.
type Finding struct {
	Name     string // "link", "zero copy"
	Value    string // what was found; empty when that is unknown
	OK       bool   // it is there, or as it should be
	Required bool   // without it no socket of this package works here
	Remedy   string // what to do if it is not OK, or what does instead
}

// ProbeReport is what Probe found out. What only some kernels tell is zero on the others.
type ProbeReport struct {
	Interface string
	Index     int
	NetNS     uint64 // cookie of the network namespace, 0 if not known
	Driver    string
	MAC       net.HardwareAddr
	MTU       int
	Up        bool // set up
	Running   bool // and has a carrier
	Queues    QueueCounts
	// Features is nil when the kernel does not tell.
	Features *DeviceFeatures
	Program  ProgramInfo // the XDP program that is there; its ID is 0 if there is none
	Host     HostFindings
	// Findings says all this and more, a line each, in the order in which it matters.
	Findings []Finding
}

// Usable reports whether a socket of this package can work on the device: no required finding is
// amiss.
func (r *ProbeReport) Usable() bool {
	for _, f := range r.Findings {
		if f.Required && !f.OK {
			return false
		}
	}
	return true
}

// QueueCounts are numbers of hardware queues.
type QueueCounts struct {
	Rx, Tx       int // in use
	RxMax, TxMax int // possible with "ethtool -L"
	BusyPoll     int // of the receive queues: those that a socket can poll busily
}

// HostFindings do not depend on the device.
type HostFindings struct {
	MemlockBytes  uint64 // limit of locked memory; all ones: none
	MemlockFree   bool   // the privilege to lock memory without a limit (CAP_IPC_LOCK)
	HugePagesFree int    // of HugePageBytes each
	HugePageBytes uint64
	MissingCaps   []string // of those that sockets and programs need
	Granted       Granted  // to a socket that was opened on queue 0 in copy mode, to try
	SocketError   error    // why there was none
	ProgramError  error    // why the steering program does not load
}

// DeviceFeatures are bits of the netdev family of generic netlink.
type DeviceFeatures struct {
	XDP              XDPFeatures
	ZeroCopySegments uint32 // most buffers of a packet in zero-copy mode; 1: no multi-buffer
	RxMetadata       RxMetadata
	TxMetadata       TxMetadata
}

// XDPFeatures says what the driver does with an XDP program.
type XDPFeatures uint64

// What a driver can do.
const (
	XDPBasic        XDPFeatures = 1 << iota // runs programs that pass, drop and send back
	XDPRedirect                             // redirects to sockets and other devices
	XDPNdoXmit                              // takes redirected packets
	XDPZeroCopy                             // shares frames with AF_XDP sockets
	XDPOffload                              // runs programs in hardware
	XDPRxSG                                 // receives packets in several buffers
	XDPNdoXmitSG                            // takes redirected packets in several buffers
	xdpFeatureNames = "basic redirect ndo-xmit xsk-zerocopy hw-offload rx-sg ndo-xmit-sg"
)

// RxMetadata says what the driver can tell a program about a received packet.
type RxMetadata uint64

// What a driver can tell.
const (
	RxTimestamp     RxMetadata = 1 << iota // when the packet came, by the hardware's clock
	RxHash                                 // the hash that chose the queue
	RxVLANTag                              // the tag that the hardware took out
	rxMetadataNames = "timestamp hash vlan-tag"
)

// TxMetadata says what the driver does for a packet that a socket sends.
type TxMetadata uint64

// What a driver does.
const (
	TxTimestamp     TxMetadata = 1 << iota // says when the packet left
	TxChecksum                             // completes the checksum
	TxLaunchTime                           // sends at a given time
	txMetadataNames = "tx-timestamp tx-checksum tx-launch-time-fifo"
)

func (f XDPFeatures) String() string { return bitNames(uint64(f), xdpFeatureNames) }
func (f RxMetadata) String() string  { return bitNames(uint64(f), rxMetadataNames) }
func (f TxMetadata) String() string  { return bitNames(uint64(f), txMetadataNames) }

// bitNames lists the names of the bits that are set, in the kernel's words.
func bitNames(set uint64, names string) string {
	if set == 0 {
		return "none"
	}
	known := strings.Fields(names)
	var out []string
	for ; set != 0; set &= set - 1 {
		if i := bits.TrailingZeros64(set); i < len(known) {
			out = append(out, known[i])
		} else {
			out = append(out, fmt.Sprintf("bit%d", i))
		}
	}
	return strings.Join(out, " ")
}

// nativeMTU is the longest MTU that fits the one buffer that a driver gives a program that does not
// take several, on machines with pages of 4096 bytes.
const nativeMTU = 4096 - 256 - 320 - 14

// hint is the advice in an error, if it has one.
func hint(err error) string {
	var e *shm.Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// judge turns what was found into findings.
func (r *ProbeReport) judge() {
	add := func(required, ok bool, name, value, remedy string) {
		if ok {
			remedy = ""
		}
		r.Findings = append(r.Findings, Finding{name, value, ok, required, remedy})
	}
	state := "down"
	remedy := fmt.Sprintf("try \"ip link set %s up\"", r.Interface)
	if r.Up {
		state, remedy = "up, no carrier", "look at the cable, or at the other end of a virtual link"
	}
	if r.Running {
		state = "up"
	}
	state += fmt.Sprintf(", MTU %d", r.MTU)
	if len(r.MAC) > 0 { // the loopback has none
		state += ", " + r.MAC.String()
	}
	add(true, r.Running, "link", state, remedy)
	add(false, r.Driver != "", "driver", r.Driver, "the driver does not say its name")
	add(false, r.Queues.Rx > 0, "queues", r.Queues.String(), "the driver does not say how many")
	program, remedy := "none", ""
	if r.Program.ID != 0 {
		program = r.Program.String()
		remedy = fmt.Sprintf("see \"bpftool prog show id %d\", stop what owns it", r.Program.ID)
	}
	add(true, r.Program.ID == 0, "program", program, remedy)
	add(true, r.Host.ProgramError == nil, "bpf", failure("loads", r.Host.ProgramError),
		hint(r.Host.ProgramError))
	socket := fmt.Sprintf("%v on queue 0", r.Host.Granted.Mode)
	add(true, r.Host.SocketError == nil, "socket", failure(socket, r.Host.SocketError),
		hint(r.Host.SocketError))
	add(false, len(r.Host.MissingCaps) == 0, "capabilities", capabilities(r.Host.MissingCaps),
		"run as root, or with these; a socket can be handed to a process without")
	r.judgeFeatures(add)
	r.judgeHost(add)
}

func (r *ProbeReport) judgeFeatures(add func(required, ok bool, name, value, remedy string)) {
	var f DeviceFeatures
	names := [...]string{"", "", "", ""}
	unknown := "the kernel does not tell; Linux 6.3 and later do"
	if r.Features != nil {
		f = *r.Features
		names = [...]string{f.XDP.String(), fmt.Sprintf("%d buffers", f.ZeroCopySegments),
			f.RxMetadata.String(), f.TxMetadata.String()}
		unknown = ""
	}
	or := func(s string) string {
		if unknown != "" {
			return unknown
		}
		return s
	}
	const native = XDPBasic | XDPRedirect
	add(false, f.XDP&native == native, "native mode", names[0],
		or("generic mode works with every driver, and costs a copy more"))
	add(false, r.MTU <= nativeMTU || f.XDP&XDPRxSG != 0, "MTU", fmt.Sprint(r.MTU),
		fmt.Sprintf("native mode takes up to %d here", nativeMTU))
	add(false, f.XDP&XDPZeroCopy != 0, "zero copy", yes(f.XDP&XDPZeroCopy != 0, unknown == ""),
		or("frames are copied once between driver and UMEM"))
	add(false, f.XDP&XDPRxSG != 0, "multi-buffer", yes(f.XDP&XDPRxSG != 0, unknown == ""),
		or("packets must fit a frame"))
	if f.XDP&XDPZeroCopy != 0 {
		add(false, f.ZeroCopySegments > 1, "zero-copy segments", names[1],
			"a packet of several frames needs copy mode")
	}
	add(false, f.RxMetadata != 0, "receive metadata", names[2],
		or("the driver tells a program nothing"))
	add(false, f.TxMetadata != 0, "transmit metadata", names[3],
		or("checksums are computed here, times are not known"))
	add(false, r.Queues.BusyPoll > 0, "busy polling", fmt.Sprintf("%d queues", r.Queues.BusyPoll),
		"the driver has no queue that can be polled; spin on the rings instead")
}

func (r *ProbeReport) judgeHost(add func(required, ok bool, name, value, remedy string)) {
	h := &r.Host
	known := h.SocketError == nil
	add(false, h.Granted.NeedWakeup, "need wakeup", yes(h.Granted.NeedWakeup, known),
		"each send and fill needs a system call")
	budget := ""
	if known {
		budget = fmt.Sprintf("%d packets a system call in copy mode", h.Granted.TxBudget)
	}
	add(false, h.Granted.TxBudget > defaultTxBudget, "send budget", budget,
		"Linux 6.17 and later can be asked for more")
	limit := "unlimited"
	if h.MemlockBytes != ^uint64(0) && !h.MemlockFree {
		limit = fmt.Sprintf("%d KiB", h.MemlockBytes>>10)
	}
	const usual = 8 << 20 // of UMEM
	add(false, h.MemlockFree || h.MemlockBytes >= usual, "locked memory", limit,
		"raise it with \"ulimit -l\" or LimitMEMLOCK, or grant CAP_IPC_LOCK")
	add(false, h.HugePagesFree > 0, "huge pages",
		fmt.Sprintf("%d free of %d KiB", h.HugePagesFree, h.HugePageBytes>>10),
		"set vm.nr_hugepages; small pages work too")
}

func (q QueueCounts) String() string {
	s := fmt.Sprintf("%d receive, %d send", q.Rx, q.Tx)
	if q.RxMax > 0 || q.TxMax > 0 {
		s += fmt.Sprintf(" (possible: %d, %d)", q.RxMax, q.TxMax)
	}
	return s
}

func yes(ok, known bool) string {
	switch {
	case !known:
		return ""
	case ok:
		return "yes"
	}
	return "no"
}

// failure is what went wrong, without the advice that stands beside it.
func failure(good string, err error) string {
	var e *shm.Error
	switch {
	case err == nil:
		return good
	case errors.As(err, &e) && e.Err != nil:
		return e.Err.Error()
	}
	return err.Error()
}

func capabilities(missing []string) string {
	if len(missing) == 0 {
		return "all"
	}
	return "without " + strings.Join(missing, " ")
}
