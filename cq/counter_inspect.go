package cq

import (
	"github.com/shmring/shmring/doorbell"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/shm"
)

// CounterSnapshot is what an outsider sees of a counter. Each number was true at some moment while
// it was taken.
type CounterSnapshot struct {
	Name               string
	UUID               shm.UUID
	ABIMajor, ABIMinor uint16
	Options            CounterOptions // Events and Lifetime; the rest is each handle's own
	Value, Errors      uint64
	Sets               uint64          // times that one of the two was set
	Wakes              uint32          // times that sleepers were woken, wrapping
	Handles            []CounterHandle // that are open, by seat
	Standing           bool            // there are more of them than seats
	BootID             shm.UUID        // of the boot in which it was made
	CreatedMonoNs      int64           // CLOCK_MONOTONIC of that boot
	CreatedRealNs      int64           // CLOCK_REALTIME
	SizeBytes          uint64
}

// CounterHandle is one handle of a living process.
type CounterHandle struct {
	Seat    int
	Process shm.Owner // PID, PIDNS and StartTicks only
	// Waiting: somebody sleeps there until the value reaches Threshold.
	Waiting   bool
	Threshold uint64
}

// InspectCounter looks at a counter from outside, from a read-only mapping: no byte or lock is
// touched, and no party notices. Errors are fs.ErrNotExist and those of opening shared memory.
func InspectCounter(d *shm.Dir, name string) (CounterSnapshot, error) {
	const op = "inspect counter"
	obj, err := d.Open(name, shm.Inspect)
	if err != nil {
		return CounterSnapshot{}, failed(op, name, err)
	}
	defer obj.Close()
	s, err := inspectCounter(op, name, obj)
	if err != nil {
		return CounterSnapshot{}, failed(op, name, err)
	}
	return s, nil
}

func inspectCounter(op, name string, obj *shm.Object) (s CounterSnapshot, err error) {
	h := obj.Header()
	s = CounterSnapshot{Name: name, UUID: h.UUID, ABIMajor: h.ABIMajor, ABIMinor: h.ABIMinor,
		BootID: h.BootID, CreatedMonoNs: h.CreatedMonoNs, CreatedRealNs: h.CreatedRealNs,
		SizeBytes: h.TotalBytes}
	if s.Options, err = storedCounter(op, name, h); err != nil {
		return s, err
	}
	words, err := kind.WordsOf[kind.CounterWords](obj, kind.SectCounter, 0)
	if err != nil {
		return s, err
	}
	var taken [doorbell.CountSeats]bool
	for i := range taken {
		if taken[i], err = obj.Seated(i); err != nil {
			return s, err
		}
	}
	if s.Standing, err = obj.Standing(doorbell.CountSeats); err != nil {
		return s, err
	}
	// Whoever made the file may cut it at any moment.
	err = shm.Guard(func() {
		s.Value, s.Errors, s.Sets = words.Value.Load(), words.Errs.Load(), words.Sets.Load()
		s.Wakes = words.Bell.Wakes()
		for i, t := range taken {
			if t {
				s.Handles = append(s.Handles, counterHandle(words, i))
			}
		}
	})
	return s, err
}

func counterHandle(words *kind.CounterWords, seat int) CounterHandle {
	h := CounterHandle{Seat: seat, Process: words.Rows[seat].Owner()}
	if t := words.Bell.Threshold(seat); t != doorbell.Idle {
		h.Waiting, h.Threshold = true, t
	}
	return h
}
