package port_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/veth"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
	"github.com/shmring/shmring/xdp/port"
)

// portDatagrams go to the application in another process.
const portDatagrams = 20000

// TestToAnotherProcess: a kernel socket sends, a process that maps the UMEM read-only gets
// every datagram once, in order and whole, and gives every frame back.
func TestToAnotherProcess(t *testing.T) {
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			ackRead, ackWrite, err := os.Pipe()
			must(t, err)
			defer ackRead.Close()
			defer ackWrite.Close() // the test may be skipped before it is handed on
			cmd := shmtest.Child(t, "port-app")
			p := newPortRun(t, portOptions{mode: mode, app: func(p *portRun) {
				umem := os.NewFile(dup(t, p.umem.FD()), "umem")
				defer umem.Close()
				cmd.ExtraFiles = []*os.File{umem, ackWrite}
				must(t, cmd.Start())
				must(t, ackWrite.Close())
			}})
			acks := make(chan int)
			go func() {
				defer close(acks)
				var b [8]byte
				for {
					if _, err := io.ReadFull(ackRead, b[:]); err != nil {
						return
					}
					acks <- int(binary.LittleEndian.Uint64(b[:]))
				}
			}()
			must(t, feed(udp(t, p.pair.A, 0), portTarget(p.pair.B), 0, portDatagrams, 256, acks))
			if err := cmd.Wait(); err != nil {
				t.Fatalf("application: %v", err)
			}
			await(t, "the last return", func() bool {
				s := p.port.Stats()
				return s.Returned == portDatagrams && s.Frames.States[xdp.FrameLoaned] == 0
			})
			p.stop()
			if err := p.wait(t); !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
			s := p.port.Stats()
			if s.Received != portDatagrams || s.Malformed != 0 || s.Frames.StaleReturn != 0 ||
				s.Kernel.RxQueueFull != 0 || s.Kernel.RxDropped != 0 || s.Rings.BadDescriptors != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// portAppChild is the application: it makes the queue, reads portDatagrams in place, gives their
// frames back, and tells the sender.
func portAppChild() {
	if err := portApp(); err != nil {
		fmt.Fprintln(os.Stderr, "application:", err)
		os.Exit(1)
	}
}

func portApp() error {
	frames, geo, err := xdp.OpenUMEM(3, "umem")
	if err != nil {
		return err
	}
	acks := os.NewFile(4, "acks")
	d, err := shm.OpenDir("")
	if err != nil {
		return err
	}
	q, err := cq.Create(d, "app", cq.Options{})
	if err != nil {
		return err
	}
	defer q.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	defer cancel()
	returns, err := cq.Attach(ctx, d, "commands", cq.WriterOptions{Wait: true})
	if err != nil {
		return err
	}
	defer returns.Close()
	var backs []cq.Entry
	var ack [8]byte
	for got := 0; got < portDatagrams; {
		es, err := q.PeekContext(ctx, 32)
		if err != nil {
			return err
		}
		backs = backs[:0]
		for i := range es {
			e := es[i]
			if err := checkFrame(frames, geo, &e, got); err != nil {
				return err
			}
			backs = append(backs, port.ReturnCommand(&e))
			got++
		}
		for rest := backs; len(rest) > 0; {
			n, err := returns.PostBatch(rest)
			if err != nil && !errors.Is(err, cq.ErrFull) {
				return err
			}
			rest = rest[n:]
		}
		if err := q.Release(len(es)); err != nil {
			return err
		}
		binary.LittleEndian.PutUint64(ack[:], uint64(len(backs)))
		if _, err := acks.Write(ack[:]); err != nil {
			return err
		}
	}
	return nil
}

// checkFrame compares the payload and the record of a completion with datagram n.
func checkFrame(frames *shm.Region, geo xdp.Geometry, e *cq.Entry, n int) error {
	loan, err := frames.View(e.Buf, int(e.Len))
	if err != nil {
		return err
	}
	defer loan.Release()
	want := make([]byte, 200)
	pattern(want, n)
	if !bytes.Equal(loan.Bytes(), want) {
		return fmt.Errorf("datagram %d has other bytes", n)
	}
	rec, err := xdp.ReadFrame(frames, geo, e.Buf)
	if err != nil {
		return err
	}
	if uint32(rec.Sequence) != e.Meta.Seq() || rec.Dst.Port() != testPort || rec.PayloadLen != 200 {
		return fmt.Errorf("datagram %d: record %+v of %+v", n, rec, e)
	}
	return nil
}

// TestTransmit: every send arrives at a kernel socket as it was, and completes once with its
// context. The application stays within the lane of its completions.
func TestTransmit(t *testing.T) {
	for _, mode := range []xdp.AttachMode{xdp.AttachNative, xdp.AttachGeneric} {
		t.Run(mode.String(), func(t *testing.T) {
			q := newApp(t, 0)
			p := newPortRun(t, portOptions{mode: mode})
			w, from := asker(t), sink(t, p.pair.A)
			const sends, window, size = 5000, 64, 256
			got, want := make([]byte, 2048), make([]byte, size)
			buf := make([]cq.Msg, window)
			next := uint64(0)
			for i := 0; i < sends; i += window {
				for j := i; j < min(i+window, sends); j++ {
					off := (j - i) * size
					pattern(p.payload.Bytes()[off:off+size], j)
					e := port.SendCommand(uint64(j), p.payload.Ref(uint64(off)), size, 0)
					must(t, w.Post(&e))
				}
				for j := i; j < min(i+window, sends); j++ {
					must(t, from.SetReadDeadline(time.Now().Add(patience)))
					n, addr, err := from.ReadFromUDPAddrPort(got)
					must(t, err)
					pattern(want, j)
					if !bytes.Equal(got[:n], want) || addr.Port() != testPort {
						t.Fatalf("datagram %d: %x from %v", j, got[:n], addr)
					}
				}
				for end := uint64(min(i+window, sends)); next < end; {
					n, err := cq.ReadTimeout(q, buf, patience)
					must(t, err)
					for _, e := range buf[:n] {
						if e.Context != next || e.Flags != cq.FlagSend|cq.FlagMsg {
							t.Fatalf("completion %+v, want %d", e, next)
						}
						next++
					}
				}
			}
			if s := p.port.Stats(); s.BadCommands+s.Cancelled+s.Abandoned != 0 ||
				s.Syscalls.SendDropped != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestInterfaceRemoved: Run, asleep, notices that the interface is gone, ends, and answers the
// sends that waited for the link.
func TestInterfaceRemoved(t *testing.T) {
	for name, sends := range map[string]uint64{"idle": 0, "sends under way": 3} {
		t.Run(name, func(t *testing.T) { interfaceRemoved(t, sends) })
	}
}

func interfaceRemoved(t *testing.T, sends uint64) {
	q := newApp(t, 0)
	p := newPortRun(t, portOptions{})
	w := asker(t)
	must(t, p.pair.B.SetUp(false))
	for i := range sends {
		e := port.SendCommand(i, p.payload.Ref(0), 100, 0)
		must(t, w.Post(&e))
	}
	await(t, "the sends", func() bool {
		s := p.port.Stats()
		return s.Accepted == sends && s.LinkDown > 0 && s.Polls > 0
	})
	must(t, p.pair.B.Remove())
	if err := p.wait(t); !errors.Is(err, xdp.ErrDeviceGone) || !errors.Is(err, syscall.ENXIO) {
		t.Fatal(err)
	}
	for i := range sends {
		if _, err := cq.ReadTimeout(q, make([]cq.Msg, 1), patience); !errors.Is(err, cq.ErrAvail) {
			t.Fatal(err)
		}
		var e cq.ErrorEntry
		must(t, q.ReadErr(&e))
		if e.Context != i || !errors.Is(&e, syscall.ECANCELED) {
			t.Errorf("%+v", e)
		}
	}
	s := p.port.Stats()
	if s.Cancelled+s.Unsent != sends || s.Frames.States[xdp.FrameQuarantine] != sends {
		t.Errorf("%+v", s)
	}
}

// TestSleeps counts how often a port wakes that has nothing to do, and one that waits for a
// reader: neither may turn into a busy loop.
func TestSleeps(t *testing.T) {
	shmtest.Long(t)
	q := newApp(t, 4)
	p := newPortRun(t, portOptions{})
	polls := func(d time.Duration) (n, limit uint64) {
		before, start := p.port.Stats().Polls, time.Now()
		time.Sleep(d)
		await(t, "news", func() bool { return p.port.Stats().Polls > before+1 })
		return p.port.Stats().Polls - before, uint64(time.Since(start) / (100 * time.Millisecond))
	}
	if n, limit := polls(2 * time.Second); n > 2*limit+20 {
		t.Errorf("%d sleeps, about %d were necessary", n, limit)
	}
	from := udp(t, p.pair.A, 0)
	for range 10 {
		_, err := from.WriteToUDP([]byte("nobody reads this"), portTarget(p.pair.B))
		must(t, err)
	}
	await(t, "a full lane", func() bool { return p.port.Stats().RxBlocked > 0 })
	if n, limit := polls(time.Second); n > 20*limit+40 {
		t.Errorf("%d sleeps with a full lane, about %d were necessary", n, 10*limit)
	}
	for got := 0; got < 10; {
		n, err := cq.ReadTimeout(q, make([]cq.Msg, 4), patience)
		must(t, err)
		got += n
	}
}

// portDeviceChild drives a port until it is killed. It has the namespace as descriptor 3.
func portDeviceChild() {
	if err := portDevice(); err != nil {
		fmt.Println(err)
	}
}

func portDevice() error {
	runtime.LockOSThread()
	if err := veth.Enter(3); err != nil {
		return err
	}
	ifname := os.Getenv("IFNAME")
	u, err := xdp.NewUMEM(xdp.UMEMOptions{})
	if err != nil {
		return err
	}
	s, err := xdp.Open(ifname, 0, u, xdp.Options{})
	if err != nil {
		return err
	}
	prog, err := xdp.Attach(ifname, xdp.ProgramOptions{})
	if err != nil {
		return err
	}
	if err := errors.Join(s.Register(prog, 0), prog.Steer(testPort, 0)); err != nil {
		return err
	}
	d, err := shm.OpenDir("")
	if err != nil {
		return err
	}
	c := port.Config{Endpoint: endpoint.Config{Socket: s, NoObject: true}}
	if c.Commands, err = cq.Create(d, "commands", cq.Options{Wait: cq.WaitFD}); err != nil {
		return err
	}
	ctx := context.Background()
	for _, w := range []**cq.Writer{&c.Endpoint.Receive, &c.Endpoint.Transmit} {
		if *w, err = cq.Attach(ctx, d, "app", cq.WriterOptions{Wait: true}); err != nil {
			return err
		}
	}
	p, err := port.Open(c)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return p.Run(ctx)
}

// TestKilledAndReplaced: after SIGKILL of the device process the next one gets interface,
// queue of commands and lanes; frames of the dead one's UMEM are not taken for its own.
func TestKilledAndReplaced(t *testing.T) {
	q := newApp(t, 0)
	pair := xdptest.NewPair(t, veth.Config{})
	xdptest.Attach(t, pair.B, xdp.ProgramOptions{}).Close()
	cmd := shmtest.Child(t, "port-device", "IFNAME="+pair.B.Name)
	cmd.ExtraFiles = []*os.File{pair.B.NetNS()}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line := make([]byte, 200)
	n, err := out.Read(line)
	if err != nil || string(line[:n]) != "ready\n" {
		t.Fatalf("child: %q, %v", line[:n], err)
	}
	w, from := asker(t), udp(t, pair.A, 0)
	receive := func() cq.Entry {
		_, err := from.WriteToUDP([]byte("hello"), portTarget(pair.B))
		must(t, err)
		var e [1]cq.Entry
		_, err = cq.ReadTimeout(q, e[:], patience)
		must(t, err)
		return e[0]
	}
	old := receive()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	back := port.ReturnCommand(&old)
	must(t, w.Post(&back)) // to nobody
	d, err := shm.OpenDir("")
	must(t, err)
	defer d.Close()
	commands, err := cq.Adopt(d, "commands", cq.Options{Wait: cq.WaitFD})
	must(t, err)
	p := newPortRun(t, portOptions{commands: commands, pair: pair})
	fresh := receive()
	if fresh.Buf.Region() == old.Buf.Region() {
		t.Skip("both memories drew the same number") // one in 65535
	}
	if fresh.Meta.Seq() != old.Meta.Seq()+1 {
		t.Errorf("sequence %d after %d: the lane was not taken over", fresh.Meta.Seq(), old.Meta.Seq())
	}
	back = port.ReturnCommand(&fresh)
	must(t, w.Post(&back))
	await(t, "the return", func() bool { return p.port.Stats().Returned == 1 })
	if s := p.port.Stats(); s.Frames.StaleReturn != 1 {
		t.Errorf("%+v", s)
	}
}
