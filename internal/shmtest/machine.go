package shmtest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Machine says where a test ran, for a report of its figures: "unknown" is what is not known. The
// load is the average of the last minute, of the test itself and of others.
func Machine() string {
	cpu, kernel, load := "unknown", "unknown", "unknown"
	set := func(to *string, text string) {
		if text = strings.TrimSpace(text); text != "" {
			*to = text
		}
	}
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			set(&cpu, value)
			break
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	set(&kernel, string(release))
	average, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(average), " ")
	set(&load, first)
	return fmt.Sprintf("%d x %s, Linux %s, %s %s, load %s", runtime.NumCPU(), cpu, kernel,
		runtime.Version(), runtime.GOARCH, load)
}
