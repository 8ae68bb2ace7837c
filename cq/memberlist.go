package cq

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/shmring/shmring/doorbell"
)

// memberList is who is in a set, by bit and by object. Its own lock is held while the set's list
// changes with it, and never while a member is looked at.
type memberList struct {
	mu      sync.Mutex
	shut    bool // its set closes: nobody comes any more
	signals bool // its set ends a wait for a member's signal
	byBit   map[int]listed
	byFID   map[FID]int
}

type listed struct {
	m    Waitable
	face face
}

func (l *memberList) add(gate *guard, set *doorbell.Set, m Waitable) error {
	if absent(m) {
		return errAbsent("add")
	}
	if !gate.enterAny() {
		return ErrClosed
	}
	defer gate.leaveAny()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut {
		return ErrClosed
	}
	if _, is := l.byFID[m.FID()]; is {
		return errMember(m)
	}
	bit, face, err := m.join(l.signals)
	if err != nil {
		return err
	}
	if l.byBit == nil {
		l.byBit, l.byFID = map[int]listed{}, map[FID]int{}
	}
	l.byBit[bit], l.byFID[m.FID()] = listed{m, face}, bit
	set.Add(bit, face)
	return nil
}

func (l *memberList) remove(gate *guard, set *doorbell.Set, m Waitable) error {
	if absent(m) {
		return errAbsent("remove")
	}
	if !gate.enterAny() {
		return ErrClosed
	}
	defer gate.leaveAny()
	l.mu.Lock()
	defer l.mu.Unlock()
	bit, is := l.byFID[m.FID()]
	if !is {
		return errNoMember(m)
	}
	set.Delete(bit)
	face := l.byBit[bit].face
	delete(l.byBit, bit)
	delete(l.byFID, m.FID())
	face.part()
	return nil
}

func errMember(m Waitable) error {
	return fmt.Errorf("cq: add %v: it is a member: %w", m.FID(), syscall.EEXIST)
}

func errNoMember(m Waitable) error {
	return fmt.Errorf("cq: remove %v: it is no member: %w", m.FID(), syscall.ENOENT)
}

func (l *memberList) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.byBit)
}

// close refuses members from now on, or returns how many there are.
func (l *memberList) close() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = l.shut || len(l.byBit) == 0
	return len(l.byBit)
}

// report turns bits into the members that they stand for, as many as dst holds, and counts those
// that are ready for this caller. A signal is taken here, where nobody can take its queue out.
func (l *memberList) report(bits []int, dst []Waitable) (n, ready int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, bit := range bits {
		e, is := l.byBit[bit]
		if !is || !e.face.claim() {
			continue
		}
		ready++
		if n < len(dst) {
			e.face.reported()
			dst[n] = e.m
			n++
		}
	}
	return n, ready
}

// progress drives the members, and returns how long a wait may sleep before it does so again; 0 is
// for ever.
func (l *memberList) progress() (againNs int64) {
	if manualFeeders.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.byBit {
		if d := e.m.progress(); d >= 0 && (againNs == 0 || int64(d) < againNs) {
			againNs = max(1, int64(d))
		}
	}
	return againNs
}

// roomFor returns an empty list with room for just n bits, or for one, from memory that is kept.
func roomFor(kept *[]int, n int) []int {
	n = max(1, n)
	if cap(*kept) < n {
		*kept = make([]int, 0, n)
	}
	return (*kept)[:0:n]
}
