package capture

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/ring"
	"github.com/shmring/shmring/shm"
)

// TestCheck: each invariant has a word that breaks it.
func TestCheck(t *testing.T) {
	d := shmtest.Have(shm.OpenDir("")).In(t)
	id := shm.NewUUID()
	obj := shmtest.Got(d.Create(Prefix+id.String(), spec(id, minSlots, 64), nil)).Or(t)
	defer func() { shmtest.Must(t, errors.Join(obj.Unlink(), obj.Close())) }()
	m := shmtest.Got(lay(obj)).Or(t)
	_, writer, err := obj.Section(sectWriter, 0)
	shmtest.Must(t, err)
	look := func(want string, offset uint64) {
		t.Helper()
		o := shmtest.Have(d.Open(obj.Name(), shm.Inspect)).In(t)
		got := Check(o)
		if want == "" && len(got) == 0 {
			return
		}
		if len(got) != 1 || got[0].Invariant != want || got[0].Offset != offset {
			t.Errorf("%+v, want %s at %#x", got, want, offset)
		}
	}
	look("", 0)
	m.tail.Store(minSlots)
	look("", 0)
	m.tail.Store(minSlots + 1)
	look("capture.tail", writer.Offset+offTail)
	m.tail.Store(0)
	m.state.Store(3)
	look("capture.state", writer.Offset+offState)

	other := shmtest.Got(d.Create("no-capture", shm.Spec{Kind: shm.KindCapture}, nil)).Or(t)
	if got := Check(other); len(got) != 1 || got[0].Invariant != "capture.layout" {
		t.Errorf("%+v", got)
	}
	shmtest.Must(t, errors.Join(other.Unlink(), other.Close()))
}

// FuzzRecords: whatever an endpoint writes to a capture, its reader sees packets within bounds, as
// many as there is room for at most, or an error that stays.
func FuzzRecords(f *testing.F) {
	const slots, snap = minSlots, 100
	d, err := shm.OpenDir("")
	if err != nil {
		f.Fatal(err)
	}
	id := shm.NewUUID()
	obj, err := d.Create(Prefix+id.String(), spec(id, slots, snap), nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := errors.Join(obj.Unlink(), obj.Close(), d.Close()); err != nil {
			f.Error(err)
		}
	})
	m, err := lay(obj)
	if err != nil {
		f.Fatal(err)
	}
	records, _, err := obj.Section(sectRecord, 0)
	if err != nil {
		f.Fatal(err)
	}
	one := make([]byte, recordBytes)
	le := binary.LittleEndian
	le.PutUint64(one, 5e9)
	le.PutUint32(one[8:], 1500)
	le.PutUint32(one[12:], snap)
	le.PutUint32(one[16:], flagSent)
	le.PutUint64(one[24:], 3)
	f.Add(uint64(1), uint64(2), uint64(0), one)
	f.Add(uint64(slots), uint64(0), uint64(stateLeft), append(one, one...))
	f.Add(uint64(slots+1), uint64(1)<<63, uint64(9), []byte{})
	f.Add(uint64(2), ^uint64(0), uint64(1), one[:20])
	f.Fuzz(func(t *testing.T, tail, later, state uint64, b []byte) {
		clear(records)
		copy(records, b)
		m.head.Store(0)
		m.tail.Store(tail)
		m.state.Store(state)
		s := &Session{obj: obj, m: m, in: ring.NewConsumer(m.tail, m.head, m.records, 0)}
		var failure error
		for round := range 3 {
			seen := 0
			n, err := s.Read(slots+1, func(p *Packet) error {
				seen++
				if len(p.Bytes) > snap || int(p.Len) < len(p.Bytes) {
					t.Fatalf("%d bytes of %d", len(p.Bytes), p.Len)
				}
				return nil
			})
			if n != seen || n > slots || failure != nil && (n > 0 || err == nil) {
				t.Fatalf("round %d: %d packets, %d seen, %v after %v", round, n, seen, err, failure)
			}
			if failure = err; tail > slots && err == nil {
				t.Fatalf("a tail of %d is taken", tail)
			}
			m.tail.Store(tail + later)
		}
		if head := m.head.Load(); head > tail+later && failure == nil {
			t.Fatalf("read to %d", head)
		}
		_ = s.Counts()
		for _, v := range Check(obj) {
			if v.Invariant == "capture.layout" {
				t.Fatalf("%+v", v)
			}
		}
	})
}
