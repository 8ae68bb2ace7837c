package cq

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// KeyNotAvail is the key of a region whose registration has not ended well (FI_KEY_NOTAVAIL).
const KeyNotAvail = ^uint64(0)

var (
	// ErrNoKey: the requested key belongs to another region of this process (ENOKEY).
	ErrNoKey error = kind.NewSentinel("key is in use by another memory region", ENoKey, nil)
	// ErrNotRegistered: the region's registration has not ended, or failed (EOPBADSTATE).
	ErrNotRegistered error = kind.NewSentinel("memory region is not registered", EOpBadState, nil)
)

// What a region's memory may be used for. The first three write to it.
const (
	writingAccess = FlagRecv | FlagRead | FlagRemoteWrite
	readingAccess = FlagSend | FlagWrite | FlagRemoteRead
	memoryAccess  = writingAccess | readingAccess | FlagCollective
)

// MemoryOptions of a region (struct fi_mr_attr).
type MemoryOptions struct {
	// Offset and Length say which bytes of the object, from its start. They must lie in one
	// section.
	Offset, Length uint64
	// Access is what the memory may be used for: for messages FlagSend and FlagRecv, as the local
	// side of RMA FlagRead and FlagWrite, by peers FlagRemoteRead and FlagRemoteWrite, and
	// FlagCollective.
	Access Flags
	// RequestedKey is the key that peers name the region by. 0 draws one at random.
	RequestedKey uint64
	// Events makes the registration asynchronous: it reports to this queue, with Context.
	Events  *EventQueue
	Context uint64
	// UserContext is the region's own context (of fi_mr_reg), which Options returns.
	UserContext any
}

// MemoryRegion is memory in a shared object that operations may use, and a key by which peers name
// it (fid_mr). All methods may be called from anywhere.
type MemoryRegion struct {
	fid FID
	opt MemoryOptions
	obj *shm.Object

	mem    []byte        // written before key
	key    atomic.Uint64 // KeyNotAvail until the region is registered
	worker sync.WaitGroup

	holders  holders // counters
	mu       sync.Mutex
	counters []boundCounter
	over     bool
}

// boundCounter is a counter with the kinds of operations that it counts.
type boundCounter struct {
	*Counter
	flags Flags
}

// registered are the regions of this process by key.
var registered = struct {
	sync.RWMutex
	byKey map[uint64]*MemoryRegion
}{byKey: map[uint64]*MemoryRegion{}}

// RegisterMemory makes a region of a part of an object (fi_mr_reg), which must stay open as long as
// the region is. A key is unique in the process: one that is in use is ErrNoKey. ErrInvalid says
// which option cannot be; memory that is to be written needs an object that may be (EACCES).
//
// With MemoryOptions.Events the call returns at once. The registration ends with an
// EventMRComplete, or with an error event that has one of these errors as its number; until then
// the key is KeyNotAvail. Such a region must be closed in both cases, and the queue cannot be
// closed before it is. ErrFull says that the queue has no room for the event.
func RegisterMemory(obj *shm.Object, o MemoryOptions) (*MemoryRegion, error) {
	if obj == nil {
		return nil, kind.Refuse("register memory", "", "object", nil, "one", ErrInvalid)
	}
	r := &MemoryRegion{fid: FID{Kind: FIDMemory, ID: rand.Uint64(), Generation: 1}, opt: o, obj: obj}
	r.key.Store(KeyNotAvail)
	// The object is the caller's, who may close it as soon as this returns.
	err := r.take()
	if o.Events == nil {
		if err == nil {
			err = r.register()
		}
		if err != nil {
			return nil, err
		}
		return r, nil
	}
	if err := o.Events.bind(); err != nil {
		return nil, err
	}
	if err := o.Events.own.credit(1); err != nil {
		o.Events.unbind()
		return nil, err
	}
	r.worker.Go(func() {
		err := err
		if err == nil {
			err = r.register()
		}
		if err != nil {
			_ = o.Events.postErr(&EventError{FID: r.fid, Context: o.Context, Err: errnoOf(err)})
			return
		}
		_ = o.Events.post(&Event{Event: EventMRComplete, FID: r.fid, Context: o.Context}, true)
	})
	return r, nil
}

const opRegister = "register memory"

// take checks the options and takes the memory.
func (r *MemoryRegion) take() (err error) {
	o, name := r.opt, r.obj.Name()
	if o.Access == 0 || o.Access&^memoryAccess != 0 {
		return kind.Refuse(opRegister, name, "Access", o.Access, memoryAccess, ErrInvalid)
	}
	if o.RequestedKey == KeyNotAvail {
		return kind.Refuse(opRegister, name, "RequestedKey", o.RequestedKey, "another one", ErrInvalid)
	}
	r.mem, err = memoryRange(opRegister, r.obj, o.Offset, o.Length, o.Access&writingAccess != 0)
	return err
}

// register takes a key.
func (r *MemoryRegion) register() error {
	o, name := r.opt, r.obj.Name()
	registered.Lock()
	defer registered.Unlock()
	key := o.RequestedKey
	for key == 0 || key == KeyNotAvail || key != o.RequestedKey && registered.byKey[key] != nil {
		key = rand.Uint64()
	}
	if registered.byKey[key] != nil {
		return kind.Refuse(opRegister, name, "RequestedKey", key, "one that is free", ErrNoKey)
	}
	registered.byKey[key] = r
	r.key.Store(key)
	return nil
}

// memoryRange returns a part of an object that lies in one section.
func memoryRange(op string, obj *shm.Object, offset, length uint64, write bool) ([]byte, error) {
	for _, s := range obj.Header().Sections {
		at := offset - s.Offset
		if offset < s.Offset || at >= s.Length || length == 0 || length > s.Length-at {
			continue
		}
		mem, _, err := obj.Section(s.Kind, s.ID)
		if write {
			mem, err = obj.MapWritable(s.Kind, s.ID)
		}
		if err != nil {
			return nil, failed(op, obj.Name(), err)
		}
		return mem[at : at+length : at+length], nil
	}
	return nil, kind.Refuse(op, obj.Name(), "Offset and Length", [2]uint64{offset, length},
		"bytes of one section", ErrInvalid)
}

// Close ends the registration (fi_close): its key is free, and events about it that nobody read are
// gone from the event queue. Operations that name the key fail from now on. It waits for an
// asynchronous registration to end. ErrBusy says that counters are bound; ErrFull that so many
// objects were closed since the event queue was read last that events of this one stay. Closing
// twice is harmless.
func (r *MemoryRegion) Close() error {
	if err := r.holders.close(); err != nil {
		return &Error{Pkg: kind.Pkg, Op: "close memory", Name: r.obj.Name(), Err: err,
			Hint: "unbind its counters"}
	}
	r.worker.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return nil
	}
	r.over = true
	if key := r.key.Swap(KeyNotAvail); key != KeyNotAvail {
		registered.Lock()
		delete(registered.byKey, key)
		registered.Unlock()
	}
	if r.opt.Events == nil {
		return nil
	}
	err := r.opt.Events.drop(r.fid)
	r.opt.Events.unbind()
	return err
}

// BindCounter counts what peers do to the region (fi_mr_bind): flags are FlagRemoteRead,
// FlagRemoteWrite or both. Neither can be closed while it is bound; 0 unbinds the counter.
// Errors are ErrInvalid for other flags, for no counter and for one to unbind that is not bound,
// and ErrClosed if either is closed.
func (r *MemoryRegion) BindCounter(c *Counter, flags Flags) error {
	if c != nil && flags == 0 {
		return r.unbindCounter(c)
	}
	if c == nil || flags&^(FlagRemoteRead|FlagRemoteWrite) != 0 {
		return kind.Refuse("bind", r.obj.Name(), "Flags", flags, "FlagRemoteRead or FlagRemoteWrite",
			ErrInvalid)
	}
	if err := r.holders.bind(); err != nil {
		return err
	}
	if err := c.holders.bind(); err != nil {
		r.holders.unbind()
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = append(r.counters, boundCounter{c, flags})
	return nil
}

func (r *MemoryRegion) unbindCounter(c *Counter) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, b := range r.counters {
		if b.Counter == c {
			r.counters = append(r.counters[:i:i], r.counters[i+1:]...)
			r.holders.unbind()
			c.holders.unbind()
			return nil
		}
	}
	return kind.Refuse("unbind", r.obj.Name(), "counter", "not bound", "one that is", ErrInvalid)
}

// Count tells the region's counters of an operation by a peer that completed: FlagRemoteRead or
// FlagRemoteWrite, and how many bytes. It is for those who carry out such operations.
// Errors are those of [Counter.Add].
func (r *MemoryRegion) Count(kind Flags, lenBytes uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, b := range r.counters {
		switch {
		case b.flags&kind == 0:
		case b.opt.Events == BytesCounter:
			err = errors.Join(err, b.Add(lenBytes))
		default:
			err = errors.Join(err, b.Add(1))
		}
	}
	return err
}

// View returns n bytes from offset off of the region on, for an operation of a kind that its access
// must allow: else it is EACCES. ErrInvalid is a range outside, ErrNotRegistered a region that has
// no key. The bytes are there as long as the object is open.
func (r *MemoryRegion) View(off, n uint64, access Flags) ([]byte, error) {
	if r.key.Load() == KeyNotAvail {
		return nil, ErrNotRegistered
	}
	if access == 0 || access&^r.opt.Access != 0 {
		return nil, kind.Refuse("view", r.obj.Name(), "access", access, r.opt.Access, errAccess)
	}
	if size := uint64(len(r.mem)); off > size || n > size-off {
		return nil, kind.Refuse("view", r.obj.Name(), "range", [2]uint64{off, n}, size, ErrInvalid)
	}
	return r.mem[off : off+n : off+n], nil
}

// errAccess is what an operation gets that a region does not allow.
var errAccess error = kind.NewSentinel("memory region does not allow that",
	Errno(syscall.EACCES), nil)

// Key returns the key, or KeyNotAvail while the region is not registered (fi_mr_key).
func (r *MemoryRegion) Key() uint64 { return r.key.Load() }

// FID returns the region's identifier, by which events mean it.
func (r *MemoryRegion) FID() FID { return r.fid }

// Options returns what the region was registered with, and the key in RequestedKey if it has one.
func (r *MemoryRegion) Options() MemoryOptions {
	o := r.opt
	if key := r.key.Load(); key != KeyNotAvail {
		o.RequestedKey = cmp.Or(o.RequestedKey, key)
	}
	return o
}
