package cq

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// Overrun says what happens to an entry for which there is no room.
type Overrun uint32

const (
	// BackPressure refuses it: the poster gets ErrFull, and reserves credits for what must not
	// be refused. Nothing is lost.
	BackPressure Overrun = iota
	// OverrunQueue loses it and puts the queue in the overrun state of fi_cq(3): what was
	// published before is read, then every read fails with ErrOverrun, for ever.
	OverrunQueue
)

// String returns "back-pressure" or "overrun".
func (o Overrun) String() string { return text.Name(o, "overrun", "back-pressure", "overrun") }

// Lifetime says when a queue without a reader is garbage.
type Lifetime uint32

const (
	// Ephemeral queues are garbage once reader and writers are provably dead, unless the reader left
	// by Detach: then they wait for a successor, or [Remove].
	Ephemeral Lifetime = iota
	// Persistent queues with unread entries wait for a reader as long as it takes.
	Persistent
)

// String returns the lower-case name.
func (l Lifetime) String() string { return text.Name(l, "lifetime", "ephemeral", "persistent") }

// blocks tells whether blocking reads are allowed.
func (w WaitObject) blocks() bool { return w != WaitNone && w != WaitInSet }

// hasFD reports whether a descriptor stands behind the wait object.
func (w WaitObject) hasFD() bool { return kind.Queue{Wait: uint64(w)}.HasFD() }

// WaitObject is what blocking calls of a queue's reader wait on (enum fi_wait_obj).
type WaitObject uint32

const (
	// WaitUnspec is the default: blocking reads sleep on a futex. (libfabric's default is
	// FI_WAIT_NONE, with which a queue cannot block; this is a deviation.)
	WaitUnspec WaitObject = iota
	// WaitNone refuses blocking reads.
	WaitNone
	// WaitFD adds a descriptor for the user's own poll or epoll; see [Queue.GetWait].
	WaitFD
	// WaitYield blocks by giving the processor away between looks, by sched_yield(2), and now and
	// then to other goroutines. It never sleeps.
	WaitYield
	// WaitInSet is for a queue that is waited for only through Options.WaitSet, of which it is a
	// member until it is closed. Blocking reads of it are refused.
	WaitInSet
	// WaitMutexCond adds a mutex and a condition variable of this process; see [Native].
	WaitMutexCond
	// WaitPollFD is WaitFD with the descriptor as a list for poll(2); see [Native].
	WaitPollFD
	// WaitCritSecCond, a Windows critical section, exists in name only: errors.ErrUnsupported.
	WaitCritSecCond
)

var waitNames = []string{"unspec", "none", "fd", "yield", "set", "mutex-cond", "pollfd",
	"critsec-cond"}

// String returns the lower-case name, without "wait".
func (w WaitObject) String() string { return text.Name(w, "wait object", waitNames...) }

// Options of a queue (struct fi_cq_attr). The zero value is a queue of 1024 entries a lane, up to
// 64 writers, all detail, back-pressure, that can block. Format, Size, MaxLanes, Overrun, Lifetime,
// Wait, Trust and WritersPay are fixed at creation; [Queue.Options] returns what they were resolved
// to. The others are each reader's own: a successor gives them again.
type Options struct {
	Format Format
	// Size is the least number of entries that each writer's lane holds; it is rounded up to a
	// power of two. 0 is 1024, the most is 1<<24.
	Size int
	// MaxLanes bounds how many writers can be attached at once. 0 is 64, the most 1024.
	MaxLanes int
	Overrun  Overrun
	Lifetime Lifetime
	Wait     WaitObject
	// Existing keeps Open from making a queue: it takes over one that is there, or fails.
	Existing bool
	// Trust says whose processes may write to the queue. With CrossUser, which is for a queue that
	// is Unnamed only, there are up to 126 lanes and writers pay.
	Trust Trust
	// Allow lists the users and groups that Accept admits with CrossUser. nil admits this
	// process's own user only.
	Allow *shm.AllowList
	// UserLanes bounds how many lanes one user may have with CrossUser, so that no user can take
	// them all. 0 is no such bound; more than MaxLanes is none either.
	UserLanes int
	// Spin is how long a blocking read looks before it sleeps, burning its CPU: 0 is
	// 20 µs, negative is not at all. With one CPU nobody spins.
	Spin time.Duration
	// Shared allows several goroutines to read, peek and wait at once, at the price of a lock
	// a call. Without it the queue serves one goroutine at a time.
	Shared bool
	// WritersPay makes every writer publish with a full fence, instead of this reader with a
	// membarrier each time that it parks a lane. It is for kernels and seccomp filters that
	// forbid membarrier; where they do, it is set by itself.
	WritersPay bool
	// WaitSet is the set of a queue with WaitInSet; otherwise it is ignored.
	WaitSet *WaitSet
	// Affinity names the processor that should handle what the queue signals. It is a hint, which
	// a queue in memory has no use for.
	Affinity Affinity
	// NotifyFlagsOnly has reads clear all flags of completions but those that libfabric guarantees
	// in this mode (FI_NOTIFY_FLAGS_ONLY): REMOTE_READ, REMOTE_WRITE, REMOTE_CQ_DATA, MULTI_RECV; and
	// those of this library. Error entries keep theirs, and so does what Peek and Entries hand out in
	// place.
	NotifyFlagsOnly bool
	// UserContext is the queue's own context (of fi_cq_open), returned by Queue.UserContext.
	UserContext any
}

// Affinity is the signaling vector of libfabric, which counts only if Valid (FI_AFFINITY).
type Affinity struct {
	Valid bool
	CPU   int
}

const (
	defaultSize  = 1024
	defaultLanes = 64
)

// resolve checks o and fills in what was left to us.
func (o Options) resolve(op, name string) (Options, error) {
	bad := func(field string, got, want any) (Options, error) {
		return o, kind.Refuse(op, name, field, got, want, ErrInvalid)
	}
	if o.Format > FormatTagged {
		return bad("Format", o.Format, "unspec, context, msg, data or tagged")
	}
	if o.Format == FormatUnspec {
		o.Format = FormatTagged
	}
	if o.Size < 0 || o.Size > kind.MaxCapacity {
		return bad("Size", o.Size, fmt.Sprintf("0 to %d", kind.MaxCapacity))
	}
	if o.Size == 0 {
		o.Size = defaultSize
	}
	o.Size = 1 << bits.Len(uint(o.Size-1))
	// One lane is the reader's own, so a queue needs a second one to be of use.
	if o.MaxLanes < 0 || o.MaxLanes > kind.MaxLanes {
		return bad("MaxLanes", o.MaxLanes, fmt.Sprintf("0 to %d", kind.MaxLanes))
	}
	if o.MaxLanes == 0 {
		o.MaxLanes = defaultLanes
	}
	if o.UserLanes < 0 {
		return bad("UserLanes", o.UserLanes, "0 or more")
	}
	if o.Overrun > OverrunQueue {
		return bad("Overrun", uint32(o.Overrun), "BackPressure or OverrunQueue")
	}
	if o.Lifetime > Persistent {
		return bad("Lifetime", uint32(o.Lifetime), "Ephemeral or Persistent")
	}
	if o.Wait == WaitCritSecCond {
		return o, errWindows(op, name)
	}
	if o.Wait > WaitCritSecCond {
		return bad("Wait", uint32(o.Wait), "one of the constants of WaitObject")
	}
	if o.Affinity.Valid && o.Affinity.CPU < 0 {
		return bad("Affinity", o.Affinity.CPU, "0 or more")
	}
	return o.resolveTrust(op, name)
}

func errWindows(op, name string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: name, Field: "Wait", Got: WaitCritSecCond,
		Err: errors.ErrUnsupported, Hint: "it is for Windows; use WaitMutexCond"}
}

// rows is the number of lanes with the reader's own.
func (o Options) rows() int { return o.MaxLanes + 1 }

// Plan returns how many bytes of shared memory an object of these options takes at most: a queue or
// event queue with so many writers attached, a counter or an address vector whoever uses it. A
// queue takes less while nobody has called its Writer method, and each lane until its writer first
// posts an error or adds credits. Options that Create would refuse are refused alike. It may be
// called from anywhere.
func Plan[O Options | EventOptions | CounterOptions | AddressOptions](o O, writers int) (uint64,
	error) {
	const op = "plan"
	var s shape
	var err error
	switch o := any(o).(type) {
	case Options:
		o, err = o.resolve(op, "")
		s = queueShape(o)
	case EventOptions:
		s, err = o.shape(op, "", true)
	case CounterOptions:
		if err := o.check(op, ""); err != nil {
			return 0, err
		}
		return shm.Plan(o.spec(op))
	case AddressOptions:
		r, err := o.resolve(op, "")
		if err != nil {
			return 0, err
		}
		return shm.Plan(r.spec(op))
	}
	if err != nil {
		return 0, err
	}
	return plan(s, writers)
}

func plan(o shape, writers int) (uint64, error) {
	total, err := shm.Plan(o.attrs().ReaderSpec("plan"))
	if err != nil {
		return 0, err
	}
	lane, err := shm.Plan(o.attrs().LaneSpec("plan", 1, shm.UUID{}))
	return total + lane*uint64(writers), err
}

// A successor asks for what is fixed at an object, or leaves it open with a zero. What contradicts
// the object is refused by name.

// agreed refuses a value that was asked for and is not what the object has.
func agreed[T comparable](op, name, field string, asked bool, want, have T) error {
	if asked && want != have {
		return kind.Refuse(op, name, field, have, want, ErrInvalid)
	}
	return nil
}

// agrees checks what a reader asks for against what the queue is.
func (o shape) agrees(have shape, name string) error {
	const op = "adopt"
	asked, err := o.Options.resolve(op, name)
	if err != nil {
		return err
	}
	if o.Format > have.Format {
		return kind.Refuse(op, name, "Format", have.Format, o.Format, ErrFormat)
	}
	return errors.Join(
		agreed(op, name, "Format", o.Format != FormatUnspec, o.Format, have.Format),
		agreed(op, name, "Size", o.Size != 0, asked.Size, have.Size),
		agreed(op, name, "MaxLanes", o.MaxLanes != 0, o.MaxLanes, have.MaxLanes),
		agreed(op, name, "Overrun", o.Overrun != BackPressure, o.Overrun, have.Overrun),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime),
		agreed(op, name, "Wait", o.Wait != WaitUnspec, o.Wait, have.Wait),
		agreed(op, name, "Trust", o.Trust != SameUser, o.Trust, have.Trust),
		agreed(op, name, "WritersPay", o.WritersPay, true, have.WritersPay),
		agreed(op, name, "DataMaxBytes", o.detailBytes != 0, o.detailBytes-kind.DetailHeaderBytes,
			have.detailBytes-kind.DetailHeaderBytes))
}

// fixed returns o with what is fixed when a queue is created as the queue has it.
func (o Options) fixed(have Options) Options {
	o.Format, o.Size, o.MaxLanes, o.Overrun = have.Format, have.Size, have.MaxLanes, have.Overrun
	o.Lifetime, o.Wait, o.Trust, o.WritersPay = have.Lifetime, have.Wait, have.Trust, have.WritersPay
	o.Existing = false // that was asked, and is no option of the queue
	return o
}

// agrees checks what a process asks for against what the counter is.
func (o CounterOptions) agrees(op, name string, have CounterOptions) error {
	if err := o.check(op, name); err != nil {
		return err
	}
	return errors.Join(
		agreed(op, name, "Events", o.Events != CompletionsCounter, o.Events, have.Events),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime))
}

// agrees checks what a successor asks for against what the vector is.
func (o AddressOptions) agrees(op, name string, have AddressOptions) error {
	format, longest := o.Format != AddrUnspec, o.AddrMaxBytes != 0
	if !format {
		o.Format = have.Format
	}
	if !longest { // else a format that needs more than the default would not do
		o.AddrMaxBytes = have.AddrMaxBytes
	}
	if format && o.Format != have.Format { // which may need more than the vector has
		return agreed(op, name, "Format", true, o.Format, have.Format)
	}
	asked, err := o.resolve(op, name)
	if err != nil {
		return err
	}
	return errors.Join(
		agreed(op, name, "Count", o.Count != 0, asked.Count, have.Count),
		agreed(op, name, "AddrMaxBytes", longest, asked.AddrMaxBytes, have.AddrMaxBytes),
		agreed(op, name, "UserID", o.UserID, true, have.UserID),
		agreed(op, name, "Lifetime", o.Lifetime != Ephemeral, o.Lifetime, have.Lifetime))
}

// WaitQueue is the kernel wait queue of kfi_eq(3) (KFI_WAIT_QUEUE): here blocking reads sleep on a
// futex, which is what WaitUnspec does too.
const WaitQueue = WaitUnspec

// EventOptions of an event queue (struct fi_eq_attr). The zero value holds 1024 events a writer, of
// up to 232 bytes of payload, of up to 63 writers, and can block. Size, DataMaxBytes, MaxLanes,
// Overrun, Lifetime, Wait, Trust and WritersPay are fixed at creation; [EventQueue.Options] returns
// what they were resolved to. The others are each reader's own: a successor gives them again.
type EventOptions struct {
	// Size is how many events each writer, and the queue's owner, can write without a read; it is
	// rounded up to a power of two. 0 is 1024, the most is 1<<24.
	Size int
	// DataMaxBytes is the longest payload of an event and error data of an error event. It is
	// rounded up. 0 is 232, the most is 65512; every slot takes that much memory.
	DataMaxBytes int
	// MaxLanes bounds how many other writers can be attached at once. 0 is 63, the most 1024.
	MaxLanes int
	Overrun  Overrun
	Lifetime Lifetime
	Wait     WaitObject
	// Existing is as in [Options].
	Existing bool
	// Trust, Allow and UserLanes are as in [Options].
	Trust     Trust
	Allow     *shm.AllowList
	UserLanes int
	// WaitSet is the set of a queue with WaitInSet; otherwise it is ignored.
	WaitSet *WaitSet
	// Spin is as in [Options].
	Spin time.Duration
	// Shared allows several goroutines to read, wait and write at once, at the price of a lock a
	// call. Without it one may read and one write, and what the library reports comes as it will.
	Shared bool
	// Write allows Write and WriteErr on this handle (FI_WRITE). What the library itself reports,
	// and what writers of other processes do, needs no permission.
	Write bool
	// Affinity is as in [Options].
	Affinity Affinity
	// Handler gets every event in place of a reader: see [CreateEvents].
	Handler func(*Event, error)
	// WritersPay is as in [Options].
	WritersPay bool
	// UserContext is the queue's own context (of fi_eq_open), returned by EventQueue.UserContext.
	UserContext any
}

const (
	defaultEventLanes  = 63 // with the owner's lane one word of marks, which a read looks at
	defaultDetailBytes = 256
)

// shape checks o and says what queue that is. Of what a successor leaves open, creating says so.
func (o EventOptions) shape(op, name string, creating bool) (shape, error) {
	var s shape
	if o.DataMaxBytes < 0 || o.DataMaxBytes > kind.MaxDetailBytes-kind.DetailHeaderBytes {
		return s, kind.Refuse(op, name, "DataMaxBytes", o.DataMaxBytes,
			fmt.Sprintf("0 to %d", kind.MaxDetailBytes-kind.DetailHeaderBytes), ErrInvalid)
	}
	if o.Handler != nil && (o.Wait.hasFD() || o.Wait == WaitInSet) {
		return s, kind.Refuse(op, name, "Wait", o.Wait, "another wait object, or no Handler", ErrInvalid)
	}
	s = shape{events: true, Options: Options{Size: o.Size, MaxLanes: o.MaxLanes,
		Overrun: o.Overrun, Lifetime: o.Lifetime, Wait: o.Wait, Spin: o.Spin, Shared: o.Shared,
		Trust: o.Trust, Allow: o.Allow, UserLanes: o.UserLanes, Affinity: o.Affinity,
		WaitSet: o.WaitSet, WritersPay: o.WritersPay, UserContext: o.UserContext}}
	if o.DataMaxBytes > 0 {
		s.detailBytes = (o.DataMaxBytes + kind.DetailHeaderBytes + kind.MinDetailBytes - 1) &^
			(kind.MinDetailBytes - 1)
	}
	if !creating {
		return s, nil
	}
	if s.detailBytes == 0 {
		s.detailBytes = defaultDetailBytes
	}
	if s.MaxLanes == 0 {
		s.MaxLanes = defaultEventLanes
	}
	var err error
	s.Options, err = s.Options.resolve(op, name)
	return s, err
}

// resolved returns o as the queue is.
func (o EventOptions) resolved(s shape) EventOptions {
	o.Size, o.MaxLanes, o.Overrun, o.Lifetime = s.Size, s.MaxLanes, s.Overrun, s.Lifetime
	o.Trust, o.Existing = s.Trust, false
	o.Wait, o.WritersPay, o.DataMaxBytes = s.Wait, s.WritersPay, s.detailBytes-kind.DetailHeaderBytes
	return o
}

// Trust says whose processes share a queue. It is fixed when the queue is created.
type Trust uint32

const (
	// SameUser is for processes of one user. They share a page of hints about who must be woken,
	// which all of them may write; a lane goes on with the next writer where one stopped.
	SameUser Trust = iota
	// CrossUser is for processes of different users. Each side can write to its own memory only,
	// which the kernel enforces: every object is a memfd sealed against writing, growing and
	// truncation once its owner has mapped it, and mapped read-only by the other side. What follows
	// from that:
	//
	//   - Only queues without a name can be so, see [Unnamed], and they end with their
	//     reader: nobody can take them over, since nobody can map their memory for writing again. A
	//     successor makes a queue of its own, to which each writer brings what the former reader
	//     left: see [Writer.Follow].
	//   - A lane is never used twice. When its writer has closed it, or is proved dead, it is read
	//     to its end and unmapped; a newcomer in its row brings new memory. Death is proved when the
	//     writer's process has ended and its end of the connection is closed.
	//   - The reader sleeps on words in its writers' lanes, a thread for each blocked read of a queue
	//     that is not shared, and one for up to 127 lanes of all queues that are shared, in a set or
	//     on a channel. With WaitFD each lane has a pipe.
	//   - A writer that finds its reader proved dead gets ErrPeerGone. It cannot signal the queue.
	//   - What a writer posts is its word alone: it can name the contexts of another one's operations.
	//     Whoever must tell them apart asks each read whose an entry is, see [Lane]: the row, the
	//     user and the process are certain.
	//   - Writers pay for order, since who is not trusted need not be registered with the kernel.
	//
	// A peer may write anything into its own memory at any time: a lane that cannot be is given up,
	// see [LaneError], and one that rings for nothing is heard less and less often. Counters and
	// address vectors are for one user only.
	CrossUser
)

// String returns "user" or "others", or the number.
func (t Trust) String() string { return text.Name(t, "trust", "user", "others") }

// resolveTrust checks what depends on the kind of trust.
func (o Options) resolveTrust(op, name string) (Options, error) {
	if o.Trust > CrossUser {
		return o, kind.Refuse(op, name, "Trust", uint32(o.Trust), "SameUser or CrossUser", ErrInvalid)
	}
	if o.Trust == SameUser {
		return o, nil
	}
	if o.MaxLanes > kind.OthersLanes {
		return o, kind.Refuse(op, name, "MaxLanes", o.MaxLanes, fmt.Sprintf("0 to %d with CrossUser",
			kind.OthersLanes), ErrInvalid)
	}
	if o.Lifetime != Ephemeral {
		return o, kind.Refuse(op, name, "Lifetime", o.Lifetime, Ephemeral, ErrInvalid)
	}
	o.WritersPay = true
	return o, nil
}

func errNamedTrust(op, name string) error {
	return &Error{Pkg: kind.Pkg, Op: op, Name: name, Field: "Trust", Got: CrossUser, Want: SameUser,
		Err: errors.ErrUnsupported, Hint: "whoever may enter a directory of queues may truncate them: " +
			"use a queue that is Unnamed for other users"}
}

// others reports whether the queue is for other users.
func (o shape) others() bool { return o.Trust == CrossUser }
