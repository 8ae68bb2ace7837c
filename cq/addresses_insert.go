package cq

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"syscall"

	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/internal/kind"
)

// InsertError says which addresses of an insertion failed (FI_SYNC_ERR). errors.Is finds what went
// wrong with any of them.
type InsertError struct {
	Name     string  // of the vector
	Inserted int     // how many went well
	Errs     []error // by address; nil for one that went well
}

// Error says how many failed, and why the first did.
func (e *InsertError) Error() string {
	for i, err := range e.Errs {
		if err != nil {
			return fmt.Sprintf("cq: insert into %q: %d of %d addresses failed: address %d: %v", e.Name,
				len(e.Errs)-e.Inserted, len(e.Errs), i, err)
		}
	}
	return fmt.Sprintf("cq: insert into %q: no address failed", e.Name)
}

// Unwrap returns the errors of the addresses that failed.
func (e *InsertError) Unwrap() (errs []error) {
	for _, err := range e.Errs {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// errVectorFull is what an address gets for which there is no row.
var errVectorFull error = kind.NewSentinel(
	"address vector is full: remove addresses, or create it larger",
	Errno(syscall.ENOMEM), nil)

// InsertOptions of AddressVector.Insert. The zero value inserts at once and allocates the indices.
type InsertOptions struct {
	// Into gets the indices, in place of memory that Insert allocates. It is as long as addrs, or
	// nil.
	Into []Addr
	// IDs are the user ids of the addresses (FI_AV_USER_ID), for a vector with UserID: no completion
	// names the index in between. They are as many as addrs, or nil.
	IDs []Addr
	// Async inserts in the background, and reports to the event queue that is bound with Context.
	// Into and IDs are nil then.
	Async   bool
	Context uint64
}

// Insert adds addresses and returns their indices (fi_av_insert): the lowest that are free, from 0
// on. An index stays until the address is removed. One that is in the vector already keeps its
// index, which is returned again (the page leaves that undefined); one Remove takes it out.
//
// If some fail, the others are inserted all the same: a failed one has the index AddrNotAvail and
// its reason in the *[InsertError] that is returned, which also says how many went in. Reasons are
// ErrInvalid for bytes that are no address of the format, EADDRNOTAVAIL for an address without port
// or host, ENOMEM when the vector is full, and what AddressOptions.Check says. Other errors, with
// nothing inserted, are ErrClosed, ErrReadOnly, and ErrInvalid for options without sense.
//
// With Async (a vector opened with FI_EVENT) it returns at once, without indices, and keeps nothing
// of addrs. For each address that fails there is an error event with the context, Data its position
// in addrs, and Err why; then, after all of them, one EventAVComplete with Data how many went in.
// Indices are those that Insert would have returned; Lookup and Resolve find them. Insertions end
// in the order in which they began. The errors of such a call are also ErrNoEQ without BindEvents,
// ErrFull if the event queue has no room for as many events as there may be, and ErrInvalid if it
// never has. Close ends insertions that are under way: what was not inserted has error events with
// ECANCELED.
func (v *AddressVector) Insert(addrs [][]byte, o InsertOptions) ([]Addr, error) {
	const op = "insert"
	switch n := len(addrs); {
	case o.Async && (o.Into != nil || o.IDs != nil):
		return nil, kind.Refuse(op, v.name, "Async", true, "neither Into nor IDs", ErrInvalid)
	case o.Async:
		return nil, v.insertLater(addrs, o.Context)
	case o.Into != nil && len(o.Into) != n:
		return nil, kind.Refuse(op, v.name, "len(Into)", len(o.Into), n, ErrInvalid)
	case o.IDs != nil && len(o.IDs) != n:
		return nil, kind.Refuse(op, v.name, "len(IDs)", len(o.IDs), n, ErrInvalid)
	}
	if o.IDs != nil {
		if err := v.wantsIDs(op); err != nil {
			return nil, err
		}
	}
	if o.Into == nil {
		o.Into = make([]Addr, len(addrs))
	}
	return o.Into, v.insert(o.Into, addrs, o.IDs)
}

func (v *AddressVector) insert(dst []Addr, addrs [][]byte, ids []Addr) error {
	for i := range dst {
		dst[i] = AddrNotAvail
	}
	if err := v.enterOwner("insert"); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	n, failed := 0, (*InsertError)(nil)
	for i, raw := range addrs {
		var id *Addr
		if ids != nil {
			id = &ids[i]
		}
		at, err := v.insertOne(raw, id)
		if err != nil {
			if failed == nil {
				failed = &InsertError{Name: v.name, Errs: make([]error, len(addrs))}
			}
			failed.Errs[i] = err
			continue
		}
		n++
		dst[i] = at
	}
	if failed != nil {
		failed.Inserted = n
		return failed
	}
	return nil
}

// insertOne adds one address.
func (v *AddressVector) insertOne(raw []byte, id *Addr) (Addr, error) {
	if len(raw) > v.opt.AddrMaxBytes {
		return AddrNotAvail, kind.Refuse("insert", v.name, "length", len(raw), v.opt.AddrMaxBytes,
			ErrInvalid)
	}
	if err := v.opt.Format.check(raw); err != nil {
		return AddrNotAvail, err
	}
	if v.opt.Check != nil {
		if err := v.opt.Check(raw); err != nil {
			return AddrNotAvail, err
		}
	}
	k := v.table.Key(raw)
	v.mu.Lock()
	defer v.mu.Unlock()
	if slot, _, ok := v.table.Find(k); ok && v.isTaken(slot) {
		if id != nil {
			v.table.SetID(slot, uint64(*id))
		}
		return Addr(slot), nil
	}
	slot := v.lowest()
	if slot < 0 {
		return AddrNotAvail, errVectorFull
	}
	// The row first: whoever finds it through the index finds it whole.
	if id != nil {
		v.table.Fill(slot, k, uint64(*id), true)
	} else {
		v.table.Fill(slot, k, 0, false)
	}
	crash.At(crash.AddressFilled)
	if !v.table.Place(slot, k.Hash) {
		v.table.Clear(slot)
		return AddrNotAvail, errVectorFull
	}
	crash.At(crash.AddressPlaced)
	v.take(slot, true)
	v.table.Words.Used.Add(1)
	return Addr(slot), nil
}

// Remove takes addresses out (fi_av_remove); their indices are free for others. An index that is
// not set, out of range or given twice is ErrInvalid, and then nothing is removed. What operations
// that are under way to a removed address do is undefined, as in libfabric.
func (v *AddressVector) Remove(addrs ...Addr) error {
	if err := v.enterOwner("remove"); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, a := range addrs {
		if !v.isSet(a) {
			for _, b := range addrs[:i] {
				v.take(int(b), true)
			}
			return kind.Refuse("remove", v.name, fmt.Sprintf("address %d", i), a, "an index that is set",
				ErrInvalid)
		}
		v.take(int(a), false) // so that its second mention fails
	}
	buf := make([]byte, v.opt.AddrMaxBytes)
	for _, a := range addrs {
		slot := int(a)
		if n, ok := v.table.Load(slot, buf); ok {
			v.table.Displace(slot, v.table.Key(buf[:n]).Hash)
		}
		crash.At(crash.AddressDisplaced)
		v.table.Clear(slot)
		crash.At(crash.AddressCleared)
		v.table.Words.Used.Add(^uint64(0))
	}
	return nil
}

// SetUserID makes completions from an address name id as their source, instead of the index
// (fi_av_set_user_id). Before it they name the index. ErrInvalid says that the index is not set, or
// that the vector was created without UserID.
func (v *AddressVector) SetUserID(a, id Addr) error {
	if err := v.wantsIDs("set user id"); err != nil {
		return err
	}
	if err := v.enterOwner("set user id"); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.isSet(a) {
		return kind.Refuse("set user id", v.name, "address", a, "an index that is set", ErrInvalid)
	}
	v.table.SetID(int(a), uint64(id))
	return nil
}

// Lookup copies the address of an index to buf (fi_av_lookup) and returns its whole length: more
// than len(buf) if it did not fit, and then buf has its beginning. ErrInvalid says that the index
// is not set; also while its owner is writing it, or if it died over that.
func (v *AddressVector) Lookup(a Addr, buf []byte) (int, error) {
	if !v.guard.enterAny() {
		return 0, &Error{Pkg: kind.Pkg, Op: "lookup", Name: v.name, Err: ErrClosed}
	}
	defer v.guard.leaveAny()
	if v.table.Words.State.Load() == kind.StateClosed {
		return 0, &Error{Pkg: kind.Pkg, Op: "lookup", Name: v.name, Err: ErrClosed,
			Hint: "its owner destroyed it; open the next one"}
	}
	if a < Addr(v.opt.Count) {
		if n, ok := v.table.Load(int(a), buf); ok {
			return n, nil
		}
	}
	return 0, kind.Refuse("lookup", v.name, "address", a, "an index that is set", ErrInvalid)
}

// Resolve returns what completions from an address name as their source: its index or user id. It
// allocates nothing and costs the same for every size of the vector. It reports false for an
// address that is not in the vector, or was being inserted or removed.
func (v *AddressVector) Resolve(raw []byte) (Addr, bool) {
	if !v.guard.enterAny() {
		return AddrNotAvail, false
	}
	src, ok := v.resolve(raw)
	v.guard.leaveAny()
	return src, ok
}

// resolve is Resolve for those who keep the vector from being closed.
func (v *AddressVector) resolve(raw []byte) (Addr, bool) {
	if len(raw) == 0 || len(raw) > v.opt.AddrMaxBytes ||
		v.table.Words.State.Load() == kind.StateClosed {
		return AddrNotAvail, false
	}
	_, src, ok := v.table.Find(v.table.Key(raw))
	return Addr(src), ok
}

// enterOwner lets in who may change the vector; guard.leaveAny must follow.
func (v *AddressVector) enterOwner(op string) error {
	if !v.owner {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrReadOnly,
			Hint: "let its owner change it"}
	}
	if !v.guard.enterAny() {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrClosed}
	}
	return nil
}

func (v *AddressVector) wantsIDs(op string) error {
	if !v.opt.UserID {
		return kind.Refuse(op, v.name, "UserID", false, "a vector created with it", ErrInvalid)
	}
	return nil
}

func (v *AddressVector) isTaken(slot int) bool {
	return v.taken[slot/64]>>(slot%64)&1 != 0
}

func (v *AddressVector) isSet(a Addr) bool {
	return a < Addr(v.opt.Count) && v.isTaken(int(a))
}

func (v *AddressVector) take(slot int, on bool) {
	if on {
		v.taken[slot/64] |= 1 << (slot % 64)
		return
	}
	v.taken[slot/64] &^= 1 << (slot % 64)
	v.low = min(v.low, slot)
}

// lowest returns the lowest free row, or -1.
func (v *AddressVector) lowest() int {
	for w := v.low / 64; w < len(v.taken); w++ {
		if free := ^v.taken[w]; free != 0 {
			if slot := 64*w + bits.TrailingZeros64(free); slot < v.opt.Count {
				v.low = slot
				return slot
			}
		}
	}
	v.low = v.opt.Count
	return -1
}

// ErrNoEQ: an asynchronous operation of an object that no event queue is bound to (ENOEQ).
var ErrNoEQ error = kind.NewSentinel("no event queue is bound that could tell how it ends",
	ENoEQ, nil)

// asyncInsert is an insertion whose end is an event.
type asyncInsert struct {
	addrs   [][]byte
	context uint64
}

// BindEvents binds an event queue. The owner's must be one of this process. It gets what insertions
// with Async report (fi_av_bind), and cannot be closed before the vector is. ErrBusy says that one
// is bound already. An owner is not told of those who look things up: they leave no trace.
//
// In a process that only looks things up, the event queue gets the deaths of owners: an
// EventPeerDeath with the vector's FID for each that is proved dead, after which the vector stays
// as it is until it has a successor; and an EventPeerNew for the owner that is found to have taken
// it over. Owners that came and went before anybody looked have no event. The payload is a
// [PeerEntry]. When events come, how often, and how another sink or nil replaces this one, is as
// with [Writer.BindEvents]. An owner that closes or detaches is not dead.
//
// Other errors are ErrClosed.
func (v *AddressVector) BindEvents(events EventSink) error {
	const op = "bind"
	if !v.owner {
		if !v.guard.enterAny() {
			return bindError(v.name, ErrClosed)
		}
		defer v.guard.leaveAny()
		return v.bindOwner(events)
	}
	if err := v.enterOwner(op); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	eq, ok := events.(*EventQueue)
	if !ok && events != nil {
		return kind.Refuse(op, v.name, "event queue", "a writer's", "one of this process", ErrInvalid)
	}
	if eq == nil {
		return kind.Refuse(op, v.name, "event queue", nil, "one", ErrInvalid)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.events != nil {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrBusy,
			Hint: "an event queue is bound already"}
	}
	if err := eq.bind(); err != nil {
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: err}
	}
	v.events = eq
	return nil
}

// insertLater begins an insertion whose end is an event.
func (v *AddressVector) insertLater(addrs [][]byte, context uint64) error {
	const op = "insert"
	if err := v.enterOwner(op); err != nil {
		return err
	}
	defer v.guard.leaveAny()
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.events == nil:
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrNoEQ, Hint: "call BindEvents first"}
	case v.aborting.Load():
		return &Error{Pkg: kind.Pkg, Op: op, Name: v.name, Err: ErrClosed}
	case len(addrs) >= v.events.opt.Size:
		return kind.Refuse(op, v.name, "len(addrs)", len(addrs), "less than the size of the event queue",
			ErrInvalid)
	}
	if err := v.events.own.credit(len(addrs) + 1); err != nil {
		return err
	}
	job := asyncInsert{addrs: make([][]byte, len(addrs)), context: context}
	for i, raw := range addrs {
		job.addrs[i] = slices.Clone(raw)
	}
	v.jobs = append(v.jobs, job)
	if !v.working {
		v.working = true
		v.worker.Go(v.work)
	}
	return nil
}

// work runs until there is nothing more to insert.
func (v *AddressVector) work() {
	for {
		v.mu.Lock()
		if len(v.jobs) == 0 {
			v.working = false
			v.mu.Unlock()
			return
		}
		job := v.jobs[0]
		v.jobs = v.jobs[1:]
		v.mu.Unlock()
		v.insertJob(job)
	}
}

// insertJob reports with room that was reserved: a post fails only if the event queue was overrun
// by others, and then its reader is told that events were lost.
func (v *AddressVector) insertJob(job asyncInsert) {
	good := 0
	for i, raw := range job.addrs {
		var err error = Errno(syscall.ECANCELED)
		if !v.aborting.Load() {
			_, err = v.insertOne(raw, nil)
		}
		if err == nil {
			good++
			continue
		}
		_ = v.events.postErr(&EventError{FID: v.fid, Context: job.context, Data: uint64(i),
			Err: errnoOf(err)})
	}
	// What was kept for errors that did not happen is free before anybody sees the last event.
	v.events.own.returnCredits(good)
	_ = v.events.post(&Event{Event: EventAVComplete, FID: v.fid, Context: job.context,
		Data: uint64(good)}, true)
}

// abort ends the insertions that are under way and waits for the last of them to be reported.
func (v *AddressVector) abort() {
	v.mu.Lock()
	v.aborting.Store(true) // under the lock: no insertion begins after it
	v.mu.Unlock()
	v.worker.Wait()
}

// errnoOf returns the number of an error, EOther if it has none.
func errnoOf(err error) Errno {
	var s *kind.Sentinel
	var fabric Errno
	var system syscall.Errno
	if errors.As(err, &s) {
		err = s.Num
	}
	switch {
	case errors.As(err, &fabric):
		return fabric
	case errors.As(err, &system):
		return Errno(system)
	}
	return EOther
}
