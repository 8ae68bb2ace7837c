package inspect

import (
	"fmt"
	"path/filepath"

	"github.com/shmring/shmring/internal/counterbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// CheckObject checks an object that stands beside the queues, by a read-only mapping: no lock is
// taken and nobody notices. Of a kind that this package does not know, and of regions, it checks
// what every object has; more is for more, which may be nil: it gets the object while it is mapped.
// What it finds in an object that is used may be of a moment in between: only what is found again
// and again holds. Errors are those of opening shared memory.
func CheckObject(path string, more func(*shm.Object) []shm.Violation) (Checked, error) {
	return checkPath(path, func(c *checker) {
		c.dir = filepath.Dir(path)
		c.object(filepath.Base(path), more)
	})
}

// object checks one that is not part of a queue.
func (c *checker) object(file string, more func(*shm.Object) []shm.Violation) {
	switch c.obj.Header().Kind {
	case shm.KindBell:
		c.named(file)
		c.bell(file)
	case shm.KindCounter:
		c.named(file)
		c.counter()
	case shm.KindAddresses:
		c.named(file)
		c.addresses()
	case shm.KindUMEM:
		c.umem()
	case shm.KindFabric:
		c.named(file)
		c.endpoint()
	case shm.KindOutbox:
		c.outbox()
	case shm.KindGroup:
		c.named(file)
		c.group()
	default:
		if kind.IsStatusPage(c.obj) {
			c.statusPage()
		}
		if more != nil {
			c.found = append(c.found, more(c.obj)...)
		}
	}
}

func (c *checker) bell(file string) {
	if want := kind.BellName(c.obj.Header().UUID); c.held == nil && file != want {
		c.badHeader("object.name", headerUUID, file, want)
	}
	if !c.attributes(kind.BellAttributes) || !c.sections(kind.BellSpec()) {
		return
	}
	arm, _, err := kind.BellMemory(c.obj, false)
	if err != nil {
		return
	}
	if a := arm.Word.Load(); a&^wake.ArmKnown != 0 {
		wrong(c, arm, "bell.armed", fmt.Sprintf("%#x", a), "known bits")
	}
}

func (c *checker) counter() {
	if !c.attributes(kind.CounterAttributes) || !c.sections(kind.Counter{}.Spec("")) {
		return
	}
	words, err := kind.WordsOf[kind.CounterWords](c.obj, kind.SectCounter, 0)
	if err != nil {
		return
	}
	bell := kind.Overlays[kind.Word](c.obj.Bytes()[kind.Offset(c.obj.Bytes(), &words.Bell):])
	const rung, seatsTaken, standing = 2, 4, 5 // words of it
	b := words.Bell.Inspect()
	if b.Rung > b.Armed {
		wrong(c, &bell[rung], "counter.rung", b.Rung, fmt.Sprintf("at most %d", b.Armed))
	}
	if b.Seats > counterbell.Seats {
		wrong(c, &bell[seatsTaken], "counter.seats", b.Seats, counterbell.Seats)
	}
	if b.Standing > 1 {
		wrong(c, &bell[standing], "counter.standing", b.Standing, "0 or 1")
	}
	seats := c.obj.Seats(words.Seats[:])
	for i := range counterbell.Seats {
		if o := seats.At(i).Owner(); o.State == shm.StateOwned && o.PID == 0 {
			wrong(c, &words.Seats[shm.SeatBytes*i+8], "counter.handle", "no process", "1 to 4194304")
		}
	}
}

// addresses checks a vector. Its owner may be in the middle of one change, or have died there,
// which its successor mends: so but for one left on purpose, one row may be half there.
func (c *checker) addresses() {
	h := c.obj.Header()
	if !c.attributes(kind.AddressAttributes) {
		return
	}
	o, err := kind.StoredAddresses("check", c.obj.Name(), h)
	if err != nil && !c.sections(o.Spec("")) {
		return
	}
	if err != nil {
		c.badHeader("object.attributes", headerAttrs, fmt.Sprint(h.Attrs), "what goes together")
		return
	}
	t, err := kind.NewAddressTable(c.obj, o)
	if err != nil {
		return
	}
	if s := t.Words.State.Load(); s != kind.StateOpen && s != kind.StateClosed {
		wrong(c, &t.Words.State, "addresses.state", s, "1 or 2")
	}
	life, err := c.obj.Life()
	if err != nil || t.Words.State.Load() == kind.StateClosed {
		return
	}
	slack := 1
	if life == shm.Released {
		slack = 0
	}
	const tries = 8
	for range tries {
		k := addrCheck{t: t, o: o, c: &checker{obj: c.obj}, slack: slack}
		used, changes := t.Words.Used.Load(), t.Words.Changes.Load()
		k.rows()
		k.cells()
		k.count(used)
		if t.Words.Used.Load() == used && t.Words.Changes.Load() == changes {
			c.found = append(c.found, k.c.found...)
			return
		}
	}
	c.busy = true
}

// addrCheck is one look at a table that stands still but for one change.
type addrCheck struct {
	t     *kind.AddressTable
	o     kind.Addresses
	c     *checker
	slack int

	full   int    // rows with an address
	broken []bool // rows that were reported: what follows from that is not
}

// rows checks every row by itself, and that it is found.
func (k *addrCheck) rows() {
	buf := make([]byte, k.o.MaxBytes)
	k.broken = make([]bool, k.t.Count)
	lost := &checker{obj: k.c.obj}
	for slot := range k.t.Count {
		row := k.t.Row(slot)
		info := row[1].Load()
		n, ok := k.t.Load(slot, buf)
		if !ok {
			if row[0].Load()&1 == 0 && info != 0 && info == row[1].Load() {
				wrong(k.c, &row[1], "addresses.row", fmt.Sprintf("%#x", info),
					"0, or used with a length that fits")
				k.broken[slot] = true
				k.full++
			}
			continue
		}
		k.full++
		key := k.t.Key(buf[:n])
		if _, whole := k.t.Match(slot, key); !whole || !kind.IsAddress(k.o.Format, buf[:n]) {
			wrong(k.c, &row[kind.AddrRowWords], "addresses.row", fmt.Sprintf("%x", buf[:n]),
				"an address of the format, and zeros after it")
			k.broken[slot] = true
			continue
		}
		switch at, _, found := k.t.Find(key); {
		case !found:
			wrong(lost, &row[0], "addresses.found", "no cell of the index", "one")
		case at != slot:
			wrong(k.c, &row[0], "addresses.twice", fmt.Sprintf("the address of row %d", at), "another one")
			k.broken[slot] = true
		}
	}
	if len(lost.found) > k.slack {
		k.c.found = append(k.c.found, lost.found...)
	}
}

// cells checks that every cell leads to a row of its hash, and only one to each, but for one that
// is being moved.
func (k *addrCheck) cells() {
	buf := make([]byte, k.o.MaxBytes)
	twice := &checker{obj: k.c.obj}
	seen := make([]bool, k.t.Count)
	for i := range k.t.Index {
		cell := k.t.Index[i].Load()
		if cell == 0 {
			continue
		}
		slot := int(uint32(cell)) - 1
		n, ok := 0, false
		if slot >= 0 && slot < k.t.Count {
			if k.broken[slot] {
				continue
			}
			n, ok = k.t.Load(slot, buf)
		}
		if !ok || k.t.Key(buf[:n]).Hash != uint32(cell>>32) {
			wrong(k.c, &k.t.Index[i], "addresses.cell", fmt.Sprintf("%#x", cell),
				"hash and row of an address")
			continue
		}
		if seen[slot] {
			wrong(twice, &k.t.Index[i], "addresses.cell", fmt.Sprintf("%#x", cell), "one to a row")
		}
		seen[slot] = true
	}
	if len(twice.found) > k.slack {
		k.c.found = append(k.c.found, twice.found...)
	}
}

func (k *addrCheck) count(used uint64) {
	if diff := int64(used) - int64(k.full); diff > int64(k.slack) || diff < -int64(k.slack) {
		wrong(k.c, &k.t.Words.Used, "addresses.used", used, k.full)
	}
}

// umem checks that a UMEM is as large as it says. What is in its frames is the device's and its
// peers'; which frame is where stands in the memory of the process that has the sockets.
func (c *checker) umem() {
	if !c.attributes(kind.UMEMAttributes) {
		return
	}
	if _, err := kind.StoredUMEM(c.obj); err != nil {
		c.badHeader("umem.geometry", headerAttrs, err.Error(), "what NewUMEM writes")
	}
}

// statusPage checks the page that the server of a device writes for an application. The server may
// count meanwhile.
//
// Of the application's frames it knows their numbers. Which ones it has, and under which
// generation, is in the server's own memory, where no application can make two owners of one; so
// from outside a frame that is handed out twice is seen only when more are out than there are.
func (c *checker) statusPage() {
	if !c.attributes(kind.PageAttributes) {
		return
	}
	counts, err := kind.PageCounts(c.obj)
	if err != nil {
		c.badHeader("device.layout", headerSections, err.Error(), "what a server writes")
		return
	}
	bad := func(name string, word int, got uint64, want string) {
		wrong(c, &counts[word], name, got, want)
	}
	received, returned := uint64(0), uint64(0)
	begun, ended := kind.Moment(&counts[kind.CountBegun], &counts[kind.CountEnded], func() {
		received, returned = counts[kind.CountReceived].Load(), counts[kind.CountReturned].Load()
	})
	frames := c.obj.Header().Attrs[kind.AttrPageFrames]
	switch {
	case ended > begun:
		bad("device.update", kind.CountEnded, ended, fmt.Sprintf("at most %d", begun))
	case ended < begun, frames == 0:
		// An update is under way, or the server died in one; or it is one of before there was the number.
	case returned > received:
		bad("device.returned", kind.CountReturned, returned, fmt.Sprintf("at most %d", received))
	case received-returned > frames:
		bad("device.frames", kind.CountReceived, received,
			fmt.Sprintf("at most %d, as %d of %d came back", returned+frames, returned, frames))
	}
}
