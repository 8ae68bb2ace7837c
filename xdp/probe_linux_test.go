package xdp_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
)

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
	if !r.Usable() || r.Driver != "veth" || r.MTU != 1500 || r.Index != pair.B.Index ||
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
	if report.Usable() || report.Program.ID != r.prog.Info().ID ||
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
	if r := probe(t, pair.B); r.Usable() {
		t.Errorf("without carrier: %+v", r)
	}
	must(t, pair.B.SetUp(false))
	r := probe(t, pair.B)
	if f := finding(t, r, "link"); r.Usable() || !strings.HasPrefix(f.Value, "down") || f.OK ||
		f.Remedy == "" || !strings.HasPrefix(finding(t, r, "queues").Value, "1 receive, 1 send") {
		t.Errorf("down: %+v, %+v", f, r)
	}
	_, err := xdp.Probe("nosuchif0")
	clear(t, err, "ip link", xdp.ErrNoDevice, syscall.ENODEV)
}

// probeChild gives its privileges up and says what it still finds.
func probeChild() {
	runtime.LockOSThread()
	if err := errors.Join(veth.Enter(3), unix.Setuid(65534)); err != nil {
		fmt.Println(err)
		return
	}
	r, err := xdp.Probe(os.Getenv("IFNAME"))
	if err != nil {
		fmt.Println(err)
		return
	}
	says := map[string]string{}
	for _, f := range r.Findings {
		says[f.Name] = f.Value
	}
	fmt.Printf("%v %v %v %v %v", r.Usable(), r.Driver, says["capabilities"],
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
