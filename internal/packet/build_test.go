package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
)

func TestMain(m *testing.M) { shmtest.Main(m) }

var (
	sixA = netip.MustParseAddrPort("[2001:db8::1]:4000")
	sixB = netip.MustParseAddrPort("[2001:db8::2]:5000")
)

func mustTemplate(t testing.TB, p Path) *Template {
	t.Helper()
	return shmtest.Got(p.Template()).Or(t)
}

// paths are all shapes of headers that there are.
func paths() map[string]Path {
	out := map[string]Path{}
	for n := range maxTags + 1 {
		tags := []Tag{{Kind: typeQinQ, TCI: 0x6064}, {TCI: 200}}[2-n:]
		four := Path{LocalMAC: macA, NextMAC: macB, Tags: tags, Src: adrA, Dst: adrB}
		six := four
		six.Src, six.Dst = sixA, sixB
		out[fmt.Sprint("IPv4/", n)], out[fmt.Sprint("IPv6/", n)] = four, six
	}
	return out
}

// TestVectors: frames written down by hand, sums worked out with another program.
func TestVectors(t *testing.T) {
	for name, c := range map[string]struct {
		path Path
		want string
	}{
		"IPv4": {Path{LocalMAC: macA, NextMAC: macB, Src: adrA, Dst: adrB, TrafficClass: 0xb8},
			"020000000002 020000000001 0800" +
				"45b8 0021 0001 4000 4011 b60f c0000201 c0000202" +
				"0fa0 1388 000d 14d6 68656c6c6f"},
		"IPv6": {Path{LocalMAC: macA, NextMAC: macB, Src: sixA, Dst: sixB, TrafficClass: 0xb8},
			"020000000002 020000000001 86dd" +
				"6b800000 000d 11 40 20010db8000000000000000000000001" +
				"20010db8000000000000000000000002" +
				"0fa0 1388 000d 3d65 68656c6c6f"},
	} {
		frame := make([]byte, 128)
		n, err := mustTemplate(t, c.path).Build(frame, []byte("hello"))
		want := strings.ReplaceAll(c.want, " ", "")
		if got := hex.EncodeToString(frame[:n]); err != nil || got != want {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, want)
		}
	}
}

// TestBuildWays: a payload that is copied and one in place make the same frame, and Parse finds in
// it what went in.
func TestBuildWays(t *testing.T) {
	for name, p := range paths() {
		for _, n := range []int{0, 1, 2, 3, 63, 64, 65, 1472} {
			payload := make([]byte, n)
			for i := range payload {
				payload[i] = byte(i*7 + n)
			}
			var frames [2][]byte
			for i := range frames {
				tpl := mustTemplate(t, p) // its own, so that all have the same identification
				b := bytes.Repeat([]byte{0xee}, 1600)
				size, err := 0, error(nil)
				if i == 0 {
					size, err = tpl.Build(b, payload)
				} else {
					copy(b[tpl.HeaderLen():], payload)
					size, err = tpl.BuildInPlace(b, n)
				}
				if err != nil || size != tpl.HeaderLen()+n {
					t.Fatalf("%s: %d bytes: %d, %v", name, n, size, err)
				}
				if b[size] != 0xee {
					t.Fatalf("%s: %d bytes: wrote beyond the frame", name, n)
				}
				frames[i] = b[:size]
			}
			if !bytes.Equal(frames[0], frames[1]) {
				t.Fatalf("%s: %d bytes: two ways, different frames", name, n)
			}
			comesBack(t, p, frames[0], payload)
		}
	}
}

func comesBack(t *testing.T, p Path, frame, payload []byte) {
	t.Helper()
	var d Datagram
	shmtest.Must(t, Parse(frame, &d))
	if d.SrcMAC != p.LocalMAC || d.DstMAC != p.NextMAC || d.Src != p.Src || d.Dst != p.Dst ||
		d.Tags != len(p.Tags) || d.Tags > 0 && d.VLAN != p.Tags[0].TCI ||
		!bytes.Equal(frame[d.PayloadOff:][:d.PayloadLen], payload) ||
		VerifyUDP(frame, &d) != ChecksumOK {
		t.Fatalf("%+v came back as %+v, checksum %v", p, d, VerifyUDP(frame, &d))
	}
}

// TestChecksumNeverZero: a sum of zero goes out as its other form, since zero says "none".
func TestChecksumNeverZero(t *testing.T) {
	for _, p := range []Path{{Src: adrA, Dst: adrB}, {Src: sixA, Dst: sixB}} {
		tpl := mustTemplate(t, p)
		frame := make([]byte, 128)
		if _, err := tpl.Build(frame, []byte{0, 0}); err != nil {
			t.Fatal(err)
		}
		sum := frame[tpl.HeaderLen()-2 : tpl.HeaderLen()]
		// With its own complement as the payload a sum comes to 0xffff, its inverse to zero.
		n, err := tpl.Build(frame, bytes.Clone(sum))
		if err != nil || sum[0] != 0xff || sum[1] != 0xff {
			t.Fatalf("checksum %x, %v", sum, err)
		}
		var d Datagram
		if err := Parse(frame[:n], &d); err != nil || VerifyUDP(frame[:n], &d) != ChecksumOK {
			t.Fatal(err, VerifyUDP(frame[:n], &d))
		}
	}
}

func TestIPv6NeedsAChecksum(t *testing.T) {
	frame := extended(t)
	var d Datagram
	shmtest.Must(t, Parse(frame, &d))
	frame[d.UDPOff+6], frame[d.UDPOff+7] = 0, 0
	if c := VerifyUDP(frame, &d); c != ChecksumWrong {
		t.Errorf("no checksum over IPv6 is %v", c)
	}
}

func TestHopLimit(t *testing.T) {
	for dst, want := range map[string]byte{"192.0.2.2:1": 64, "224.0.0.251:1": 1} {
		tpl := mustTemplate(t, Path{Src: adrA, Dst: netip.MustParseAddrPort(dst)})
		if got := tpl.header[EthernetBytes+8]; got != want {
			t.Errorf("to %s: %d hops", dst, got)
		}
	}
	tpl := mustTemplate(t, Path{Src: sixA, Dst: sixB, HopLimit: 255})
	if got := tpl.header[EthernetBytes+7]; got != 255 {
		t.Errorf("%d hops, want 255", got)
	}
}

func TestTemplateRefuses(t *testing.T) {
	for name, p := range map[string]Path{
		"families":   {Src: sixA, Dst: adrB},
		"no address": {},
		"three tags": {Src: adrA, Dst: adrB, Tags: make([]Tag, 3)},
	} {
		if _, err := p.Template(); err == nil {
			t.Errorf("%s: a template was made", name)
		}
	}
	// An IPv4 address in IPv6 clothes is one of IPv4.
	mapped := netip.AddrPortFrom(netip.AddrFrom16(adrA.Addr().As16()), 1)
	if _, err := (Path{Src: mapped, Dst: adrB}).Template(); err != nil {
		t.Error(err)
	}
	tpl := mustTemplate(t, Path{Src: adrA, Dst: adrB})
	small, big := make([]byte, HeaderBytes+3), make([]byte, 80000)
	_, err := tpl.Build(small, make([]byte, 4))
	_, errIn := tpl.BuildInPlace(small[:10], 0)
	_, errBig := tpl.Build(big, make([]byte, 65508))
	_, errSix := mustTemplate(t, Path{Src: sixA, Dst: sixB}).Build(big, make([]byte, 65528))
	for i, err := range []error{err, errIn, errBig, errSix} {
		if !errors.Is(err, ErrTooBig) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := tpl.BuildInPlace(small, -1); err == nil {
		t.Error("a payload of -1 bytes was built")
	}
}

func TestMaxPayload(t *testing.T) {
	four := mustTemplate(t, Path{Src: adrA, Dst: adrB, Tags: []Tag{{TCI: 1}}})
	six := mustTemplate(t, Path{Src: sixA, Dst: sixB})
	for _, c := range []struct{ got, want int }{
		{four.MaxPayload(1500), 1472}, {six.MaxPayload(1500), 1452},
		{four.MaxPayload(20), 0}, {four.MaxPayload(1 << 20), 65507}, {six.MaxPayload(1 << 20), 65527},
	} {
		if c.got != c.want {
			t.Errorf("%d, want %d", c.got, c.want)
		}
	}
	frame := make([]byte, 70000)
	for tpl, n := range map[*Template]int{four: 65507, six: 65527} {
		size, err := tpl.BuildInPlace(frame, n)
		var d Datagram
		if err != nil || Parse(frame[:size], &d) != nil || d.PayloadLen != n ||
			VerifyUDP(frame[:size], &d) != ChecksumOK {
			t.Errorf("%d bytes: %v, %+v", n, err, d)
		}
	}
}

func TestMulticastMAC(t *testing.T) {
	for addr, want := range map[string]string{
		"224.0.0.251":        "01005e0000fb",
		"239.129.2.3":        "01005e010203", // the upper bit of the second byte is lost
		"255.255.255.255":    "ffffffffffff",
		"::ffff:224.0.0.251": "01005e0000fb",
		"ff02::1:ff00:1234":  "3333ff001234",
		"ff02::fb%eth0":      "3333000000fb",
		"192.0.2.1":          "",
		"2001:db8::1":        "",
	} {
		mac, ok := MulticastMAC(netip.MustParseAddr(addr))
		if ok != (want != "") || ok && hex.EncodeToString(mac[:]) != want {
			t.Errorf("%s: %x, %v", addr, mac, ok)
		}
	}
	if _, ok := MulticastMAC(netip.Addr{}); ok {
		t.Error("no address has a hardware address")
	}
}

func TestNoAllocation(t *testing.T) {
	frame, payload := make([]byte, 2048), make([]byte, 100)
	var d Datagram
	for name, p := range paths() {
		tpl := mustTemplate(t, p)
		if n := testing.AllocsPerRun(100, func() {
			n, err := tpl.Build(frame, payload)
			if err != nil || Parse(frame[:n], &d) != nil ||
				VerifyUDP(frame[:n], &d) > ChecksumOK {
				t.Error("frame does not come back")
			}
			if _, err = tpl.BuildInPlace(frame, 100); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations a frame", name, n)
		}
	}
}

// FuzzBuild: whatever goes in comes out of Parse, with the right checksum.
func FuzzBuild(f *testing.F) {
	f.Add([]byte("hello"), uint8(0), uint16(4000))
	f.Add([]byte{}, uint8(5), uint16(0))
	f.Fuzz(func(t *testing.T, payload []byte, shape uint8, port uint16) {
		p := Path{LocalMAC: macA, NextMAC: macB, Src: adrA, Dst: adrB,
			Tags: make([]Tag, shape%3)}
		if shape&0x80 != 0 {
			p.Src, p.Dst = sixA, sixB
		}
		p.Dst = netip.AddrPortFrom(p.Dst.Addr(), port)
		tpl := mustTemplate(t, p)
		frame := make([]byte, tpl.HeaderLen()+len(payload))
		n, err := tpl.Build(frame, payload)
		if err != nil {
			if !errors.Is(err, ErrTooBig) || len(payload) < 65507 {
				t.Fatal(err)
			}
			return
		}
		comesBack(t, p, frame[:n], payload)
	})
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{64, 1452} {
		for name, p := range map[string]Path{
			"IPv4": {Src: adrA, Dst: adrB}, "IPv6": {Src: sixA, Dst: sixB},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				tpl := mustTemplate(b, p)
				frame, payload := make([]byte, 2048), make([]byte, n)
				b.SetBytes(int64(n))
				for b.Loop() {
					if _, err := tpl.Build(frame, payload); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// agrees has a flow read a packet, and fails unless it finds what Parse and VerifyUDP do.
func agrees(t *testing.T, f *Flow, frame []byte) (same bool) {
	t.Helper()
	var want Datagram
	wrong := Parse(frame, &want)
	sum, same, err := f.Read(frame)
	if err != wrong {
		t.Fatalf("%v of %x, Parse says %v", err, frame, wrong)
	}
	if err != nil {
		return same
	}
	if f.Datagram != want || sum != VerifyUDP(frame, &want) {
		t.Fatalf("%+v, sum %v, of %x; want %+v, sum %v", f.Datagram, sum, frame, want,
			VerifyUDP(frame, &want))
	}
	return same
}

// TestFlowTells: a packet whose headers differ from those before in anything that says whom it is
// of or for is read anew, and one that is no datagram is refused whatever came before it.
func TestFlowTells(t *testing.T) {
	put := binary.BigEndian.PutUint16
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		same   bool
	}{
		"nothing":         {func(b []byte) []byte { return b }, true},
		"payload":         {func(b []byte) []byte { b[50]++; return b }, true},
		"no checksum":     {func(b []byte) []byte { put(b[40:], 0); return b }, true},
		"service":         {func(b []byte) []byte { b[15] = 4; return resum(b) }, true},
		"identification":  {func(b []byte) []byte { b[19] = 4; return resum(b) }, true},
		"do not fragment": {func(b []byte) []byte { b[20] ^= 0x40; return resum(b) }, true},
		"hops":            {func(b []byte) []byte { b[22]--; return resum(b) }, true},
		"padding":         {func(b []byte) []byte { return append(b, 1, 2, 3) }, true},
		"shorter":         {func(b []byte) []byte { put(b[38:], 20); return b }, true},
		"no payload": {func(b []byte) []byte {
			put(b[16:], IPv4Bytes+UDPBytes)
			put(b[38:], UDPBytes)
			return resum(b)
		}, true},
		"to hardware":   {func(b []byte) []byte { b[5]++; return b }, false},
		"from hardware": {func(b []byte) []byte { b[11]++; return b }, false},
		"type":          {func(b []byte) []byte { b[13]++; return b }, false},
		"version":       {func(b []byte) []byte { b[14] = 0x65; return resum(b) }, false},
		"options":       {func(b []byte) []byte { return options(b, 4) }, false},
		"tag":           {func(b []byte) []byte { return tagged(b, typeVLAN) }, false},
		"source":        {func(b []byte) []byte { b[29]++; return resum(b) }, false},
		"destination":   {func(b []byte) []byte { b[33]++; return resum(b) }, false},
		"from port":     {func(b []byte) []byte { b[35]++; return b }, false},
		"to port":       {func(b []byte) []byte { b[37]++; return b }, false},
		"protocol":      {func(b []byte) []byte { b[23] = 6; return resum(b) }, false},
		"first part":    {func(b []byte) []byte { b[20] = 0x20; return resum(b) }, false},
		"later part":    {func(b []byte) []byte { b[21] = 1; return resum(b) }, false},
		"header sum":    {func(b []byte) []byte { b[24]++; return b }, false},
		"beyond frame":  {func(b []byte) []byte { b[16]++; return resum(b) }, false},
		"cut":           {func(b []byte) []byte { return b[:len(b)-1] }, false},
		"cut in header": {func(b []byte) []byte { return b[:HeaderBytes-1] }, false},
		"beyond packet": {func(b []byte) []byte { b[38]++; return b }, false},
		"short length":  {func(b []byte) []byte { put(b[38:], UDPBytes-1); return b }, false},
		"short packet":  {func(b []byte) []byte { put(b[16:], IPv4Bytes+7); return resum(b) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var f Flow
			if agrees(t, &f, build(t, make([]byte, 30))) {
				t.Error("the first packet is the same as none")
			}
			if same := agrees(t, &f, c.change(build(t, make([]byte, 30)))); same != c.same {
				t.Errorf("the same is %v", same)
			}
			if agrees(t, &f, build(t, make([]byte, 30))) != c.same {
				t.Error("what comes behind it is the same as before, or not")
			}
		})
	}
}

// TestFlowAgrees: whatever comes in whatever order, a flow finds what Parse and VerifyUDP do.
func TestFlowAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var kinds [][]byte
	for _, path := range paths() {
		frame := make([]byte, 256)
		n, err := mustTemplate(t, path).Build(frame, []byte("a payload, which is not so short"))
		shmtest.Must(t, err)
		kinds = append(kinds, frame[:n])
	}
	kinds = append(kinds, options(build(t, make([]byte, 9)), 8))
	var f Flow
	runs, frame := 0, []byte(nil)
	for range 100_000 {
		if len(frame) == 0 || r.IntN(8) == 0 {
			frame = kinds[r.IntN(len(kinds))]
		}
		b := append([]byte(nil), frame...)
		for range r.IntN(3) {
			b[r.IntN(min(len(b), 70))] ^= 1 << r.IntN(8)
		}
		if b = b[:len(b)-r.IntN(2)*r.IntN(len(b))]; len(b) > 80 && r.IntN(2) == 0 {
			resum(b)
		}
		if agrees(t, &f, b) {
			runs++
		}
	}
	if runs < 500 {
		t.Errorf("%d packets were predicted", runs)
	}
}
