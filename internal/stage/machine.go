package stage

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
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
