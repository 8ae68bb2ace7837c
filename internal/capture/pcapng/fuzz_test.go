package pcapng_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shmring/shmring/internal/capture/pcapng"
)

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
		w, err := pcapng.NewWriter(&file, name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.AddInterface(pcapng.Interface{Name: name, Description: description, SnapBytes: n})
		p := pcapng.Packet{UnixNs: ns, Sent: sent, Queue: queue, Len: n, Dropped: dropped,
			Bytes: b}
		s := pcapng.Statistics{StartNs: ns, EndNs: ns + 1, Seen: dropped, Dropped: uint64(n)}
		if err := errors.Join(err, w.Write(&p), w.WriteStatistics(&s)); err != nil {
			t.Fatal(err)
		}
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
