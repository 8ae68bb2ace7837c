package xdp

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/shmring/shmring/shm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Probe finds out what an interface of the calling thread's network namespace and the kernel can
// do, by asking and by trying. It loads the steering program without attaching it, and opens a
// socket in copy mode on queue 0 for a moment; neither disturbs traffic. It works without privilege
// and then says what is missing. The error is [ErrNoDevice], or that of asking.
func Probe(ifname string) (*ProbeReport, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const op = "probe"
	ifi, err := findInterface(op, ifname)
	if err != nil {
		return nil, err
	}
	l, err := netlink.LinkByIndex(ifi.Index)
	if err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
	}
	a := l.Attrs()
	r := &probed{ProbeReport: ProbeReport{Interface: ifname, Index: ifi.Index, MTU: ifi.MTU,
		Driver: driverOf(ifname), NetNS: netnsCookie()}, mac: ifi.HardwareAddr,
		up: a.RawFlags&unix.IFF_UP != 0, host: probeHost()}
	r.running = r.up && a.RawFlags&unix.IFF_RUNNING != 0 && a.RawFlags&unix.IFF_LOWER_UP != 0
	if r.Program, err = attachedProgram(ifi.Index); err != nil {
		return nil, &shm.Error{Pkg: pkg, Op: op, Name: ifname, Err: err}
	}
	r.features, r.queues = askDevice(ifi.Index)
	p := &Program{ifname: ifname}
	r.host.programErr = p.load(ProgramOptions{Sockets: 1, Rules: 1})
	if r.host.programErr == nil {
		r.host.programErr = p.Close()
	}
	r.host.granted, r.SocketErr = trySocket(ifname)
	r.judge()
	return &r.ProbeReport, nil
}

// driverOf returns the name of the driver, or nothing.
func driverOf(ifname string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, ifname)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// netnsCookie names the network namespace of the calling thread; 0 if the kernel does not say.
func netnsCookie() uint64 {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie
}

// trySocket opens a socket in copy mode, which does not touch the driver.
func trySocket(ifname string) (g Granted, err error) {
	u, err := NewUMEM(UMEMOptions{Frames: 16})
	if err != nil {
		return g, err
	}
	defer u.Close(context.Background())
	// A socket that was closed a moment ago, as by the probe before, holds the queue a little longer.
	const patience = 100 * time.Millisecond
	s, err := Open(context.Background(), ifname, 0, u, Options{Mode: BindCopy,
		BusyTimeout: patience})
	if err != nil {
		return g, err
	}
	return s.Info().Granted, s.Close()
}

// neededCaps by what they are for; the last is enough for BPF where it stands for it.
var neededCaps = []struct {
	name string
	bit  uint
	or   uint
}{
	{"CAP_NET_RAW", unix.CAP_NET_RAW, unix.CAP_NET_RAW},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, unix.CAP_NET_ADMIN},
	{"CAP_BPF", unix.CAP_BPF, unix.CAP_SYS_ADMIN},
}

func probeHost() (h hostFindings) {
	caps := effectiveCaps()
	has := func(bit uint) bool { return caps&(1<<bit) != 0 }
	for _, c := range neededCaps {
		if !has(c.bit) && !has(c.or) {
			h.missingCaps = append(h.missingCaps, c.name)
		}
	}
	h.memlockFree = has(unix.CAP_IPC_LOCK)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil {
		h.memlockBytes = limit.Cur
	}
	h.hugePageBytes, h.hugePagesFree = hugePages()
	return h
}

// effectiveCaps returns the bits of the calling thread, none if it cannot be known.
func effectiveCaps() uint64 {
	line := field(fmt.Sprintf("/proc/self/task/%d/status", unix.Gettid()), "CapEff:")
	n, _ := strconv.ParseUint(line, 16, 64)
	return n
}

func hugePages() (size uint64, free int) {
	kib, _ := strconv.ParseUint(field("/proc/meminfo", "Hugepagesize:"), 10, 64)
	free, _ = strconv.Atoi(field("/proc/meminfo", "HugePages_Free:"))
	return kib << 10, free
}

// field returns the word behind a key at the beginning of a line.
func field(path, key string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return words[0]
			}
		}
	}
	return ""
}
