package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	xcapture "github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	xstatus "github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
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
	eventually(t, "what an idle one has is shown", func() bool {
		s := shown(t, pair.B.Name)[0]
		return s.Program != nil && s.Counters["frames"] == 4096
	})
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

const devicePort = 4791

// driven is an endpoint on one end of a pair, driven by a goroutine.
type driven struct {
	*endpoint.Endpoint
	pair *veth.Pair
	peer cq.Addr
}

func newDevice(t *testing.T) *driven {
	t.Helper()
	pair := xdptest.NewPair(t, veth.Config{})
	program := xdptest.Attach(t, pair.A, xdp.ProgramOptions{})
	umem := xdptest.NewUMEM(t, xdp.UMEMOptions{})
	socket := xdptest.Open(t, pair.A, 0, umem, xdp.Options{})
	local := netip.AddrPortFrom(pair.A.Addr, devicePort)
	remote := netip.AddrPortFrom(pair.B.Addr, devicePort)
	d := shmtest.Got(shm.OpenDir("")).Or(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "arrivals"), cq.Options{})).Or(t)
	var w [2]*cq.Writer
	for i := range w {
		w[i] = shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "arrivals"), cq.WriterOptions{})).Or(t)
	}
	av := shmtest.Got(cq.CreateAddresses(cq.Unnamed("av"), cq.AddressOptions{Count: 8})).Or(t)
	peers := shmtest.Got(av.Insert([][]byte{cq.AppendSockaddr(nil, remote)}, cq.InsertOptions{})).Or(t)
	hop := xdp.Hop{LocalMAC: [6]byte(pair.A.MAC), NextMAC: [6]byte(pair.B.MAC),
		Source: pair.A.Addr, MTU: 1500}
	xdptest.Steer(t, program, devicePort, 0)
	must(t, socket.Register(program, 0))
	e := shmtest.Got(endpoint.Open(endpoint.Config{Socket: socket, Receive: w[0], Transmit: w[1],
		Addresses: av, Local: local, Shared: true, Resolver: endpoint.Static{pair.B.Addr: hop}})).Or(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-done
		must(t, errors.Join(e.Close(), w[0].Close(), w[1].Close(), q.Close(), av.Close(), d.Close()))
	})
	return &driven{e, pair, peers[0]}
}

func needTshark(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	shmtest.Require(t, "tshark", err)
	return path
}

// shown returns the endpoints that shmctl xdp prints.
func shown(t *testing.T, args ...string) []endpointInfo {
	t.Helper()
	return parsed[[]endpointInfo](t, "endpoints", ok(t, append([]string{"xdp", "-j"}, args...)...))
}

// traffic sends three datagrams and a tagged one to the device, and two from it.
func (d *driven) traffic(t *testing.T) {
	t.Helper()
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(d.pair.A.Addr, devicePort))
	xdptest.Do(t, d.pair.B, func() error {
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: d.pair.B.Addr.AsSlice(), Port: devicePort}, to)
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range 3 {
			if _, err := fmt.Fprintf(c, "plain %d", i); err != nil {
				return err
			}
		}
		return d.sendTagged()
	})
	for i := range 2 {
		must(t, d.Send(fmt.Appendf(nil, "back %d", i), d.peer, uint64(i)))
	}
}

// sendTagged sends a datagram with an inline VLAN tag from the other end.
func (d *driven) sendTagged() error {
	t, err := packet.NewTemplate([6]byte(d.pair.B.MAC), [6]byte(d.pair.A.MAC),
		netip.AddrPortFrom(d.pair.B.Addr, devicePort), netip.AddrPortFrom(d.pair.A.Addr, devicePort))
	if err != nil {
		return err
	}
	frame := make([]byte, 200)
	n, err := t.Build(frame, []byte("tagged"))
	if err != nil {
		return err
	}
	frame = slices.Insert(frame[:n:n], 12, 0x81, 0x00, 0x60, 0x2a) // priority 3, VLAN 42
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: d.pair.B.Index})
}

// TestCaptureIsReadByTshark: counts, directions, tags and payloads are what went over the wire.
func TestCaptureIsReadByTshark(t *testing.T) {
	tshark := needTshark(t)
	d := newDevice(t)
	var all []byte // a section after the other, which is a capture too
	targets := []string{d.pair.A.Name, "arrivals", ""}
	for _, target := range targets {
		if target == "" {
			target = shown(t)[0].Name
		}
		file := filepath.Join(t.TempDir(), "a.pcapng")
		done := make(chan result, 1)
		go func() {
			done <- run(t, "capture", target, "--write", file, "--count", "6", "--duration", "30s", "-j")
		}()
		eventually(t, "the capture is wanted", func() bool { return shown(t)[0].Captured })
		// Wanted is not begun: the endpoint looks once a round, before it publishes its counters.
		wanted := time.Now()
		eventually(t, "a round after that", func() bool {
			since := time.Since(wanted).Nanoseconds()
			age := shown(t)[0].CounterAge
			return age != nil && *age < since
		})
		d.traffic(t)
		r := <-done
		if r.code != 0 || r.stderr != "" {
			t.Fatalf("%s: exit %d, %s", target, r.code, r.stderr)
		}
		c := parsed[captureResult](t, "capture", r.stdout)
		if c.Written != 6 || c.Dropped != 0 || len(c.Endpoints) != 1 {
			t.Errorf("%s: %+v", target, c)
		}
		text := shmtest.Got(os.ReadFile(file)).Or(t)
		all = append(all, text...)
		eventually(t, "the capture is over", func() bool { return !shown(t)[0].Captured })
	}
	file := filepath.Join(t.TempDir(), "all.pcapng")
	must(t, os.WriteFile(file, all, 0o600))
	checkCaptures(t, tshark, file, d.pair.A.Name, len(targets))
}

// checkCaptures looks at a file of so many captures of the same traffic.
func checkCaptures(t *testing.T, tshark, file, ifname string, captures int) {
	t.Helper()
	out := shmtest.Got(exec.Command(tshark, "-r", file, "-T", "fields", "-E", "separator=|",
		"-e", "frame.packet_flags_direction", "-e", "vlan.id", "-e", "vlan.priority",
		"-e", "udp.dstport", "-e", "frame.interface_name", "-e", "udp.payload",
		"-e", "frame.time_epoch").Output()).Or(t)
	var got []string
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 7 {
			t.Fatalf("tshark says %q", line)
		}
		direction := shmtest.Got(strconv.ParseUint(f[0], 0, 32)).Or(t)
		payload := ""
		for i := 0; i+1 < len(f[5]); i += 2 {
			c := shmtest.Got(strconv.ParseUint(f[5][i:i+2], 16, 8)).Or(t)
			payload += string(rune(c))
		}
		got = append(got, fmt.Sprintf("%d %s/%s %s", direction, f[1], f[2], payload))
		if f[3] != strconv.Itoa(devicePort) || f[4] != ifname {
			t.Errorf("port %s, interface %s", f[3], f[4])
		}
		at, err := strconv.ParseFloat(f[6], 64)
		if err != nil || time.Since(time.Unix(int64(at), 0)).Abs() > time.Hour {
			t.Errorf("time %s, %v", f[6], err)
		}
	}
	want := []string{"1 / plain 0", "1 / plain 1", "1 / plain 2", "1 42/3 tagged", "2 / back 0",
		"2 / back 1"}
	if len(got) != captures*len(want) {
		t.Fatalf("captured %q, want %d times %q", got, captures, want)
	}
	for one := range slices.Chunk(got, len(want)) {
		slices.Sort(one)
		if !slices.Equal(one, want) {
			t.Errorf("captured %q, want %q", one, want)
		}
	}
}

// TestXDPShowsEndpoint: what the device is, who drives it and what it counted.
func TestXDPShowsEndpoint(t *testing.T) {
	d := newDevice(t)
	d.traffic(t)
	var e endpointInfo
	eventually(t, "all is counted", func() bool {
		e = shown(t, d.pair.A.Name)[0]
		return e.Counters["received"] == 4 && e.Counters["ring_sent"] == 2
	})
	if e.Index != d.pair.A.Index || e.NetNS == nil || e.Attach == nil || *e.Attach != "native" ||
		e.Program == nil || *e.Program == 0 || e.Bind != "copy" || e.Receive.Name != "arrivals" ||
		e.Rings.Rx == 0 || e.Process == nil || *e.Local == "" || e.UMEM.Frames == 0 {
		t.Errorf("%+v", e)
	}
	text := ok(t, "xdp", e.Name)
	has(t, text, "rx queue full", "rx fill ring empty", "tx invalid", "native")
	has(t, ok(t, "xdp"), "native/copy")
	has(t, ok(t, "ls"), "see shmctl xdp")
	valid(t, ok(t, "ls", "-j"))
	refused(t, "xdp nothing", 3)
	refused(t, "capture nothing --write -", 3)
	refused(t, "capture nothing", 2)
}

// TestCapturable: a queue is found by its name in the directory, or by what it is called if it has
// none there; one that took the name of another is not that other.
func TestCapturable(t *testing.T) {
	d := shmtest.Have(shm.OpenDir("")).In(t)
	shmtest.Have(cq.Create(cq.Named(d, "named"), cq.Options{})).In(t)
	w := shmtest.Have(cq.Attach(t.Context(), cq.Named(d, "named"), cq.WriterOptions{})).In(t)
	id := w.Stats().QueueID
	for i, info := range []xstatus.Info{{Receive: "eth0/0", ReceiveID: shm.NewUUID()},
		{Receive: "named", ReceiveID: shm.NewUUID()}, {Transmit: "named", TransmitID: id}} {
		info.Queue, info.Interface = uint32(i), "dev0"
		shmtest.Have(xstatus.Create(d, info)).In(t)
	}
	for name, want := range map[string]uint32{"eth0/0": 0, "named": 2} {
		found, err := capturable(d, name)
		if err != nil || len(found) != 1 || found[0].Info.Queue != want {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	for _, name := range []string{"nothing", ""} {
		if _, err := capturable(d, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestCaptureOfStandingEndpoint: one that nobody drives is said to be that.
func TestCaptureOfStandingEndpoint(t *testing.T) {
	d := newDevice(t)
	must(t, d.Close())
	if r := run(t, "capture", d.pair.A.Name, "--write", filepath.Join(t.TempDir(), "x")); r.code != 3 {
		t.Errorf("closed: %+v", r)
	}
}

// TestCaptureRefused: a file stays as it was if another tool captures; that nobody drives the
// endpoint is said when the time to join, or that of the capture, is over.
func TestCaptureRefused(t *testing.T) {
	d := newDir(t)
	o := shmtest.Have(xstatus.Create(d, xstatus.Info{Interface: "eth7"})).In(t)
	file := filepath.Join(t.TempDir(), "earlier")
	must(t, os.WriteFile(file, []byte("packets"), 0o600))
	s := shmtest.Got(xcapture.Start(d, o.Name(), xcapture.Options{})).Or(t)
	refused(t, "capture eth7 --write "+file, 1, xcapture.Prefix, "another tool")
	if text := string(shmtest.Got(os.ReadFile(file)).Or(t)); text != "packets" {
		t.Errorf("the file of before: %q", text)
	}
	must(t, s.Close())
	for _, bound := range []string{" --wait 1ms", " --duration 1ms"} {
		refused(t, "capture eth7 --write "+file+bound, 1, "did not join: nobody drives it")
	}
}

// TestProbe: a pair can be used, an interface that is not there cannot.
func TestProbe(t *testing.T) {
	pair := xdptest.NewPair(t, veth.Config{})
	var text, table string
	xdptest.Do(t, pair.A, func() error {
		r, s := run(t, "probe", pair.A.Name, "-j"), run(t, "probe", pair.A.Name)
		text, table = r.stdout, s.stdout
		if r.code != 0 || s.code != 0 {
			return fmt.Errorf("exit %d and %d: %s\n%s", r.code, s.code, text, table)
		}
		return nil
	})
	p := parsed[probeResult](t, "probe", text)
	if !p.Usable || p.Interface != pair.A.Name || len(p.Findings) < 5 {
		t.Errorf("%+v", p)
	}
	for _, f := range p.Findings {
		if !strings.Contains(table, f.Name) || !f.OK && (f.Remedy == nil) {
			t.Errorf("%q: %+v\n%s", f.Name, f, table)
		}
	}
	refused(t, "probe nothing0", 3)
}

// TestProbeNamesOurs: the endpoint that has the queue and the program is named where it is, and its
// process otherwise.
func TestProbeNamesOurs(t *testing.T) {
	d := newDevice(t)
	name := shown(t)[0].Name
	eventually(t, "the program is known", func() bool { return shown(t)[0].Program != nil })
	var r result
	xdptest.Do(t, d.pair.A, func() error { r = run(t, "probe", d.pair.A.Name, "-j"); return nil })
	for _, f := range parsed[probeResult](t, "probe", r.stdout).Findings {
		ours := f.Name == "socket" || f.Name == "program"
		if ours != (f.Endpoint != nil) || ours && (*f.Endpoint != name || f.OK ||
			!strings.Contains(*f.Value, name) || !strings.Contains(*f.Remedy, name)) {
			t.Errorf("%s: %+v", f.Name, f)
		}
	}
}

// TestXDPOddName: an endpoint's object that was given another name is listed like others.
func TestXDPOddName(t *testing.T) {
	d := newDir(t)
	o := shmtest.Got(xstatus.Create(d, xstatus.Info{Interface: "eth7"})).Or(t)
	defer o.Close()
	path := filepath.Join(d.Path(), xstatus.Prefix)
	must(t, os.Rename(filepath.Join(d.Path(), o.Name()), path+"x"))
	has(t, ok(t, "xdp"), "\nx ", "eth7")
	must(t, os.Remove(path+"x"))
}

// TestLocalShown: an endpoint that leaves its address to the route is shown with one of the
// interface, and one with an address and a port with those.
func TestLocalShown(t *testing.T) {
	d := newDevice(t)
	want := netip.AddrPortFrom(d.pair.A.Addr, devicePort).String()
	if e := shown(t)[0]; e.Local == nil || *e.Local != want {
		t.Errorf("local %+v, want %v", e.Local, want)
	}
	socket := xdptest.Open(t, d.pair.B, 0, xdptest.NewUMEM(t, xdp.UMEMOptions{}), xdp.Options{})
	f := xcapture.Observe(false, nil, socket, xstatus.Info{})
	defer f.Close()
	if e := shown(t, f.Name())[0]; e.Local == nil || *e.Local != d.pair.B.Addr.String() {
		t.Errorf("local %+v, want %v", e.Local, d.pair.B.Addr)
	}
	if text := ok(t, "xdp"); !strings.Contains(text, d.pair.B.Addr.String()+" ") {
		t.Error(text)
	}
}
