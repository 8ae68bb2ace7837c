package pcapng_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/shmring/shmring/internal/capture/pcapng"
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
	w, err := pcapng.NewWriter(&file, "a test")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"eth0", "eth1"} {
		n, err := w.AddInterface(pcapng.Interface{Name: name, SnapBytes: 64})
		if err != nil || n != i {
			t.Fatalf("interface %d, %v", n, err)
		}
	}
	p := pcapng.Packet{Interface: 1, UnixNs: 5<<32 + 7, Sent: true, Queue: 3, Len: 99, Dropped: 12,
		Bytes: []byte("hello")}
	s := pcapng.Statistics{Interface: 1, EndNs: 9, Seen: 100, Dropped: 12}
	if err := errors.Join(w.Write(&p), w.WriteStatistics(&s)); err != nil {
		t.Fatal(err)
	}
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
