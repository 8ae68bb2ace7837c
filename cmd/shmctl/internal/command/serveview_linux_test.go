package command

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
)

// TestServeIsSeen: the sockets of a device process are listed with what they count, and what its
// applications receive and send can be captured, while both go on.
func TestServeIsSeen(t *testing.T) {
	shmtest.Conforms(t)
	tshark := needTshark(t)
	pair := xdptest.NewPair(t, veth.Config{})
	if os.Geteuid() != 0 {
		shmtest.Require(t, "xdp", os.ErrPermission)
	}
	path := filepath.Join(t.TempDir(), "s")
	_, errs, stop := serving(t, pair.B, "--socket", path)
	if errs.all()[0] != "" {
		t.Fatal(errs.all())
	}
	e, err := device.Dial(t.Context(), path, device.Request{Name: "seen", Ports: []uint16{5000}})
	must(t, err)
	defer e.Close()
	s := shown(t, pair.B.Name)[0]
	if s.Queue != 0 || s.Bind != "copy" || s.Index != pair.B.Index || s.Process == nil ||
		s.UMEM.Frames != 4096 || s.Rings.Rx == 0 || s.Receive != nil || s.Captured {
		t.Errorf("%+v", s)
	}
	file := filepath.Join(t.TempDir(), "a.pcapng")
	done := make(chan result, 1)
	go func() {
		done <- run(t, "capture", pair.B.Name, "--write", file, "--count", "2", "--duration", "30s", "-j")
	}()
	// The device process joins a little after the tool has asked, so echo until that has enough.
	var r result
	for over := false; !over; {
		echo(t, pair, e)
		select {
		case r = <-done:
			over = true
		default:
		}
	}
	if r.code != 0 || r.stderr != "" {
		t.Fatalf("exit %d, %s", r.code, r.stderr)
	}
	var v struct{ Capture captureResult }
	check(t, json.Unmarshal([]byte(r.stdout), &v))
	if c := v.Capture; c.Written != 2 || len(c.Endpoints) != 1 || c.Endpoints[0] != s.Name {
		t.Errorf("%+v", c)
	}
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "frame.packet_flags_direction", "-e", "udp.port", "-e", "frame.interface_name").Output()
	check(t, err)
	lines := 0
	for line := range strings.Lines(string(out)) {
		lines++
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 3 || f[2] != pair.B.Name || f[1] != map[string]string{"0x00000001": "6000,5000",
			"0x00000002": "5000,6000"}[f[0]] {
			t.Errorf("%q", line)
		}
	}
	if lines != 2 {
		t.Errorf("%d packets", lines)
	}
	eventuallyTrue(t, "all is counted", func() bool {
		s = shown(t, pair.B.Name)[0]
		return s.Program != nil && *s.Attach == "native" && !s.Captured &&
			s.Counters["received"] > 0 && s.Counters["received"] == s.Counters["completed"]
	})
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if left := shown(t); len(left) != 0 {
		t.Errorf("%+v", left)
	}
}
