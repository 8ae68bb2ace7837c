package capture_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/capture"
	"github.com/shmring/shmring/internal/packet"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/internal/status"
	"github.com/shmring/shmring/internal/xdptest"
	"github.com/shmring/shmring/internal/xskernel"
	"github.com/shmring/shmring/shm"
	"github.com/shmring/shmring/xdp"
	"github.com/shmring/shmring/xdp/endpoint"
)

func TestMain(m *testing.M) {
	shmtest.Main(m, map[string]func(){"capturer": capturer, "owner": owner})
}

var must = shmtest.Must

var local, remote = netip.MustParseAddrPort("192.0.2.1:4791"),
	netip.MustParseAddrPort("192.0.2.2:4791")

// rig is an endpoint on a simulated socket.
type rig struct {
	*endpoint.Endpoint
	kernel *xskernel.Kernel
	dir    *shm.Dir
	q      *cq.Queue
	peer   cq.Addr
}

func newRig(t testing.TB, config func(*endpoint.Config)) *rig {
	t.Helper()
	r := &rig{dir: shmtest.Have(shm.OpenDir("")).In(t)}
	at := cq.Named(r.dir, "packets")
	r.q = shmtest.Have(cq.Create(at, cq.Options{Size: 512})).In(t)
	var w [2]*cq.Writer
	for i := range w {
		w[i] = shmtest.Have(cq.Attach(t.Context(), at, cq.WriterOptions{})).In(t)
	}
	av := shmtest.Have(cq.CreateAddresses(cq.Unnamed("av"), cq.AddressOptions{Count: 8})).In(t)
	peers := shmtest.Got(av.Insert([][]byte{cq.AppendSockaddr(nil, remote)}, cq.InsertOptions{})).Or(t)
	r.peer = peers[0]
	socket, kernel := xdptest.NewSim(t, xdp.UMEMOptions{Frames: 256}, xdptest.SimOptions{})
	r.kernel = kernel
	hop := xdp.Hop{LocalMAC: [6]byte{2, 0, 0, 0, 0, 1}, NextMAC: [6]byte{2, 0, 0, 0, 0, 2},
		Source: local.Addr(), MTU: 1500}
	c := endpoint.Config{Socket: socket, Receive: w[0], Transmit: w[1], Addresses: av, Local: local,
		Resolver: endpoint.Static{remote.Addr(): hop}}
	if config != nil {
		config(&c)
	}
	r.Endpoint = shmtest.Have(endpoint.Open(c)).In(t)
	return r
}

func (r *rig) drive(t testing.TB) {
	t.Helper()
	for range 1000 {
		n := shmtest.Got(r.Progress()).Or(t)
		if n == 0 {
			return
		}
	}
}

// object returns what a tool sees of the one endpoint that there is.
func (r *rig) object(t testing.TB) status.Snapshot {
	t.Helper()
	all := shmtest.Got(status.List(r.dir)).Or(t)
	if len(all) != 1 {
		t.Fatalf("%d endpoints, want 1", len(all))
	}
	return all[0]
}

func (r *rig) start(t testing.TB, o capture.Options) *capture.Session {
	t.Helper()
	s := shmtest.Have(capture.Start(r.dir, r.object(t).Name, o)).In(t)
	r.drive(t)
	if !s.Attached() {
		t.Fatal("the endpoint did not come")
	}
	return s
}

// arrive puts a datagram from the peer into the receive ring.
func (r *rig) arrive(t testing.TB, payload []byte) []byte {
	t.Helper()
	here, there := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	tmpl := shmtest.Got(packet.NewTemplate(there, here, remote, local)).Or(t)
	frame := make([]byte, packet.HeaderBytes+len(payload))
	shmtest.Got(tmpl.Build(frame, payload)).Or(t)
	if !r.kernel.Deliver(frame) {
		t.Fatal("no room in the receive ring")
	}
	return frame
}

// giveBack reads all completions and returns their frames.
func (r *rig) giveBack(t testing.TB) {
	t.Helper()
	es := make([]cq.Entry, 64)
	for {
		n, err := cq.Read(r.q, es)
		if errors.Is(err, cq.ErrWouldBlock) {
			return
		}
		must(t, err)
		for i := range es[:n] {
			if es[i].Flags&cq.FlagRecv != 0 {
				must(t, r.Release(es[i]))
			}
		}
	}
}

type seen struct {
	sent    bool
	length  uint32
	dropped uint64
	bytes   []byte
}

func readAll(t testing.TB, s *capture.Session) (out []seen) {
	t.Helper()
	for {
		n := shmtest.Got(s.Read(64, func(p *capture.Packet) error {
			out = append(out, seen{p.Sent, p.Len, p.Dropped, bytes.Clone(p.Bytes)})
			return nil
		})).Or(t)
		if n == 0 {
			return out
		}
	}
}

// TestCaptureCopiesBothWays: what arrives and what is sent, in order, byte for byte, and nothing
// before it began or after it ended.
func TestCaptureCopiesBothWays(t *testing.T) {
	r := newRig(t, nil)
	r.arrive(t, []byte("before"))
	r.drive(t)
	s := r.start(t, capture.Options{SnapBytes: 100})
	var sent [][]byte
	r.kernel.OnSend(func(p []byte) { sent = append(sent, bytes.Clone(p)) })
	in := r.arrive(t, []byte("hello"))
	long := r.arrive(t, make([]byte, 1000))
	r.drive(t)
	must(t, r.Send([]byte("answer"), r.peer, 1))
	r.drive(t)
	r.kernel.Transmit(10)
	r.drive(t)
	r.giveBack(t)
	got := readAll(t, s)
	if len(got) != 3 || len(sent) != 1 {
		t.Fatalf("%d packets captured, %d sent", len(got), len(sent))
	}
	if got[0].sent || !bytes.Equal(got[0].bytes, in) || got[0].length != uint32(len(in)) {
		t.Errorf("received: %+v", got[0])
	}
	if got[1].sent || !bytes.Equal(got[1].bytes, long[:100]) || got[1].length != uint32(len(long)) {
		t.Errorf("cut off: %+v", got[1])
	}
	if !got[2].sent || !bytes.Equal(got[2].bytes, sent[0]) {
		t.Errorf("sent: %+v, on the wire %x", got[2], sent[0])
	}
	must(t, s.Stop())
	r.drive(t)
	if !s.Left() {
		t.Error("the endpoint did not leave")
	}
	r.arrive(t, []byte("after"))
	r.drive(t)
	r.giveBack(t)
	if c := s.Counts(); len(readAll(t, s)) != 0 || c.Seen != 3 || c.Dropped != 0 {
		t.Errorf("after the end: %+v", c)
	}
}

// TestCaptureNeverBlocks: a tool that does not read costs its own copies, which are counted, and no
// packet of the endpoint.
func TestCaptureNeverBlocks(t *testing.T) {
	r := newRig(t, nil)
	s := r.start(t, capture.Options{Slots: 16})
	const n = 100
	for i := range n {
		r.arrive(t, binary.LittleEndian.AppendUint64(nil, uint64(i)))
		r.drive(t)
		r.giveBack(t)
	}
	if st := r.Stats(); st.Received != n {
		t.Errorf("received %d of %d", st.Received, n)
	}
	if c := s.Counts(); c.Seen != n || c.Dropped != n-16 {
		t.Errorf("%+v", c)
	}
	if got := readAll(t, s); len(got) != 16 {
		t.Errorf("%d packets are there", len(got))
	}
	r.arrive(t, nil)
	r.drive(t)
	if got := readAll(t, s); len(got) != 1 || got[0].dropped != n-16 {
		t.Errorf("the one after those left out: %+v", got)
	}
}

// TestOneCaptureAtATime: a second tool is told; one that was killed is in nobody's way.
func TestOneCaptureAtATime(t *testing.T) {
	r := newRig(t, nil)
	name := r.object(t).Name
	for _, driven := range []bool{true, false} { // what the dead tool left the endpoint removes, or we
		c := shmtest.Start(t, shmtest.Child(t, "capturer", "TARGET="+name))
		_ = c.Line(t)
		r.drive(t)
		if _, err := capture.Start(r.dir, name, capture.Options{}); !errors.Is(err, capture.ErrBusy) {
			t.Errorf("while another tool captures: %v", err)
		}
		c.Kill()
		if driven {
			shmtest.Eventually(t, "the end of the dead tool's capture", func() bool {
				r.drive(t)
				return len(captures(t, r.dir)) == 0
			})
		}
		s := r.start(t, capture.Options{})
		r.arrive(t, []byte("again"))
		r.drive(t)
		if got := readAll(t, s); len(got) != 1 {
			t.Errorf("%d packets after the other tool died", len(got))
		}
		must(t, s.Close())
	}
}

// TestCapturesAtOnce: of tools that ask at once one captures, and the endpoint comes to it.
func TestCapturesAtOnce(t *testing.T) {
	r := newRig(t, nil)
	name := r.object(t).Name
	for range 200 {
		var all sync.WaitGroup
		sessions := make([]*capture.Session, 8)
		begin := make(chan struct{})
		for i := range sessions {
			all.Go(func() {
				<-begin
				s, err := capture.Start(r.dir, name, capture.Options{Slots: 16})
				if sessions[i] = s; err != nil && !errors.Is(err, capture.ErrBusy) {
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		r.drive(t)
		n := 0
		for _, s := range sessions {
			if s == nil {
				continue
			}
			if n++; !s.Attached() {
				t.Error("the endpoint did not come")
			}
			must(t, s.Close())
		}
		if n != 1 {
			t.Fatalf("%d tools capture", n)
		}
	}
}

func captures(t testing.TB, d *shm.Dir) (names []string) {
	t.Helper()
	entries := shmtest.Got(d.List()).Or(t)
	for _, e := range entries {
		if len(e.Name()) > len(capture.Prefix) && e.Name()[:len(capture.Prefix)] == capture.Prefix {
			names = append(names, e.Name())
		}
	}
	return names
}

// capturer captures until it is killed.
func capturer() {
	d := shmtest.Needs(shm.OpenDir(""))
	shmtest.Needs(capture.Start(d, os.Getenv("TARGET"), capture.Options{}))
	fmt.Println("ready")
	time.Sleep(time.Minute)
}

// owner has an object until it is killed.
func owner() {
	d := shmtest.Needs(shm.OpenDir(""))
	o := shmtest.Needs(status.Create(d, status.Info{Interface: "eth7", Queue: 3}))
	fmt.Println(o.Name())
	time.Sleep(time.Minute)
}

// TestCaptureStarved: an endpoint that has no descriptor when it is to be captured is captured as
// soon as it has one.
func TestCaptureStarved(t *testing.T) {
	r := newRig(t, nil)
	s := shmtest.Have(capture.Start(r.dir, r.object(t).Name, capture.Options{})).In(t)
	restore := shmtest.LimitFiles(0)
	_, err := r.Progress()
	restore()
	must(t, err)
	if s.Attached() {
		t.Error("it came without a descriptor")
	}
	for until := time.Now().Add(10 * time.Second); !s.Attached(); {
		if r.drive(t); time.Now().After(until) {
			t.Fatal("the endpoint did not come")
		}
	}
	in := r.arrive(t, []byte("hello"))
	r.drive(t)
	r.giveBack(t)
	if got := readAll(t, s); len(got) != 1 || !bytes.Equal(got[0].bytes, in) {
		t.Errorf("%+v", got)
	}
}

// TestCaptureOfOtherVersion: a capture that a tool of another version may have is not taken over.
func TestCaptureOfOtherVersion(t *testing.T) {
	r := newRig(t, nil)
	s := r.start(t, capture.Options{})
	file := shmtest.Got(os.OpenFile(filepath.Join(r.dir.Path(), capture.Prefix+
		r.object(t).Capture.String()), os.O_WRONLY, 0)).Or(t)
	_, err := file.WriteAt([]byte{99}, 0xc)
	must(t, errors.Join(err, file.Close()))
	if _, err := capture.Start(r.dir, r.object(t).Name, capture.Options{}); !errors.Is(err,
		capture.ErrBusy) {
		t.Errorf("a second capture: %v", err)
	}
	r.drive(t)
	if s.Left() {
		t.Error("the first one is over")
	}
}

// TestDeadEndpointGoes: the object of a process that was killed is removed by whoever looks, and
// one of a process that lives is not.
func TestDeadEndpointGoes(t *testing.T) {
	d := shmtest.Have(shm.OpenDir("")).In(t)
	c := shmtest.Start(t, shmtest.Child(t, "owner"))
	name := c.Line(t)
	all := shmtest.Got(status.List(d)).Or(t)
	if len(all) != 1 || all[0].Name != name || all[0].Info.Interface != "eth7" ||
		all[0].Life != shm.Alive || all[0].Owner.PID != c.Process.Pid {
		t.Errorf("while it lives: %+v", all)
	}
	c.Kill()
	all = shmtest.Got(status.List(d)).Or(t)
	if len(all) != 0 {
		t.Errorf("after it died: %+v", all)
	}
}

// TestStatus: what a tool sees is what the endpoint is and does.
func TestStatus(t *testing.T) {
	r := newRig(t, nil)
	r.arrive(t, []byte("x"))
	r.drive(t)
	time.Sleep(2 * time.Millisecond) // counters may be a millisecond old
	r.drive(t)
	s := r.object(t)
	i := s.Info
	if i.Local != local || i.Receive != "packets" || i.Transmit != "packets" ||
		i.ReceiveID == (shm.UUID{}) || i.ReceiveID != i.TransmitID || i.Geometry.Frames != 256 ||
		i.UMEM != r.Socket().UMEM().Region().Object().Header().UUID || i.Rings.Rx == 0 {
		t.Errorf("%+v", i)
	}
	if c := s.Counters; c.Traffic.Received != 1 || c.Rings.Received != 1 ||
		c.Frames.Sum() != 256 || c.UpdatedNs == 0 {
		t.Errorf("%+v", c)
	}
	if at := slices.Index(status.CounterNames(), "received"); s.Words[at] != 1 {
		t.Errorf("word %d of %v", at, s.Words)
	}
	if len(status.CounterNames()) != len(s.Words) {
		t.Errorf("%d names of %d words", len(status.CounterNames()), len(s.Words))
	}
	must(t, r.Close())
	if all, err := status.List(r.dir); err != nil || len(all) != 0 {
		t.Errorf("after Close: %v, %v", all, err)
	}
}

// TestWithoutObject: an endpoint may have none.
func TestWithoutObject(t *testing.T) {
	r := newRig(t, func(c *endpoint.Config) { c.NoObject = true })
	r.arrive(t, []byte("x"))
	r.drive(t)
	r.giveBack(t)
	if all, err := status.List(r.dir); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// cut empties the file of the one capture that there is.
func cut(t *testing.T, d *shm.Dir) {
	t.Helper()
	names := captures(t, d)
	if len(names) != 1 {
		t.Fatalf("captures %v, want one", names)
	}
	must(t, os.Truncate(filepath.Join(d.Path(), names[0]), 0))
}

// TestReadOfACutCapture: a file that some process of the user cuts under the tool ends the capture
// with an error, which stays, and not the tool with a signal.
func TestReadOfACutCapture(t *testing.T) {
	shmtest.Conforms(t)
	for name, middle := range map[string]bool{"before": false, "between two packets": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			s := r.start(t, capture.Options{})
			for range 3 {
				r.arrive(t, []byte("x"))
			}
			r.drive(t)
			r.giveBack(t)
			want := 0
			if before := s.Counts(); before.Seen != 3 {
				t.Fatalf("%+v before", before)
			}
			if middle {
				want = 1
			} else {
				cut(t, r.dir)
			}
			n, err := s.Read(8, func(p *capture.Packet) error {
				if middle {
					cut(t, r.dir)
				}
				if last := p.Bytes[len(p.Bytes)-1]; last != 'x' {
					t.Errorf("%q: the bytes are gone during the call", p.Bytes)
				}
				return nil
			})
			if n != want || !errors.Is(err, shm.ErrTruncated) {
				t.Errorf("%d packets, %v", n, err)
			}
			if n, err := s.Read(8, nil); n != 0 || !errors.Is(err, shm.ErrTruncated) {
				t.Errorf("again: %d packets, %v", n, err)
			}
			if c := s.Counts(); !s.Left() || c.Seen != 3 {
				t.Errorf("left %v, %+v", s.Left(), c)
			}
		})
	}
}

// TestTapOfACutCapture: nor does it end the program whose packets are captured, which goes on
// without, and takes the next capture.
func TestTapOfACutCapture(t *testing.T) {
	shmtest.Conforms(t)
	r := newRig(t, nil)
	s := r.start(t, capture.Options{})
	cut(t, r.dir)
	for range 3 {
		r.arrive(t, []byte("x"))
		r.drive(t)
		r.giveBack(t)
	}
	if st := r.Stats(); st.Received != 3 {
		t.Errorf("received %d of 3", st.Received)
	}
	must(t, s.Close())
	s = r.start(t, capture.Options{})
	r.arrive(t, []byte("y"))
	r.drive(t)
	r.giveBack(t)
	if got := readAll(t, s); len(got) != 1 {
		t.Errorf("%d packets in the next capture, want 1", len(got))
	}
}

// TestTapAllocatesNothing: a capture costs copies, and no garbage.
func TestTapAllocatesNothing(t *testing.T) {
	r := newRig(t, nil)
	s := r.start(t, capture.Options{})
	payload := make([]byte, 64)
	es := make([]cq.Entry, 64)
	frame := r.arrive(t, payload)
	n := testing.AllocsPerRun(200, func() {
		r.kernel.Deliver(frame)
		_, _ = r.Progress()
		if k, _ := cq.Read(r.q, es); k == 1 {
			_ = r.Release(es[0])
		}
		_, _ = s.Read(64, func(*capture.Packet) error { return nil })
	})
	if n > 0 && !shmtest.Race {
		t.Errorf("%v allocations a packet", n)
	}
}
