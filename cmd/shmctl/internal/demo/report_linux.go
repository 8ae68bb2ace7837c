package demo

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/xdp/device"
)

// Report is the outcome of a run. Unknown values are null.
type Report struct {
	Path         string         `json:"path"` // af_xdp or shm
	Mode         *string        `json:"mode"` // native or generic
	Copy         *bool          `json:"copy"` // the driver copies between its memory and the UMEM
	Interface    *string        `json:"interface"`
	Queue        *uint32        `json:"queue"`
	Kernel       string         `json:"kernel"`
	PIDs         map[string]int `json:"pids"`
	RX           Direction      `json:"rx"`
	TX           Direction      `json:"tx"`
	Wakes        *uint64        `json:"wakes"`
	Suppressed   *uint64        `json:"wakes_suppressed"`
	Syscalls1000 *float64       `json:"library_syscalls_per_1000"`
	Reason       *string        `json:"path_reason"` // why the device path was not taken
	// Notes say where datagrams were lost, as far as the processes and the kernel counted that.
	// There are none after a good run.
	Notes []string `json:"notes,omitempty"`
}

// Direction is one half of a run: rx is towards the application, tx from it.
type Direction struct {
	Sent      uint64   `json:"sent"`
	Completed uint64   `json:"completed"`
	Lost      uint64   `json:"lost"`
	Corrupt   uint64   `json:"corrupt"`
	Duplicate uint64   `json:"duplicate"`
	RatePPS   *float64 `json:"rate_pps"`
	Latency   Latency  `json:"latency_ns"`
}

// Latency is from the post of a completion to its read (rx), or from the post of a send to the read
// of its completion (tx).
type Latency struct {
	P50 *int64 `json:"p50"`
	P99 *int64 `json:"p99"`
	Max *int64 `json:"max"`
}

// Good reports whether every datagram was sent, arrived once and was intact.
func (r *Report) Good(count uint64) bool {
	for _, d := range []Direction{r.RX, r.TX} {
		if d.Sent != count || d.Completed != count || d.Lost+d.Corrupt+d.Duplicate != 0 {
			return false
		}
	}
	return true
}

// Sheet is the report for people.
func (r *Report) Sheet() *stage.Sheet {
	s := &stage.Sheet{}
	row := func(name, format string, a ...any) { s.Row(name, fmt.Sprintf(format, a...)) }
	if r.Path == "shm" {
		row("path", "shm: a producer process in place of the device")
		if r.Reason != nil {
			row("", "device path not taken: %s", *r.Reason)
		}
	} else {
		how := "copy"
		if r.Copy != nil && !*r.Copy {
			how = "zero-copy"
		}
		row("path", "af_xdp: %s mode, %s, queue %d of %s", *r.Mode, how, *r.Queue, *r.Interface)
	}
	row("kernel", "%s", r.Kernel)
	pids := ""
	for _, role := range []string{"supervisor", "application", "device", "producer", "peer"} {
		if pid, ok := r.PIDs[role]; ok {
			pids += fmt.Sprintf("%s %d  ", role, pid)
		}
	}
	row("processes", "%s", pids)
	r.RX.print(row, "receive", "post to read")
	r.TX.print(row, "send", "post to completion")
	if r.Wakes != nil && r.Suppressed != nil {
		row("bell", "%d wakes, %d publishes that needed none", *r.Wakes, *r.Suppressed)
	}
	if r.Syscalls1000 != nil {
		row("syscalls", "%.1f by the library per 1000 frames", *r.Syscalls1000)
	}
	s.Each("note", r.Notes)
	return s
}

func (d *Direction) print(row func(name, format string, a ...any), name, what string) {
	row(name, "%d sent, %d completed, %d lost, %d corrupt, %d duplicate", d.Sent, d.Completed,
		d.Lost, d.Corrupt, d.Duplicate)
	if d.RatePPS != nil {
		row("", "%.0f a second", *d.RatePPS)
	}
	if d.Latency.P50 != nil {
		short := func(ns *int64) string { return stage.Short(time.Duration(*ns)) }
		row("", "%s p50 %s, p99 %s, max %s", what, short(d.Latency.P50), short(d.Latency.P99),
			short(d.Latency.Max))
	}
}

// tally counts which payloads arrived.
type tally struct {
	seen       []uint64
	total      uint64
	Arrived    uint64 // distinct and intact
	Corrupt    uint64
	Duplicate  uint64
	Unexpected uint64 // intact, but never sent
}

func newTally(total uint64) *tally {
	return &tally{seen: make([]uint64, (total+63)/64), total: total}
}

// add takes one payload.
func (t *tally) add(b []byte) {
	switch seq, ok := wire.Check(b); {
	case !ok:
		t.Corrupt++
	case seq >= t.total:
		t.Unexpected++
	case t.seen[seq/64]>>(seq%64)&1 != 0:
		t.Duplicate++
	default:
		t.seen[seq/64] |= 1 << (seq % 64)
		t.Arrived++
	}
}

// direction says what arrived, of what was sent.
func (t *tally) direction() *Direction {
	return &Direction{Completed: t.Arrived, Lost: t.total - t.Arrived,
		Corrupt: t.Corrupt + t.Unexpected, Duplicate: t.Duplicate}
}

// dropsOf says where the device process, its sockets and its interface dropped datagrams.
func dropsOf(s *device.Stats) []string {
	named := []count{{"dropped for want of a frame or of room", s.Dropped},
		{"for a port that nobody has", s.Unclaimed}, {"malformed", s.Malformed},
		{"with a wrong checksum", s.BadChecksum}, {"for another address", s.Foreign}}
	for _, k := range s.Kernel {
		named = append(named, count{"dropped by the kernel for want of memory", k.RxDropped},
			count{"dropped for a full receive ring", k.RxQueueFull},
			count{"without a frame in the fill ring", k.RxFillRingEmpty})
	}
	return append(notes(named), interfaceDrops()...)
}

// interfaceDrops says what the interfaces in this network namespace dropped.
func interfaceDrops() []string {
	table, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return nil
	}
	return dropsIn(string(table))
}

// dropsIn reads the kernel's table of interfaces, whose columns /proc/net/dev names in two lines.
func dropsIn(table string) []string {
	var named []count
	for line := range strings.Lines(table) {
		name, columns, ok := strings.Cut(line, ":")
		f := strings.Fields(columns)
		if !ok || len(f) < 12 {
			continue
		}
		var in, out uint64
		_, _ = fmt.Sscan(f[3]+" "+f[11], &in, &out)
		name = strings.TrimSpace(name)
		named = append(named, count{"dropped by " + name + " on receipt", in},
			count{"dropped by " + name + " when sending", out})
	}
	return notes(named)
}

// count is a number of packets.
type count struct {
	what string
	n    uint64
}

func notes(all []count) (lines []string) {
	for _, c := range all {
		if c.n > 0 {
			lines = append(lines, fmt.Sprintf("packets %s: %d", c.what, c.n))
		}
	}
	return lines
}
