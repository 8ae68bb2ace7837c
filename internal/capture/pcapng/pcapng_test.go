package pcapng_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shmring/shmring/internal/capture/pcapng"
	"github.com/shmring/shmring/internal/shmtest"
)

// block is one block as a reader sees it.
type block struct {
	kind uint32
	body []byte
}

// blocks reads a file as the format has it: two equal lengths around each body, in steps of 4.
func blocks(t *testing.T, b []byte) (out []block) {
	t.Helper()
	le := binary.LittleEndian
	for len(b) > 0 {
		n := le.Uint32(b[4:])
		if n%4 != 0 || int(n) > len(b) || le.Uint32(b[n-4:]) != n {
			t.Fatalf("a block of %d bytes, %d are left", n, len(b))
		}
		out = append(out, block{le.Uint32(b), b[8 : n-4]})
		b = b[n:]
	}
	return out
}

// options reads the options at the end of a body.
func options(t *testing.T, b []byte) map[uint16][]byte {
	t.Helper()
	out := map[uint16][]byte{}
	for {
		code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if code == 0 {
			if n != 0 || len(b) != 4 {
				t.Fatalf("end of options with %d bytes behind", len(b)-4)
			}
			return out
		}
		out[code] = b[4 : 4+n]
		b = b[4+(n+3)&^3:]
	}
}

func TestBlocks(t *testing.T) {
	var file bytes.Buffer
	w := shmtest.Got(pcapng.NewWriter(&file, "a test")).Or(t)
	for i, name := range []string{"eth0", "eth1"} {
		n, err := w.AddInterface(pcapng.Interface{Name: name, SnapBytes: 64})
		if err != nil || n != i {
			t.Fatalf("interface %d, %v", n, err)
		}
	}
	p := pcapng.Packet{Interface: 1, UnixNs: 5<<32 + 7, Sent: true, Queue: 3, Len: 99, Dropped: 12,
		Bytes: []byte("hello")}
	s := pcapng.Statistics{Interface: 1, EndNs: 9, Seen: 100, Dropped: 12}
	shmtest.Must(t, errors.Join(w.Write(&p), w.WriteStatistics(&s)))
	got := blocks(t, file.Bytes())
	kinds := []uint32{0x0a0d0d0a, 1, 1, 6, 5}
	if len(got) != len(kinds) {
		t.Fatalf("%d blocks", len(got))
	}
	for i, k := range kinds {
		if got[i].kind != k {
			t.Errorf("block %d is %#x, not %#x", i, got[i].kind, k)
		}
	}
	le := binary.LittleEndian
	if le.Uint32(got[0].body) != 0x1a2b3c4d || string(options(t, got[0].body[16:])[4]) != "a test" {
		t.Errorf("section: %x", got[0].body)
	}
	if o := options(t, got[2].body[8:]); string(o[2]) != "eth1" || o[9][0] != 9 {
		t.Errorf("interface: %v", o)
	}
	e := got[3].body
	if le.Uint32(e) != 1 || le.Uint32(e[4:]) != 5 || le.Uint32(e[8:]) != 7 ||
		le.Uint32(e[12:]) != 5 || le.Uint32(e[16:]) != 99 || string(e[20:25]) != "hello" {
		t.Errorf("packet: %x", e)
	}
	o := options(t, e[28:])
	if le.Uint32(o[2]) != 2 || le.Uint64(o[4]) != 12 || le.Uint32(o[6]) != 3 {
		t.Errorf("options of the packet: %v", o)
	}
	o = options(t, got[4].body[12:])
	if le.Uint64(o[4]) != 100 || le.Uint64(o[5]) != 12 {
		t.Errorf("statistics: %v", o)
	}
}

// failing takes nothing.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

func TestWriteFails(t *testing.T) {
	if _, err := pcapng.NewWriter(failing{}, ""); !errors.Is(err, bytes.ErrTooLarge) {
		t.Error(err)
	}
}

// FuzzBlocks: whatever packets say, what is written can be read again and says the same; texts are
// UTF-8, as the format wants them.
func FuzzBlocks(f *testing.F) {
	f.Add("eth0", "queue 0", []byte("hello"), uint64(5<<32+7), uint64(12), uint32(99), uint32(3),
		true)
	f.Add("", "", []byte{}, uint64(0), uint64(0), uint32(0), uint32(0), false)
	f.Add("\xff\xfe", "a\x00b\xc3", make([]byte, 9000), ^uint64(0), uint64(1), ^uint32(0),
		^uint32(0), true)
	f.Add("long", strings.Repeat("\u00e4", 40000), []byte{1}, uint64(1), uint64(0), uint32(1),
		uint32(0), false)
	f.Fuzz(func(t *testing.T, name, description string, b []byte, ns, dropped uint64, n, queue uint32,
		sent bool) {
		var file bytes.Buffer
		w := shmtest.Got(pcapng.NewWriter(&file, name)).Or(t)
		_, err := w.AddInterface(pcapng.Interface{Name: name, Description: description, SnapBytes: n})
		p := pcapng.Packet{UnixNs: ns, Sent: sent, Queue: queue, Len: n, Dropped: dropped,
			Bytes: b}
		s := pcapng.Statistics{StartNs: ns, EndNs: ns + 1, Seen: dropped, Dropped: uint64(n)}
		shmtest.Must(t, errors.Join(err, w.Write(&p), w.WriteStatistics(&s)))
		got := blocks(t, file.Bytes())
		if len(got) != 4 {
			t.Fatalf("%d blocks", len(got))
		}
		le := binary.LittleEndian
		wantText(t, options(t, got[0].body[16:])[4], name)
		of := options(t, got[1].body[8:])
		wantText(t, of[2], name)
		wantText(t, of[3], description)
		e := got[2].body
		at := uint64(le.Uint32(e[4:]))<<32 | uint64(le.Uint32(e[8:]))
		if at != ns || int(le.Uint32(e[12:])) != len(b) || le.Uint32(e[16:]) != n ||
			!bytes.Equal(e[20:20+len(b)], b) {
			t.Fatalf("packet: %x", e[:20])
		}
		o := options(t, e[20+(len(b)+3)&^3:])
		if le.Uint32(o[2]) != map[bool]uint32{false: 1, true: 2}[sent] || le.Uint32(o[6]) != queue ||
			(o[4] != nil) != (dropped > 0) || dropped > 0 && le.Uint64(o[4]) != dropped {
			t.Fatalf("options of the packet: %v", o)
		}
		if o = options(t, got[3].body[12:]); le.Uint64(o[4]) != dropped || le.Uint64(o[5]) != uint64(n) {
			t.Fatalf("statistics: %v", o)
		}
	})
}

// wantText fails the test unless an option is a text, as much of it as an option holds.
func wantText(t *testing.T, got []byte, want string) {
	t.Helper()
	want = strings.ToValidUTF8(want, "\ufffd")
	if !utf8.Valid(got) || !strings.HasPrefix(want, string(got)) ||
		len(got) < len(want) && len(got) < 1<<16-utf8.UTFMax {
		t.Fatalf("%.100q of %d bytes for %.100q of %d", got, len(got), want, len(want))
	}
}
