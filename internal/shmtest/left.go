package shmtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// nsKinds are the namespaces that one thread can leave alone.
var nsKinds = []string{"net", "mnt", "pid_for_children"}

// ownNamespaces returns those of the process, by kind; nothing where there is no /proc.
func ownNamespaces() map[string]string {
	out := map[string]string{}
	for _, kind := range nsKinds {
		if ns, err := os.Readlink("/proc/self/ns/" + kind); err == nil {
			out[kind] = ns
		}
	}
	return out
}

// strayThreads lists the threads that are not in the namespaces that the process began in. A
// namespace lives as long as a descriptor, a process or a thread of it: descriptors and processes
// are looked at by themselves.
func strayThreads(home map[string]string) []string {
	tasks, _ := filepath.Glob("/proc/self/task/*")
	var out []string
	for _, kind := range nsKinds {
		for _, task := range tasks {
			ns, err := os.Readlink(task + "/ns/" + kind)
			if err == nil && ns != home[kind] { // one that ends meanwhile has no target
				out = append(out, "thread "+filepath.Base(task)+" in "+ns)
			}
		}
	}
	return out
}

// children lists the living child processes. One that has ended and was not waited for holds
// nothing any more.
func children() []string {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	var out []string
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(text)) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			// The state follows the name, which is in brackets and may have some of its own.
			_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
			if err == nil && !bytes.HasPrefix(rest, []byte("Z")) &&
				!bytes.HasPrefix(rest, []byte("X")) {
				out = append(out, "process "+pid)
			}
		}
	}
	return out
}
