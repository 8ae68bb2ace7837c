package ctl_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/fabric"
	"github.com/shmring/shmring/internal/shmtest"
	"github.com/shmring/shmring/shm"
)

// The kinds of sections and the size of a row, as the layout draws them.
const (
	sectQueue, sectRows, sectHints, sectLane, sectSlots, sectErrors = 0x100, 0x101, 0x102, 0x103,
		0x104, 0x105
	sectAddrWords, sectAddrRows, sectAddrIndex = 0x140, 0x141, 0x142
	sectBellArm, sectCounter                   = 0x200, 0x300
	rowBytes                                   = 256
)

// specimens makes objects of every kind, with something in them, and leaves them to a successor. It
// returns their images by path below the directory.
func specimens(t testing.TB, d *shm.Dir) map[string][]byte {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Size: 8, MaxLanes: 2, Wait: cq.WaitFD,
		Lifetime: cq.Persistent})).Or(t)
	set := shmtest.Got(cq.NewWaitSet(d, cq.WaitSetOptions{})).Or(t)
	must(t, set.Add(q))
	w := shmtest.Got(cq.Attach(t.Context(), cq.Named(d, "q"), cq.WriterOptions{})).Or(t)
	for i := range uint64(5) {
		must(t, w.Post(&cq.Entry{Context: i, Meta: cq.MetaSolicited}))
	}
	must(t, w.PostError(&cq.ErrorEntry{Err: 5, ErrData: []byte("detail")}))
	if n, err := cq.Read(q, make([]cq.Msg, 2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	e := shmtest.Got(cq.CreateEvents(cq.Named(d, "ev"), cq.EventOptions{Size: 4, Write: true})).Or(t)
	shmtest.Got(e.Write(&cq.Event{Event: cq.EventUser, Payload: []byte("payload")})).Or(t)
	c, err := cq.CreateCounter(cq.Named(d, "count"), cq.CounterOptions{Lifetime: cq.Persistent})
	must(t, err)
	must(t, c.Add(3))
	v := shmtest.Got(cq.CreateAddresses(cq.Named(d, "peers"),
		cq.AddressOptions{Count: 8, Format: cq.AddrOpaque})).Or(t)
	for _, a := range []string{"one", "two", "three"} {
		shmtest.Got(v.Insert([][]byte{[]byte(a)}, cq.InsertOptions{})).Or(t)
	}
	ends := specimenEndpoints(t, d)
	out := images(t, d.Path())
	ends()
	must(t, set.Remove(q))
	must(t, set.Close())
	must(t, w.Close())
	must(t, q.Detach())
	must(t, e.Detach())
	must(t, c.Close())
	must(t, v.Detach())
	for path, image := range images(t, d.Path()) {
		out[path] = image
	}
	for path, image := range out {
		if strings.HasPrefix(path, "bell-") || isFabric(path) { // gone, and its owner did not leave it
			binary.LittleEndian.PutUint64(image[ownerAt(image, 40):], 2)
		}
	}
	return out
}

// specimenEndpoints makes two endpoints, of which one has sent. It returns what closes
// them.
func specimenEndpoints(t testing.TB, d *shm.Dir) func() {
	t.Helper()
	q := shmtest.Got(cq.Create(cq.Unnamed("ends"), cq.Options{})).Or(t)
	w := shmtest.Got(q.Writer()).Or(t)
	o := fabric.Options{Transmit: w, Receive: w, Peers: 2, Remote: 4096}
	b := shmtest.Got(fabric.Open(d, "answers", o)).Or(t)
	a := shmtest.Got(fabric.Open(d, "asks", o)).Or(t)
	to := shmtest.Got(a.Resolve("answers")).Or(t)
	must(t, a.SendMsg(&fabric.Msg{Addr: to, Context: 1, Flags: cq.FlagMatchComplete,
		Solicited: true}))
	must(t, a.Send(make([]byte, 300), to, 2))
	shmtest.Got(a.Join("group", fabric.GroupOptions{Members: 4})).Or(t)
	shmtest.Got(b.Progress()).Or(t)
	return func() { must(t, errors.Join(a.Close(), b.Close(), w.Close(), q.Close())) }
}

// isFabric tells the objects of endpoints.
func isFabric(path string) bool {
	return path == "asks" || path == "answers" || path == "group" || strings.HasPrefix(path, "outbox-")
}

// fabricDamages are those of a receiver, and of the outbox of its sender.
func fabricDamages(t *testing.T, whole map[string][]byte) (out []damage) {
	const page, rows, lanes, slots, done, regions = 0x600, 0x601, 0x603, 0x604, 0x605, 0x607
	const group = 0x620
	in := func(name, file string, kind uint32, at, word, reports uint64) {
		out = append(out, damage{name: name, file: file, kind: kind, at: at, word: word,
			reports: reports})
	}
	box := ""
	for path, image := range whole {
		if strings.HasPrefix(path, "outbox-") && strings.HasPrefix(string(image[0x90:]), "asks") {
			box = path
		}
	}
	lane := binary.LittleEndian.Uint64(whole[box][section(t, whole[box], lanes)+128:])
	in("endpoint.state", "answers", page, 128, 2, 0)
	in("endpoint.armed", "answers", page, 0, 1<<40, 0)
	in("endpoint.owner", "answers", rows, 256+128, 3, 0)
	in("endpoint.granted", "answers", rows, 144, 1, 0)
	in("endpoint.record", "answers", rows, 256+192, 0xffff, 0)
	in("endpoint.record", "answers", rows, 256+192, (1<<30+1)<<32, 0)
	in("endpoint.owed", "answers", rows, 256+168, 2, 0)
	in("endpoint.lane", "answers", rows, 128, lane+2, 0)
	in("endpoint.head", "answers", rows, 136, 3, 0)
	in("endpoint.control", "answers", rows, 176, 9, 0)
	in("endpoint.region", "answers", regions, 64, 257, 64)
	in("outbox.lane", box, lanes, 256+128, 5, 0)
	in("outbox.done", box, done, 8, lane, 0)
	in("outbox.slots", box, lanes, 144, 3, 136)
	in("outbox.slots", box, lanes, 136, 9, 0)
	in("outbox.order", box, lanes, 160, 2, 0)
	in("endpoint.type", "answers", page, 144, 2, 0)
	in("outbox.type", box, lanes, 192, 2, 0)
	in("group.member", "group", group, 128+4*128+8, 5, 0)
	in("group.seat", "group", group, 128+8, 0, 0)
	in("outbox.sequence", box, slots, 0, 12, 0)
	for _, head := range []uint64{0, 3, 1 | 1<<13, 1 | 1<<11 | 64<<16, 1 | 193<<32, 2 | 1<<32,
		4 | 1<<11, 4 | 1<<28, 5 | 1<<8, 6, 1 | 1<<10 | 1<<52, 4 | 1<<10 | 1<<13} {
		in("outbox.slot", box, slots, 8, head, 0)
	}
	in("outbox.pool", box, slots, 256+232, 1<<20, 0)
	return out
}

// images reads all objects below a directory.
func images(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			rel, _ := filepath.Rel(dir, path)
			out[rel], err = os.ReadFile(path)
		}
		return err
	}))
	return out
}

func ownerAt(image []byte, off int) int {
	return 0xb00 + int(binary.LittleEndian.Uint64(image[0xa80:])&1)*128 + off
}

// section returns where a section of an image begins.
func section(t testing.TB, image []byte, kind uint32) uint64 {
	t.Helper()
	for at := 0x180; at < 0x980; at += 64 {
		if binary.LittleEndian.Uint32(image[at:]) == kind {
			return binary.LittleEndian.Uint64(image[at+8:])
		}
	}
	t.Fatalf("no section %#x", kind)
	return 0
}

// damage is one word of one file that is not what it should be.
type damage struct {
	name string
	file string
	kind uint32 // of the section; 0: the header
	at   uint64
	word uint64
	size int  // bytes, 0: 8
	open bool // the checksum is not made anew
	// where the finding says that it is, if that is another place
	reports uint64
}

func damages(bell string) []damage {
	const lane, rd, cnt, av = "q/lane-0001", "q/reader", "count", "peers"
	h := func(name, file string, at, word uint64, size int) damage {
		return damage{name: name, file: file, at: at, word: word, size: size}
	}
	in := func(name, file string, kind uint32, at, word uint64) damage {
		return damage{name: name, file: file, kind: kind, at: at, word: word}
	}
	row1 := uint64(rowBytes)
	return []damage{
		h("header.magic", cnt, 0, 1, 1), h("header.byte_order", cnt, 8, 7, 4),
		h("header.abi", cnt, 0xc, 9, 2), h("header.length", cnt, 0x10, 8192, 4),
		h("header.kind", cnt, 0x14, 0, 4), h("header.total", cnt, 0x18, 4097, 8),
		h("file.size", cnt, 0x18, 1<<20, 8), h("header.features", cnt, 0x28, 1, 8),
		h("header.features", cnt, 0x30, 2, 8), h("header.generation", cnt, 0x48, 0, 8),
		h("header.creator", cnt, 0x60, 1<<40, 8), h("header.name", cnt, 0x88, 65, 4),
		h("header.name", cnt, 0x90+63, 1, 1), h("header.sections", cnt, 0x8c, 33, 4),
		h("header.sections", cnt, 0x980-64, 1, 8), h("header.early", cnt, 0xd0, 1, 1),
		h("header.zero", cnt, 0xd8, 1, 1), h("header.zero", cnt, 0x984, 1, 1),
		h("header.zero", cnt, 0xa08, 1, 1),
		h("header.zero", cnt, 0xff8, 1, 1), h("header.zero", cnt, 0x180+56, 1, 8),
		h("header.state", cnt, 0xa00, 0, 8),
		{name: "header.checksum", file: cnt, at: 0x980, word: 5, size: 4, open: true},
		{name: "header.checksum", file: cnt, at: 0x108, word: 0, open: true, reports: 0x980},
		h("section.align", cnt, 0x1b0, 3, 8), h("section.length", cnt, 0x190, 0, 8),
		h("section.capacity", cnt, 0x1a0, 1<<40, 8), h("section.offset", cnt, 0x188, 1<<40, 8),
		h("section.offset", cnt, 0x188, 4097, 8), h("section.apart", rd, 0x1c8, 4096, 8),
		h("section.unique", rd, 0x1c0, sectQueue, 4),
		h("owner.turn", cnt, 0xa80, 0, 8), h("owner.generation", cnt, 0xa88, 99, 8),

		h("object.name", cnt, 0x90, 'x', 1), h("object.name", rd, 0x90, 'x', 1),
		h("object.name", lane, 0x90, 'x', 1),
		// The version of its uuid, which is never this one; the rest is random.
		{name: "object.name", file: bell, at: 0x3e, word: 1, size: 1, reports: 0x38},
		h("object.attributes", cnt, 0x108, 7, 8), h("object.attributes", rd, 0x108, 12, 8),
		h("object.attributes", rd, 0x178, 1, 8), h("object.attributes", lane, 0x108, 16, 8),
		h("object.attributes", bell, 0x100, 1, 8), h("object.attributes", av, 0x100, 3, 8),
		h("object.sections", cnt, 0x1a8, 2, 8), h("object.sections", rd, 0x1a8+2*64, 2, 8),
		h("object.sections", lane, 0x1a8, 2, 8), h("object.sections", av, 0x1a8, 2, 8),
		h("queue.kind", lane, 0x14, 4, 4), h("queue.kind", rd, 0x14, 4, 4),

		in("queue.armed", rd, sectQueue, 0, 1<<40), in("queue.state", rd, sectQueue, 128, 9),
		in("queue.face", rd, sectQueue, 256, 1<<32), in("queue.face_generation", rd, sectQueue, 264, 77),
		in("queue.no_barrier", rd, sectQueue, 272, 77),
		in("queue.bell_generation", rd, sectQueue, 384+32, 77),
		in("hints.latch", rd, sectHints, 256, 2), in("hints.ready", rd, sectHints, 384, 1<<5),
		in("row.parked", rd, sectRows, row1, 1<<20),
		in("row.head", rd, sectRows, row1+128, 7), in("row.peeked", rd, sectRows, row1+136, 8),
		in("row.high_water", rd, sectRows, row1+144, 9), in("row.retired", rd, sectRows, row1+152, 1),
		in("lane.tail", lane, sectLane, 0, 11), in("lane.solicited", lane, sectLane, 8, 11),
		in("lane.error", lane, sectLane, 16, 11), in("lane.order", lane, sectLane, 256, 2),
		in("lane.overrun", lane, sectLane, 264, 1), in("lane.epoch", lane, sectLane, 384+16, 5),
		in("lane.epoch", lane, sectLane, 384+16+8, 7), in("lane.tail", rd, sectLane, 0, 9),
		in("slot.sequence", lane, sectSlots, 3*64+56, 4<<32|1),
		in("slot.kind", lane, sectSlots, 4*64+56, 4<<32|3),
		in("slot.marks", lane, sectSlots, 2*64+56, 2<<32|1<<20|1),
		in("detail.data", lane, sectErrors, 5*64+16, 41),
		in("slot.payload", "ev/reader", sectSlots, 16, 1<<20),

		in("bell.armed", bell, sectBellArm, 0, 1<<40),
		in("counter.rung", cnt, sectCounter, 256+16, 1),
		in("counter.seats", cnt, sectCounter, 256+32, 65),
		in("counter.standing", cnt, sectCounter, 256+40, 2),
		in("counter.handle", cnt, sectCounter, 1024+8, 0), h("header.uuid", cnt, 0x38, 0, 8),

		in("addresses.state", av, sectAddrWords, 0, 9), in("addresses.used", av, sectAddrWords, 16, 5),
		in("addresses.row", av, sectAddrRows, 8, 1<<16|200),
		{name: "addresses.row", file: av, kind: sectAddrRows, at: 64 + 32 + 7, word: 1, size: 1,
			reports: 64 + 32},
		{name: "addresses.twice", file: av, kind: sectAddrRows, at: 64 + 32, word: 'o' | 'n'<<8 | 'e'<<16,
			reports: 64},
	}
}

// TestCheckFindsDamage: a file in which one word is wrong has one finding, that names the word and
// what is wrong with it; and there is such a file for every invariant.
func TestCheckFindsDamage(t *testing.T) {
	shmtest.Long(t)
	d := ownDir(t)
	whole := specimens(t, d)
	bell := ""
	for path := range whole {
		if strings.HasPrefix(path, "bell-") {
			bell = path
		}
	}
	dir := filepath.Join(d.Path(), "damaged")
	check := func(t *testing.T, files map[string][]byte) []string {
		t.Helper()
		must(t, os.RemoveAll(dir))
		for path, image := range files {
			must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700))
			must(t, os.WriteFile(filepath.Join(dir, path), image, 0o600))
		}
		var paths []string
		for _, name := range []string{"q", "ev", "count", "peers", bell} {
			paths = append(paths, filepath.Join(dir, name))
		}
		for name := range files {
			if isFabric(name) {
				paths = append(paths, filepath.Join(dir, name))
			}
		}
		r := shmtest.Got(ctl.Check(ctl.CheckOptions{}.InARow(), paths...)).Or(t)
		var got []string
		for _, f := range r.Findings {
			rel, _ := filepath.Rel(dir, f.Path)
			got = append(got, label(f.Invariant, rel, f.Offset))
			if f.Section == "" {
				t.Errorf("%s is in no section", f.Invariant)
			}
		}
		return got
	}
	if got := check(t, whole); got != nil {
		t.Fatalf("whole: %v", got)
	}
	covered := map[string]bool{"file.memory": true, "queue.entry": true, // see below
		"object.seals": true, // of what has no name
		// These have no name either: TestCheckUMEM and TestCheckPage of internal/inspect.
		"umem.geometry": true, "device.layout": true, "device.update": true,
		"device.returned": true, "device.frames": true,
		"owner.lock": true} // see TestCheckFindsLostLock
	all := slices.Concat(damages(bell), more(t, whole), fabricDamages(t, whole))
	for _, g := range all {
		covered[g.name] = true
		t.Run(g.name+" "+filepath.Base(g.file), func(t *testing.T) {
			files, want := g.apply(t, whole)
			if diff := cmp.Diff([]string{label(g.name, g.file, &want)}, check(t, files)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	for _, i := range ctl.Invariants() {
		if !covered[i.Name] {
			t.Errorf("no file is damaged for %s", i.Name)
		}
		delete(covered, i.Name)
	}
	if len(covered) > 0 {
		t.Errorf("%v are no invariants", covered)
	}
	checkStrangers(t, d, whole)
}

// apply returns all files with one of them damaged, and the offset that a check is to name.
func (g damage) apply(t *testing.T, whole map[string][]byte) (map[string][]byte, uint64) {
	t.Helper()
	files := map[string][]byte{}
	for path, image := range whole {
		files[path] = append([]byte{}, image...)
	}
	image := files[g.file]
	at := g.at
	if g.kind != 0 {
		at += section(t, image, g.kind)
	}
	want := at
	if g.reports != 0 {
		want = at - g.at + g.reports
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], g.word)
	if g.size == 0 {
		g.size = 8
	}
	copy(image[at:], word[:g.size])
	if !g.open && at < 0x980 {
		seal(image)
	}
	return files, want
}

func label(name, file string, offset *uint64) string {
	if offset == nil {
		return name + " " + file
	}
	return name + " " + file + " " + hex(*offset)
}

func hex(n uint64) string {
	const digits = "0123456789abcdef"
	out := ""
	for ; n > 0 || out == ""; n /= 16 {
		out = string(digits[n%16]) + out
	}
	return "0x" + out
}

// more are the damages whose place depends on what is in the objects.
func more(t *testing.T, whole map[string][]byte) (out []damage) {
	rd, av := whole["q/reader"], whole["peers"]
	owner := func(file string, off int) uint64 { return uint64(ownerAt(whole[file], off)) }
	le := binary.LittleEndian
	out = append(out,
		damage{name: "owner.pid", file: "count", at: owner("count", 0), word: 0},
		damage{name: "owner.state", file: "count", at: owner("count", 40), word: 3},
		damage{name: "owner.generation", file: "count", at: owner("count", 56), word: 0})
	// Some words are two, or count with another one only.
	clear(whole["count"][0x40:0x48])
	seal(whole["count"])
	le.PutUint64(whole["count"][section(t, whole["count"], sectCounter)+1024:], 1)
	// The queue has a bit in no bell any more: one is given to it.
	words := section(t, rd, sectQueue)
	le.PutUint64(rd[words+384:], 1)
	le.PutUint64(rd[words+384+32:], 1)
	out = append(out, damage{name: "queue.bell", file: "q/reader", kind: sectQueue, at: 384 + 16,
		word: 1 << 14})
	// Cells of the index: one that leads nowhere has the number of no row; a cell that is emptied
	// leaves an address that is not found.
	index, rows := section(t, av, sectAddrIndex), section(t, av, sectAddrRows)
	for at := uint64(0); at < 8*32; at += 8 {
		cell := le.Uint64(av[index+at:])
		// The next cell is empty: no other address is found past this one.
		if cell == 0 || le.Uint64(av[index+(at+8)%(8*32):]) != 0 {
			continue
		}
		slot := uint64(uint32(cell) - 1)
		out = append(out, damage{name: "addresses.found", file: "peers", kind: sectAddrIndex, at: at,
			reports: rows + 64*slot - index})
		break
	}
	for at := uint64(0); at < 8*32; at += 8 {
		if le.Uint64(av[index+at:]) == 0 && (at == 0 || le.Uint64(av[index+at-8:]) == 0) {
			out = append(out, damage{name: "addresses.cell", file: "peers", kind: sectAddrIndex, at: at,
				word: 1<<32 | 9})
			break
		}
	}
	return out
}

// checkStrangers: of what is no single word.
func checkStrangers(t *testing.T, d *shm.Dir, whole map[string][]byte) {
	dir := filepath.Join(d.Path(), "damaged")
	put := func(path string, image []byte) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, path), image, 0o600))
	}
	must(t, os.RemoveAll(dir))
	must(t, os.MkdirAll(filepath.Join(dir, "q"), 0o700))
	put("q/reader", whole["q/reader"])
	put("q/notes", []byte("no object"))
	put("q/lane-1", nil)
	put("hollow", forge(whole["count"], 1<<40))
	must(t, os.Truncate(filepath.Join(dir, "hollow"), 1<<40))
	put("short", whole["count"][:100])
	put("notes", []byte("no object"))
	r := shmtest.Got(ctl.Check(ctl.CheckOptions{}, dir, filepath.Join(dir, "short"))).Or(t)
	var got []string
	for _, f := range r.Findings {
		got = append(got, f.Invariant+" "+filepath.Base(f.Path))
	}
	want := []string{"file.memory hollow", "queue.entry lane-1", "queue.entry notes",
		"file.size short"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestCheckAside: a queue whose maker died before it had its own name is whole.
func TestCheckAside(t *testing.T) {
	d := ownDir(t)
	q := shmtest.Got(cq.Create(cq.Named(d, "q"), cq.Options{Lifetime: cq.Persistent})).Or(t)
	must(t, q.Detach())
	aside := "new-" + shm.NewUUID().String()
	must(t, os.Rename(d.Path()+"/q", d.Path()+"/"+aside))
	r := shmtest.Got(ctl.Check(ctl.CheckOptions{}, d.Path())).Or(t)
	if r.Objects == 0 || len(r.Findings) != 0 {
		t.Errorf("%+v", r)
	}
}

// seal makes a header of any content pass its checksum.
func seal(image []byte) []byte {
	sum := crc32.Checksum(image[:0x980], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(image[0x980:], sum)
	return image
}

// forge makes a copy of an object that claims another size.
func forge(image []byte, bytes uint64) []byte {
	out := append([]byte{}, image...)
	binary.LittleEndian.PutUint64(out[0x18:], bytes)
	return seal(out)
}
