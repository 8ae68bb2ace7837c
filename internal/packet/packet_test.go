package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

var (
	macA = [6]byte{2, 0, 0, 0, 0, 1}
	macB = [6]byte{2, 0, 0, 0, 0, 2}
	adrA = netip.MustParseAddrPort("192.0.2.1:4000")
	adrB = netip.MustParseAddrPort("192.0.2.2:5000")
)

func build(t testing.TB, payload []byte) []byte {
	t.Helper()
	tpl := shmtest.Got(NewTemplate(macA, macB, adrA, adrB)).Or(t)
	frame := make([]byte, 2048)
	n := shmtest.Got(tpl.Build(frame, payload)).Or(t)
	return frame[:n]
}

// tagged puts VLAN tags in front of what follows the addresses.
func tagged(frame []byte, kinds ...uint16) []byte {
	out := append([]byte{}, frame[:12]...)
	for i, k := range kinds {
		out = binary.BigEndian.AppendUint16(out, k)
		out = binary.BigEndian.AppendUint16(out, uint16(100+i))
	}
	return append(out, frame[12:]...)
}

// slowSum is RFC 1071 word for word.
func slowSum(b []byte) uint16 {
	var s uint32
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		s += w
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestSumAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 600 {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if got, want := fold(sum(0, b)), slowSum(b); got != want {
			t.Fatalf("%d bytes: sum %#x, want %#x", n, got, want)
		}
	}
	// Every addition carries.
	ones := bytes.Repeat([]byte{0xff}, 9000)
	for n := range ones {
		want := slowSum(ones[:n])
		if n == 0 {
			want = 0xffff // all ones is the other zero
		}
		if got := fold(sum(^uint64(0), ones[:n])); got != want {
			t.Fatalf("%d bytes of ones: %#x, want %#x", n, got, want)
		}
	}
}

// TestParsePadding: what pads a frame to its minimum is no payload.
func TestParsePadding(t *testing.T) {
	frame := append(build(t, []byte("hello")), make([]byte, 13)...)
	var d Datagram
	shmtest.Must(t, Parse(frame, &d))
	if got := string(frame[d.PayloadOff:][:d.PayloadLen]); got != "hello" ||
		VerifyUDP(frame, &d) != ChecksumOK {
		t.Fatalf("%+v %q", d, got)
	}
}

// options returns the frame with an IPv4 header that has n bytes of options.
func options(frame []byte, n int) []byte {
	out := append(bytes.Clone(frame[:34]), bytes.Repeat([]byte{1}, n)...)
	out = append(out, frame[34:]...)
	ip := out[EthernetBytes:]
	ip[0] = 0x40 | byte((IPv4Bytes+n)/4)
	binary.BigEndian.PutUint16(ip[2:], binary.BigEndian.Uint16(ip[2:])+uint16(n))
	return resum(out)
}

func resum(frame []byte) []byte {
	ip := frame[EthernetBytes:]
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip[:int(ip[0]&15)*4])))
	return frame
}

func TestParseOptions(t *testing.T) {
	var d Datagram
	with := options(build(t, []byte("hello")), 8)
	if err := Parse(with, &d); err != nil || d.PayloadOff != HeaderBytes+8 {
		t.Fatalf("%v, %+v", err, d)
	}
}

// TestParseRefusesMapped: an IPv6 header with the IPv4 form of an address would be taken for what
// it is not, by whoever trusts the IPv4 address in it.
func TestParseRefusesMapped(t *testing.T) {
	mapped := netip.MustParseAddr("::ffff:192.0.2.1").As16()
	for name, at := range map[string]int{"source": 8, "destination": 24} {
		six := extended(t, extDestination)
		var d Datagram
		shmtest.Must(t, Parse(six, &d))
		copy(six[EthernetBytes+at:], mapped[:])
		if err := Parse(six, &d); !errors.Is(err, ErrMapped) {
			t.Errorf("%s: %v, want %v", name, err, ErrMapped)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := build(t, []byte("hello"))
	change := func(f func(ip []byte)) []byte {
		b := bytes.Clone(good)
		f(b[EthernetBytes:])
		return b
	}
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"empty":      {nil, ErrShort},
		"no type":    {good[:13], ErrShort},
		"ARP":        {tagged(good, 0x0806), ErrNotUDP},
		"three tags": {tagged(good, typeVLAN, typeVLAN, typeVLAN), ErrNotUDP},
		"half a tag": {tagged(good, typeVLAN)[:15], ErrShort},
		"half IP":    {good[:30], ErrShort},
		"half UDP":   {resum(change(func(ip []byte) { ip[3] = 24 })), ErrShort},
		"cut":        {good[:len(good)-1], ErrLength},
		"version":    {change(func(ip []byte) { ip[0] = 0x55 }), ErrNotUDP},
		"ihl":        {change(func(ip []byte) { ip[0] = 0x44 }), ErrNotUDP},
		"TCP":        {change(func(ip []byte) { ip[9] = 6 }), ErrNotUDP},
		"IP sum":     {change(func(ip []byte) { ip[8]++ }), ErrChecksum},
		"UDP long":   {change(func(ip []byte) { ip[25] = 200 }), ErrLength},
		"UDP short":  {change(func(ip []byte) { ip[25] = 7 }), ErrLength},
		"first part": {resum(change(func(ip []byte) { ip[6] = 0x20 })), ErrFragment},
		"later part": {resum(change(func(ip []byte) { ip[6], ip[7] = 0, 1 })), ErrFragment},
	} {
		var d Datagram
		if err := Parse(c.frame, &d); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestVerifyUDP(t *testing.T) {
	good := build(t, []byte("hello"))
	var d Datagram
	shmtest.Must(t, Parse(good, &d))
	set := func(sum uint16) []byte {
		b := bytes.Clone(good)
		binary.BigEndian.PutUint16(b[d.UDPOff+6:], sum)
		return b
	}
	partial := fold(sum(word(protoUDP+UDPBytes+5), good[26:34]))
	wrong := bytes.Clone(good)
	wrong[len(wrong)-1]++
	for want, frame := range map[Checksum][]byte{
		ChecksumOK: good, ChecksumAbsent: set(0), ChecksumPartial: set(partial),
		ChecksumWrong: wrong,
	} {
		if got := VerifyUDP(frame, &d); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// FuzzParse: an error, or a datagram whose parts lie in the frame one behind the other.
func FuzzParse(f *testing.F) {
	good := build(f, []byte("hello"))
	f.Add(good)
	f.Add(tagged(good, typeQinQ, typeVLAN))
	f.Add(options(good, 12))
	f.Add(extended(f, extHopByHop, extDestination, extRouting))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		var d Datagram
		if Parse(frame, &d) != nil {
			return
		}
		if d.IPOff < EthernetBytes || d.UDPOff < d.IPOff+IPv4Bytes ||
			d.PayloadOff != d.UDPOff+UDPBytes || d.PayloadLen < 0 ||
			d.PayloadOff+d.PayloadLen > len(frame) || d.Tags > maxTags {
			t.Fatalf("%d bytes: %+v", len(frame), d)
		}
		VerifyUDP(frame, &d)
	})
}

func BenchmarkVerifyUDP(b *testing.B) {
	for _, n := range []int{64, 1472} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			frame := build(b, make([]byte, n))
			var d Datagram
			if err := Parse(frame, &d); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n))
			for b.Loop() {
				if VerifyUDP(frame, &d) != ChecksumOK {
					b.Fatal("wrong")
				}
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	frame := build(b, make([]byte, 64))
	var d Datagram
	for b.Loop() {
		if err := Parse(frame, &d); err != nil {
			b.Fatal(err)
		}
	}
}

// extended returns an IPv6 datagram with empty extension headers of 8 and 16 bytes in turn.
func extended(t testing.TB, kinds ...byte) []byte {
	t.Helper()
	tpl := shmtest.Got(NewTemplate(macA, macB, sixA, sixB)).Or(t)
	plain := make([]byte, 128)
	n := shmtest.Got(tpl.Build(plain, []byte("hello"))).Or(t)
	head := bytes.Clone(plain[:EthernetBytes+IPv6Bytes])
	next := EthernetBytes + 6 // where the kind of the next header goes
	for i, k := range kinds {
		head[next] = k
		next = len(head)
		header := make([]byte, 8*(i%2+1))
		header[1] = byte(i % 2)
		head = append(head, header...)
	}
	head[next] = protoUDP
	extra := len(head) - EthernetBytes - IPv6Bytes
	binary.BigEndian.PutUint16(head[EthernetBytes+4:], uint16(UDPBytes+5+extra))
	return append(head, plain[EthernetBytes+IPv6Bytes:n]...)
}

func TestParseExtensions(t *testing.T) {
	const hop, dst, route, fragment = extHopByHop, extDestination, extRouting, extFragment
	left := extended(t, route)
	left[EthernetBytes+IPv6Bytes+3] = 1
	long := extended(t, dst)
	long[EthernetBytes+IPv6Bytes+1] = 255
	for name, c := range map[string]struct {
		frame []byte
		want  error
	}{
		"none":             {extended(t), nil},
		"hop by hop":       {extended(t, hop), nil},
		"options, routing": {extended(t, hop, dst, route, dst), nil},
		"six":              {extended(t, hop, dst, dst, dst, dst, dst), nil},
		"seven":            {extended(t, hop, dst, dst, dst, dst, dst, dst), ErrNotUDP},
		"hop by hop late":  {extended(t, dst, hop), ErrNotUDP},
		"segments left":    {left, ErrNotUDP},
		"fragment":         {extended(t, fragment), ErrFragment},
		"fragment behind":  {extended(t, hop, dst, fragment), ErrFragment},
		"authentication":   {extended(t, 51), ErrNotUDP},
		"no next header":   {extended(t, hop, 59), ErrNotUDP},
		"beyond the end":   {long, ErrShort},
	} {
		var d Datagram
		err := Parse(c.frame, &d)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil {
			continue
		}
		if got := string(c.frame[d.PayloadOff:][:d.PayloadLen]); got != "hello" ||
			d.Src != sixA || d.Dst != sixB || VerifyUDP(c.frame, &d) != ChecksumOK {
			t.Errorf("%s: %q, %+v, %v", name, got, d, VerifyUDP(c.frame, &d))
		}
	}
}

// TestParseEveryCut: what ends before its end is refused, wherever that is.
func TestParseEveryCut(t *testing.T) {
	v4 := options(build(t, []byte("hello")), 8)
	for _, frame := range [][]byte{
		v4, tagged(v4, typeQinQ, typeVLAN), extended(t, extHopByHop, extDestination, extRouting),
	} {
		for n := range frame {
			var d Datagram
			if err := Parse(frame[:n:n], &d); !errors.Is(err, ErrShort) &&
				!errors.Is(err, ErrLength) {
				t.Errorf("%d of %d bytes: %v", n, len(frame), err)
			}
		}
	}
}
