package xdp_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
)

// clear fails the test unless err is all that it should be, and tells what to do.
func clear(t testing.TB, err error, hint string, want ...error) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%v: is not %v", err, w)
		}
	}
	if !strings.HasPrefix(err.Error(), "xdp: ") || !strings.Contains(err.Error(), hint) {
		t.Errorf("%q has no %q", err, hint)
	}
}

// tryOpen opens a socket with a UMEM of its own, and registers it with programs; it keeps neither.
func tryOpen(ifname string, queue uint32, o xdp.Options, ps ...*xdp.Program) error {
	u, err := xdp.NewUMEM(xdp.UMEMOptions{Frames: 16})
	if err != nil {
		return err
	}
	defer u.Close(context.Background())
	s, err := xdp.Open(context.Background(), ifname, queue, u, o)
	if err != nil {
		return err
	}
	for _, p := range ps {
		err = errors.Join(err, s.Register(p, 0))
	}
	return errors.Join(err, s.Close())
}

func TestNoSuchInterface(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "nosuchif0", "a-name-that-is-too-long"} {
		clear(t, tryOpen(name, 0, xdp.Options{}), "", xdp.ErrNoDevice, syscall.ENODEV)
		_, err := xdp.Attach(name, xdp.ProgramOptions{})
		clear(t, err, "", xdp.ErrNoDevice, syscall.ENODEV)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for i, o := range []xdp.Options{
		{RxEntries: 3}, {TxEntries: 1 << 30}, {TxEntries: 64, CompEntries: 32},
		{SendFrames: 17}, {Mode: 9},
	} {
		if err := tryOpen("lo", 0, o); !errors.Is(err, xdp.ErrOptions) {
			t.Errorf("options %d: %v", i, err)
		}
	}
	for i, o := range []xdp.UMEMOptions{
		{Frames: 1 << 30}, {ChunkBytes: 1024}, {ChunkBytes: 3000}, {HeadroomBytes: 8},
		{HeadroomBytes: 2000},
	} {
		_, err := xdp.NewUMEM(o)
		clear(t, err, "possible", xdp.ErrOptions, syscall.EINVAL)
		if t.Failed() {
			t.Fatalf("UMEM options %d", i)
		}
	}
}

func TestBindErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	b := r.pair.B
	try := func(queue uint32, o xdp.Options) error {
		o.BusyTimeout = -1
		return b.Do(func() error { return tryOpen(b.Name, queue, o) })
	}
	clear(t, try(0, xdp.Options{}), "ss --xdp", xdp.ErrQueueBusy, syscall.EBUSY)
	clear(t, try(1, xdp.Options{}), "ethtool -l", xdp.ErrNoQueue, syscall.EINVAL)
	clear(t, b.Do(func() error {
		_, err := xdp.Open(context.Background(), b.Name, 0, r.umem, xdp.Options{})
		return err
	}), "new UMEM", xdp.ErrUMEMUsed)
	must(t, r.socket.Close())
	clear(t, b.Do(func() error {
		return tryOpen(b.Name, 0, xdp.Options{Mode: xdp.BindZeroCopy})
	}), "copy mode", xdp.ErrNoZeroCopy, syscall.EOPNOTSUPP, errors.ErrUnsupported)
}

func TestProgramAttached(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		r := newRig(t, mode, xdp.UMEMOptions{Frames: 64}, xdp.Options{})
		for _, want := range []xdp.AttachMode{xdp.AttachAuto, xdp.AttachNative, xdp.AttachGeneric} {
			err := r.pair.B.Do(func() error {
				_, err := xdp.Attach(r.pair.B.Name, xdp.ProgramOptions{Mode: want})
				return err
			})
			clear(t, err, "bpftool prog show", xdp.ErrProgramAttached, syscall.EBUSY)
			var attached *xdp.BusyError
			if !errors.As(err, &attached) || attached.Program !=
				(xdp.ProgramInfo{ID: r.prog.Info().ID, Name: "steer", Mode: mode}) {
				t.Fatalf("%v over %v: %#v", want, mode, err)
			}
		}
		r.stream(t, 10) // it still is ours that runs
	}
}

func TestWrongInterfaceForProgram(t *testing.T) {
	t.Parallel()
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	lo := *xdptest.NewPair(t, veth.Config{}).B // whose index differs from this one's
	lo.Name = "lo"
	prog := xdptest.Attach(t, &lo, xdp.ProgramOptions{Mode: xdp.AttachGeneric})
	clear(t, r.socket.Register(prog, 0), "interface of the socket", xdp.ErrOptions)
	same := xdptest.NewPair(t, veth.Config{}).B // whose index does not, in a namespace of its own
	prog = xdptest.Attach(t, same, xdp.ProgramOptions{})
	if same.Index != r.pair.B.Index {
		t.Errorf("indices %d and %d", same.Index, r.pair.B.Index)
	}
	clear(t, r.socket.Register(prog, 0), "interface of the socket", xdp.ErrOptions)
}

func TestLinkDownAndUp(t *testing.T) {
	t.Parallel()
	s := newSender(t, xdp.Options{})
	b := s.pair.B
	must(t, b.SetUp(false))
	clear(t, b.Do(func() error { return tryOpen(b.Name, 0, xdp.Options{}) }), "ip link set",
		xdp.ErrLinkDown, syscall.ENETDOWN)
	clear(t, s.socket.Check(), "until it is up", xdp.ErrLinkDown)
	must(t, s.post(0))
	s.socket.Flush()
	left, err := s.socket.Kick()
	clear(t, err, "until it is up", xdp.ErrLinkDown)
	if left != 1 {
		t.Errorf("%d packets wait", left)
	}
	must(t, b.SetUp(true))
	await(t, "the link", func() bool { return s.socket.Check() == nil })
	await(t, "sending", func() bool { left, err := s.socket.Kick(); return err == nil && left == 0 })
	checkSum(t, s.socket)
}

func TestDeviceGone(t *testing.T) {
	t.Parallel()
	s := newSender(t, xdp.Options{})
	must(t, s.socket.Check())
	must(t, s.pair.A.Remove())
	await(t, "the removal", func() bool { return errors.Is(s.socket.Check(), xdp.ErrDeviceGone) })
	must(t, s.post(0))
	s.socket.Flush()
	for range 3 { // it stays that way
		_, err := s.socket.Kick()
		clear(t, err, "close the socket", xdp.ErrDeviceGone, syscall.ENXIO)
	}
	clear(t, s.pair.A.Do(func() error {
		_, err := xdp.OpenShared(s.socket, xdp.Options{})
		return err
	}), "close the socket", xdp.ErrDeviceGone, syscall.ENXIO)
	must(t, s.socket.Close())
	must(t, s.prog.Close())
}

// setCaps has the thread keep capabilities of the first 32, and no other.
func setCaps(set uint32) error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: set, Permitted: set}}
	return unix.Capset(&h, &caps[0])
}

// TestNoCapability gives up the privileges of one thread, which then ends.
func TestNoCapability(t *testing.T) {
	t.Parallel()
	without := func(f func() error) error {
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			err := setCaps(0)
			if err == nil {
				err = f()
			}
			done <- err
		}()
		return <-done
	}
	clear(t, without(func() error { return tryOpen("lo", 0, xdp.Options{}) }), "CAP_NET_RAW",
		xdp.ErrNoCapability, syscall.EPERM, fs.ErrPermission)
	err := without(func() error {
		_, err := xdp.Attach("lo", xdp.ProgramOptions{})
		return err
	})
	clear(t, err, "lacks CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF", xdp.ErrNoCapability, syscall.EPERM)
	if err != nil && strings.Contains(err.Error(), "MEMLOCK") {
		t.Errorf("locked memory is not the reason: %v", err)
	}
}

// memlockChild opens a socket with a limit that the UMEM does not fit, and without the privilege
// to ignore it.
func memlockChild() {
	runtime.LockOSThread()
	need(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 4096, Max: 4096}))
	need(setCaps(1 << unix.CAP_NET_RAW))
	err := tryOpen("lo", 0, xdp.Options{})
	fmt.Println(errors.Is(err, xdp.ErrMemlock), errors.Is(err, syscall.ENOBUFS), err)
}

// TestMemlock: a UMEM beyond what this user may lock says so. Nothing else here counts against that
// limit: maps and programs belong to the memory control group since Linux 5.11, and huge pages of
// memfds come out of a pool of their own.
func TestMemlock(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	shmtest.RequireRoot(t, "xdp", "CAP_NET_RAW")
	out := shmtest.Got(shmtest.Child(t, "memlock").Output()).Or(t)
	if s := string(out); !strings.HasPrefix(s, "true true xdp: register UMEM") ||
		!strings.Contains(s, "ulimit -l") {
		t.Errorf("%q", s)
	}
}

// inNamespace prepares a child that is given the namespace of an end, and what else it needs.
func inNamespace(t testing.TB, role string, e *veth.End, more ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := shmtest.Child(t, role, "IFNAME="+e.Name)
	cmd.ExtraFiles = append([]*os.File{e.NetNS()}, more...)
	return cmd
}

// TestKilledOwnerLeavesNothing: queue and program are free again after SIGKILL.
func TestKilledOwnerLeavesNothing(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{})
	xdptest.Attach(t, pair.B, xdp.ProgramOptions{}).Close()
	c := held(t, "hold-queue", pair.B)
	err := pair.B.Do(func() error { return tryOpen(pair.B.Name, 0, xdp.Options{BusyTimeout: -1}) })
	if !errors.Is(err, xdp.ErrQueueBusy) {
		t.Fatal(err)
	}
	c.Kill()
	await(t, "the end of the program", func() bool {
		err := pair.B.Do(func() error {
			p, err := xdp.Attach(pair.B.Name, xdp.ProgramOptions{})
			if err != nil {
				return err
			}
			return p.Close()
		})
		if err != nil && !errors.Is(err, xdp.ErrProgramAttached) {
			t.Fatal(err)
		}
		return err == nil
	})
	xdptest.Do(t, pair.B, func() error {
		return tryOpen(pair.B.Name, 0, xdp.Options{BusyTimeout: patience})
	})
}

// readUMEMChild maps a UMEM that it was given and prints what lies at REF, then tries to write.
func readUMEMChild() {
	region, g, err := xdp.OpenUMEM(4, "umem of the parent", 0)
	need(err)
	defer region.Close(context.Background())
	ref, _ := strconv.ParseUint(os.Getenv("REF"), 10, 64)
	n, _ := strconv.Atoi(os.Getenv("LEN"))
	l := shmtest.Needs(region.View(shm.Ref(ref), n))
	b := l.Bytes()
	rec := shmtest.Needs(region.View(region.Ref(g.Chunk(shm.Ref(ref).Offset())), xdp.RecordBytes))
	_, werr := unix.Mmap(4, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	fmt.Printf("%s %d %v", b[len(b)-5:], xdp.ReadRecord(rec.Bytes()).Sequence,
		errors.Is(werr, unix.EPERM))
	l.Release()
	rec.Release()
}

// TestPeerReadsInPlace: another process sees the packet where the kernel put it, and cannot write.
func TestPeerReadsInPlace(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	r := newRig(t, xdp.AttachAuto, xdp.UMEMOptions{}, xdp.Options{})
	from := udp(t, r.pair.A, 0)
	shmtest.Got(from.WriteTo([]byte("hello"), addrOf(r.pair.B, testPort))).Or(t)
	p := r.receiveOne(t)
	(&xdp.Record{Sequence: 77}).Put(xdp.Headroom(r.socket, p.Frame), false)
	cmd := inNamespace(t, "read-umem", r.pair.B, xdptest.UMEMFile(t, r.umem))
	cmd.Env = append(cmd.Env, fmt.Sprintf("REF=%d", uint64(r.umem.Region().Ref(p.Off))),
		fmt.Sprintf("LEN=%d", p.Len))
	out := shmtest.Got(cmd.Output()).Or(t)
	if string(out) != "hello 77 true" {
		t.Errorf("the peer says %q", out)
	}
}

func probe(t testing.TB, e *veth.End) *xdp.ProbeReport {
	t.Helper()
	var r *xdp.ProbeReport
	xdptest.Do(t, e, func() (err error) {
		r, err = xdp.Probe(e.Name)
		return err
	})
	return r
}

func finding(t testing.TB, r *xdp.ProbeReport, name string) xdp.Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("no finding %q in %+v", name, r.Findings)
	return xdp.Finding{}
}

// TestProbe looks at a veth end, of which much is known.
func TestProbe(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	xdptest.Attach(t, pair.B, xdp.ProgramOptions{}).Close() // or there is nothing to find
	r := probe(t, pair.B)
	if !r.Usable || r.Driver != "veth" || r.MTU != 1500 || r.Index != pair.B.Index ||
		r.SocketErr != nil || r.Program.ID != 0 {
		t.Errorf("%+v", r)
	}
	for name, want := range map[string]string{
		"link":         "^up, MTU 1500, " + pair.B.MAC.String() + "$",
		"driver":       "^veth$",
		"queues":       `^2 receive, 2 send \(possible: `,
		"program":      "^none$",
		"bpf":          "^loads$",
		"socket":       "^copy on queue 0$",
		"capabilities": "^all$",
		"native mode":  "^basic redirect .*rx-sg",
		"multi-buffer": "^yes$",
	} {
		if f := finding(t, r, name); !f.OK || !regexp.MustCompile(want).MatchString(f.Value) {
			t.Errorf("%+v, want %s", f, want)
		}
	}
	if zc := finding(t, r, "zero copy"); zc.OK || zc.Value != "no" || zc.Remedy == "" {
		t.Errorf("%+v", zc)
	}
	seen := map[string]bool{}
	for _, f := range r.Findings {
		if f.Name == "" || seen[f.Name] || f.OK && (f.Remedy != "" || f.Value == "") ||
			!f.OK && f.Remedy == "" {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
	}
}

// TestProbeLoopback: a device without hardware, driver or address is described too.
func TestProbeLoopback(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{})
	lo := *pair.B
	lo.Name = "lo"
	r := probe(t, &lo)
	if f := finding(t, r, "link"); !f.OK || f.Value != "up, MTU 65536" {
		t.Errorf("%+v", f)
	}
	if f := finding(t, r, "driver"); f.OK || f.Value != "" || f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}

// TestProbeDisturbsNobody: a device that is in use is described and goes on.
func TestProbeDisturbsNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, xdp.AttachGeneric, xdp.UMEMOptions{}, xdp.Options{})
	report := probe(t, r.pair.B)
	if report.Usable || report.Program.ID != r.prog.Info().ID ||
		report.Program.Mode != xdp.AttachGeneric || report.Program.Name != "steer" {
		t.Errorf("program: %+v", report.Program)
	}
	if f := finding(t, report, "program"); f.OK || !f.Required {
		t.Errorf("%+v", f)
	}
	f := finding(t, report, "socket") // the advice is said once
	if !errors.Is(report.SocketErr, xdp.ErrQueueBusy) || f.OK || f.Remedy == "" ||
		strings.Contains(f.Value, f.Remedy) {
		t.Errorf("%+v, %v", f, report.SocketErr)
	}
	r.stream(t, 50)
}

func TestProbeDown(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{})
	must(t, pair.A.SetUp(false))
	link := func(r *xdp.ProbeReport) string { return finding(t, r, "link").Value }
	await(t, "no carrier", func() bool {
		return strings.HasPrefix(link(probe(t, pair.B)), "up, no carrier")
	})
	if r := probe(t, pair.B); r.Usable {
		t.Errorf("without carrier: %+v", r)
	}
	must(t, pair.B.SetUp(false))
	r := probe(t, pair.B)
	if f := finding(t, r, "link"); r.Usable || !strings.HasPrefix(f.Value, "down") || f.OK ||
		f.Remedy == "" || !strings.HasPrefix(finding(t, r, "queues").Value, "1 receive, 1 send") {
		t.Errorf("down: %+v, %+v", f, r)
	}
	_, err := xdp.Probe("nosuchif0")
	clear(t, err, "ip link", xdp.ErrNoDevice, syscall.ENODEV)
}

// probeChild gives its privileges up and says what it still finds.
func probeChild() {
	runtime.LockOSThread()
	need(errors.Join(veth.Enter(3), unix.Setuid(65534)))
	r := shmtest.Needs(xdp.Probe(os.Getenv("IFNAME")))
	says := map[string]string{}
	for _, f := range r.Findings {
		says[f.Name] = f.Value
	}
	fmt.Printf("%v %v %v %v %v", r.Usable, r.Driver, says["capabilities"],
		errors.Is(r.SocketErr, xdp.ErrNoCapability),
		strings.Contains(says["bpf"], xdp.ErrNoCapability.Error()))
}

// TestProbeUnprivileged: what needs no privilege is still found, and what is missing is said.
func TestProbeUnprivileged(t *testing.T) {
	t.Parallel()
	pair := xdptest.NewPair(t, veth.Config{})
	cmd := inNamespace(t, "probe", pair.B)
	out, err := cmd.Output()
	shmtest.Require(t, "children", err)
	const want = "false veth without CAP_NET_RAW CAP_NET_ADMIN CAP_BPF true true"
	if string(out) != want {
		t.Errorf("%q, want %q", out, want)
	}
}
