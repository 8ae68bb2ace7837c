package cq

import (
	"fmt"
	"path/filepath"

	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/shm"
)

// CheckObject checks an object that stands beside the queues, by a read-only mapping: no lock is
// taken and nobody notices. Of a kind that this package does not know, and of regions, it checks
// what every object has; more is for more, which may be nil: it gets the object while it is mapped.
// What it finds in an object that is used may be of a moment in between: only what is found again
// and again holds. Errors are those of opening shared memory.
func CheckObject(path string, more func(*shm.Object) []shm.Violation) (Checked, error) {
	return checkPath(path, func(c *checker) { c.object(filepath.Base(path), more) })
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
	default:
		if more != nil {
			c.found = append(c.found, more(c.obj)...)
		}
	}
}

func (c *checker) bell(file string) {
	if want := bellName(c.obj.Header().UUID); c.held == nil && file != want {
		c.badHeader("object.name", headerUUID, file, want)
	}
	if !c.attributes(map[int]possible{attrBellBits: {least: domainBits, most: domainBits}}) ||
		!c.sections(bellSpec()) {
		return
	}
	arm, _, err := bellMemory(c.obj, false)
	if err != nil {
		return
	}
	if a := arm.Word.Load(); a&^doorbell.ArmKnown != 0 {
		c.bad("bell.armed", sectBellArm, 0, fmt.Sprintf("%#x", a), "known bits")
	}
}

func (c *checker) counter() {
	if !c.attributes(map[int]possible{attrCounterEvents: {most: uint64(BytesCounter)},
		attrCounterLifetime: {most: uint64(Persistent)}}) || !c.sections(CounterOptions{}.spec("")) {
		return
	}
	words, err := wordsOf[counterWords](c.obj, sectCounter, 0)
	if err != nil {
		return
	}
	const (
		offRung     = offCounterBell + 16
		offSeats    = offCounterBell + 32
		offStanding = offCounterBell + 40
	)
	b := words.bell.Inspect()
	if b.Rung > b.Armed {
		c.bad("counter.rung", sectCounter, offRung, b.Rung, fmt.Sprintf("at most %d", b.Armed))
	}
	if b.Seats > doorbell.CountSeats {
		c.bad("counter.seats", sectCounter, offSeats, b.Seats, doorbell.CountSeats)
	}
	if b.Standing > 1 {
		c.bad("counter.standing", sectCounter, offStanding, b.Standing, "0 or 1")
	}
	for i := range words.rows {
		r := &words.rows[i]
		mark := r.mark.Load()
		pid := r.pid.Load()
		if mark != 0 && (pid == 0 || pid > 1<<22) && r.mark.Load() == mark {
			c.bad("counter.handle", sectCounter, offCounterRows+counterRowBytes*uint64(i)+8, pid,
				"1 to 4194304")
		}
	}
}

// addresses checks a vector. Its owner may be in the middle of one change, or have died there,
// which its successor mends: so but for one left on purpose, one row may be half there.
func (c *checker) addresses() {
	h := c.obj.Header()
	if !c.attributes(map[int]possible{attrAddrCount: {least: 1, most: addrMaxCount, powerOf2: true},
		attrAddrMaxBytes: {least: 8, most: addrLimitBytes},
		attrAddrFormat:   {least: 1, most: uint64(AddrOpaque)},
		attrAddrLifetime: {most: uint64(Persistent)}, attrAddrUserID: {most: 1}}) {
		return
	}
	o, err := storedAddresses("check", c.obj.Name(), h)
	if err != nil && !c.sections(o.spec("")) {
		return
	}
	if err != nil {
		c.badHeader("object.attributes", headerAttrs, fmt.Sprint(h.Attrs), "what goes together")
		return
	}
	t, err := newAddrTable(c.obj, o)
	if err != nil {
		return
	}
	if s := t.words.state.Load(); s != stateOpen && s != stateClosed {
		c.bad("addresses.state", sectAddrWords, 0, s, "1 or 2")
	}
	life, err := c.obj.Life()
	if err != nil || t.words.state.Load() == stateClosed {
		return
	}
	slack := 1
	if life == shm.Released {
		slack = 0
	}
	const tries = 8
	for range tries {
		k := addrCheck{t: t, o: o, c: &checker{obj: c.obj}, slack: slack}
		used, changes := t.words.used.Load(), t.words.changes.Load()
		k.rows()
		k.cells()
		k.count(used)
		if t.words.used.Load() == used && t.words.changes.Load() == changes {
			c.found = append(c.found, k.c.found...)
			return
		}
	}
	c.busy = true
}

// addrCheck is one look at a table that stands still but for one change.
type addrCheck struct {
	t     *addrTable
	o     AddressOptions
	c     *checker
	slack int

	full   int    // rows with an address
	broken []bool // rows that were reported: what follows from that is not
}

func (k *addrCheck) rowAt(slot int) uint64 { return 8 * uint64(slot*k.t.stride) }

// rows checks every row by itself, and that it is found.
func (k *addrCheck) rows() {
	buf := make([]byte, k.o.AddrMaxBytes)
	k.broken = make([]bool, k.t.count)
	lost := &checker{obj: k.c.obj}
	for slot := range k.t.count {
		info := k.t.row(slot)[1].Load()
		n, ok := k.t.load(slot, buf)
		if !ok {
			if k.t.row(slot)[0].Load()&1 == 0 && info != 0 && info == k.t.row(slot)[1].Load() {
				k.c.bad("addresses.row", sectAddrRows, k.rowAt(slot)+8, fmt.Sprintf("%#x", info),
					"0, or used with a length that fits")
				k.broken[slot] = true
				k.full++
			}
			continue
		}
		k.full++
		key := k.t.key(buf[:n])
		if _, whole := k.t.match(slot, key); !whole || k.o.Format.check(buf[:n]) != nil {
			k.c.bad("addresses.row", sectAddrRows, k.rowAt(slot)+8*addrRowWords,
				fmt.Sprintf("%x", buf[:n]), "an address of the format, and zeros after it")
			k.broken[slot] = true
			continue
		}
		switch at, _, found := k.t.find(key); {
		case !found:
			lost.bad("addresses.found", sectAddrRows, k.rowAt(slot), "no cell of the index", "one")
		case at != slot:
			k.c.bad("addresses.twice", sectAddrRows, k.rowAt(slot),
				fmt.Sprintf("the address of row %d", at), "another one")
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
	buf := make([]byte, k.o.AddrMaxBytes)
	twice := &checker{obj: k.c.obj}
	seen := make([]bool, k.t.count)
	for i := range k.t.index {
		cell := k.t.index[i].Load()
		if cell == 0 {
			continue
		}
		slot, at := int(uint32(cell))-1, 8*uint64(i)
		n, ok := 0, false
		if slot >= 0 && slot < k.t.count {
			if k.broken[slot] {
				continue
			}
			n, ok = k.t.load(slot, buf)
		}
		if !ok || k.t.key(buf[:n]).hash != uint32(cell>>32) {
			k.c.bad("addresses.cell", sectAddrIndex, at, fmt.Sprintf("%#x", cell),
				"hash and row of an address")
			continue
		}
		if seen[slot] {
			twice.bad("addresses.cell", sectAddrIndex, at, fmt.Sprintf("%#x", cell), "one to a row")
		}
		seen[slot] = true
	}
	if len(twice.found) > k.slack {
		k.c.found = append(k.c.found, twice.found...)
	}
}

func (k *addrCheck) count(used uint64) {
	if diff := int64(used) - int64(k.full); diff > int64(k.slack) || diff < -int64(k.slack) {
		k.c.bad("addresses.used", sectAddrWords, 16, used, k.full)
	}
}
