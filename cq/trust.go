package cq

import (
	"errors"
	"fmt"

	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

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
	//     reader: nobody can adopt them, since nobody can map their memory for writing again. A
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

// String returns "user" or "others".
func (t Trust) String() string {
	switch t {
	case SameUser:
		return "user"
	case CrossUser:
		return "others"
	}
	return fmt.Sprintf("trust %d", uint32(t))
}

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

// laneBytesOf returns how large a lane object of a queue is.
func laneBytesOf(o shape) (uint64, error) {
	return shm.Plan(o.attrs().LaneSpec("lane", 1, shm.UUID{}))
}
