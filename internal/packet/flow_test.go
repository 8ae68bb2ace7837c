package packet

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

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
		if err != nil {
			t.Fatal(err)
		}
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
