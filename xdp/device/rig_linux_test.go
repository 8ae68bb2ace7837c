package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
)

// roles are what the test binary does when it is started as a child.
var roles = map[string]func(){}

func TestMain(m *testing.M) { shmtest.Main(m, roles) }

var must, need = shmtest.Must, shmtest.Need

var await = shmtest.Eventually

// wires resolves what is at the other end of a veth pair.
type wires struct{ local, remote *veth.End }

func (w wires) Lookup(dst netip.Addr) (xdp.Hop, error) {
	switch dst {
	case w.remote.Addr:
		return xdp.Hop{LocalMAC: [6]byte(w.local.MAC), NextMAC: [6]byte(w.remote.MAC),
			Source: w.local.Addr, MTU: 1500, Generation: 1}, nil
	case silent:
		return xdp.Hop{}, packet.ErrResolving
	}
	return xdp.Hop{}, packet.ErrUnreachable
}

// silent is an address that is never resolved.
var silent = netip.MustParseAddr("192.0.2.99")

// rig is a server on one end of a veth pair, in this process.
type rig struct {
	t      testing.TB
	pair   *veth.Pair
	server *device.Server
	path   string
	mu     sync.Mutex
	errs   []error
	cancel func() // ends what the server serves in
}

func newRig(t testing.TB, c device.Config) *rig {
	t.Helper()
	r := &rig{t: t, pair: xdptest.NewPair(t, veth.Config{Queues: len(c.Queues)}),
		path: socketPath(t)}
	c.Interface = r.pair.B.Name
	if c.Resolver == nil {
		c.Resolver = wires{r.pair.B, r.pair.A}
	}
	c.Report = func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}
	r.server = xdptest.Have(r.pair.B, func() (*device.Server, error) {
		return device.NewServer(t.Context(), c)
	}).Where(t, "xdp")
	// What a machine that stands still for seconds is not to be taken for.
	r.server.SetHelloTimeout(time.Minute)
	r.server.SetParked(time.Minute)
	l := shmtest.Got(device.Listen(r.path)).Or(t)
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, l.UnixListener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) && !errors.Is(err, device.ErrClosing) {
			t.Errorf("Serve: %v", err)
		}
		must(t, errors.Join(r.server.Close(), l.Close()))
		if s := r.server.Stats(); len(s.Apps) != 0 || s.Admitted != s.Evicted {
			t.Errorf("left: %+v", s)
		}
	})
	return r
}

// socketPath is a path that all users can reach.
func socketPath(t testing.TB) string {
	t.Helper()
	dir := shmtest.Got(os.MkdirTemp("", "device")).Or(t)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// reported returns what the server reported since the last call.
func (r *rig) reported() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(r.errs...)
	r.errs = nil
	return err
}

func (r *rig) dial(q device.Request) *device.Endpoint {
	r.t.Helper()
	return dial(r.t, r.path, q)
}

// dial makes an endpoint for the time of the test.
func dial(t testing.TB, path string, q device.Request) *device.Endpoint {
	t.Helper()
	return shmtest.Have(device.Dial(t.Context(), path, q)).In(t)
}

// peer is a kernel socket at the other end.
func (r *rig) peer(port uint16) *net.UDPConn { return xdptest.UDP(r.t, r.pair.A, port) }

// echo has a kernel socket answer every datagram with itself.
func echo(c *net.UDPConn) {
	_ = c.SetDeadline(time.Time{})
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// target is a port of the server's end, as a peer sees it.
func (r *rig) target(port uint16) netip.AddrPort { return netip.AddrPortFrom(r.pair.B.Addr, port) }

func addrOf(c *net.UDPConn) netip.AddrPort {
	a := c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// read waits for completions of an endpoint.
func read(t testing.TB, e *device.Endpoint, es []cq.Entry) (int, error) {
	return cq.ReadContext(t.Context(), e.Queue(), es, cq.ReadOptions{Timeout: time.Minute})
}

// next returns the next completion of an endpoint.
func next(t testing.TB, e *device.Endpoint) cq.Entry {
	t.Helper()
	var es [1]cq.Entry
	if _, err := read(t, e, es[:]); err != nil {
		t.Fatalf("read completion: %v", err)
	}
	return es[0]
}

// nextError returns the next completion, which must be an error.
func nextError(t testing.TB, e *device.Endpoint) cq.ErrorEntry {
	t.Helper()
	var es [1]cq.Entry
	if _, err := read(t, e, es[:]); !errors.Is(err, cq.ErrAvail) {
		t.Fatalf("read: %v, %+v", err, es[0])
	}
	var entry cq.ErrorEntry
	must(t, e.Queue().ReadErr(&entry))
	return entry
}

// text returns the payload of a received datagram and gives its frame back.
func text(t testing.TB, e *device.Endpoint, entry *cq.Entry) string {
	t.Helper()
	if entry.Flags&cq.FlagFrame == 0 {
		t.Fatalf("no frame: %+v", entry)
	}
	loan := shmtest.Got(e.View(entry)).Or(t)
	s := string(loan.Bytes())
	loan.Release()
	must(t, e.Release(*entry))
	return s
}

func frameSum(s device.Stats) (sum, all uint64) {
	for _, f := range s.Frames {
		sum += f.Sum()
		all += f.Frames
	}
	return sum, all
}

func addrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

func isGone(err error) bool { return errors.Is(err, xdp.ErrDeviceGone) }

// appChild is an application in a process of its own: it answers every datagram to its port with
// the same payload, until it is killed, or has nobody at its standard input.
func appChild() {
	port := shmtest.Needs(strconv.ParseUint(os.Getenv("PORT"), 10, 16))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	request := device.Request{Name: "echo", Ports: []uint16{uint16(port)},
		InPlace: os.Getenv("IN_PLACE") != ""}
	if !request.InPlace {
		need(unprivileged())
	}
	e, err := device.Dial(ctx, os.Getenv("PATH_OF"), request)
	// One that was killed a moment ago can have both.
	for errors.Is(err, device.ErrPortTaken) || errors.Is(err, device.ErrBudget) {
		time.Sleep(5 * time.Millisecond)
		e, err = device.Dial(ctx, os.Getenv("PATH_OF"), request)
	}
	need(err)
	defer e.Close()
	shmtest.Say("ready")
	go func() {
		shmtest.UntilTold()
		cancel()
	}()
	hold := os.Getenv("HOLD") != "" // never gives a frame back
	var es [16]cq.Entry
	for {
		n, err := cq.ReadContext(ctx, e.Queue(), es[:], cq.ReadOptions{})
		if errors.Is(err, context.Canceled) {
			return
		}
		if errors.Is(err, cq.ErrAvail) {
			need(e.Queue().ReadErr(new(cq.ErrorEntry)))
			continue
		}
		need(err)
		for i := range es[:n] {
			if es[i].Flags&cq.FlagFrame != 0 && !hold {
				need(answer(e, &es[i]))
			}
		}
	}
}

func unprivileged() error {
	if os.Geteuid() == 0 {
		return errors.New("this is root")
	}
	if s, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0); err == nil {
		return fmt.Errorf("socket %d: this process has the privilege that it should not need", s)
	}
	return nil
}

func answer(e *device.Endpoint, entry *cq.Entry) error {
	rec, err := e.Record(entry)
	if err != nil {
		return err
	}
	loan, err := e.View(entry)
	if err != nil {
		return err
	}
	for err = e.SendTo(loan.Bytes(), 0, rec.Src, 0); errors.Is(err, device.ErrNoSlot); {
		time.Sleep(20 * time.Microsecond)
		err = e.SendTo(loan.Bytes(), 0, rec.Src, 0)
	}
	loan.Release()
	if err != nil && !errors.Is(err, device.ErrServerGone) {
		return err
	}
	if err := e.Release(*entry); err != nil && !errors.Is(err, device.ErrServerGone) {
		return err
	}
	return nil
}
