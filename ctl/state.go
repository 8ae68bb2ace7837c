package ctl

import (
	"cmp"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/shm"
)

// States of a queue, a lane or another object, in one word. If several apply, it is the one that
// comes first in [States].
const (
	StateVersion  = "version"   // made by another version of the library
	StateDenied   = "denied"    // of another user, or open to others
	StateCorrupt  = "corrupt"   // damaged, or one of its lanes is
	StateError    = "error"     // cannot be looked at for another reason
	StateClosed   = "closed"    // destroyed by its owner
	StateOverrun  = "overrun"   // entries were lost
	StateDead     = "dead"      // its owner died, or all who had it open
	StateLockKept = "lock-kept" // its owner died, and a process that it forked keeps the lock
	StateLockLost = "lock-lost" // its owner lives without the lock, so that nobody may take it
	StateReleased = "released"  // left to a successor
	StateStopped  = "stopped"   // its owner lives and is stopped by a signal or debugger
	StateFull     = "full"      // a lane has no room
	StateOpen     = "open"      // all is well
)

// States returns all states, those that matter more first.
func States() []string {
	return []string{StateVersion, StateDenied, StateCorrupt, StateError, StateClosed, StateOverrun,
		StateDead, StateLockKept, StateLockLost, StateReleased, StateStopped, StateFull, StateOpen}
}

// stateOfError is the state of what cannot be looked at.
func stateOfError(err error) string {
	switch {
	case errors.Is(err, cq.ErrClosed):
		return StateClosed
	case errors.Is(err, shm.ErrVersion):
		return StateVersion
	case errors.Is(err, shm.ErrOwner), errors.Is(err, fs.ErrPermission):
		return StateDenied
	case errors.Is(err, shm.ErrCorrupt), errors.Is(err, shm.ErrTruncated),
		errors.Is(err, shm.ErrKind):
		return StateCorrupt
	}
	return StateError
}

// lifeKept is how an object stands with a process that died, of which a child holds the lock.
const lifeKept = "lock kept"

// state is how an object stands with its owner, open if there is nothing to say.
func (p *Process) state() string {
	if p == nil || p.Life == nil {
		return StateOpen
	}
	switch *p.Life {
	case shm.Released.String():
		return StateReleased
	case shm.Dead.String():
		return StateDead
	case lifeKept:
		return StateLockKept
	case shm.LockLost.String():
		return StateLockLost
	}
	if p.Stopped != nil && *p.Stopped {
		return StateStopped
	}
	return StateOpen
}

// state sums a queue up, of which published is what its reader says.
func (q *Queue) state(published uint64) string {
	switch published {
	case kind.StateOpen:
	case kind.StateClosed, kind.StateRemoving:
		return StateClosed
	case kind.StateOverrun:
		return StateOverrun
	default:
		return StateCorrupt
	}
	own := q.Reader.state()
	word := StateOpen
	for i := range q.Lanes {
		switch l := &q.Lanes[i]; {
		case l.State == StateError: // which says nothing of the lane
			word = StateError
		case l.Error != nil || *l.Poisoned:
			return StateCorrupt
		case word == StateError:
		case *l.Overrun:
			word = StateOverrun
		case word == StateOpen && *l.Depth == *q.Capacity:
			word = StateFull
		}
	}
	if word == StateError || word == StateOverrun || own == StateOpen {
		return word
	}
	return own
}

// state sums a lane up.
func (l *Lane) state(capacity uint64) string {
	switch own := l.Process.state(); {
	case *l.Poisoned:
		return StateCorrupt
	case *l.Overrun:
		return StateOverrun
	case own == StateOpen && *l.Depth == capacity:
		return StateFull
	default:
		return own
	}
}

// state sums another object up.
func (o *Object) state() string {
	switch {
	case o.Addresses != nil && o.Addresses.Closed, o.Fabric != nil && o.Fabric.Closed:
		return StateClosed
	case o.Counter != nil && len(o.Counter.Handles) == 0 && !o.Counter.More:
		if o.Counter.Lifetime == cq.Persistent.String() {
			return StateReleased
		}
		return StateDead // the last that closed it would have removed it
	case o.Group != nil && len(o.Group.Members) == 0:
		return StateDead
	}
	return o.Process.state()
}

// Queue is one completion queue, or event queue, as an outsider sees it. Each number was true at
// some moment of the look; together they may never have been. If Error is set only Name, Path and
// State are known.
type Queue struct {
	Name          string   `json:"name"`
	Path          string   `json:"path"`
	Error         *Problem `json:"error"`
	Kind          *string  `json:"kind"` // queue or events
	UUID          *string  `json:"uuid"`
	ABI           *string  `json:"abi"`            // major.minor of the layout
	Format        *string  `json:"format"`         // context, msg, data or tagged
	Capacity      *uint64  `json:"capacity"`       // entries that each lane holds
	SlotBytes     *uint64  `json:"slot_bytes"`     // size of an entry
	MaxLanes      *int     `json:"max_lanes"`      // writers that can be attached at once
	OverrunPolicy *string  `json:"overrun_policy"` // back-pressure or overrun
	Lifetime      *string  `json:"lifetime"`       // ephemeral or persistent
	WaitObject    *string  `json:"wait_object"`    // as cq.WaitObject says it
	OrderPaidBy   *string  `json:"order_paid_by"`  // reader or writers: who has the fence
	NoBarrier     *bool    `json:"no_barrier"`     // as in cq.Stats: it looks every 100 ms
	State         *string  `json:"state"`          // a word of [States]
	About
	Reader *Process `json:"reader"`
	Bell   *Bell    `json:"bell"`

	// Levels are sums over the lanes, but for the high-water mark, which is the highest of them.
	Levels
	Overruns *uint64 `json:"overruns"` // lanes that lost an entry

	PerSecond *Rates `json:"per_second"` // since the look before; nil at the first one
	// SincePosted and SinceRead are nil at the first look: no time is kept in shared memory.
	SincePosted *Since `json:"since_posted"`
	SinceRead   *Since `json:"since_read"`
	Lanes       []Lane `json:"lanes"`
}

// Lane is the ring of one writer.
type Lane struct {
	Row   int      `json:"row"`
	Own   bool     `json:"own"` // of the reader's own library: row 0
	Error *Problem `json:"error"`
	State string   `json:"state"` // a word of [States]
	Process
	Generation *uint64 `json:"generation"` // grows with every writer
	Levels
	Overrun   *bool   `json:"overrun"`
	Poisoned  *bool   `json:"poisoned"` // the reader does not trust it any more
	Parked    *bool   `json:"parked"`   // the reader does not look until it is told
	Order     *string `json:"order"`    // release or seq-cst: how its writer publishes
	SizeBytes *uint64 `json:"size_bytes"`
}

// Levels say how far a lane has come, as indices that count its entries, and what its writers have
// counted.
type Levels struct {
	Head            *uint64 `json:"head"`       // first entry not given back by the reader
	Peeked          *uint64 `json:"peeked"`     // first entry not handed to the application
	Tail            *uint64 `json:"tail"`       // next entry to be published
	Depth           *uint64 `json:"depth"`      // tail - head
	Unreleased      *uint64 `json:"unreleased"` // peeked - head
	HighWater       *uint64 `json:"high_water"` // most entries that ever waited
	Posted          *uint64 `json:"posted"`
	Read            *uint64 `json:"read"`
	Publishes       *uint64 `json:"publishes"` // batches
	Wakes           *uint64 `json:"wakes"`
	WakesSuppressed *uint64 `json:"wakes_suppressed"` // batches without a system call
	Refused         *uint64 `json:"refused"`          // posts for which there was no room
}

// About is what is known of every object.
type About struct {
	Generation *uint64    `json:"generation"` // grows with every owner
	CreatedAt  *time.Time `json:"created_at"`
	AgeNs      *int64     `json:"age_ns"`     // nil: made before the last boot
	SizeBytes  *uint64    `json:"size_bytes"` // of a queue with its lanes
	Owner      *string    `json:"owner"`      // user name
	UID        *uint32    `json:"uid"`
	Mode       *string    `json:"mode"` // permissions of the file, octal
}

// Process is the process that owns an object.
type Process struct {
	PID *int `json:"pid"` // in its own PID namespace
	// PIDNamespace is the inode of that namespace.
	PIDNamespace *uint64 `json:"pid_namespace"`
	Command      *string `json:"command"` // nil if it is dead or in another PID namespace
	Alive        *bool   `json:"alive"`
	// Stopped says that it lives and is stopped, by a signal or a debugger.
	Stopped *bool `json:"stopped"`
	// Life says how the object stands with it: alive, released (left on purpose), dead, lock kept
	// (it is dead, and a process that it forked keeps the lock), or lock lost. Of the last two nobody
	// may take the object over.
	Life *string `json:"life"`
}

// Bell is how the writers wake the reader.
type Bell struct {
	Armed  bool `json:"armed"`  // somebody sleeps and wants to be woken
	Direct bool `json:"direct"` // in a blocking read
	FD     bool `json:"fd"`     // on the queue's descriptor
	Member bool `json:"member"` // of a wait set or poll set
	// Channel is what a completion channel waits for: none, solicited or any.
	Channel string `json:"channel"`
	// Domain is the uuid of the reading process's bell, and DomainBit the queue's bit there, once it
	// was in a set or on a channel.
	Domain        *string `json:"domain"`
	DomainBit     *uint64 `json:"domain_bit"`
	Seq           uint32  `json:"seq"`   // of the last arming
	Rung          uint32  `json:"rung"`  // last arming that was answered
	Epoch         uint32  `json:"epoch"` // futex word: grows with every wake
	SignalPending bool    `json:"signal_pending"`
	ReadyLanes    int     `json:"ready_lanes"` // marked and not looked at
}

// Rates are how much counters grew between two looks, per second.
type Rates struct {
	Posted          float64 `json:"posted"`
	Read            float64 `json:"read"`
	Wakes           float64 `json:"wakes"`
	WakesSuppressed float64 `json:"wakes_suppressed"`
}

// Since says how long a [Monitor] has seen nothing new. It counts from the look that found the last
// news, which came at some time since the look before that.
type Since struct {
	Ns   int64 `json:"ns"`
	More bool  `json:"more"` // nothing has come since the first look: the real time is longer
}

// Codes of problems, which are also what shmctl exits with.
const (
	CodeOK         = 0
	CodeFailure    = 1
	CodeUsage      = 2
	CodeNotFound   = 3
	CodePermission = 4
	CodeCheck      = 5 // a check found something wrong
	CodeVersion    = 6
)

// Problem is an error in the form that is printed. errors.Is finds what it was made of.
type Problem struct {
	Message string  `json:"message"`
	Hint    *string `json:"hint"` // what to do about it
	Code    int     `json:"code"`

	err error
}

// Error returns the message.
func (p *Problem) Error() string { return p.Message }

// Unwrap returns the error that the problem was made of: nil for one that was read from JSON, and
// for no problem.
func (p *Problem) Unwrap() error {
	if p == nil {
		return nil
	}
	return p.err
}

// NewProblem sorts an error into a code, and parts what is wrong from what to do about it. The
// message is one line of printable characters, whatever somebody wrote into shared memory.
func NewProblem(err error) *Problem {
	p := &Problem{Message: err.Error(), Code: code(err), err: err}
	var e *shm.Error
	if errors.As(err, &e) {
		// What is around it repeats what the caller knows: the name of the queue.
		p.Message = strings.TrimPrefix(e.Error(), cmp.Or(e.Pkg, "shm")+": ")
		if e.Hint != "" {
			p.Hint = &e.Hint
			p.Message = strings.TrimSuffix(p.Message, "; "+e.Hint)
		}
	}
	p.Message = text.Printable(p.Message)
	return p
}

// code is that of an error.
func code(err error) int {
	switch {
	case errors.Is(err, shm.ErrName):
		return CodeUsage
	case errors.Is(err, fs.ErrNotExist):
		return CodeNotFound
	case errors.Is(err, fs.ErrPermission):
		return CodePermission
	case errors.Is(err, shm.ErrVersion):
		return CodeVersion
	}
	return CodeFailure
}
