package stage

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Machine says where a run took place.
type Machine struct {
	CPU    *string  `json:"cpu"` // null where it is not known, as the rest
	CPUs   int      `json:"cpus"`
	Kernel *string  `json:"kernel"`
	Go     string   `json:"go"`
	Load   *float64 `json:"load"` // average of the last minute, at the end: the run itself and others
}

// Here describes this machine.
func Here() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version() + " " + runtime.GOARCH}
	for line := range strings.Lines(content("/proc/cpuinfo")) {
		if name, value, ok := strings.Cut(line, ":"); ok && m.CPU == nil &&
			strings.TrimSpace(name) == "model name" {
			m.CPU = known(strings.TrimSpace(value))
		}
	}
	m.Kernel = known(strings.TrimSpace(content("/proc/sys/kernel/osrelease")))
	first, _, _ := strings.Cut(content("/proc/loadavg"), " ")
	if load, err := strconv.ParseFloat(first, 64); err == nil {
		m.Load = &load
	}
	return m
}

func content(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func known(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// System is the release of the kernel, or what else is known of the system.
func (m Machine) System() string {
	if m.Kernel == nil {
		return runtime.GOOS
	}
	return *m.Kernel
}

// String is what people read.
func (m Machine) String() string {
	cpu, load := "unknown", "unknown"
	if m.CPU != nil {
		cpu = *m.CPU
	}
	if m.Load != nil {
		load = strconv.FormatFloat(*m.Load, 'f', 1, 64)
	}
	return fmt.Sprintf("%d x %s, Linux %s, %s, load %s", m.CPUs, cpu, m.System(), m.Go, load)
}

// A promise about seconds is measured by the time that those could run who are to keep it: on a
// machine that stands still, or is short of time, nobody is late who had none.
const (
	// LivedEvery is how far two steps of a lifetime are apart.
	LivedEvery = 20 * time.Millisecond
	livedMost  = 2 * LivedEvery // that one look counts, however long ago the last one was
)

var (
	lived  atomic.Int64 // nanoseconds; live stores it
	living sync.Once
)

// Lifetime returns for how long this process could run since it first asked.
func Lifetime() time.Duration {
	living.Do(func() { go live() })
	return time.Duration(lived.Load())
}

func live() {
	for last := time.Now(); ; {
		time.Sleep(LivedEvery)
		now := time.Now()
		lived.Add(int64(min(now.Sub(last), livedMost)))
		last = now
	}
}

// Held lists what this process has open, and has mapped, that is named by one of some texts.
func Held(of ...string) (open, mapped []string) {
	ours := func(name string) bool {
		return slices.ContainsFunc(of, func(text string) bool { return strings.Contains(name, text) })
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && ours(name) {
			open = append(open, "descriptor "+fd.Name()+" "+name)
		}
	}
	for line := range strings.Lines(content("/proc/self/maps")) {
		if ours(line) {
			mapped = append(mapped, "mapping "+strings.TrimSpace(line))
		}
	}
	return open, mapped
}
