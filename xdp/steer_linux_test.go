package xdp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/shm/shmtest"
	"github.com/shmring/shmring/xdp/packet"
)

const (
	passed     = 2 // XDP_PASS
	redirected = 4 // XDP_REDIRECT
)

// loaded is the program without an interface, with a socket at slot 3 and port 4791 steered to it.
// The test run calls the queue 0, so the group begins at 3.
func loaded(t *testing.T) *Program {
	t.Helper()
	p := &Program{ifname: "test run"}
	err := p.load(ProgramOptions{Sockets: 8, Ports: 4})
	if errors.Is(err, ErrNoCapability) || errors.Is(err, errors.ErrUnsupported) {
		shmtest.Require(t, "xdp", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
		if err := p.Steer(1, 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("a closed program steers: %v", err)
		}
	})
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := errors.Join(p.put(3, &Socket{fd: fd}), p.Steer(4791, 3), p.Steer(4792, 4)); err != nil {
		t.Fatal(err)
	}
	return p
}

// datagram builds a frame to a port, with tags behind the addresses.
func datagram(t *testing.T, port uint16, tags ...uint16) []byte {
	t.Helper()
	tpl, err := packet.NewTemplate([6]byte{2}, [6]byte{2, 1},
		netip.MustParseAddrPort("192.0.2.1:1000"),
		netip.AddrPortFrom(netip.MustParseAddr("192.0.2.2"), port))
	if err != nil {
		t.Fatal(err)
	}
	frame := make([]byte, 200)
	n, err := tpl.Build(frame, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	out := append([]byte{}, frame[:12]...)
	for _, k := range tags {
		out = binary.BigEndian.AppendUint16(out, k)
		out = binary.BigEndian.AppendUint16(out, 100)
	}
	return append(out, frame[12:n]...)
}

// set returns a copy with one byte changed.
func set(b []byte, off int, v byte) []byte {
	out := append([]byte{}, b...)
	out[off] = v
	return out
}

// withOptions widens the IPv4 header by n bytes.
func withOptions(b []byte, n int) []byte {
	out := append(append([]byte{}, b[:34]...), make([]byte, n)...)
	out = append(out, b[34:]...)
	out[14] = 0x40 | byte((20+n)/4)
	return out
}

// overIPv6 returns a datagram over IPv6 whose header says that next comes next.
func overIPv6(port uint16, next byte) []byte {
	b := make([]byte, 14+40+8+4)
	b[0], b[6] = 2, 2
	binary.BigEndian.PutUint16(b[12:], 0x86dd)
	b[14], b[20], b[19] = 0x60, next, 12
	binary.BigEndian.PutUint16(b[56:], port)
	return b
}

// steerCase is a frame, what becomes of it, and what counts it.
type steerCase struct {
	name  string
	frame []byte
	want  uint32
	count func(*Counters) *uint64
}

func steerCases(t *testing.T) []steerCase {
	good := datagram(t, 4791)
	arp := set(set(good, 12, 0x08), 13, 0x06)
	return []steerCase{
		{"steered", good, redirected, func(c *Counters) *uint64 { return &c.Redirected }},
		{"one tag", datagram(t, 4791, 0x8100), redirected,
			func(c *Counters) *uint64 { return &c.Redirected }},
		{"two tags", datagram(t, 4791, 0x88a8, 0x8100), redirected,
			func(c *Counters) *uint64 { return &c.Redirected }},
		{"three tags", datagram(t, 4791, 0x8100, 0x8100, 0x8100), passed,
			func(c *Counters) *uint64 { return &c.Other }},
		{"options", withOptions(good, 40), redirected,
			func(c *Counters) *uint64 { return &c.Redirected }},
		{"options of another port", withOptions(datagram(t, 1), 8), passed,
			func(c *Counters) *uint64 { return &c.OtherPort }},
		{"IPv6", overIPv6(4791, 17), redirected,
			func(c *Counters) *uint64 { return &c.Redirected }},
		{"IPv6 extension", overIPv6(4791, 0), passed,
			func(c *Counters) *uint64 { return &c.Other }},
		{"IPv6 fragment", overIPv6(4791, 44), passed,
			func(c *Counters) *uint64 { return &c.Other }},
		{"IPv6 cut", overIPv6(4791, 17)[:50], passed,
			func(c *Counters) *uint64 { return &c.Short }},
		{"other port", datagram(t, 4790), passed,
			func(c *Counters) *uint64 { return &c.OtherPort }},
		{"ports swapped", datagram(t, 0xb712), passed,
			func(c *Counters) *uint64 { return &c.OtherPort }},
		{"no socket", datagram(t, 4792), passed,
			func(c *Counters) *uint64 { return &c.NoSocket }},
		{"first fragment", set(good, 20, 0x20), passed,
			func(c *Counters) *uint64 { return &c.Fragment }},
		{"later fragment", set(set(good, 20, 0x20), 21, 3), passed,
			func(c *Counters) *uint64 { return &c.Fragment }},
		{"last fragment", set(set(good, 20, 0), 21, 3), passed,
			func(c *Counters) *uint64 { return &c.Fragment }},
		{"don't fragment", set(good, 20, 0x40), redirected,
			func(c *Counters) *uint64 { return &c.Redirected }},
		{"TCP", set(good, 23, 6), passed, func(c *Counters) *uint64 { return &c.Other }},
		{"short IHL", set(good, 14, 0x44), passed, func(c *Counters) *uint64 { return &c.Other }},
		{"IHL beyond the end", set(good, 14, 0x4f)[:60-20], passed,
			func(c *Counters) *uint64 { return &c.Short }},
		{"IP version", set(good, 14, 0x55), passed, func(c *Counters) *uint64 { return &c.Other }},
		{"ARP", arp, passed, func(c *Counters) *uint64 { return &c.Other }},
		{"Ethernet only", good[:14], passed, func(c *Counters) *uint64 { return &c.Short }},
		{"half IP", good[:30], passed, func(c *Counters) *uint64 { return &c.Short }},
		{"half UDP", good[:38], passed, func(c *Counters) *uint64 { return &c.Short }},
		{"half a tag", datagram(t, 4791, 0x8100)[:16], passed,
			func(c *Counters) *uint64 { return &c.Short }},
	}
}

func TestSteer(t *testing.T) {
	p := loaded(t)
	for _, c := range steerCases(t) {
		t.Run(c.name, func(t *testing.T) {
			want, err := p.Counters()
			if err != nil {
				t.Fatal(err)
			}
			got, out, err := p.objs.Steer.Test(c.frame)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("action %d, want %d", got, c.want)
			}
			if string(out) != string(c.frame) {
				t.Error("the frame was changed")
			}
			*c.count(&want)++
			if have, err := p.Counters(); err != nil || have != want {
				t.Errorf("counters %+v, want %+v, %v", have, want, err)
			}
		})
	}
	c, err := p.Counters()
	if err != nil || c.Seen() != 26 {
		t.Errorf("%d frames seen, %v", c.Seen(), err)
	}
}

// TestSteerEveryCut: no prefix of a frame upsets the program, and only whole headers are steered.
func TestSteerEveryCut(t *testing.T) {
	p := loaded(t)
	for _, frame := range [][]byte{
		datagram(t, 4791), datagram(t, 4791, 0x88a8, 0x8100), overIPv6(4791, 17),
	} {
		headers := len(frame) - 5
		if frame[12] == 0x86 {
			headers = len(frame) - 4
		}
		for n := 14; n <= len(frame); n++ {
			got, _, err := p.objs.Steer.Test(frame[:n])
			if err != nil {
				t.Fatal(err)
			}
			if (got == redirected) != (n >= headers) {
				t.Errorf("%d of %d bytes: action %d", n, len(frame), got)
			}
		}
	}
}

func TestSlotsAndPortsAreBounded(t *testing.T) {
	p := loaded(t)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := p.put(8, &Socket{fd: fd}); !errors.Is(err, unix.E2BIG) {
		t.Errorf("slot 8 of 8: %v", err)
	}
	if err := p.remove(7, nil); err != nil {
		t.Errorf("an empty slot: %v", err)
	}
	if err := errors.Join(p.Steer(1, 0), p.Steer(2, 0)); err != nil {
		t.Fatal(err)
	}
	if err := p.Steer(3, 0); !errors.Is(err, unix.E2BIG) {
		t.Errorf("port 5 of 4: %v", err)
	}
}
