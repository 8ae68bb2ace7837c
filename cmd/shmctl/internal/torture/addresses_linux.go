package torture

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"syscall"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
)

// An address vector with a name: owners that insert and remove, and take it over from each other,
// and others that look things up. The ledger has a word for each address; who owns the vector
// stores there what it is going to do, and what it has done. Who finds the same word before and
// after it looked something up knows what must come out of it.
const (
	vectorName  = "addresses"
	vectorCount = 64  // that fit
	addressIDs  = 160 // that there are
	vectorUsers = 2
)

// A word of the ledger: state, index and a number that grows with each change.
const (
	addrAbsent    = iota
	addrInserting // or being removed: nobody knows
	addrPresent
	addrStateBits = 2
	addrIndexBits = 22
)

// Words of the owners: those of what is held, and one for each address.
const (
	vectorChanges = heldWords + iota // insertions and removals
	vectorWords
)

func vectorOwnerRole() *role {
	return holder("adoptions", role{name: "vector-owner", places: 2, words: vectorWords + addressIDs,
		run: (*child).ownVector, counts: map[string]int{"changes": vectorChanges},
		steps: []crash.Label{crash.AddressFilling, crash.AddressFilled, crash.AddressPlaced,
			crash.AddressMoved, crash.AddressDisplaced, crash.AddressCleared,
			crash.AddressClaimed}})
}

func vectorUserRole() *role {
	return &role{name: "vector-user", places: vectorUsers, words: 1, stops: true,
		run: (*child).useVector, with: []string{"vector-owner"},
		counts: map[string]int{"lookups": 0}}
}

// addressOf makes the address of an id, a sockaddr_in6 that says whose it is in all its bytes.
func addressOf(id int) []byte {
	var ip [16]byte
	binary.BigEndian.PutUint64(ip[:], 0x20010db8<<32|uint64(id))
	binary.BigEndian.PutUint64(ip[8:], mix(uint64(id), 7))
	return cq.AppendSockaddr(nil, netip.AddrPortFrom(netip.AddrFrom16(ip), uint16(1000+id)))
}

// idOf returns whose an address is, or -1 if it is nobody's.
func idOf(raw []byte) int {
	a, ok := cq.ParseSockaddr(raw)
	if !ok {
		return -1
	}
	id := int(a.Port()) - 1000
	if id < 0 || id >= addressIDs || string(addressOf(id)) != string(raw) {
		return -1
	}
	return id
}

func addrWord(state, index int, before uint64) uint64 {
	const low = addrStateBits + addrIndexBits
	return (before>>low+1)<<low | uint64(index)<<addrStateBits | uint64(state)
}

func addrParts(word uint64) (state, index int) {
	return int(word & (1<<addrStateBits - 1)),
		int(word >> addrStateBits & (1<<addrIndexBits - 1))
}

// owning is a process that has the vector.
type owning struct {
	*child
	v *cq.AddressVector
}

func (c *child) ownVector() error {
	o := &owning{child: c}
	return c.hold(func(make bool) (h held, err error) {
		opt := cq.AddressOptions{Count: vectorCount, Lifetime: cq.Persistent}
		opt.Existing = !make
		o.v, err = cq.OpenAddresses(cq.Named(c.dir, vectorName), opt)
		return o.v, err
	}, o.change)
}

// set stores what is known of an address.
func (o *owning) set(id, state, index int) {
	w := &o.words[vectorWords+id]
	w.Store(addrWord(state, index, w.Load()))
}

// change inserts and removes until it is all over, or this owner leaves by itself.
func (o *owning) change(running context.Context) (done bool, err error) {
	if err := o.takeStock(); err != nil {
		return false, err
	}
	for running.Err() == nil {
		if err := o.one(o.rnd.IntN(addressIDs)); err != nil {
			return false, err
		}
		o.words[vectorChanges].Add(1)
		if o.rnd.IntN(10) == 0 {
			nap(time.Duration(o.rnd.IntN(300)) * time.Microsecond)
		}
		if o.rnd.IntN(5000) == 0 {
			return false, nil
		}
	}
	return true, o.takeStock()
}

// takeStock compares the vector with the ledger, and settles what a predecessor died over.
func (o *owning) takeStock() error {
	there := 0
	for id := range addressIDs {
		state, index := addrParts(o.words[vectorWords+id].Load())
		at, ok := o.v.Resolve(addressOf(id))
		if ok {
			there++
		}
		switch {
		case state == addrPresent && (!ok || at != cq.Addr(index)):
			o.tell(kindLost, "address %d is at %d in the vector: %v, %d", id, index, ok, at)
		case state == addrAbsent && ok:
			o.tell(kindUnpublished, "address %d was removed, and is at %d", id, at)
		}
		if ok {
			o.set(id, addrPresent, int(at))
		} else {
			o.set(id, addrAbsent, 0)
		}
	}
	if n := o.v.Len(); n != there {
		o.tell(kindLost, "%d addresses are found, the vector says %d", there, n)
	}
	return nil
}

// one inserts an address, or removes it.
func (o *owning) one(id int) error {
	raw := addressOf(id)
	if state, index := addrParts(o.words[vectorWords+id].Load()); state == addrPresent {
		o.set(id, addrInserting, 0)
		if err := o.v.Remove(cq.Addr(index)); err != nil {
			return err
		}
		o.set(id, addrAbsent, 0)
		return nil
	}
	o.set(id, addrInserting, 0)
	at, err := o.v.Insert([][]byte{raw}, cq.InsertOptions{})
	if errors.Is(err, syscall.ENOMEM) {
		if n := o.v.Len(); n != vectorCount {
			o.tell(kindLost, "the vector is full with %d of %d", n, vectorCount)
		}
		o.set(id, addrAbsent, 0)
		return nil
	}
	if err != nil {
		return err
	}
	o.set(id, addrPresent, int(at[0]))
	return nil
}

// useVector opens the vector and looks things up, again and again.
func (c *child) useVector() error {
	for c.ledger.phase() == phaseRun {
		v, err := cq.AttachAddresses(cq.Named(c.dir, vectorName))
		if errors.Is(err, fs.ErrNotExist) {
			nap(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if err := errors.Join(c.lookUp(v), v.Close()); err != nil {
			return err
		}
	}
	return nil
}

// lookUp looks up for a while.
func (c *child) lookUp(v *cq.AddressVector) error {
	words := c.ledger.region("vector-owner")[vectorWords:]
	buf := make([]byte, 64)
	for n := range 1 + c.rnd.IntN(20000) {
		if c.ledger.phase() != phaseRun {
			return nil
		}
		c.words[0].Add(1)
		id := c.rnd.IntN(addressIDs)
		before := words[id].Load()
		at, ok := v.Resolve(addressOf(id))
		whose := -2
		if ok {
			if n, err := v.Lookup(at, buf); err == nil {
				whose = idOf(buf[:min(n, len(buf))])
			}
		}
		if whose == -1 {
			c.tell(kindUnpublished, "index %d of the vector is nobody's address: %x", at, buf)
		}
		if words[id].Load() != before {
			continue
		}
		switch state, index := addrParts(before); {
		case state == addrPresent && (!ok || at != cq.Addr(index) || whose != id):
			c.tell(kindLost, "address %d is at %d in the vector: %v, %d, which is that of %d", id, index,
				ok, at, whose)
		case state == addrAbsent && ok:
			c.tell(kindUnpublished, "address %d is not in the vector, and was found at %d", id, at)
		}
		if n%50 == 0 {
			nap(time.Duration(c.rnd.IntN(1000)) * time.Microsecond)
		}
	}
	return nil
}
