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
	Driver    string // empty if it does not say its name
	MTU       int
	// Usable says that a socket of this package can work on the device: no finding that is required
	// is amiss.
	Usable    bool
	Program   ProgramInfo // the XDP program that is there; its ID is 0 if there is none
	SocketErr error       // why no socket could be opened on queue 0 in copy mode, to try
	// Findings says all this and more, a line each, in the order in which it matters.
	Findings []Finding
}

// amiss reports a finding without which no socket works.
func amiss(f Finding) bool { return f.Required && !f.OK }

// probed is a report and what its findings are made of.
type probed struct {
	ProbeReport
	mac         net.HardwareAddr
	up, running bool // set up, and has a carrier
	queues      queueCounts
	features    *deviceFeatures // nil when the kernel does not tell
	host        hostFindings
}

// queueCounts are numbers of hardware queues.
type queueCounts struct {
	rx, tx       int // in use
	rxMax, txMax int // possible with "ethtool -L"
	busyPoll     int // of the receive queues: those that a socket can poll busily
}

// hostFindings do not depend on the device.
type hostFindings struct {
	memlockBytes  uint64 // limit of locked memory; all ones: none
	memlockFree   bool   // the privilege to lock memory without a limit (CAP_IPC_LOCK)
	hugePagesFree int    // of hugePageBytes each
	hugePageBytes uint64
	missingCaps   []string   // of those that sockets and programs need
	granted       SocketInfo // to the socket that was opened to try
	programErr    error      // why the steering program does not load
}

// deviceFeatures are bits of the netdev family of generic netlink.
type deviceFeatures struct {
	xdp, rxMetadata, txMetadata uint64
	zeroCopySegments            uint32 // most buffers of a packet; 1: no multi-buffer
}

// What the bits are called, and those of the first kind that matter here.
const (
	xdpFeatureNames = "basic redirect ndo-xmit xsk-zerocopy hw-offload rx-sg ndo-xmit-sg"
	rxMetadataNames = "timestamp hash vlan-tag"
	txMetadataNames = "tx-timestamp tx-checksum tx-launch-time-fifo"

	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3
	xdpRxSG     = 1 << 5
)

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
func (r *probed) judge() {
	add := func(required, ok bool, name, value, remedy string) {
		if ok {
			remedy = ""
		}
		r.Findings = append(r.Findings, Finding{name, value, ok, required, remedy})
	}
	state := "down"
	remedy := fmt.Sprintf("try \"ip link set %s up\"", r.Interface)
	if r.up {
		state, remedy = "up, no carrier", "look at the cable, or at the other end of a virtual link"
	}
	if r.running {
		state = "up"
	}
	state += fmt.Sprintf(", MTU %d", r.MTU)
	if len(r.mac) > 0 { // the loopback has none
		state += ", " + r.mac.String()
	}
	add(true, r.running, "link", state, remedy)
	add(false, r.Driver != "", "driver", r.Driver, "the driver does not say its name")
	add(false, r.queues.rx > 0, "queues", r.queues.String(), "the driver does not say how many")
	program, remedy := "none", ""
	if r.Program.ID != 0 {
		program = r.Program.text()
		remedy = fmt.Sprintf("see \"bpftool prog show id %d\", stop what owns it", r.Program.ID)
	}
	add(true, r.Program.ID == 0, "program", program, remedy)
	add(true, r.host.programErr == nil, "bpf", failure("loads", r.host.programErr),
		hint(r.host.programErr))
	socket := fmt.Sprintf("%v on queue 0", r.host.granted.Mode)
	add(true, r.SocketErr == nil, "socket", failure(socket, r.SocketErr),
		hint(r.SocketErr))
	add(false, len(r.host.missingCaps) == 0, "capabilities", capabilities(r.host.missingCaps),
		"run as root, or with these; a socket can be handed to a process without")
	r.judgeFeatures(add)
	r.judgeHost(add)
}

func (r *probed) judgeFeatures(add func(required, ok bool, name, value, remedy string)) {
	var f deviceFeatures
	names := [...]string{"", "", "", ""}
	unknown := "the kernel does not tell; Linux 6.3 and later do"
	if r.features != nil {
		f = *r.features
		names = [...]string{bitNames(f.xdp, xdpFeatureNames),
			fmt.Sprintf("%d buffers", f.zeroCopySegments),
			bitNames(f.rxMetadata, rxMetadataNames), bitNames(f.txMetadata, txMetadataNames)}
		unknown = ""
	}
	or := func(s string) string {
		if unknown != "" {
			return unknown
		}
		return s
	}
	const native = xdpBasic | xdpRedirect
	add(false, f.xdp&native == native, "native mode", names[0],
		or("generic mode works with every driver, and costs a copy more"))
	add(false, r.MTU <= nativeMTU || f.xdp&xdpRxSG != 0, "MTU", fmt.Sprint(r.MTU),
		fmt.Sprintf("native mode takes up to %d here", nativeMTU))
	add(false, f.xdp&xdpZeroCopy != 0, "zero copy", yes(f.xdp&xdpZeroCopy != 0, unknown == ""),
		or("frames are copied once between driver and UMEM"))
	add(false, f.xdp&xdpRxSG != 0, "multi-buffer", yes(f.xdp&xdpRxSG != 0, unknown == ""),
		or("packets must fit a frame"))
	if f.xdp&xdpZeroCopy != 0 {
		add(false, f.zeroCopySegments > 1, "zero-copy segments", names[1],
			"a packet of several frames needs copy mode")
	}
	add(false, f.rxMetadata != 0, "receive metadata", names[2],
		or("the driver tells a program nothing"))
	add(false, f.txMetadata != 0, "transmit metadata", names[3],
		or("checksums are computed here, times are not known"))
	add(false, r.queues.busyPoll > 0, "busy polling", fmt.Sprintf("%d queues", r.queues.busyPoll),
		"the driver has no queue that can be polled; spin on the rings instead")
}

func (r *probed) judgeHost(add func(required, ok bool, name, value, remedy string)) {
	h := &r.host
	known := r.SocketErr == nil
	add(false, h.granted.NeedWakeup, "need wakeup", yes(h.granted.NeedWakeup, known),
		"each send and fill needs a system call")
	budget := ""
	if known {
		budget = fmt.Sprintf("%d packets a system call in copy mode", h.granted.TxBudget)
	}
	add(false, h.granted.TxBudget > defaultTxBudget, "send budget", budget,
		"Linux 6.17 and later can be asked for more")
	limit := "unlimited"
	if h.memlockBytes != ^uint64(0) && !h.memlockFree {
		limit = fmt.Sprintf("%d KiB", h.memlockBytes>>10)
	}
	const usual = 8 << 20 // of UMEM
	add(false, h.memlockFree || h.memlockBytes >= usual, "locked memory", limit,
		"raise it with \"ulimit -l\" or LimitMEMLOCK, or grant CAP_IPC_LOCK")
	add(false, h.hugePagesFree > 0, "huge pages",
		fmt.Sprintf("%d free of %d KiB", h.hugePagesFree, h.hugePageBytes>>10),
		"set vm.nr_hugepages; small pages work too")
}

func (q queueCounts) String() string {
	s := fmt.Sprintf("%d receive, %d send", q.rx, q.tx)
	if q.rxMax > 0 || q.txMax > 0 {
		s += fmt.Sprintf(" (possible: %d, %d)", q.rxMax, q.txMax)
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
