package kind

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

var write = flag.Bool("layout.write", false, "write docs/layout.md")

var plain = Queue{Format: 1, Capacity: 4, Rows: 3, DetailBytes: MinDetailBytes}

func with[T any](t T, change func(*T)) T {
	change(&t)
	return t
}

// good are attributes that each kind takes.
var good = map[string]shm.Spec{
	"queue":       plain.ReaderSpec(""),
	"event queue": with(plain, func(q *Queue) { q.Events = true }).ReaderSpec(""),
	"lane":        plain.LaneSpec("", 2, shm.UUID{1, 15: 9}),
	"bell":        BellSpec(),
	"counter":     Counter{Events: 1}.Spec(""),
	"UMEM":        UMEM{Frames: 8, ChunkBytes: 2048, HeadroomBytes: 64}.Spec(""),
	"address vector": Addresses{Count: 8, MaxBytes: 32,
		Format: FormatSockaddr}.Spec(""),
	"capture": func() (s shm.Spec) {
		s.Kind = shm.KindCapture
		Capture{Slots: 16, SnapBytes: 100}.Put(&s)
		return s
	}(),
	"fabric endpoint":             Fabric{Rows: 8, Window: 1 << 16, Remote: 4096}.Spec(""),
	"outbox of a fabric endpoint": Outbox{Lanes: 8, Slots: 64, Chunks: 2, ChunkBytes: 4096}.Spec(""),
	"group of fabric endpoints":   Group{Members: 4, Misses: 1}.Spec(""),
	"status page of a device":     PageSpec(8, 2, 1),
}

// stored are the ways in which attributes come back from a header.
var stored = map[shm.Kind]func(shm.Header) error{
	shm.KindQueue:     func(h shm.Header) error { _, err := StoredQueue("t", "t", h); return err },
	shm.KindEvents:    func(h shm.Header) error { _, err := StoredQueue("t", "t", h); return err },
	shm.KindCounter:   func(h shm.Header) error { _, err := StoredCounter("t", "t", h); return err },
	shm.KindAddresses: func(h shm.Header) error { _, err := StoredAddresses("t", "t", h); return err },
	shm.KindUMEM: func(h shm.Header) error {
		_, err := storedUMEM("t", h, make([]byte, h.Sections[0].Length))
		return err
	},
	shm.KindFabric:  func(h shm.Header) error { _, err := StoredFabric("t", h); return err },
	shm.KindOutbox:  func(h shm.Header) error { _, err := StoredOutbox("t", h); return err },
	shm.KindGroup:   func(h shm.Header) error { _, err := StoredGroup("t", h); return err },
	shm.KindCapture: func(h shm.Header) error { _, err := StoredCapture("t", h); return err },
}

// TestAttributes: of every kind the attributes that it writes are possible, and none that is beyond
// its bound, or in a word that the kind does not use, is believed.
func TestAttributes(t *testing.T) {
	for _, o := range Objects {
		spec, ok := good[o.Name]
		if !ok || spec.Kind != o.Kind {
			t.Errorf("%s: no example", o.Name)
			continue
		}
		header := func() shm.Header {
			return shm.Header{Kind: o.Kind, Attrs: spec.Attrs, Sections: spec.Sections}
		}
		look := func(h shm.Header) (wrong []string) {
			o.Wrong(h, func(_ int, a Attribute, _ uint64) { wrong = append(wrong, a.Name) })
			return wrong
		}
		take := stored[o.Kind]
		if wrong := look(header()); wrong != nil || take != nil && take(header()) != nil {
			t.Errorf("%s: its own attributes are refused: %v, %v", o.Name, wrong, take(header()))
		}
		for word := range spec.Attrs {
			a := o.Of(word)
			for _, v := range []uint64{0, 1, 3, 7, 3000, a.Least - 1, a.Most + 1, 1 << 32, 1<<40 | a.Least,
				1 << 63, anyWord} {
				h := header()
				h.Attrs[word] = v
				wrong := look(h)
				if a.Holds(v) {
					continue
				}
				if len(wrong) != 1 || wrong[0] != a.Name {
					t.Errorf("%s: %s %d: found %v", o.Name, a.Name, v, wrong)
				}
				if take == nil {
					continue
				}
				if err := take(h); !errors.Is(err, shm.ErrCorrupt) ||
					!strings.Contains(err.Error(), fmt.Sprintf("%s %d", a.Name, v)) {
					t.Errorf("%s: %s %d: %v", o.Name, a.Name, v, err)
				}
			}
		}
	}
}

// TestAttributesTogether: attributes that are possible one by one, and not together.
func TestAttributesTogether(t *testing.T) {
	for what, s := range map[string]shm.Spec{
		"many lanes of other users": with(plain, func(q *Queue) {
			q.Trust, q.Rows = CrossUser, OthersLanes+2
		}).ReaderSpec(""),
		"a successor of another user": with(plain, func(q *Queue) {
			q.Trust, q.Lifetime = CrossUser, Persistent
		}).ReaderSpec(""),
		"short addresses": Addresses{Count: 8, MaxBytes: 16, Format: FormatSockaddr}.Spec(""),
		"odd chunks":      UMEM{Frames: 8, ChunkBytes: 3000, HeadroomBytes: 64}.Spec(""),
	} {
		h := shm.Header{Kind: s.Kind, Attrs: s.Attrs, Sections: s.Sections}
		if err := stored[s.Kind](h); !errors.Is(err, shm.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestLayoutPage: docs/layout.md says what stands in the attributes of each kind.
func TestLayoutPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Attributes of objects

Each object in shared memory begins with a page that says what it is: see package shm. Sixteen words
of it are the attributes, which are fixed when the object is created and lie under the page's
checksum. Whoever maps an object refuses it unless each is as below. Words that are not listed are
0.

A test writes this page: ` + "`go test ./internal/kind -run LayoutPage -layout.write`" + `.
`)
	for _, o := range Objects {
		fmt.Fprintf(&b, "\n## %s\n\n| byte | attribute | values | meaning |\n|---|---|---|---|\n",
			strings.ToUpper(o.Name[:1])+o.Name[1:])
		for i, a := range o.Attributes {
			fmt.Fprintf(&b, "| %#x | %s | %v | %s |\n", 0x100+8*i, a.Name, a.Bound, a.What)
		}
	}
	const page = "../../docs/layout.md"
	if *write {
		shmtest.Must(t, os.WriteFile(page, []byte(b.String()), 0o644))
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != b.String() {
		t.Errorf("%s is of another layout (%v): run with -layout.write", page, err)
	}
}

// TestLanePlaces: the words of lanes stand at different lines of a page, and lanes whose words
// stand elsewhere are taken too, as former ones are. One of another user is no larger than its
// reader, of whatever age, expects.
func TestLanePlaces(t *testing.T) {
	var id shm.UUID
	lines := map[uint64]int{}
	for row := 1; row <= 63; row++ {
		obj := shmtest.Got(shm.CreateMemfd(plain.LaneSpec("lane", row, id), nil)).Or(t)
		_, s, err := obj.Section(SectLane, uint32(row))
		if line := s.Offset % 4096 / 64; err != nil || lines[line] != 0 {
			t.Errorf("row %d: line %d, as row %d; %v", row, line, lines[line], err)
		} else {
			lines[line] = row
		}
		shmtest.Must(t, errors.Join(plain.LaneBelongs(obj, row, id), obj.Close()))
	}
	for _, trust := range []uint64{0, CrossUser} {
		q := with(plain, func(q *Queue) { q.Trust = trust })
		spec := q.LaneSpec("lane", 1, id)
		former := spec
		former.Sections = q.LaneSections(1)
		obj := shmtest.Got(shm.CreateMemfd(former, nil)).Or(t)
		shmtest.Must(t, errors.Join(q.LaneBelongs(obj, 1, id), obj.Close()))
		is, _ := shm.Plan(spec)
		was, _ := shm.Plan(former)
		if was == 0 || q.Others() && is != was {
			t.Errorf("trust %d: a lane takes %d bytes, was %d", trust, is, was)
		}
	}
}
