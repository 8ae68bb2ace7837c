package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// extended returns an IPv6 datagram with empty extension headers of 8 and 16 bytes in turn.
func extended(t testing.TB, kinds ...byte) []byte {
	t.Helper()
	tpl, err := NewTemplate(macA, macB, sixA, sixB)
	if err != nil {
		t.Fatal(err)
	}
	plain := make([]byte, 128)
	n, err := tpl.Build(plain, []byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
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
