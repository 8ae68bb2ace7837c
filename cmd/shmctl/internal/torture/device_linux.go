package torture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// What the roles around a device process are told.
const (
	shareSocket = "device-socket"
	shareSpaces = "device-spaces" // the files of the namespaces of both ends, the device's first
)

// noticeServer is how applications tell the death of a device process.
const noticeServer = "server-gone"

// Words of a device process's ledger; counts are sums over all of them.
const (
	wordNative    = iota // the program is attached in native mode: 1, generic: 2
	wordDelivered        // packets
	wordDropped
	wordUnclaimed
	wordAdmitted // applications
	deviceWords
)

// deviceRole is a device process on one end of a veth pair in namespaces without a name.
func deviceRole() *role {
	return &role{name: "device", places: 1, words: deviceWords, asked: true, stops: true,
		drains: true, tries: 2 * time.Second, run: (*child).serveDevice, prepare: prepareDevice,
		with:  []string{"wire", "app", "app2"},
		tells: map[string]string{"app": noticeServer, "app2": noticeServer}, sum: sumDevice,
		counts: map[string]int{"delivered": wordDelivered, "dropped": wordDropped,
			"unclaimed": wordUnclaimed, "admitted": wordAdmitted}, lacks: lacksDevice,
		young: func(s *supervisor, p *proc) bool {
			has := s.has(p)
			return has == 0 || !slices.ContainsFunc(s.procs, func(q *proc) bool {
				return p.role.tells[q.role.name] != "" && !q.empty && !q.Over() && s.has(q) == has
			})
		},
		steps: at("dev-")}
}

// prepareDevice makes the pair, which goes with the supervisor, and a directory for the socket that
// other users reach.
func prepareDevice(s *supervisor) (undo func(), err error) {
	pair, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, fmt.Errorf("the role device needs root and network namespaces: %w", err)
	}
	dir, err := os.MkdirTemp("", "shmring-torture-")
	undo = func() { _ = errors.Join(pair.Close(), os.RemoveAll(dir)) }
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	s.ends = wire.Ends{*pair.B, *pair.A}
	s.share[shareSocket] = dir + "/s"
	s.share[shareSpaces] = fmt.Sprintf("/proc/%d/fd/%d /proc/%d/fd/%d", os.Getpid(),
		pair.B.NetNS().Fd(), os.Getpid(), pair.A.NetNS().Fd())
	return undo, err
}

// lacksDevice tries what a device process does, on a pair of its own.
var lacksDevice = sync.OnceValue(func() error {
	pair, err := veth.Open(veth.Config{})
	if err != nil {
		return absent(fmt.Errorf("a pair of interfaces in network namespaces: %w", err))
	}
	err = pair.B.Do(func() error {
		r, err := xdp.Probe(pair.B.Name)
		if err != nil {
			return absent(err)
		}
		for _, f := range r.Findings {
			if f.Required && !f.OK && (r.SocketErr == nil || absent(r.SocketErr) != nil) {
				return fmt.Errorf("AF_XDP: %s: %s", f.Name, f.Remedy)
			}
		}
		return nil
	})
	_ = pair.Close()
	return err
})

// absent returns an error if it says that the machine does not have, or not permit, what was tried.
// Another one, as of a machine that is short of something for a moment, is no reason to leave roles
// out: they take part, and fail if it stays.
func absent(err error) error {
	if isAny(err, errors.ErrUnsupported, os.ErrPermission, unix.ENODEV, unix.ENOENT,
		unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.ENOPROTOOPT, unix.EINVAL,
		unix.ENOSPC, unix.EUSERS) { // the last two: no namespace is allowed
		return err
	}
	return nil
}

// enter moves the thread, which is not given back, to the namespace of an end.
func (c *child) enter(which int) error {
	runtime.LockOSThread()
	path := strings.Fields(c.Share[shareSpaces])[which]
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	return veth.Enter(fd)
}

// wireWays resolves what is at the other end of the pair; silent is never resolved.
type wireWays struct{ endpoint.Static }

var silent = netip.MustParseAddr("192.0.2.99")

func (w wireWays) Lookup(dst netip.Addr) (xdp.Hop, error) {
	if dst == silent {
		return xdp.Hop{}, packet.ErrResolving
	}
	return w.Static.Lookup(dst)
}

// serveDevice owns the device until nobody needs it.
func (c *child) serveDevice() error {
	if err := c.enter(0); err != nil {
		return err
	}
	s, err := wire.Serve(c.Share[shareSocket], device.Config{
		Interface: c.Ends[0].Name, NoObject: true,
		Resolver: wireWays{c.Ends.Ways(0)}, Allow: []device.Allow{{ID: 0},
			{ID: appUser, First: 5000, Last: 5099}, {ID: app2User, First: 5100, Last: 5199}}})
	if err != nil {
		return err
	}
	c.has(uint64(c.pid))
	native := s.Stats().Attached == xdp.AttachNative
	c.words[wordNative].Store(map[bool]uint64{true: 1, false: 2}[native])
	w := &deviceWatch{child: c, s: s.Server}
	for c.ledger.phase() < phaseDrain && err == nil {
		nap(2 * time.Millisecond)
		err = w.look()
	}
	if err == nil {
		err = w.last()
	}
	err = errors.Join(err, s.Close())
	if st := s.Stats(); st.Admitted != st.Evicted || len(st.Apps) > 0 {
		c.tell(kindLeaked, "%d applications admitted, %d gone", st.Admitted, st.Evicted)
	}
	return err
}

// deviceWatch holds a server to its own accounts.
type deviceWatch struct {
	*child
	s    *device.Server
	told device.Stats
}

// look checks what must hold at all times. What is wrong once is wrong for good.
func (w *deviceWatch) look() error {
	st := w.s.Stats()
	if st.Received != st.Delivered+st.Dropped+st.Unclaimed+st.Malformed {
		w.tell(kindLost, "%d packets came, %d delivered, %d dropped, %d unclaimed, %d malformed",
			st.Received, st.Delivered, st.Dropped, st.Unclaimed, st.Malformed)
		return errors.New("packets do not add up")
	}
	for _, f := range st.Frames {
		if f.Sum() != f.Frames || f.Illegal != 0 {
			w.tell(kindLost, "frames do not add up: %+v", f)
			return errors.New("frames do not add up")
		}
	}
	for _, a := range st.Apps {
		if a.Loaned > a.Frames || a.UnderWay > a.Sends {
			w.tell(kindLost, "more than there is: %+v", a)
			return errors.New("an application has more than there is")
		}
	}
	for word, n := range map[int]uint64{wordDelivered: st.Delivered - w.told.Delivered,
		wordDropped: st.Dropped - w.told.Dropped, wordUnclaimed: st.Unclaimed - w.told.Unclaimed,
		wordAdmitted: st.Admitted - w.told.Admitted} {
		w.words[word].Add(n)
	}
	w.told = st
	return nil
}

// last checks what must hold when all applications are gone.
func (w *deviceWatch) last() error {
	var st device.Stats
	for since := stage.Lifetime(); stage.Lifetime()-since < patience; nap(5 * time.Millisecond) {
		st = w.s.Stats()
		busy := uint64(0)
		for _, f := range st.Frames {
			busy += f.Build + f.Send
		}
		if len(st.Apps) == 0 && st.SendsInUse == 0 && busy == 0 {
			return w.look()
		}
	}
	w.tell(kindLeaked, "all are gone, and there are %d applications, %d sends, frames %+v",
		len(st.Apps), st.SendsInUse, st.Frames)
	return nil
}

func sumDevice(s *supervisor, r *role, to *RoleReport) {
	to.Counts["native_mode"] = s.ledger.region(r.name)[wordNative].Load() & 1
}

const wirePort = 6000

// wireRole is the other end of the device: it answers every datagram, and sends some of its own.
// The kernel's stack is between, so what it loses is nobody's fault.
func wireRole() *role {
	return &role{name: "wire", places: 1, asked: true, stops: true, drains: true,
		with: []string{"device"}, run: (*child).answer}
}

// answer answers what comes with a datagram that nobody had before, and floods now and then.
func (c *child) answer() error {
	if err := c.enter(1); err != nil {
		return err
	}
	u, err := net.ListenUDP("udp4", &net.UDPAddr{IP: c.Ends[1].Addr.AsSlice(), Port: wirePort})
	if err != nil {
		return err
	}
	defer u.Close()
	number := uint64(os.Getpid()) << 32
	in, out := make([]byte, 2048), make([]byte, wire.PayloadMaxBytes)
	for c.ledger.phase() < phaseDrain {
		_ = u.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, from, err := u.ReadFromUDPAddrPort(in)
		if err == nil {
			if _, ok := wire.Check(in[:n]); !ok {
				c.tell(kindUnpublished, "%d bytes from %v that nobody sent", n, from)
			}
			number++
			_, _ = u.WriteToUDPAddrPort(out[:wire.Put(out, number)], from)
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			continue // what the kernel has against an earlier datagram
		}
		for range c.rnd.IntN(64) { // nobody asked for these
			number++
			port := 5000 + uint16(c.rnd.IntN(2))*100 + uint16(c.rnd.IntN(apps))
			_, _ = u.WriteToUDPAddrPort(out[:wire.Put(out, number)],
				netip.AddrPortFrom(c.Ends[0].Addr, port))
		}
	}
	return nil
}
