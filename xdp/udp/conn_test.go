package udp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/xdp/udp"
)

// long ends a test that hangs.
const long = time.Minute

func addrPort(c *udp.Conn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

// write sends bytes from a connection to another one.
func write(t testing.TB, from, to *udp.Conn, b ...byte) {
	t.Helper()
	shmtest.Got(from.WriteToUDPAddrPort(b, addrPort(to))).Or(t)
}

// reads takes the next datagram, which is one byte.
func reads(t testing.TB, c *udp.Conn, want byte) {
	t.Helper()
	var b [2]byte
	if n, _, err := c.ReadFromUDPAddrPort(b[:]); err != nil || n != 1 || b[0] != want {
		t.Fatalf("%d in place of %d, %v", b[:n], want, err)
	}
}

func TestBothWays(t *testing.T) {
	t.Parallel()
	a, b, _, _ := newPair(t, udp.StackOptions{})
	buf := make([]byte, 100)
	for i := range 100 {
		ping := fmt.Sprint("ping ", i)
		if n, err := a.WriteTo([]byte(ping), b.LocalAddr()); err != nil || n != len(ping) {
			t.Fatal(n, err)
		}
		n, from, err := b.ReadFrom(buf)
		if err != nil || string(buf[:n]) != ping || from.String() != a.LocalAddr().String() {
			t.Fatalf("%q from %v, %v", buf[:n], from, err)
		}
		if _, err := b.WriteTo([]byte("pong"), from); err != nil {
			t.Fatal(err)
		}
		m, ap, err := a.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:m]) != "pong" || ap != addrPort(b) {
			t.Fatalf("%q from %v, %v", buf[:m], ap, err)
		}
	}
	if s := b.Stats(); s.Received != 100 || s.Sent != 100 || s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

// TestReadersShareEvery: whatever the order in which readers and datagrams come, every datagram is
// read once, and nobody sleeps beside one.
func TestReadersShare(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	const readers, each = 8, 2000
	a, b, _, _ := newPair(t, udp.StackOptions{})
	must(t, b.SetReadDeadline(time.Now().Add(long)))
	seen := make(chan string, readers*each)
	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			buf := make([]byte, 64)
			for range each {
				n, _, err := b.ReadFromUDPAddrPort(buf)
				if err != nil {
					t.Error(err)
					return
				}
				seen <- string(buf[:n])
			}
		})
	}
	var writers sync.WaitGroup
	tokens := make(chan struct{}, 64) // what is under way fits the frames
	for w := range 4 {
		writers.Go(func() {
			for i := range readers * each / 4 {
				tokens <- struct{}{}
				if _, err := a.WriteToUDPAddrPort(fmt.Append(nil, w, " ", i), addrPort(b)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	got := map[string]bool{}
	for range readers * each {
		select {
		case s := <-seen:
			if got[s] {
				t.Fatalf("%q twice", s)
			}
			got[s] = true
			<-tokens
		case <-time.After(long):
			t.Fatalf("%d of %d", len(got), readers*each)
		}
	}
	writers.Wait()
	wg.Wait()
}

// TestBatchWakesAll: of readers that want one datagram each, as many wake as there come at once.
func TestBatchWakesAll(t *testing.T) {
	t.Parallel()
	a, b, _, fb := newPair(t, udp.StackOptions{})
	must(t, b.SetReadDeadline(time.Now().Add(long)))
	for round := range 300 {
		const readers = 8
		done := make(chan error, readers)
		for range readers {
			go func() {
				_, _, err := b.ReadFromUDPAddrPort(make([]byte, 8))
				done <- err
			}()
		}
		for range round % 20 { // some wait, some are about to
			runtime.Gosched()
		}
		batch := make([]udp.Datagram, readers)
		for i := range batch {
			batch[i] = udp.Datagram{Payload: []byte("x"), From: addrPort(a), To: addrPort(b)}
		}
		fb.arrive(batch)
		for range readers {
			must(t, <-done)
		}
	}
}

// TestCloseGivesBack: what nobody read is not lost to the others.
func TestCloseGivesBack(t *testing.T) {
	t.Parallel()
	a, b, _, fb := newPair(t, udp.StackOptions{})
	for range 5 {
		write(t, a, b, 'x')
	}
	await(t, func() bool { return fb.loans() == 5 })
	must(t, b.Close())
	await(t, func() bool { return fb.loans() == 0 }) // the stack may hold some on their way to b
}

// TestTokenPassesOn: a reader that gives up takes no other reader's wake-up with it.
func TestTokenPassesOn(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	a, b, _, _ := newPair(t, udp.StackOptions{})
	for range 300 {
		must(t, b.SetReadDeadline(time.Time{}))
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, _, err := b.ReadFromUDPAddrPort(make([]byte, 8))
				done <- err
			}()
		}
		write(t, a, b, 'x')
		must(t, <-done)
		must(t, b.SetReadDeadline(time.Unix(1, 0)))
		if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

func TestWildcard(t *testing.T) {
	t.Parallel()
	sa, sb, _, _ := newStacks(t, udp.StackOptions{}, 64)
	from := listen(t, sa, addrA, 0)
	exact := listen(t, sb, addrB, 7)
	any4 := listen(t, sb, netip.IPv4Unspecified(), 7)
	any := listen(t, sb, netip.IPv6Unspecified(), 9)
	other := netip.MustParseAddr("198.51.100.7")
	for _, c := range []struct {
		to   netip.AddrPort
		want *udp.Conn
	}{
		{netip.AddrPortFrom(addrB, 7), exact}, {netip.AddrPortFrom(other, 7), any4},
		{netip.AddrPortFrom(addrB, 9), any}, {netip.AddrPortFrom(addrB, 7), exact},
	} {
		text := c.to.String()
		shmtest.Got(from.WriteToUDPAddrPort([]byte(text), c.to)).Or(t)
		buf := make([]byte, 64)
		must(t, c.want.SetReadDeadline(time.Now().Add(long)))
		n, _, err := c.want.ReadFromUDPAddrPort(buf)
		if err != nil || string(buf[:n]) != text {
			t.Errorf("to %v: %q, %v", c.to, buf[:n], err)
		}
	}
	if _, err := sb.Listen(netip.AddrPortFrom(addrB, 7)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	must(t, exact.Close())
	again := listen(t, sb, addrB, 7)
	write(t, from, again, 'x')
	must(t, again.SetReadDeadline(time.Now().Add(long)))
	reads(t, again, 'x')
}

// TestFullInbox: what a reader leaves does not cost others their frames.
func TestFullInbox(t *testing.T) {
	t.Parallel()
	shmtest.Conforms(t)
	a, b, _, fb := newPair(t, udp.StackOptions{Backlog: 16})
	for i := range 100 {
		write(t, a, b, byte(i))
	}
	await(t, func() bool { return b.Stats().Dropped == 84 && fb.loans() == 16 })
	fb.set(func() {
		if fb.dropped != 0 {
			t.Errorf("%d dropped by the device", fb.dropped)
		}
	})
	for i := range 16 { // the oldest stay, as in the kernel
		reads(t, b, byte(i))
	}
	must(t, b.SetReadBuffer(1<<30))
	for i := range 100 {
		write(t, a, b, byte(i))
	}
	for i := range 100 {
		reads(t, b, byte(i))
	}
}

func await(t testing.TB, done func() bool) {
	t.Helper()
	shmtest.Eventually(t, "what is waited for", done)
}

// TestResolving: what cannot be sent yet is sent once it can be, in order, and a program does not
// notice.
func TestResolving(t *testing.T) {
	t.Parallel()
	sa, sb, fa, _ := newStacks(t, udp.StackOptions{}, 512)
	a, b := listen(t, sa, addrA, 0), listen(t, sb, addrB, 0)
	fa.set(func() { fa.unknown[addrB] = true })
	for i := range 10 {
		write(t, a, b, byte(i))
	}
	time.AfterFunc(20*time.Millisecond, func() { fa.set(func() { fa.unknown[addrB] = false }) })
	must(t, b.SetReadDeadline(time.Now().Add(long)))
	for i := range 10 {
		reads(t, b, byte(i))
	}
	// Those that find no next hop are bounded, and go with the stack.
	fa.set(func() { fa.unknown[addrB] = true })
	for range 1000 {
		write(t, a, b, 'x')
	}
	if n := sa.Stats(); n.Waiting != 128 || n.Lost != 1000-128 {
		t.Errorf("%+v", n)
	}
}

// TestResolvingOrder: whenever the next hop becomes known, nothing overtakes what waited for it.
func TestResolvingOrder(t *testing.T) {
	t.Parallel()
	a, b, fa, _ := newPair(t, udp.StackOptions{})
	must(t, b.SetReadDeadline(time.Now().Add(long)))
	for round := range 200 {
		fa.set(func() { fa.refusals = 1 + round%7 })
		for i := range 5 {
			write(t, a, b, byte(i))
		}
		for i := range 5 {
			reads(t, b, byte(i))
		}
	}
}

// TestNoRoom: a write waits for the device until its deadline, and then goes on.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	a, b, fa, _ := newPair(t, udp.StackOptions{})
	fa.set(func() { fa.sendErr = syscall.EAGAIN })
	must(t, a.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := a.WriteTo([]byte("x"), b.LocalAddr())
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	must(t, a.SetWriteDeadline(time.Time{}))
	time.AfterFunc(10*time.Millisecond, func() { fa.set(func() { fa.sendErr = nil }) })
	shmtest.Got(a.WriteTo([]byte("y"), b.LocalAddr())).Or(t)
	fa.set(func() { fa.sendErr = syscall.EAGAIN })
	time.AfterFunc(10*time.Millisecond, func() { a.Close() })
	if _, err = a.WriteTo([]byte("z"), b.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
}

// TestLastWords: what was written before Close leaves all the same, if its next hop is found soon.
func TestLastWords(t *testing.T) {
	t.Parallel()
	fa, fb := newFakes(64)
	sa := shmtest.Got(udp.NewStack(udp.StackOptions{}.Settling(time.Minute), fa)).Or(t)
	sb := shmtest.Have(udp.NewStack(udp.StackOptions{}, fb)).In(t)
	a, b := listen(t, sa, addrA, 1000), listen(t, sb, addrB, 2000)
	fa.set(func() { fa.refusals = 15 })
	shmtest.Got(a.WriteTo([]byte("x"), b.LocalAddr())).Or(t)
	must(t, sa.Close())
	must(t, b.SetReadDeadline(time.Now().Add(10*time.Second))) // it has come
	if n, _, err := b.ReadFrom(make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestLastRefused: what one writer leaves to the next one is shown to the device, also if the
// datagram of that one is refused.
func TestLastRefused(t *testing.T) {
	t.Parallel()
	a, b, fa, _ := newPair(t, udp.StackOptions{})
	a.Stack().Beside(func() { shmtest.Got(a.WriteTo([]byte("x"), b.LocalAddr())).Or(t) })
	if _, err := a.WriteTo(make([]byte, fakeMTU+1), b.LocalAddr()); !errors.Is(err,
		syscall.EMSGSIZE) {
		t.Error(err)
	}
	fa.set(func() {
		if len(fa.unflushed) != 0 {
			t.Error("a datagram waits for whoever writes next")
		}
	})
}

// TestCloseBeside: a stack that is closed while a socket of it is closed has no error.
func TestCloseBeside(t *testing.T) {
	t.Parallel()
	for range 200 {
		fa, _ := newFakes(8)
		s := shmtest.Got(udp.NewStack(udp.StackOptions{}, fa)).Or(t)
		c := listen(t, s, addrA, 1000)
		done := make(chan error)
		go func() { done <- c.Close() }()
		must(t, s.Close())
		if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	}
}

// TestCloseTwice: who closes a connection that somebody closes has an error, once that is over.
func TestCloseTwice(t *testing.T) {
	t.Parallel()
	unbinds, goOn := make(chan struct{}), make(chan struct{})
	bind := func(a netip.AddrPort) (netip.AddrPort, func() error, error) {
		return a, func() error {
			unbinds <- struct{}{}
			<-goOn
			return nil
		}, nil
	}
	a, _, _, _ := newPair(t, udp.StackOptions{}.Bind(bind))
	first := make(chan error, 1)
	go func() { first <- a.Close() }()
	<-unbinds
	second := make(chan error, 1)
	go func() { second <- a.Close() }()
	select {
	case err := <-second:
		t.Errorf("returned before the first: %v", err)
		close(goOn)
	case <-time.After(20 * time.Millisecond): // enough to do it wrong
		close(goOn)
		if err := <-second; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	must(t, <-first)
	go func() { <-unbinds }() // of the other side
}

// TestCloseTogether: a stack waits once for all of its addresses that take long to be given back.
func TestCloseTogether(t *testing.T) {
	t.Parallel()
	const many = 200
	var together sync.WaitGroup
	together.Add(many)
	bind := func(a netip.AddrPort) (netip.AddrPort, func() error, error) {
		return a, func() error {
			together.Done()
			together.Wait()
			return nil
		}, nil
	}
	f, _ := newFakes(8)
	s := shmtest.Got(udp.NewStack(udp.StackOptions{}.Bind(bind), f)).Or(t)
	for port := range uint16(many) {
		listen(t, s, addrA, 1000+port)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(long):
		t.Fatal("they wait for each other")
	}
}

// TestSlowBind: connections whose addresses take long to be claimed and given back, since who is
// asked for them is stopped, hold nobody up but who closes the stack. One that is opened meanwhile
// is none.
func TestSlowBind(t *testing.T) {
	t.Parallel()
	var bound, waits atomic.Int32
	goOn := make(chan struct{})
	bind := func(a netip.AddrPort) (netip.AddrPort, func() error, error) {
		wait := func(port uint16) {
			if a.Port() == port {
				waits.Add(1)
				<-goOn
			}
		}
		wait(7)
		bound.Add(1)
		return a, func() error {
			wait(8)
			bound.Add(-1)
			return nil
		}, nil
	}
	f, _ := newFakes(8)
	s := shmtest.Got(udp.NewStack(udp.StackOptions{}.Bind(bind), f)).Or(t)
	slow, ended := listen(t, s, addrA, 8), make(chan error)
	begin := func(n int32, call func() error) {
		t.Helper()
		go func() { ended <- call() }()
		await(t, func() bool { return waits.Load() == n })
	}
	opens := func() error {
		_, err := s.Listen(netip.AddrPortFrom(addrA, 7))
		return err
	}
	begin(1, slow.Close)
	begin(2, opens)
	must(t, listen(t, s, addrA, 9).Close())
	for range 2 {
		goOn <- struct{}{}
		must(t, <-ended)
	}
	begin(3, opens)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	await(t, func() bool {
		_, err := s.Listen(netip.AddrPortFrom(addrA, 9))
		return errors.Is(err, net.ErrClosed)
	})
	select {
	case err := <-closed:
		t.Fatalf("closed while an address is claimed: %v", err)
	default:
	}
	goOn <- struct{}{}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	must(t, <-closed)
	if n := bound.Load(); n != 0 {
		t.Errorf("%d addresses were not given back", n)
	}
}

// TestDeviceGone: reads end with what the device said, after what had come.
func TestDeviceGone(t *testing.T) {
	t.Parallel()
	a, b, _, fb := newPair(t, udp.StackOptions{})
	shmtest.Got(a.WriteTo([]byte("x"), b.LocalAddr())).Or(t)
	await(t, func() bool { return fb.loans() == 1 })
	fb.set(func() { fb.gone = syscall.ENXIO })
	fb.ring()
	buf := make([]byte, 8)
	n, _, err := b.ReadFrom(buf)
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	var op *net.OpError
	_, _, err = b.ReadFrom(buf)
	if !errors.Is(err, syscall.ENXIO) || !errors.As(err, &op) || op.Op != "read" {
		t.Fatal(err)
	}
}

// TestOrder: datagrams are read in the order that they came in, however many wait meanwhile.
func TestOrder(t *testing.T) {
	t.Parallel()
	a, b, _, _ := newPair(t, udp.StackOptions{})
	must(t, b.SetReadDeadline(time.Now().Add(long)))
	written, read := 0, 0
	for burst := range 15 {
		for range 3 * burst {
			write(t, a, b, byte(written))
			written++
		}
		for range 2 * burst {
			reads(t, b, byte(read))
			read++
		}
	}
}

// TestScarceFrames: connections that nobody reads, however many, leave enough frames for one that
// is read, and each keeps what came first.
func TestScarceFrames(t *testing.T) {
	t.Parallel()
	sa, sb, _, fb := newStacks(t, udp.StackOptions{Backlog: 20}, 128)
	from := listen(t, sa, addrA, 0)
	var lazy []*udp.Conn
	for port := range uint16(40) {
		c := listen(t, sb, addrB, 100+port)
		lazy = append(lazy, c)
		for i := range 22 {
			write(t, from, c, byte(i))
			await(t, func() bool { return fb.queued() == 0 })
		}
	}
	busy := listen(t, sb, addrB, 7)
	must(t, busy.SetReadDeadline(time.Now().Add(long)))
	for range 200 {
		write(t, from, busy, 'y')
		reads(t, busy, 'y')
	}
	if n := fb.loans(); n != 4*20+16 || fb.dropped != 0 {
		t.Errorf("%d of 128 frames lent, %d dropped by the device", n, fb.dropped)
	}
	for i, want := range []uint64{20, 20, 20, 20, 16, 8, 8} { // the fifth has the last frames
		c := lazy[i]
		if n := 22 - c.Stats().Dropped; n != want {
			t.Errorf("%d datagrams wait at connection %d, not %d", n, i, want)
		}
		for k := range want {
			reads(t, c, byte(k))
		}
	}
	must(t, lazy[7].Close())
}

// TestReadersLook: a reader that would have to sleep finds what nobody told of, and does not look
// while as many as there are CPUs do.
func TestReadersLook(t *testing.T) {
	_, b, _, fb := newPair(t, udp.StackOptions{})
	stack := b.Stack()
	fb.set(func() {
		fb.queue = append(fb.queue, udp.Datagram{From: netip.AddrPortFrom(addrA, 1000),
			To: addrPort(b), Payload: []byte("found")})
	})
	spin.Looking.Add(spin.MaxLooking())
	for range 100 {
		if stack.Linger(b) {
			t.Fatal("one more than there are CPUs looks")
		}
	}
	spin.Looking.Add(-spin.MaxLooking())
	found := false
	for i := 0; i < 1000 && !found; i++ { // the first, unless others need the processors
		found = stack.Linger(b)
	}
	if n := spin.Looking.Load(); !found || n != 0 {
		t.Errorf("found %v; %d look", found, n)
	}
	buf := make([]byte, 10)
	n, _, err := b.ReadFromUDPAddrPort(buf)
	if err != nil || string(buf[:n]) != "found" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	for range 100 {
		if stack.Linger(b) {
			t.Fatal("found what is not there")
		}
	}
}
