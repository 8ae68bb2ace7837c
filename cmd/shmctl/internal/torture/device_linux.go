package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cmd/shmctl/internal/wire"
	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/scratch"
	"github.com/shmring/shmring/internal/stage"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/device"
	"github.com/shmring/shmring/xdp/endpoint"
)

// What the roles around a device process are told.
const (
	shareDevice = "device" // where its socket is
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
		drains: true, run: (*child).serveDevice, prepare: prepareDevice,
		with:  []string{"wire", "app", "app2"},
		tells: map[string]string{"app": noticeServer, "app2": noticeServer}, sum: sumDevice,
		counts: map[string]int{"delivered": wordDelivered, "dropped": wordDropped,
			"unclaimed": wordUnclaimed, "admitted": wordAdmitted}, lacks: lacksDevice,
		grows: true, steps: at("dev-")}
}

// prepareDevice makes the pair, which goes with the supervisor, and a directory for the socket that
// other users reach.
func prepareDevice(s *supervisor) (undo func(), err error) {
	pair, err := veth.Open(veth.Config{})
	if err != nil {
		return nil, fmt.Errorf("the role device needs root and network namespaces: %w", err)
	}
	remove, err := s.shareDir(shareDevice, os.Getuid())
	undo = func() { _ = pair.Close(); remove() }
	s.ends = wire.Ends{*pair.B, *pair.A}
	s.spaces = []*os.File{pair.B.NetNS(), pair.A.NetNS()}
	return undo, err
}

// lacksDevice tries what a device process does, on a pair of its own.
var lacksDevice = sync.OnceValue(func() error {
	if err := scratch.Others(os.TempDir()); err != nil { // its applications are theirs
		return err
	}
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
func enter(which int) error {
	runtime.LockOSThread()
	return veth.Enter(ledgerFd + 1 + which)
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
	if err := enter(0); err != nil {
		return err
	}
	s, err := wire.Serve(c.Share[shareDevice]+"/s", device.Config{
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
	if len(st.Apps) > 0 {
		w.ledger.word(wordGrown + w.Place).Store(1)
	}
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
		with: []string{"device"}, run: (*child).answerWire}
}

// answerWire answers what comes with a datagram that nobody had before, and floods now and then.
func (c *child) answerWire() error {
	if err := enter(1); err != nil {
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

// Users that applications are, without any privilege.
const (
	appUser  = 65534
	app2User = 65533
)

// apps is how many of appUser's live at once.
const apps = 2

// Words of an application's ledger, which are sums over its processes. What one has is the device
// process, or the last one that it had; the next one of that is not started before all who had it
// are known.
const (
	wordAccepted  = iota // sends
	wordDone             // of them, with a completion
	wordRefused          // with an error
	wordCancelled        // with ECANCELED
	wordTaken            // datagrams
	appWords
)

func appRole() *role  { return newAppRole("app", apps, appUser) }
func app2Role() *role { return newAppRole("app2", 1, app2User) }

func newAppRole(name string, places int, uid uint32) *role {
	return &role{name: name, places: places, words: appWords, asked: true, uid: uid,
		stops: true, tries: 4 * time.Second, run: (*child).beApp, with: []string{"device"},
		steps: at("app-"), grows: true,
		counts: map[string]int{"received": wordTaken},
		sum: func(s *supervisor, _ *role, r *RoleReport) {
			words := s.ledger.region(name)
			r.Published = words[wordAccepted].Load()
			r.Read = words[wordDone].Load() + words[wordRefused].Load() + words[wordCancelled].Load()
		}}
}

// app is one application.
type app struct {
	*child
	e      *device.Endpoint
	eq     *cq.EventQueue
	port   uint16
	to     netip.AddrPort
	next   uint64
	open   map[uint64]bool // sends without an end
	seen   map[uint64]bool // datagrams
	mu     sync.Mutex
	events []device.Event // that the event queue is going to tell
	es     [32]cq.Entry
	buf    [wire.PayloadMaxBytes]byte
}

// beApp sends and receives until it is told to stop.
func (c *child) beApp() (err error) {
	a := &app{child: c, open: map[uint64]bool{}, seen: map[uint64]bool{}, port: 5000 + uint16(c.Index),
		to: netip.AddrPortFrom(c.Ends[1].Addr, wirePort)}
	if c.role.name == "app2" {
		a.port += 100
	}
	a.eq, err = cq.CreateEvents(cq.Unnamed("events"), cq.EventOptions{Write: true, Size: 1024})
	if err != nil {
		return err
	}
	if err = a.dial(); err == nil && a.e != nil {
		for c.ledger.phase() == phaseRun && err == nil {
			err = a.turn()
		}
		err = errors.Join(err, a.untilEnded(), a.untilTold(), a.e.Close())
	}
	return errors.Join(err, a.eq.Close())
}

// dial finds the device process, which is killed as we are.
func (a *app) dial() (err error) {
	q := device.Request{Name: a.role.name, Ports: []uint16{a.port}, Frames: 128, Sends: 32,
		Events: a.eq, Notify: a.note}
	ctx, stop := a.running(phaseStop)
	defer stop()
	for since := stage.Lifetime(); ctx.Err() == nil; nap(time.Millisecond) {
		if a.e, err = device.Dial(ctx, a.Share[shareDevice]+"/s", q); err == nil {
			a.bound()
			a.has(uint64(a.e.Info().ServerPID))
			return nil
		}
		if a.e = nil; stage.Lifetime()-since > patience {
			a.tell(kindHung, "no device process for %v: %v", patience, err)
			return nil
		}
	}
	return nil
}

// note is called before the event queue tells it.
func (a *app) note(ev device.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, ev)
}

// turn does something.
func (a *app) turn() error {
	var err error
	switch k := a.rnd.IntN(100); {
	case k < 60:
		err = a.send(1 + a.rnd.IntN(16))
	case k < 90:
		err = a.read(time.Millisecond)
	case k < 94:
		nap(time.Duration(a.rnd.IntN(3000)) * time.Microsecond)
	case k < 98 || a.Step == crash.AppAsked.String() ||
		a.Step == crash.AppAnswered.String():
		err = a.ports()
	default:
		err = a.untilEnded()
	}
	if err == nil {
		err = errors.Join(a.read(-1), a.listen())
	}
	return err
}

// send sends some datagrams; now and then one to where nobody answers for its hardware address.
func (a *app) send(n int) error {
	for range n {
		b, to := a.buf[:wire.Put(a.buf[:], a.next)], a.to
		if a.rnd.IntN(500) == 0 {
			to = netip.AddrPortFrom(silent, 9)
		}
		switch err := a.e.SendTo(b, 0, to, a.next); {
		case errors.Is(err, device.ErrNoSlot), errors.Is(err, device.ErrServerGone):
			return nil
		case err != nil:
			return fmt.Errorf("send: %w", err)
		}
		a.open[a.next] = true
		a.next++
		a.words[wordAccepted].Add(1)
	}
	return nil
}

// read takes what is there, and waits for the first; with a negative wait it does not.
func (a *app) read(wait time.Duration) error {
	n, err := cq.ReadContext(context.Background(), a.e.Queue(), a.es[:], cq.ReadOptions{Timeout: wait})
	for i := range a.es[:n] {
		if e := &a.es[i]; e.Flags&cq.FlagFrame == 0 {
			a.ended(e.Context, wordDone)
		} else if err := a.datagram(e); err != nil {
			return err
		}
	}
	if errors.Is(err, cq.ErrAvail) {
		var x cq.ErrorEntry
		if err := a.e.Queue().ReadErr(&x); err != nil {
			return fmt.Errorf("read error: %w", err)
		}
		switch {
		case errors.Is(&x, syscall.ECANCELED):
			a.ended(x.Context, wordCancelled)
		case errors.Is(&x, syscall.EHOSTUNREACH):
			a.ended(x.Context, wordRefused)
		default:
			return fmt.Errorf("a send failed: %+v", x)
		}
		return nil
	}
	if err != nil && !errors.Is(err, syscall.EAGAIN) {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// ended notes the end of a send.
func (a *app) ended(number uint64, how int) {
	if a.words[how].Add(1); how == wordDone {
		a.ledger.word(wordGrown + a.Place).Store(1)
	}
	if a.open[number] {
		delete(a.open, number)
	} else if number < a.next {
		a.tell(kindDuplicate, "send %d ended twice", number)
	} else {
		a.tell(kindUnpublished, "send %d ended, and was never made", number)
	}
}

// datagram looks at one and gives its frame back.
func (a *app) datagram(e *cq.Entry) error {
	loan, err := a.e.View(e)
	if err == nil { // else the memory of a device process that is no longer mapped
		number, ok := wire.Check(loan.Bytes())
		if !ok {
			a.tell(kindUnpublished, "a datagram of %d bytes that is not what the wire sent",
				len(loan.Bytes()))
		} else if a.seen[number] {
			a.tell(kindDuplicate, "datagram %d came twice", number)
		}
		a.seen[number] = true
		a.words[wordTaken].Add(1)
		loan.Release()
	}
	if err := a.e.Release(*e); err != nil && !errors.Is(err, device.ErrServerGone) {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// listen takes the events, which must be those that were called for.
func (a *app) listen() error {
	for {
		var ev cq.Event
		if _, err := a.eq.Read(&ev, 0); errors.Is(err, syscall.EAGAIN) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		a.mu.Lock()
		var want device.Event
		if len(a.events) > 0 {
			want, a.events = a.events[0], a.events[1:]
		}
		a.mu.Unlock()
		switch {
		case want.Err != nil && ev.Event == cq.EventPeerDeath &&
			ev.Data == uint64(want.Cancelled):
			a.notice(noticeServer, cq.PeerEntry{PID: want.PID})
		case want.Err == nil && ev.Event == cq.EventConnected &&
			ev.Data == want.Generation:
			a.has(uint64(want.PID))
		default:
			a.tell(kindLost, "event %+v instead of %+v", ev, want)
		}
	}
}

// ports takes a port and drops it.
func (a *app) ports() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	port := a.port + 50
	taken := a.e.Take(ctx, port)
	dropped := a.e.Drop(ctx, port)
	for _, err := range []error{taken, dropped} {
		switch {
		case err == nil, errors.Is(err, device.ErrServerGone):
		case errors.Is(err, device.ErrPortTaken), errors.Is(err, device.ErrBudget):
			// by who had our place before, and died a moment ago
		case taken != nil && errors.Is(err, device.ErrOptions): // nothing to be dropped
		case errors.Is(err, context.DeadlineExceeded):
			a.tell(kindHung, "no answer about a port for %v", patience)
		default:
			return fmt.Errorf("port: %w", err)
		}
	}
	return nil
}

// untilEnded waits until every send has its completion.
func (a *app) untilEnded() error {
	for since := stage.Lifetime(); len(a.open) > 0; {
		if stage.Lifetime()-since > patience {
			a.tell(kindHung, "%d sends without an end for %v", len(a.open), patience)
			clear(a.open)
		}
		if err := errors.Join(a.read(time.Millisecond), a.listen()); err != nil {
			return err
		}
	}
	return nil
}

// untilTold waits until the event queue has told everything that was called for.
func (a *app) untilTold() error {
	for since := stage.Lifetime(); ; nap(time.Millisecond) {
		err := a.listen()
		a.mu.Lock()
		left := len(a.events)
		a.mu.Unlock()
		if err != nil || left == 0 {
			return err
		}
		if stage.Lifetime()-since > noticeLatest {
			a.tell(kindUnnoticed, "%d events did not come", left)
			return nil
		}
	}
}
