package command

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp/device"
)

// serving runs the verb in the namespace of an end until stop is called, which returns its code.
func serving(t *testing.T, e *veth.End, args ...string) (out, errs *said, stop func() int) {
	t.Helper()
	out, errs = &said{}, &said{}
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	args = append([]string{"serve", "--dev", e.Name, "-o", "json"}, args...)
	go func() {
		_ = e.Do(func() error {
			code <- Main(ctx, args, strings.NewReader(""), out, errs)
			return nil
		})
	}()
	stop = sync.OnceValue(func() int { cancel(); return <-code })
	t.Cleanup(func() { stop() })
	for end := time.Now().Add(time.Minute); !strings.HasSuffix(out.lines()[0], "}"); {
		if s := errs.lines()[0]; s != "" || time.Now().After(end) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return out, errs, stop
}

func status(t *testing.T, line string) (s serveStatus) {
	t.Helper()
	return parsed[serveStatus](t, "serve", strings.TrimSuffix(line, "\n")+"\n")
}

// TestServe: the verb serves a program over a real wire, with addresses that the kernel resolves,
// says so, and leaves nothing.
func TestServe(t *testing.T) {
	shmtest.Conforms(t)
	pair := xdptest.NewPair(t, veth.Config{Queues: 2})
	shmtest.RequireRoot(t, "xdp", "only root may")
	path := filepath.Join(t.TempDir(), "s")
	out, errs, stop := serving(t, pair.B, "--socket", path, "--allow", "uid:0,ports=5000-5001")
	if errs.lines()[0] != "" {
		t.Fatal(errs.lines())
	}
	ready := status(t, out.lines()[0])
	if ready.State != "ready" || ready.Queues != 2 || ready.Mode != "native" || ready.Bind != "copy" ||
		ready.Socket != path || len(ready.Allow) != 1 {
		t.Errorf("%+v", ready)
	}
	e := shmtest.Have(device.Dial(t.Context(), path,
		device.Request{Name: "test", Ports: []uint16{5000}})).In(t)
	echo(t, pair, e)
	// Sockets' UMEMs, and of the application: UMEM, page, payload, and three queues with lanes.
	text := ok(t, "check", "--pid", strconv.Itoa(os.Getpid()))
	number, _, whole := strings.Cut(text, " objects checked, 0 findings")
	if n, err := strconv.Atoi(number); err != nil || !whole || n < 10 {
		t.Error(text)
	}
	_, _, again := serving(t, pair.B, "--socket", path)
	if code := again(); code != 1 {
		t.Errorf("a second one at the path: exit %d", code)
	}
	_, errs, again = serving(t, pair.B, "--socket", path+"2")
	p := failure(t, errs.lines()[0]+"\n")
	if code := again(); code != 1 || p.Hint == "" && !strings.Contains(p.Message, "program") {
		t.Errorf("a second one on the interface: exit %d, %+v", code, p)
	}
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	ended := status(t, out.lines()[1])
	if ended.State != "ended" || ended.Admitted != 1 || ended.Received == 0 {
		t.Errorf("%+v", ended)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

// echo sends a datagram to a kernel socket at the other end and gets it back.
func echo(t *testing.T, pair *veth.Pair, e *device.Endpoint) {
	t.Helper()
	var c *net.UDPConn
	xdptest.Do(t, pair.A, func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: pair.A.Addr.AsSlice(), Port: 6000})
		return err
	})
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	must(t, e.SendTo([]byte("there"), 0, netip.AddrPortFrom(pair.A.Addr, 6000), 7))
	buf := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	must(t, err)
	shmtest.Got(c.WriteToUDPAddrPort(buf[:n], from)).Or(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		var es [1]cq.Entry
		shmtest.Got(cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{})).Or(t)
		if es[0].Flags&cq.FlagFrame == 0 {
			continue
		}
		loan := shmtest.Got(e.View(&es[0])).Or(t)
		if string(loan.Bytes()) != "there" {
			t.Errorf("got %q", loan.Bytes())
		}
		loan.Release()
		must(t, e.Release(es[0]))
		return
	}
}

// TestServeRefused: what cannot be served has the code that other verbs give it, and a remedy.
func TestServeRefused(t *testing.T) {
	pair := xdptest.NewPair(t, veth.Config{})
	shmtest.RequireRoot(t, "xdp", "only root may")
	path := filepath.Join(t.TempDir(), "s")
	for _, c := range []struct {
		want int
		args []string
	}{
		{3, []string{"--dev", "no-such-dev", "--socket", path}},
		{3, []string{"--socket", path, "--queue", "9"}},
		{1, []string{"--socket", path, "--queue", "0", "--bind", "zerocopy"}},
		{3, []string{"--socket", filepath.Join(path, "no", "directory")}},
	} {
		_, errs, stop := serving(t, pair.B, c.args...)
		code := stop()
		if p := failure(t, errs.lines()[0]+"\n"); code != c.want || p.Hint == "" {
			t.Errorf("%v: exit %d, %+v", c.args, code, p)
		}
	}
}

// TestServeIsSeen: the sockets of a device process are listed with what they count, and what its
// applications receive and send can be captured, while both go on.
func TestServeIsSeen(t *testing.T) {
	shmtest.Conforms(t)
	tshark := needTshark(t)
	pair := xdptest.NewPair(t, veth.Config{})
	shmtest.RequireRoot(t, "xdp", "only root may")
	path := filepath.Join(t.TempDir(), "s")
	_, errs, stop := serving(t, pair.B, "--socket", path)
	if errs.lines()[0] != "" {
		t.Fatal(errs.lines())
	}
	e := shmtest.Have(device.Dial(t.Context(), path,
		device.Request{Name: "seen", Ports: []uint16{5000}})).In(t)
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
	c := parsed[captureResult](t, "capture", r.stdout)
	if c.Written != 2 || len(c.Endpoints) != 1 || c.Endpoints[0] != s.Name {
		t.Errorf("%+v", c)
	}
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "frame.packet_flags_direction", "-e", "udp.port", "-e", "frame.interface_name").Output()
	must(t, err)
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
	eventually(t, "all is counted", func() bool {
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
