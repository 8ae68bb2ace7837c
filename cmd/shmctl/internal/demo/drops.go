package demo

import (
	"fmt"
	"os"
	"strings"

	"github.com/shmring/shmring/xdp/device"
)

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
