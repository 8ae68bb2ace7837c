package ctl

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/inspect"
	"github.com/shmring/shmring/internal/kind"
	"github.com/shmring/shmring/internal/spin"
	"github.com/shmring/shmring/internal/text"
	"github.com/shmring/shmring/internal/wake"
	"github.com/shmring/shmring/shm"
)

// about looks at an object that is mapped, which whoever owns its file may truncate.
func about(obj *shm.Object) (a About, owner Process, err error) {
	life, err := obj.Life()
	if err != nil {
		return a, owner, err
	}
	var file unix.Stat_t
	if err := unix.Fstat(obj.FD(), &file); err != nil {
		return a, owner, os.NewSyscallError("fstat", err)
	}
	h := obj.Header()
	a = About{Generation: new(obj.Generation()), CreatedAt: new(time.Unix(0, h.CreatedRealNs).UTC()),
		SizeBytes: &h.TotalBytes, Owner: new(userName(file.Uid)), UID: &file.Uid,
		Mode: new(fmt.Sprintf("%04o", file.Mode&0o777))}
	if boot := shm.Self().BootID; boot != (shm.UUID{}) && boot == h.BootID {
		a.AgeNs = new(max(0, spin.Now()-h.CreatedMonoNs))
	}
	return a, DescribeProcess(obj.Owner(), life), nil
}

func abi(h shm.Header) *string { return new(fmt.Sprintf("%d.%d", h.ABIMajor, h.ABIMinor)) }

func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(number); err == nil {
		return u.Username
	}
	return number
}

// describe says what a queue is, by its memory.
func describe(name string, m *inspect.Queue) (Queue, error) {
	a, reader, err := about(m.Reader)
	if err != nil {
		return Queue{}, err
	}
	o, h := &m.Options, m.Reader.Header()
	q := Queue{
		Name: name, Path: m.Path, Kind: new(o.Kind().String()),
		UUID: new(h.UUID.String()), ABI: abi(h),
		Capacity:      new(uint64(o.Capacity)),
		SlotBytes:     new(uint64(kind.SlotBytes)),
		MaxLanes:      new(o.Rows - 1),
		OverrunPolicy: new(cq.Overrun(o.Overrun).String()),
		Lifetime:      new(cq.Lifetime(o.Lifetime).String()),
		WaitObject:    new(cq.WaitObject(o.Wait).String()),
		OrderPaidBy:   new("writers"),
		About:         a,
		Reader:        &reader,
		Bell:          new(bell(m.Words, m.Hints)),
		Lanes:         make([]Lane, 0, len(m.Lanes)),
	}
	refused := m.Words.NoBarrier.Load()
	q.NoBarrier = new(refused != 0 && refused == *a.Generation)
	if o.ReaderPays {
		*q.OrderPaidBy = "reader"
	}
	if !o.Events { // an event has one form
		q.Format = new(cq.Format(o.Format).String())
	}
	state := m.Words.State.Load()
	q.lanes(m)
	q.State = new(q.state(state))
	return q, nil
}

// lanes describes each lane and sums them up.
func (q *Queue) lanes(m *inspect.Queue) {
	var level kind.Level
	var traffic kind.Traffic
	var overruns uint64
	for row := range m.Options.Rows {
		r := &m.Rows[row]
		obj, there := m.Lanes[row]
		if !there { // it was removed: all that was published is read, and nothing waits
			head := r.Head.Load()
			level.Add(kind.Level{Head: head, Peeked: head, Tail: head, HighWater: r.HighWater.Load(),
				Read: head})
			continue
		}
		l := Lane{Row: row, Own: row == 0}
		var at kind.Level
		var by kind.Traffic
		if err := obj.Read(func(obj *shm.Object) (err error) {
			at, by, err = l.describe(obj, r, &m.Options)
			return err
		}); err != nil {
			q.Lanes = append(q.Lanes, Lane{Row: row, Own: row == 0, Error: NewProblem(err),
				State: stateOfError(err)})
			continue
		}
		q.Lanes = append(q.Lanes, l)
		level.Add(at)
		traffic.Add(by)
		if *l.Overrun {
			overruns++
		}
		if !l.Own { // lane 0 lies in the reader's object
			*q.SizeBytes += *l.SizeBytes
		}
	}
	q.Levels, q.Overruns = levels(level, traffic), &overruns
}

func levels(at kind.Level, by kind.Traffic) Levels {
	return Levels{Head: &at.Head, Peeked: &at.Peeked, Tail: &at.Tail, Depth: new(at.Depth()),
		Unreleased: new(at.Unreleased()), HighWater: &at.HighWater, Posted: &at.Tail, Read: &at.Read,
		Publishes: &by.Publishes, Wakes: &by.Wakes, WakesSuppressed: &by.WakesSuppressed,
		Refused: &by.Refused}
}

// describe says how a lane stands, by its memory and its row in the reader's.
func (l *Lane) describe(obj *shm.Object, r *kind.RowWords, o *kind.Queue) (at kind.Level,
	by kind.Traffic, err error) {
	words, err := kind.WordsOf[kind.LaneWords](obj, kind.SectLane, uint32(l.Row))
	if err != nil {
		return at, by, err
	}
	life, err := obj.Life()
	if err != nil {
		return at, by, err
	}
	if at, err = kind.ReadLevel(r, words, uint64(o.Capacity), obj.Name()); err != nil {
		return at, by, err
	}
	by = words.Traffic()
	flags := r.Bell.Parked.Load()
	l.Process, l.Generation = DescribeProcess(obj.Owner(), life), new(obj.Generation())
	l.Levels, l.Overrun = levels(at, by), new(words.Overrun.Load() != 0)
	l.Poisoned, l.Parked = new(flags&kind.RowPoisoned != 0), new(flags&wake.Parked != 0)
	l.Order, l.SizeBytes = new("seq-cst"), new(obj.Header().TotalBytes)
	if words.Order.Load() == kind.OrderRelease {
		*l.Order = "release"
	}
	l.State = l.state(uint64(o.Capacity))
	return at, by, nil
}

func bell(words *kind.QueueWords, hints *wake.Hints) Bell {
	v := wake.Inspect(words.Arm.Word.Load(), hints)
	b := Bell{Armed: v.Armed, Direct: v.Direct, FD: v.FD, Member: v.Member, Channel: "none",
		Seq: v.Seq, Rung: v.Rung, Epoch: v.Epoch, SignalPending: v.Signal, ReadyLanes: v.Ready}
	switch v.Notify {
	case wake.NotifySolicited:
		b.Channel = "solicited"
	case wake.NotifyAny:
		b.Channel = "any"
	}
	if w := &words.Bell; w.Generation.Load() != 0 {
		b.Domain = new(kind.UuidOf(w.High.Load(), w.Low.Load()).String())
		b.DomainBit = new(w.Bit.Load())
	}
	return b
}

// DescribeProcess says what is known of the owner of an object, also for tools that look at objects
// of kinds that this package does not know.
func DescribeProcess(o shm.Owner, life shm.Life) Process {
	p := Process{Life: new(life.String())}
	if o.PID == 0 {
		return p
	}
	p.PID = &o.PID
	if o.PIDNS != 0 {
		p.PIDNamespace = &o.PIDNS
	}
	alive, known := shm.ProcessAlive(o)
	switch {
	case known:
		p.Alive = &alive
	case life == shm.Alive: // the kernel holds its lock, wherever it lives
		p.Alive = new(true)
	case life == shm.Dead:
		p.Alive = new(false)
	}
	if known && alive {
		p.Command, p.Stopped = command(o.PID), stopped(o.PID)
	}
	if known && !alive && life == shm.Alive {
		p.Life = new(lifeKept)
	}
	return p
}

// stopped reports whether a process of our own PID namespace is stopped, nil if that is not known.
func stopped(pid int) *bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	after := text[bytes.LastIndexByte(text, ')')+1:] // a name may have parentheses in it
	return new(bytes.HasPrefix(after, []byte(" T")) || bytes.HasPrefix(after, []byte(" t")))
}

// command returns the name of a process of our own PID namespace. Its owner chose it.
func command(pid int) *string {
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return nil
	}
	name := text.Printable(strings.TrimSuffix(string(comm), "\n"))
	return &name
}
